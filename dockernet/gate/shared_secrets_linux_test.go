package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/nft/nfttest"
)

// Who has not CAP_NET_ADMIN learns neither mark nor group of the sidecar's sockets from the kernel's list of sockets.
func TestSharedSocketsAreListed(t *testing.T) {
	l, own := newShared(t)
	p := phaseOf(t, "allowlist", "ok.test")
	l.install(t, l.shared(t, l.listen(t), p, p, p))
	for _, tt := range []struct{ network, to string }{
		{"tcp", "192.0.2.200:80"}, {"tcp", "[2001:db8:2::200]:80"}, {"udp", "192.0.2.53:53"}, {"udp", "[2001:db8:2::53]:53"},
	} {
		got, c := l.ours(t, own, theSidecar, tt.network, tt.to)
		if got != "direct" {
			t.Fatalf("%v: %s", tt, got)
		}
		port := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
		var all, some []byte
		l.workload.Run(t, func() (err error) {
			if all, err = socketsOf(tt.network, c.RemoteAddr()); err != nil {
				return err
			}
			return withoutNetAdmin(func() error {
				some, err = socketsOf(tt.network, c.RemoteAddr())
				return err
			})
		})
		if !bytes.Contains(some, binary.BigEndian.AppendUint16(nil, port)) {
			t.Errorf("%v: the socket is not in the list, so this shows nothing", tt)
		}
		if !bytes.Contains(all, binary.NativeEndian.AppendUint32(nil, secret)) {
			t.Errorf("%v: not even CAP_NET_ADMIN shows the mark, so this shows nothing", tt)
		}
		for name, number := range map[string]uint32{"mark": secret, "group": secretGroup} {
			if bytes.Contains(some, binary.NativeEndian.AppendUint32(nil, number)) {
				t.Errorf("LEAK: the list for everybody has the %s of %v", name, tt)
			}
		}
	}
}

// withoutNetAdmin is f with a workload's rights, on the calling thread.
func withoutNetAdmin(f func() error) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var had [2]unix.CapUserData
	if err := unix.Capget(&header, &had[0]); err != nil {
		return err
	}
	has := had
	has[0].Effective &^= 1 << unix.CAP_NET_ADMIN
	if err := unix.Capset(&header, &has[0]); err != nil {
		return err
	}
	return errors.Join(f(), unix.Capset(&header, &had[0]))
}

// socketsOf is what the kernel says of all sockets of a protocol and family, with all that it can be asked for:
// linux/inet_diag.h.
func socketsOf(network string, like net.Addr) (list []byte, err error) {
	family, protocol := byte(unix.AF_INET), byte(unix.IPPROTO_TCP)
	if netip.MustParseAddrPort(like.String()).Addr().Is6() {
		family = unix.AF_INET6
	}
	if network == "udp" {
		protocol = unix.IPPROTO_UDP
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	const byFamily, requestBytes = 20, 56 // SOCK_DIAG_BY_FAMILY
	request := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+requestBytes)
	request = binary.NativeEndian.AppendUint16(request, byFamily)
	request = binary.NativeEndian.AppendUint16(request, unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	request = append(request, make([]byte, 8)...)
	request = append(request, family, protocol, 0xff, 0) // all extensions
	request = binary.NativeEndian.AppendUint32(request, 0xffffffff)
	request = append(request, make([]byte, 48)...)
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(patience / time.Second)}); err != nil {
		return nil, err
	}
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, 0)
		if err != nil {
			return nil, os.NewSyscallError("list of sockets", err)
		}
		if n < unix.NLMSG_HDRLEN {
			return nil, io.ErrUnexpectedEOF
		}
		if kind := binary.NativeEndian.Uint16(buffer[4:]); kind != byFamily {
			return list, nil
		}
		list = append(list, buffer[:n]...)
	}
}

// What a connection of the sidecar's has still to send when it is closed, it sends.
func TestSharedClosedConnection(t *testing.T) {
	const size = 100 << 10
	for name, to := range map[string]string{"ipv4": "198.51.100.20:7777", "ipv6": "[2001:db8:1::20]:7777"} {
		t.Run(name, func(t *testing.T) {
			l, own := newShared(t)
			p := phaseOf(t, "allowlist", "ok.test")
			l.install(t, l.shared(t, l.listen(t), p, p, p))
			nfttest.Run(t, l.outside, "", "delete", "table", "inet", "outside")
			var server net.Listener
			l.outside.Run(t, func() (err error) {
				server, err = net.Listen("tcp", "[::]:7777")
				return err
			})
			defer server.Close()
			c, end, err := l.connect(own, theSidecar, "tcp", to)
			if err != nil {
				t.Fatal(err)
			}
			there, err := server.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer there.Close()
			// More than the other side takes before somebody reads, so that most is here when the connection is closed.
			if err := errors.Join(there.(*net.TCPConn).SetReadBuffer(4<<10), c.(*net.TCPConn).SetWriteBuffer(4*size)); err != nil {
				t.Fatal(err)
			}
			_, err = c.Write(make([]byte, size))
			if err := errors.Join(err, end()); err != nil {
				t.Fatal(err)
			}
			if err := there.SetReadDeadline(time.Now().Add(patience)); err != nil {
				t.Fatal(err)
			}
			if n, err := io.Copy(io.Discard, there); n != size || err != nil {
				t.Errorf("%d bytes of %d came: %v", n, size, err)
			}
		})
	}
}
