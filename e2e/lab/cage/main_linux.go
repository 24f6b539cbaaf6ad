// Program cage tries system calls by which a process could get out of where it is kept, and prints how each ended, a line
// each. It runs where sluice-proxy does.
package main

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

func main() {
	try := func(name string, call uintptr, args ...uintptr) {
		var a [6]uintptr
		copy(a[:], args)
		_, _, err := unix.RawSyscall6(call, a[0], a[1], a[2], a[3], a[4], a[5])
		fmt.Printf("%s %s\n", name, unix.ErrnoName(err))
	}
	name := [2]byte{'x'}
	try("ptrace", unix.SYS_PTRACE, unix.PTRACE_ATTACH, 1<<30) // nobody
	try("bpf", unix.SYS_BPF, 0, 0, 0)
	try("unshare", unix.SYS_UNSHARE, unix.CLONE_NEWUSER)
	try("packet", unix.SYS_SOCKET, unix.AF_PACKET, unix.SOCK_RAW, 0)
	try("vsock", unix.SYS_SOCKET, unix.AF_VSOCK, unix.SOCK_STREAM, 0)
	try("netfilter", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)
	try("memfd", unix.SYS_MEMFD_CREATE, uintptr(unsafe.Pointer(&name)), 0)
	try("keyctl", unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(2), 0) // KEY_SPEC_SESSION_KEYRING is -3
	try("io_uring", unix.SYS_IO_URING_SETUP, 0, 0)
	try("process", unix.SYS_CLONE, unix.CLONE_NEWNS|unix.CLONE_FS)                                                   // which no kernel does
	try("symlink", unix.SYS_SYMLINKAT, uintptr(unsafe.Pointer(&name)), ^uintptr(99), uintptr(unsafe.Pointer(&name))) // AT_FDCWD is -100
	try("stream", unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM, 0)
	try("route", unix.SYS_SOCKET, unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)
}
