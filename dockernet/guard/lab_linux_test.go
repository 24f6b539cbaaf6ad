package guard

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/dockernet/netns"
	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/dockernet/nft/nfttest"
	"sluice/policy"
)

// lab is a host with a bridge, on which containers hang, and an outside that has every other address. Containers a and
// s hang on it by veth-a and so on, and have the addresses of their stations.
type lab struct {
	host, outside *netnstest.Namespace
	containers    map[string]*container
	guard         *Host
	watchers      map[string]*watch
	tokens        int
}

// container is a namespace with the interface eth0.
type container struct {
	*netnstest.Namespace
	station
	name  string
	index int // of its port on the host
	fd    int // a raw socket on eth0
}

func (c *container) port() string { return "veth-" + c.name }

const labBridge = "br-lab"

// The host on the bridge, and elsewhere; and an outside station.
var (
	gateway = station{bridgeA, netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8:1::1"), netip.MustParseAddr("fe80::42:c6ff:fe33:6401")}
	uplink4 = netip.MustParseAddr("203.0.113.1")
	uplink6 = netip.MustParseAddr("2001:db8:ffff::1")
	remote4 = netip.MustParseAddr("203.0.113.9")
	remote6 = netip.MustParseAddr("2001:db8:ffff::9")
)

// newLab makes the namespaces, with containers of these names: one letter each. Nobody is guarded yet.
func newLab(t testing.TB, names string) *lab {
	t.Helper()
	l := &lab{host: netnstest.New(t), outside: netnstest.New(t), containers: make(map[string]*container), watchers: make(map[string]*watch)}
	for path, value := range map[string]string{
		"net/ipv4/ip_forward":                        "1",
		"net/ipv6/conf/all/forwarding":               "1",
		"net/bridge/bridge-nf-call-iptables":         "0", // so that a missing attribute of the bridge shows
		"net/bridge/bridge-nf-call-ip6tables":        "0",
		"net/ipv4/conf/all/rp_filter":                "0",
		"net/ipv4/conf/default/rp_filter":            "0",
		"net/ipv4/conf/default/accept_local":         "1",
		"net/ipv6/conf/default/accept_ra":            "0",
		"net/ipv6/conf/default/accept_dad":           "0",
		"net/ipv6/conf/default/router_solicitations": "0",
	} {
		sysctl(t, l.host, path, value)
	}
	h := l.host.Handle(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = labBridge, bridgeA[:]
	if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	address(t, h, labBridge, "198.51.100.1/24", "2001:db8:1::1/64")
	for i, name := range strings.Split(names, "") {
		l.addContainer(t, name, byte(i+2))
	}

	netnstest.Link(t,
		netnstest.End{In: l.host, Name: "up0", Addresses: prefixes("203.0.113.1/24", "2001:db8:ffff::1/64")},
		netnstest.End{In: l.outside, Name: "eth0", Addresses: prefixes("203.0.113.9/24", "2001:db8:ffff::9/64")})
	for _, via := range []netip.Addr{remote4, remote6} {
		if err := h.RouteAdd(&netlink.Route{Gw: via.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
	o := l.outside.Handle(t)
	for _, via := range []netip.Addr{uplink4, uplink6} {
		if err := o.RouteAdd(&netlink.Route{Gw: via.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
	// Nobody has to ask for others' hardware addresses, so that frames keep their order.
	far, err := o.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []netip.Addr{remote4, remote6} {
		neighbourOf(t, h, "up0", n, far.Attrs().HardwareAddr)
	}
	for _, c := range l.containers {
		for _, n := range []netip.Addr{c.ip4, c.ip6} {
			neighbourOf(t, h, labBridge, n, c.hardware[:])
		}
	}
	l.open(t)
	return l
}

func neighbourOf(t testing.TB, h *netlink.Handle, device string, a netip.Addr, hardware net.HardwareAddr) {
	t.Helper()
	link, err := h.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	n := &netlink.Neigh{LinkIndex: link.Attrs().Index, State: unix.NUD_PERMANENT, IP: a.AsSlice(), HardwareAddr: hardware}
	if err := h.NeighSet(n); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) addContainer(t testing.TB, name string, n byte) {
	c := &container{Namespace: netnstest.New(t), name: name, station: station{
		hardware: nft.Hardware{0x02, 0x42, 0xc6, 0x33, 0x64, n},
		ip4:      netip.AddrFrom4([4]byte{198, 51, 100, n}),
	}}
	b := netip.MustParseAddr("2001:db8:1::").As16()
	b[15] = n
	c.ip6 = netip.AddrFrom16(b)
	b = netip.MustParseAddr("fe80::42:c6ff:fe33:6400").As16()
	b[15] = n
	c.linkLocal6 = netip.AddrFrom16(b)
	sysctl(t, c.Namespace, "net/ipv6/conf/default/accept_dad", "0")
	sysctl(t, c.Namespace, "net/ipv6/conf/default/router_solicitations", "0")

	netnstest.Link(t, netnstest.End{In: l.host, Name: c.port()}, netnstest.End{In: c.Namespace, Name: "eth0"})
	h, inside := l.host.Handle(t), c.Handle(t)
	port, err := h.LinkByName(c.port())
	if err != nil {
		t.Fatal(err)
	}
	c.index = port.Attrs().Index
	bridge, err := h.LinkByName(labBridge)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetMaster(port, bridge); err != nil {
		t.Fatal(err)
	}
	eth0, err := inside.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := inside.LinkSetDown(eth0); err != nil {
		t.Fatal(err)
	}
	if err := inside.LinkSetHardwareAddr(eth0, c.hardware[:]); err != nil {
		t.Fatal(err)
	}
	address(t, inside, "eth0", c.ip4.String()+"/24", c.ip6.String()+"/64")
	for _, via := range []netip.Addr{gateway.ip4, gateway.ip6} {
		if err := inside.RouteAdd(&netlink.Route{Gw: via.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
	c.Run(t, func() error {
		c.fd, err = packetSocket("eth0")
		return err
	})
	t.Cleanup(func() { unix.Close(c.fd) })
	l.containers[name] = c
	l.watch(t, name, c.Namespace, "eth0")
}

// address gives an interface its addresses and sets it up.
func address(t testing.TB, h *netlink.Handle, name string, list ...string) {
	t.Helper()
	link, err := h.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkSetUp(link); err != nil {
		t.Fatal(err)
	}
	for _, p := range prefixes(list...) {
		if err := h.AddrAdd(link, &netlink.Addr{IPNet: netnstest.IPNet(p), Flags: unix.IFA_F_NODAD}); err != nil {
			t.Fatal(err)
		}
	}
}

func sysctl(t testing.TB, ns *netnstest.Namespace, path, value string) {
	t.Helper()
	ns.Run(t, func() error { return os.WriteFile(filepath.Join("/proc/sys", path), []byte(value), 0) })
}

// open opens the guard and what watches the host and the outside.
func (l *lab) open(t testing.TB) {
	t.Helper()
	l.watch(t, "host", l.host, labBridge)
	l.watch(t, "outside", l.outside, "eth0")
	l.guard = l.openGuard(t)
	if err := l.guard.AddBridge(labBridge, false); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) openGuard(t testing.TB) *Host {
	t.Helper()
	g, err := Open(Config{LogGroup: testLogGroup, In: l.host.Do})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// spec is the Spec for a container, with the phases that come first; the others have no network.
func (l *lab) spec(t testing.TB, name string, phases ...direct.Phase) *Spec {
	t.Helper()
	c := l.containers[name]
	s := example(true, threeOf(t, phases[0], phases[1:]...))
	s.Interface, s.Index, s.Hardware = c.port(), c.index, c.hardware
	s.Addresses = []netip.Addr{c.ip4, c.ip6, c.linkLocal6}
	return s
}

func (l *lab) port(name string) *Port { return l.guard.Port(l.containers[name].port()) }

// install guards a container, whose first phase is in force.
func (l *lab) install(t testing.TB, name string, phases ...direct.Phase) {
	t.Helper()
	if err := l.port(name).Install(l.spec(t, name, phases...), policy.Baseline); err != nil {
		t.Fatal(err)
	}
}

// counters are those of a container's table and of the host's.
func (l *lab) counters(t testing.TB, name string) map[string]nft.Counter {
	t.Helper()
	all := make(map[string]nft.Counter)
	p := l.port(name)
	ids := append(p.tables(), inetTable, bridgeTable, arpTable)
	err := l.guard.with(func(c *nft.Conn) error {
		for _, id := range ids {
			counters, err := c.Counters(id)
			if err != nil {
				return err
			}
			for name, count := range counters {
				port, own, shared := strings.Cut(name, "/")
				if !shared {
					own = name
				} else if port != p.name {
					continue
				}
				all[own] = nft.Counter{Packets: all[own].Packets + count.Packets, Bytes: all[own].Bytes + count.Bytes}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// tables is the one that a port has its rules in, if it has any.
func (p *Port) tables() []nft.ID {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == nil {
		return nil
	}
	return []nft.ID{p.at.id}
}

// dropped is how many packets of a container were dropped, by reason.
func (l *lab) dropped(t testing.TB, name string) map[string]uint64 {
	t.Helper()
	packets := make(map[string]uint64)
	for name, count := range l.counters(t, name) {
		if name != allowedCount && name != repliesCount && name != resetsCount {
			packets[name] = count.Packets
		}
	}
	return packets
}

// since returns what has grown, and by how much.
func since(before, after map[string]uint64) map[string]uint64 {
	grown := make(map[string]uint64)
	for name, n := range after {
		if n != before[name] {
			grown[name] = n - before[name]
		}
	}
	return grown
}

// silence lets a container's kernel send nothing by itself: only frames that the test makes leave it.
func (l *lab) silence(t testing.TB, name string) {
	t.Helper()
	nfttest.Run(t, l.containers[name].Namespace, `
table inet silence { chain output { type filter hook output priority -500; policy drop; }; }
table arp silence { chain output { type filter hook output priority -500; policy drop; }; }`, "-f", "-")
}

// nft runs nft on the host.
func (l *lab) nft(t testing.TB, stdin string, args ...string) string {
	t.Helper()
	return nfttest.Run(t, l.host, stdin, args...)
}

// patience bounds how long a test waits for what should come.
const patience = 10 * time.Second

// watch remembers the frames that have come to an interface.
type watch struct {
	mu     sync.Mutex
	frames [][]byte
	more   chan struct{} // has something when there is a new frame
}

func packetSocket(device string) (int, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	index, err := netInterface(device)
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Ifindex: index})
	}
	if err != nil {
		unix.Close(fd)
		return 0, err
	}
	return fd, nil
}

func netInterface(name string) (int, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	link, err := h.LinkByName(name)
	if err != nil {
		return 0, err
	}
	return link.Attrs().Index, nil
}

func (l *lab) watch(t testing.TB, name string, ns *netnstest.Namespace, device string) {
	t.Helper()
	w := &watch{more: make(chan struct{}, 1)}
	var fd int
	ns.Run(t, func() error {
		var err error
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_ALL))); err != nil {
			return err
		}
		index, err := netInterface(device)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: index})
	})
	f := os.NewFile(uintptr(fd), "packet "+name)
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { f.Close(); <-done })
	go func() {
		defer close(done)
		buffer := make([]byte, 1<<17)
		for {
			var n int
			var from unix.Sockaddr
			var readErr error
			if err := raw.Read(func(fd uintptr) bool {
				n, from, readErr = unix.Recvfrom(int(fd), buffer, 0)
				return readErr != unix.EAGAIN
			}); err != nil || readErr != nil {
				return
			}
			if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			w.mu.Lock()
			w.frames = append(w.frames, bytes.Clone(buffer[:n]))
			w.mu.Unlock()
			select {
			case w.more <- struct{}{}:
			default:
			}
		}
	}()
	l.watchers[name] = w
}

func htons(n uint16) uint16 { return n<<8 | n>>8 }

// wait waits until a frame with these bytes has come.
func (w *watch) wait(ctx context.Context, key []byte) error {
	for {
		if w.count(key) > 0 {
			return nil
		}
		select {
		case <-w.more:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// waitFor is wait with a time.
func (w *watch) waitFor(d time.Duration, key []byte) error {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	return w.wait(ctx, key)
}

// any reports whether a frame has come for which f holds.
func (w *watch) any(f func([]byte) bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.frames, f)
}

// count returns how many frames with these bytes have come.
func (w *watch) count(key []byte) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.frames {
		if bytes.Contains(f, key) {
			n++
		}
	}
	return n
}

func (w *watch) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frames = nil
}

// token returns bytes that no frame has had yet.
func (l *lab) token() string {
	l.tokens++
	return fmt.Sprintf("<%06d>", l.tokens)
}

// where returns who has got a frame with these bytes, of all that the frames sent by container from have reached: the
// names of watchers in alphabetical order. Frames are sent one after another on one CPU, whose queue keeps their order,
// and the last of them, which container s sends to everybody, tells that nothing comes any more.
func (l *lab) where(t testing.TB, from string, key []byte, frames ...[]byte) string {
	t.Helper()
	for _, w := range l.watchers {
		w.forget()
	}
	last := []byte(l.token())
	onOneCPU(t, func() error {
		for _, f := range frames {
			if err := send(l.containers[from].fd, f); err != nil {
				return err
			}
		}
		return l.signal(last)
	})
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var found []string
	for _, name := range l.watcherNames() {
		if err := l.watchers[name].wait(ctx, last); err != nil {
			t.Fatalf("%s does not get what container s sends: %v", name, err)
		}
		// Who sends gets answers, which may quote the frame.
		if name != from && l.watchers[name].count(key) > 0 {
			found = append(found, name)
		}
	}
	return strings.Join(found, " ")
}

// watcherNames are those of whom container s can reach, in order.
func (l *lab) watcherNames() (names []string) {
	for _, name := range []string{"a", "b", "c", "d", "host", "outside"} {
		if l.watchers[name] != nil {
			names = append(names, name)
		}
	}
	return names
}

// signal sends a datagram with these bytes from container s to everybody.
func (l *lab) signal(key []byte) error {
	s := l.containers["s"]
	for _, name := range l.watcherNames() {
		to, hardware := remote4, bridgeA
		if c := l.containers[name]; c != nil {
			to, hardware = c.ip4, c.hardware
		} else if name == "host" {
			to = gateway.ip4
		}
		packet := ip{from: s.ip4, to: to}.datagram(9, 9, string(key))
		if err := send(s.fd, ethernet(hardware, s.hardware, unix.ETH_P_IP, packet)); err != nil {
			return err
		}
	}
	return nil
}

func send(fd int, frame []byte) error {
	_, err := unix.Write(fd, frame)
	return err
}

// onOneCPU runs f on a thread that does not leave its CPU.
func onOneCPU(t testing.TB, f func() error) {
	t.Helper()
	err := netns.OnOwnThread(func() error {
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func containsAny(s string, parts ...string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return strings.Contains(s, part) })
}
