package main

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

func TestBindTakesPlainTCP(t *testing.T) {
	l, err := bind("listen", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	protocol := 0
	var failed error
	if err := raw.Control(func(fd uintptr) { protocol, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PROTOCOL) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	if protocol != unix.IPPROTO_TCP {
		t.Errorf("protocol %d, want %d", protocol, unix.IPPROTO_TCP)
	}
}
