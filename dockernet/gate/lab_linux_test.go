package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/icmp"
	icmp4 "golang.org/x/net/ipv4"
	icmp6 "golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/netns"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/dockernet/nft/nfttest"
)

// lab is a workload's namespace and one that has every other address: what is sent to any address and port there is
// answered, and it is known what has come.
type lab struct {
	workload, outside *netnstest.Namespace
	gate              *Gate
	memory            *nftables.Conn // of what has come to the outside
	sockets           *netns.Sockets
}

const (
	tcpService = 9000
	udpService = 9001
)

// outsideRules send everything but UDP port 9 to two services, and remember who was asked.
const outsideRules = `
table inet outside {
	set seen4 { type ipv4_addr . inet_proto . inet_service; size 65535; flags dynamic; }
	set seen6 { type ipv6_addr . inet_proto . inet_service; size 65535; flags dynamic; }
	chain remember {
		type filter hook prerouting priority -300; policy accept;
		iifname != "eth0" accept
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, mld2-listener-report } accept
		add @seen4 { ip daddr . meta l4proto . th dport }
		add @seen6 { ip6 daddr . meta l4proto . th dport }
		udp dport 9 drop
	}
	chain divert {
		type nat hook prerouting priority -100; policy accept;
		iifname != "eth0" accept
		meta l4proto tcp redirect to :9000
		meta l4proto udp redirect to :9001
		meta l4proto { icmp, ipv6-icmp } redirect
	}
}
`

