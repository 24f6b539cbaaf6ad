package outgoing

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// connect is connect(2) for a socket that does not wait: past the scheduler's book-keeping, since it returns at once. An
// address is of IPv4 or of IPv6, without a zone.
func connect(fd int, to netip.AddrPort) error {
	var errno unix.Errno
	if to.Addr().Is4() {
		address := unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&address.Port))[:], to.Port())
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address)), unsafe.Sizeof(address))
	} else {
		address := unix.RawSockaddrInet6{Family: unix.AF_INET6, Addr: to.Addr().As16()}
		binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&address.Port))[:], to.Port())
		_, _, errno = unix.RawSyscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&address)), unsafe.Sizeof(address))
	}
	if errno != 0 {
		return errno
	}
	return nil
}
