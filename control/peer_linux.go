package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
	"unsafe"
)

// CheckPeer reports, as an error, a peer that is neither root, nor the caller's own effective user, nor one of uids.
//
// The kernel gives the user id of the process that connected (for an accepted connection) or that listened (for a
// dialled one), as seen from the caller's user namespace: SO_PEERCRED in unix(7).
func CheckPeer(c *net.UnixConn, uids ...uint32) error {
	cred, _, err := peer(c)
	if err != nil || mayTalk(cred.Uid, uint32(os.Geteuid()), uids) {
		return err
	}
	return fmt.Errorf("peer has user id %d (process %d): only %v may talk here", cred.Uid, cred.Pid, append([]uint32{0, uint32(os.Geteuid())}, uids...))
}

// CheckPeerGroup reports, as an error, a peer that is neither root, nor the caller's own effective user, nor in the
// group.
func CheckPeerGroup(c *net.UnixConn, gid uint32) error {
	cred, groups, err := peer(c)
	if err != nil || mayTalk(cred.Uid, uint32(os.Geteuid()), nil) || cred.Gid == gid || slices.Contains(groups, gid) {
		return err
	}
	return fmt.Errorf("peer has user id %d (process %d): only root, user id %d and the group %d may talk here", cred.Uid, cred.Pid, os.Geteuid(), gid)
}

// PeerProcess returns the process and user at the other end, as seen from the caller's namespaces; a process that cannot be
// seen from there is 0. For an accepted connection it is who connected.
func PeerProcess(c *net.UnixConn) (pid int, uid uint32, err error) {
	cred, _, err := peer(c)
	if err != nil {
		return 0, 0, err
	}
	return int(cred.Pid), cred.Uid, nil
}

func mayTalk(peer, own uint32, others []uint32) bool {
	return peer == 0 || peer == own || slices.Contains(others, peer)
}

// peer returns who is at the other end, and the groups of that process besides its first.
func peer(c *net.UnixConn) (*syscall.Ucred, []uint32, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, nil, fmt.Errorf("peer of the socket: %w", err)
	}
	var cred *syscall.Ucred
	var groups []uint32
	var inner error
	if err := raw.Control(func(fd uintptr) {
		if cred, inner = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); inner == nil {
			groups, inner = peerGroups(fd)
		}
	}); err != nil {
		return nil, nil, fmt.Errorf("peer of the socket: %w", err)
	}
	if inner != nil {
		return nil, nil, fmt.Errorf("peer of the socket: %w", inner)
	}
	return cred, groups, nil
}

// soPeerGroups is SO_PEERGROUPS of asm-generic/socket.h, which package syscall does not know.
const soPeerGroups = 59

// maxGroups is NGROUPS_MAX (getgroups(2)).
const maxGroups = 1 << 16

func peerGroups(fd uintptr) ([]uint32, error) {
	for room := 64; room <= maxGroups; room *= 32 {
		groups := make([]uint32, room)
		size := uint32(room) * 4
		_, _, errno := syscall.Syscall6(syscall.SYS_GETSOCKOPT, fd, syscall.SOL_SOCKET, soPeerGroups,
			uintptr(unsafe.Pointer(&groups[0])), uintptr(unsafe.Pointer(&size)), 0)
		switch errno {
		case 0:
			return groups[:size/4], nil
		case syscall.ENODATA: // a peer without credentials, which SO_PEERCRED shows as nobody
			return nil, nil
		case syscall.ERANGE:
			continue
		default:
			return nil, errno
		}
	}
	return nil, errors.New("more groups than a process can have")
}