// newLab makes the namespaces, without a gate's rules. The outside routes all that comes in to itself, unless closed is
// set: then it is what an internal network has behind the bridge, nothing.
func newLab(t testing.TB, closed bool) *lab {
	t.Helper()
	l := &lab{workload: netnstest.New(t), outside: netnstest.New(t)}
	netnstest.Link(t,
		netnstest.End{In: l.workload, Name: "eth0", Addresses: prefixes("198.51.100.2/24", "2001:db8:1::2/64")},
		netnstest.End{In: l.outside, Name: "eth0", Addresses: prefixes("198.51.100.1/24", "198.51.100.20/24", "2001:db8:1::1/64", "2001:db8:1::20/64")})
	h := l.workload.Handle(t)
	// IPv6 does nothing before the kernel has seen that the link is up, which takes a while when many links change.
	for _, end := range []*netlink.Handle{h, l.outside.Handle(t)} {
		wait(t, "the link to be up", func() bool {
			link, err := end.LinkByName("eth0")
			return err == nil && link.Attrs().OperState == netlink.OperUp
		})
	}
	if !closed {
		for _, via := range addrs("198.51.100.1", "2001:db8:1::1") {
			if err := h.RouteAdd(&netlink.Route{Gw: via.AsSlice()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.anyAddress(t)
	nfttest.Run(t, l.outside, outsideRules, "-f", "-")
	l.outside.Run(t, func() error {
		tcp, err := net.Listen("tcp", fmt.Sprintf(":%d", tcpService))
		if err != nil {
			return err
		}
		udp, err := net.ListenPacket("udp", fmt.Sprintf(":%d", udpService))
		if err != nil {
			return err
		}
		serveTCP(t, tcp, "direct")
		serveUDP(t, udp, "direct")
		return nil
	})
	l.outside.Run(t, func() (err error) {
		l.memory, err = nftables.New(nftables.AsLasting())
		return err
	})
	t.Cleanup(func() { _ = l.memory.CloseLasting() })
	l.gate = newGate(t, l.workload)
	return l
}

// newGate returns a gate that is closed when the test ends.
func newGate(t testing.TB, ns *netnstest.Namespace) *Gate {
	g := New(ns.Namespace)
	t.Cleanup(g.Close)
	return g
}

// anyAddress makes the outside take what comes in on its link for its own, whatever the destination.
func (l *lab) anyAddress(t testing.TB) {
	t.Helper()
	h := l.outside.Handle(t)
	lo, err := h.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	const table = 100
	for _, p := range prefixes("0.0.0.0/0", "::/0") {
		r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: netnstest.IPNet(p), Table: table, Type: unix.RTN_LOCAL, Scope: netlink.SCOPE_HOST}
		if err := h.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
		rule := netlink.NewRule()
		rule.IifName, rule.Table, rule.Priority = "eth0", table, 10
		rule.Family = unix.AF_INET
		if p.Addr().Is6() {
			rule.Family = unix.AF_INET6
		}
		if err := h.RuleAdd(rule); err != nil {
			t.Fatal(err)
		}
	}
}

// neighbours makes every address on the link the outside's, for the workload, so that nothing waits for an answer.
func (l *lab) neighbours(t testing.TB) {
	t.Helper()
	there, err := l.outside.Handle(t).LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	h := l.workload.Handle(t)
	here, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range []netip.Addr{own4, sibling4, own6, sibling6, linkLocalSibling,
		netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1")} {
		n := &netlink.Neigh{LinkIndex: here.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: there.Attrs().HardwareAddr}
		if err := h.NeighSet(n); err != nil {
			t.Fatal(err)
		}
	}
}

// listen opens the session's listeners, which say who they are.
func (l *lab) listen(t testing.TB) Listeners {
	t.Helper()
	s, err := l.workload.Listen()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	l.sockets = s
	return serve(t, s, "")
}

// serve makes sockets say that they are the proxy and the DNS filter, with something before it.
func serve(t testing.TB, s *netns.Sockets, before string) Listeners {
	t.Helper()
	for _, f := range []*os.File{s.TCP4.File, s.TCP6.File} {
		tcp, err := net.FileListener(f)
		if err != nil {
			t.Fatal(err)
		}
		serveTCP(t, tcp, before+"proxy")
	}
	for _, f := range []*os.File{s.UDP4.File, s.UDP6.File} {
		udp, err := net.FilePacketConn(f)
		if err != nil {
			t.Fatal(err)
		}
		serveUDP(t, udp, before+"dns")
	}
	return Listeners{TCP4: s.TCP4.Port, UDP4: s.UDP4.Port, TCP6: s.TCP6.Port, UDP6: s.UDP6.Port}
}

// serveTCP answers every byte with its name.
func serveTCP(t testing.TB, l net.Listener, name string) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buffer := make([]byte, 1)
				for {
					if _, err := c.Read(buffer); err != nil {
						return
					}
					if _, err := c.Write([]byte(name + "\n")); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// serveUDP answers every packet with its name.
func serveUDP(t testing.TB, l net.PacketConn, name string) {
	t.Cleanup(func() { l.Close() })
	go func() {
		buffer := make([]byte, 2048)
		for {
			_, from, err := l.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = l.WriteTo([]byte(name+"\n"), from)
		}
	}()
}

// example is the Spec for this lab: as the package's example, with the listeners that are there.
func (l *lab) spec(t testing.TB, listeners Listeners, phases ...direct.Phase) *Spec {
	t.Helper()
	s := example(true, threeOf(t, phases[0], phases[1:]...))
	s.Listeners = listeners
	return s
}

// patience bounds how long a probe waits for an answer that should come.
const patience = 20 * time.Second

// probe sends something from the workload and returns who answered, or "refused".
func (l *lab) probe(t testing.TB, protocol, to string) string {
	t.Helper()
	var answer string
	l.workload.Run(t, func() error {
		switch protocol {
		case "ping":
			answer = ping(netip.MustParseAddr(to))
		default:
			answer = request(protocol, to)
		}
		return nil
	})
	return answer
}

func request(network, to string) string {
	c, err := net.DialTimeout(network, to, patience)
	if err != nil {
		return outcome(err)
	}
	defer c.Close()
	if !strings.HasPrefix(network, "udp") {
		return exchange(c)
	}
	// A datagram may be lost while the kernel looks for a neighbour. Whoever waits for one answer for as long as all of
	// the test may take has no time for another question.
	const tries = 20
	for range tries - 1 {
		if answer, lost := exchangeWithin(c, patience/tries); !lost {
			return answer
		}
	}
	answer, _ := exchangeWithin(c, patience/tries)
	return answer
}

// exchange sends a byte on the connection and returns the line that comes.
func exchange(c net.Conn) string {
	answer, _ := exchangeWithin(c, patience)
	return answer
}

// exchangeWithin reports too whether nothing came in time.
func exchangeWithin(c net.Conn, limit time.Duration) (answer string, lost bool) {
	if _, err := c.Write([]byte{'?'}); err != nil {
		return outcome(err), false
	}
	_ = c.SetReadDeadline(time.Now().Add(limit))
	buffer := make([]byte, 64)
	n, err := c.Read(buffer)
	if err != nil {
		return outcome(err), errors.Is(err, os.ErrDeadlineExceeded)
	}
	name, _, _ := strings.Cut(string(buffer[:n]), "\n")
	return name, false
}

// lastRefusal is what outcome made a refusal of last, for messages.
var lastRefusal atomic.Value

// outcome tells a refusal, which is quick, from all other errors.
func outcome(err error) string {
	for _, refusal := range []unix.Errno{unix.ECONNREFUSED, unix.ECONNRESET, unix.EPERM, unix.EHOSTUNREACH, unix.EACCES} {
		if errors.Is(err, refusal) {
			lastRefusal.Store(err.Error())
			return "refused"
		}
	}
	return err.Error()
}

// ping runs in the namespace of the calling thread.
func ping(to netip.Addr) string {
	network, proto, request, reply := "ip4:icmp", 1, icmp.Type(icmp4.ICMPTypeEcho), icmp.Type(icmp4.ICMPTypeEchoReply)
	if to.Is6() {
		network, proto, request, reply = "ip6:ipv6-icmp", 58, icmp6.ICMPTypeEchoRequest, icmp6.ICMPTypeEchoReply
	}
	c, err := net.ListenPacket(network, "")
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	id := int(binary.BigEndian.Uint16([]byte{to.AsSlice()[len(to.AsSlice())-1], 7}))
	m := icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: 1, Data: []byte("ping")}}
	b, err := m.Marshal(nil)
	if err != nil {
		return err.Error()
	}
	if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
		return outcome(err)
	}
	_ = c.SetReadDeadline(time.Now().Add(patience))
	buffer := make([]byte, 1500)
	for {
		n, _, err := c.ReadFrom(buffer)
		if err != nil {
			return outcome(err)
		}
		got, err := icmp.ParseMessage(proto, buffer[:n])
		if echo, ok := got.Body.(*icmp.Echo); err == nil && ok && got.Type == reply && echo.ID == id {
			return "direct"
		}
	}
}

// seen reports whether anything of the protocol to the address and port has come to the outside.
func (l *lab) seen(t testing.TB, protocol string, to netip.Addr, port uint16) bool {
	t.Helper()
	elements, err := l.memory.GetSetElements(seenSet(kindOf(to)))
	if err != nil {
		t.Fatal(err)
	}
	number := map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "ping": unix.IPPROTO_ICMP}[protocol]
	if protocol == "ping" && to.Is6() {
		number = unix.IPPROTO_ICMPV6
	}
	key := append(to.AsSlice(), number, 0, 0, 0) // each in units of four bytes
	if protocol != "ping" {
		key = append(key, byte(port>>8), byte(port), 0, 0)
	}
	return slices.ContainsFunc(elements, func(e nftables.SetElement) bool { return bytes.HasPrefix(e.Key, key) })
}

