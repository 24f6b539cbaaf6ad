package e2e

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/controller/api"
	"sluice/dockernet/netns"
	"sluice/dockernet/nft/rawip"
	"sluice/e2e/lab/client"
)

// TestSwitchLateAnswers asks a neighbour and the host, who answer when a switch is over. That is no connection into the
// container, which could be answered in every mode: nothing goes on. The gate refuses it, and without the gate the guard.
func TestSwitchLateAnswers(t *testing.T) {
	l := startLate(t)
	sibling, siblingAddress := l.start(t, "late-sibling")
	witness, _ := l.start(t, "late-witness")
	app, _ := l.start(t, "late-app")
	gateway := netip.MustParseAddr(strings.TrimSpace(l.docker(t, "network", "inspect", "--format", "{{range .IPAM.Config}}{{.Gateway}}{{end}}", l.network)))
	l.attach(t, "late-app", "baseline")
	open := func(enter func(func() error) error, at netip.AddrPort) *net.UDPConn {
		t.Helper()
		var u *net.UDPConn
		if err := enter(func() (err error) {
			u, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { u.Close() })
		return u
	}
	send := func(u *net.UDPConn, what string, to netip.AddrPort) {
		t.Helper()
		if _, err := u.WriteToUDPAddrPort([]byte(what), to); err != nil {
			t.Fatalf("%s to %v: %v", what, to, err)
		}
	}
	next := func(u *net.UDPConn) (string, netip.AddrPort) {
		t.Helper()
		if err := u.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		n, from, err := u.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n]), from
	}
	type asked struct {
		far, near *net.UDPConn
		at        netip.AddrPort
		by        netip.AddrPort
	}
	var all []*asked
	for name, far := range map[string]*asked{
		"sibling": {far: open(sibling.Do, netip.AddrPortFrom(siblingAddress, 9000)), at: netip.AddrPortFrom(siblingAddress, 9000)},
		"host":    {far: open(lab.InEngineNamespace, netip.AddrPortFrom(gateway, 9000)), at: netip.AddrPortFrom(gateway, 9000)},
	} {
		far.near = open(app.Do, netip.AddrPort{})
		send(far.near, "ask", far.at)
		var got string
		if got, far.by = next(far.far); got != "ask" {
			t.Fatalf("%s has got %q", name, got)
		}
		all = append(all, far)
	}
	l.closeNetwork(t, "late-app")
	end := open(witness.Do, netip.AddrPort{})
	for _, gone := range []string{"", "gate"} {
		if gone != "" {
			if err := app.Do(func() error {
				out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
				if err != nil {
					return fmt.Errorf("nft: %w: %s", err, out)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		for _, a := range all {
			send(a.far, "late", a.by)
			if got, _ := next(a.near); got != "late" {
				t.Fatalf("the answer is %q", got)
			}
			if _, err := a.near.WriteToUDPAddrPort([]byte("more"), a.at); err == nil && gone == "" {
				t.Errorf("LEAK: the gate lets more out to %v", a.at)
			}
			for range 3 { // what the container has sent before has been looked at by the last of them
				send(end, "end", a.at)
				if got, from := next(a.far); got != "end" {
					t.Errorf("LEAK: without %q %q has come from %v to %v", gone, got, from, a.at)
				}
			}
		}
	}
}

// TestSwitchLateSegments has a TCP connection that no socket stands for, to a neighbour who sends once more what was not
// acknowledged. Whether conntrack knows the connection still or takes that for its beginning, nothing goes on.
func TestSwitchLateSegments(t *testing.T) {
	l := startLate(t)
	sibling, siblingAddress := l.start(t, "late-sibling")
	app, appAddress := l.start(t, "late-app")
	l.attach(t, "late-app", "baseline")
	here, there := netip.AddrPortFrom(appAddress, 9101), netip.AddrPortFrom(siblingAddress, 9100)
	var server net.Listener
	if err := sibling.Do(func() (err error) {
		server, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(there))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	hand := newHand(t, app, here, there)
	if err := hand.send(tcpSYN, ""); err != nil {
		t.Fatal(err)
	}
	hand.await(t, func(flags byte, _ string) bool { return flags == tcpSYN|tcpACK })
	hand.seq++
	if err := hand.send(tcpACK, ""); err != nil {
		t.Fatal(err)
	}
	far, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	if _, err := far.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	again := func() { hand.await(t, func(_ byte, text string) bool { return text == "hello" }) }
	again()
	l.closeNetwork(t, "late-app")
	for _, forgotten := range []bool{false, true} {
		if forgotten {
			for _, enter := range []func(func() error) error{app.Do, lab.InEngineNamespace} {
				if err := enter(func() error { return forgetFrom(appAddress) }); err != nil {
					t.Fatal(err)
				}
			}
		}
		hand.drain()
		again()
		if err := hand.send(tcpACK, "more"); !errors.Is(err, unix.EPERM) {
			t.Errorf("LEAK: conntrack has forgotten the connection: %v; sending on it: %v, want %v", forgotten, err, unix.EPERM)
		}
	}
	if err := far.SetReadDeadline(time.Now()); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 16)
	if n, err := far.Read(b); err == nil {
		t.Errorf("LEAK: the neighbour has got %q", b[:n])
	}
}

// forgetFrom deletes conntrack's entries that began with a packet from an address, or to it.
func forgetFrom(a netip.Addr) error {
	for _, kind := range []netlink.ConntrackFilterType{netlink.ConntrackOrigSrcIP, netlink.ConntrackOrigDstIP} {
		f := new(netlink.ConntrackFilter)
		if err := f.AddIP(kind, a.AsSlice()); err != nil {
			return err
		}
		if _, err := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, f); err != nil {
			return err
		}
	}
	return nil
}

const (
	tcpSYN = 2
	tcpACK = 16
)

// hand makes TCP by raw sockets.
type hand struct {
	fd        int
	from, to  netip.AddrPort
	seq, next uint32
}

// newHand opens them in a namespace, with a listening socket that takes all that comes to its port, so that the kernel does
// not say that nobody is there.
func newHand(t *testing.T, ns *netns.Namespace, from, to netip.AddrPort) *hand {
	t.Helper()
	h := &hand{from: from, to: to, seq: 1000}
	if err := ns.Do(func() error {
		quiet, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(quiet) })
		nothing := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K}}
		if err := errors.Join(
			unix.SetsockoptSockFprog(quiet, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &nothing[0]}),
			unix.Bind(quiet, &unix.SockaddrInet4{Port: int(from.Port()), Addr: from.Addr().As4()}),
			unix.Listen(quiet, 1)); err != nil {
			return err
		}
		h.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(h.fd) })
	return h
}

