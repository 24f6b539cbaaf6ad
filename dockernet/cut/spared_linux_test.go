package cut

import (
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
)

// Where a sidecar lives in the namespace, its connections go on, also where every entry is looked at. The workload's end,
// those too that have another mark.
func TestCutSpares(t *testing.T) {
	const socketMark, entryMark = 0xdeadbeef, 0x51
	for i, family := range []string{"ipv4", "ipv6"} {
		for name, raw := range map[string]bool{"": false, "_beside_raw_sockets": true} {
			t.Run(family+name, func(t *testing.T) {
				w := newWorld(t)
				nft(t, w.inside, gateRules)
				nft(t, w.inside, "add rule inet gate output meta mark 0xdeadbeef ct mark set 0x51")
				serve(t, w.outside, servicePort, beyond...)
				if raw {
					w.inside.Run(t, func() error {
						fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
						if err == nil {
							t.Cleanup(func() { unix.Close(fd) })
						}
						return err
					})
				}
				mine := []net.Conn{
					marked(t, w.inside, socketMark, "tcp", refused[i]), marked(t, w.inside, socketMark, "udp", refused[i]),
				}
				kept := connect(t, w.inside, "tcp", allowed[i], servicePort)
				goes := []net.Conn{
					connect(t, w.inside, "tcp", refused[i], servicePort), connect(t, w.inside, "udp", refused[i], servicePort),
					marked(t, w.inside, socketMark+1, "tcp", refused[i]), marked(t, w.inside, entryMark, "udp", refused[i]),
				}
				s := w.spec(true)
				s.Spared, s.Host = &Spared{Socket: socketMark, Entry: entryMark}, w.inside.Namespace
				if r := w.cut(t, s); r.Sockets != len(goes) || r.Kept != 1 || r.Entries != len(goes) || r.HostEntries != 0 {
					t.Errorf("report %+v", r)
				}
				for _, c := range goes {
					aborted(t, "the workload's", c)
				}
				if n := entriesTo(t, w.inside, refused[i]); n != len(mine) {
					t.Errorf("%d entries to the refused address, want the sidecar's %d", n, len(mine))
				}
				survives(t, "allowed", kept)
				for _, c := range mine {
					survives(t, "the sidecar's", c)
				}
			})
		}
	}
}

// marked is connect with a mark on the socket.
func marked(t *testing.T, ns *netnstest.Namespace, mark uint32, network string, to netip.Addr) (c net.Conn) {
	t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark)) })
		if failed != nil {
			return failed
		}
		return err
	}}
	ns.Run(t, func() (err error) {
		c, err = dialer.Dial(network, netip.AddrPortFrom(to, servicePort).String())
		return err
	})
	t.Cleanup(func() { c.Close() })
	if err := ping(c); err != nil {
		t.Fatal(err)
	}
	return c
}