// forget empties what seen knows.
func (l *lab) forget(t testing.TB) {
	t.Helper()
	l.memory.FlushSet(seenSet(nft.IPv4))
	l.memory.FlushSet(seenSet(nft.IPv6))
	if err := l.memory.Flush(); err != nil {
		t.Fatal(err)
	}
}

func seenSet(f nft.Kind) *nftables.Set {
	return &nftables.Set{Table: &nftables.Table{Name: "outside", Family: nftables.TableFamilyINet}, Name: "seen" + version(f)}
}

// wait waits until something is true, or fails after a time that is long enough.
func wait(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

func writeSysctl(t testing.TB, ns *netnstest.Namespace, name, value string) {
	t.Helper()
	ns.Run(t, func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
}

// routeVia runs f while packets to the address go to the given router on the link.
func routeVia(t testing.TB, ns *netnstest.Namespace, to, via netip.Addr, f func() error) error {
	t.Helper()
	h := ns.Handle(t)
	r := &netlink.Route{Dst: netnstest.IPNet(netip.PrefixFrom(to, to.BitLen())), Gw: via.AsSlice()}
	if err := h.RouteAdd(r); err != nil {
		return err
	}
	return errors.Join(f(), h.RouteDel(r))
}

// neighboursOf makes the workload the neighbour that has an address, for the outside.
func (l *lab) neighboursOf(t testing.TB, a netip.Addr) {
	t.Helper()
	there, err := l.workload.Handle(t).LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	h := l.outside.Handle(t)
	here, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.RouteAdd(&netlink.Route{LinkIndex: here.Attrs().Index, Dst: netnstest.IPNet(netip.PrefixFrom(a, a.BitLen())), Scope: netlink.SCOPE_LINK}); err != nil {
		t.Fatal(err)
	}
	if err := h.NeighSet(&netlink.Neigh{LinkIndex: here.Attrs().Index, State: netlink.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: there.Attrs().HardwareAddr}); err != nil {
		t.Fatal(err)
	}
}
