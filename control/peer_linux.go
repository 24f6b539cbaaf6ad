package control

import (
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"
)

// CheckPeer reports, as an error, a peer that is neither root, nor the caller's own effective user, nor one of uids.
//
// The kernel gives the user id of the process that connected (for an accepted connection) or that listened (for a
// dialled one), as seen from the caller's user namespace: SO_PEERCRED in unix(7).
func CheckPeer(c *net.UnixConn, uids ...uint32) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("peer of the socket: %w", err)
	}
	var cred *syscall.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return fmt.Errorf("peer of the socket: %w", err)
	}
	if credErr != nil {
		return fmt.Errorf("peer of the socket: %w", credErr)
	}
	if mayTalk(cred.Uid, uint32(os.Geteuid()), uids) {
		return nil
	}
	return fmt.Errorf("peer has user id %d (process %d): only %v may talk here", cred.Uid, cred.Pid, append([]uint32{0, uint32(os.Geteuid())}, uids...))
}

func mayTalk(peer, own uint32, others []uint32) bool {
	return peer == 0 || peer == own || slices.Contains(others, peer)
}