// send sends a segment that acknowledges nothing new.
func (h *hand) send(flags byte, text string) error {
	b := rawip.Segment(h.from, h.to, h.seq, h.next, flags, text)
	return unix.Sendto(h.fd, b, 0, &unix.SockaddrInet4{Addr: h.to.Addr().As4()})
}

// await reads until a segment has come that is wanted.
func (h *hand) await(t *testing.T, wanted func(flags byte, text string) bool) {
	t.Helper()
	b := make([]byte, 2048)
	for deadline := time.Now().Add(waitLimit); time.Now().Before(deadline); {
		poll := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLIN}}
		if _, err := unix.Poll(poll, 100); err != nil && !errors.Is(err, unix.EINTR) {
			t.Fatal(err)
		}
		n, _, err := unix.Recvfrom(h.fd, b, unix.MSG_DONTWAIT)
		if err != nil || n < 40 || binary.BigEndian.Uint16(b[20:]) != h.to.Port() || binary.BigEndian.Uint16(b[22:]) != h.from.Port() {
			continue
		}
		s := b[20:n]
		if s[13]&tcpSYN != 0 {
			h.next = binary.BigEndian.Uint32(s[4:]) + 1
		}
		if wanted(s[13], string(s[4*(s[12]>>4):])) {
			return
		}
	}
	t.Fatal("the far end does not send")
}

// drain forgets what has come until now.
func (h *hand) drain() {
	b := make([]byte, 2048)
	for {
		if _, _, err := unix.Recvfrom(h.fd, b, unix.MSG_DONTWAIT); err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// late is a network with containers that are no part of a policy but for one.
type late struct {
	api     api.Client
	network string
}

func startLate(t *testing.T) *late {
	t.Helper()
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	l := &late{api.Client{Socket: theController.socket()}, "late-net"}
	l.docker(t, "network", "create", l.network)
	t.Cleanup(func() { l.docker(t, "network", "rm", l.network) })
	return l
}

func (l *late) docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := docker(args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// start starts a container and returns its network namespace and its address.
func (l *late) start(t *testing.T, name string) (*netns.Namespace, netip.Addr) {
	t.Helper()
	l.docker(t, "run", "--detach", "--name", name, "--network", l.network, client.Tag, "sleep", "infinity")
	t.Cleanup(func() { l.docker(t, "rm", "--force", name) })
	var pid int
	var own string
	shown := l.docker(t, "inspect", "--format", "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
	if _, err := fmt.Sscan(shown, &pid, &own); err != nil {
		t.Fatalf("%q: %v", shown, err)
	}
	ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns, netip.MustParseAddr(own)
}

// attach puts a container under policies that are public, but that of the phase "run".
func (l *late) attach(t *testing.T, name, phase string) {
	t.Helper()
	_, err := l.api.Attach(t.Context(), api.Attach{Container: name, Phase: phase, Policy: json.RawMessage(`{
		"baseline_network_policy": "public", "run_network_policy": "no-network", "evaluation_network_policy": "public"}`)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.api.Detach(context.Background(), name); err != nil {
			t.Error(err)
		}
	})
}

func (l *late) closeNetwork(t *testing.T, name string) {
	t.Helper()
	if _, err := l.api.Phase(t.Context(), name, "run", 0); err != nil {
		t.Fatal(err)
	}
}
