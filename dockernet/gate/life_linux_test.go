package gate

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// A controller that has restarted opens new listeners and turns the redirects to them. Connections to the old ones go
// on while these are open.
func TestRetarget(t *testing.T) {
	l := newLab(t, false)
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "allowlist", "ok.test")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	old := l.open(t, "tcp", netip.MustParseAddrPort("192.0.2.40:80"), "proxy")
	s, err := l.workload.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	listeners := serve(t, s, "new ")
	if err := l.gate.Retarget(Listeners{TCP4: s.TCP4.Port, UDP4: s.UDP4.Port}); err == nil {
		t.Error("listeners of another family are taken")
	}
	if err := l.gate.Retarget(listeners); err != nil {
		t.Fatal(err)
	}
	if got := exchange(old.conn); got != "proxy" {
		t.Errorf("the old connection got %s", got)
	}
	check := func() {
		t.Helper()
		for _, p := range []struct{ protocol, to, want string }{
			{"tcp", "192.0.2.40:80", "new proxy"}, {"tcp", "[2001:db8:2::40]:80", "new proxy"},
			{"udp", "192.0.2.40:53", "new dns"}, {"udp", "[2001:db8:2::40]:53", "new dns"},
			{"tcp", "127.0.0.1:3128", "new proxy"}, {"tcp", "[::1]:3128", "new proxy"},
		} {
			if got := l.probe(t, p.protocol, p.to); got != p.want {
				t.Errorf("%s to %s: got %s, want %s", p.protocol, p.to, got, p.want)
			}
		}
	}
	check()
	if err := l.gate.Switch(policy.Run); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Switch(policy.Baseline); err != nil {
		t.Fatal(err)
	}
	check()
	if err := l.gate.Quarantine(); err != nil {
		t.Fatal(err)
	}
	if got := l.probe(t, "tcp", fmt.Sprintf("127.0.0.1:%d", s.TCP4.Port)); got != "refused" {
		t.Errorf("the new listener in a quarantine: got %s", got)
	}
	if got := exchange(old.conn); got != "refused" {
		t.Errorf("the old connection in a quarantine: got %s", got)
	}
}

// A new controller installs over what an old one has left: what was in force is until the new rules are, connections
// go on, and nothing of the old rules stays.
func TestInstallAgain(t *testing.T) {
	l := newLab(t, false)
	s := l.spec(t, l.listen(t), phaseOf(t, "allowlist", "192.0.2.10", "2001:db8:2::10", "ok.test"), phaseOf(t, "public"))
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	if err := l.gate.Stage(s); err != nil { // and never switched to
		t.Fatal(err)
	}
	flows := []flow{
		l.open(t, "tcp", netip.MustParseAddrPort("192.0.2.10:80"), "direct"),
		l.open(t, "udp", netip.MustParseAddrPort("[2001:db8:2::10]:80"), "direct"),
		l.open(t, "tcp", netip.MustParseAddrPort("192.0.2.40:80"), "proxy"),
	}
	if err := newGate(t, l.workload).Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if got := exchange(f.conn); got != f.by {
			t.Errorf("connection to %v got %s", f.conn.RemoteAddr(), got)
		}
	}
	fresh := netnstest.New(t)
	if err := newGate(t, fresh).Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	if got, want := len(l.objects(t).Chains), len((&lab{workload: fresh}).objects(t).Chains); got != want {
		t.Errorf("%d chains after installing again, %d after installing once", got, want)
	}
	if got, want := len(l.objects(t).Sets), len((&lab{workload: fresh}).objects(t).Sets); got != want {
		t.Errorf("%d sets after installing again, %d after installing once", got, want)
	}
}

func (l *lab) objects(t testing.TB) (o nft.Objects) {
	t.Helper()
	l.workload.Run(t, func() error {
		c, err := nft.Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		o, err = existing(c)
		return err
	})
	return o
}

// What cannot be installed changes nothing.
func TestInstallFails(t *testing.T) {
	l := newLab(t, false)
	s := l.spec(t, l.listen(t), phaseOf(t, "allowlist", "192.0.2.10"))
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	before := l.objects(t)
	bad := *s
	bad.Phases[2].Rules = nil
	if err := l.gate.Install(&bad, policy.Run); err == nil || !strings.Contains(err.Error(), "evaluation") {
		t.Errorf("error %v, want one that names the phase", err)
	}
	if err := l.gate.Stage(&bad); err == nil {
		t.Error("a phase without rules is staged")
	}
	if got := l.probe(t, "udp", "192.0.2.10:80"); got != "direct" {
		t.Errorf("got %s", got)
	}
	if after := l.objects(t); !slices.Equal(before.Chains, after.Chains) {
		t.Errorf("chains were %v and are %v", before.Chains, after.Chains)
	}
	for name, f := range map[string]func(*Gate) error{
		"both":     func(g *Gate) error { return g.Both(policy.Run) },
		"switch":   func(g *Gate) error { return g.Switch(policy.Run) },
		"retarget": func(g *Gate) error { return g.Retarget(s.Listeners) },
	} {
		if err := f(newGate(t, l.workload)); err == nil || !strings.Contains(err.Error(), "install") {
			t.Errorf("%s before an installation: error %v", name, err)
		}
	}
}

func TestRemove(t *testing.T) {
	l := newLab(t, true)
	routes := func() (n int) { // default ones
		h := l.workload.Handle(t)
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			list, err := h.RouteListFiltered(family, &netlink.Route{}, netlink.RT_FILTER_DST)
			if err != nil {
				t.Fatal(err)
			}
			n += len(list)
		}
		return n
	}
	installed := func(want bool) {
		t.Helper()
		if got, err := l.gate.Installed(); err != nil || got != want {
			t.Errorf("there are rules: %v, %v, want %v", got, err, want)
		}
	}
	installed(false)
	if err := l.gate.Remove(); err != nil {
		t.Errorf("where nothing was installed: %v", err)
	}
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "no-network")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	installed(true)
	if got := routes(); got != 2 {
		t.Errorf("%d default routes, want one a family", got)
	}
	if err := l.gate.Remove(); err != nil {
		t.Fatal(err)
	}
	installed(false)
	if n := l.objects(t); len(n.Chains)+len(n.Sets) > 0 {
		t.Errorf("left behind: %v", n)
	}
	if got := routes(); got != 0 {
		t.Errorf("%d default routes are left", got)
	}
	if got := l.probe(t, "udp", "198.51.100.1:80"); got != "direct" {
		t.Errorf("got %s", got)
	}
}

// The engine can still connect a network with a default route, and that one is used.
func TestEngineAddsARoute(t *testing.T) {
	l := newLab(t, true)
	if err := l.gate.Install(l.spec(t, l.listen(t), phaseOf(t, "public")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	if got := l.probe(t, "udp", "192.0.2.10:80"); got != "refused" {
		t.Errorf("without a route: got %s", got)
	}
	h := l.workload.Handle(t)
	for _, via := range addrs("198.51.100.1", "2001:db8:1::1") {
		if err := h.RouteAdd(&netlink.Route{Gw: via.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{"192.0.2.10:80", "[2001:db8:2::10]:80"} {
		// Until the router is found, packets may be given up.
		wait(t, to+" to answer", func() bool { return l.probe(t, "udp", to) == "direct" })
	}
}

// A container that leaves the network with its default route and stays on one without, as current engines' internal ones
// are, still comes as far as the rules that follow it.
func TestEngineTakesARoute(t *testing.T) {
	l := newLab(t, false)
	spec := l.spec(t, l.listen(t), phaseOf(t, "allowlist", "ok.test"))
	if err := l.gate.Install(spec, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	h := l.workload.Handle(t)
	for _, via := range addrs("198.51.100.1", "2001:db8:1::1") {
		if err := h.RouteDel(&netlink.Route{Gw: via.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.gate.Stage(spec), l.gate.Switch(policy.Baseline)); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{"192.0.2.10:80", "[2001:db8:2::10]:80"} {
		if got := l.probe(t, "tcp", to); got != "proxy" {
			t.Errorf("tcp to %s: got %s, want proxy", to, got)
		}
		if got := l.probe(t, "udp", to); got != "refused" {
			t.Errorf("udp to %s: got %s, want refused", to, got)
		}
	}
}

// Without an IPv6 loopback there is no listener for IPv6: all of it is refused at once, and IPv4 works.
func TestWithoutIPv6Listeners(t *testing.T) {
	l := newLab(t, false)
	listeners := l.listen(t)
	listeners.TCP6, listeners.UDP6 = 0, 0
	s := l.spec(t, listeners, phaseOf(t, "public"), phaseOf(t, "allowlist", "2001:db8:2::10", "192.0.2.10"))
	s.Explicit = s.Explicit[:1]
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	for _, phase := range []policy.Phase{policy.Baseline, policy.Run} {
		if err := l.gate.Switch(phase); err != nil {
			t.Fatal(err)
		}
		for _, p := range []struct{ protocol, to, want string }{
			{"tcp", "[2001:db8:2::10]:80", "refused"}, {"udp", "[2001:db8:2::10]:80", "refused"}, {"udp", "[2001:db8:2::10]:53", "refused"},
			{"ping", "2001:db8:2::10", "refused"}, {"tcp", "[2001:db8:1::1]:80", "refused"},
			{"tcp", "192.0.2.10:80", "direct"}, {"udp", "192.0.2.10:80", "direct"},
		} {
			if got := l.probe(t, p.protocol, p.to); got != p.want {
				t.Errorf("phase %v, %s to %s: got %s, want %s", phase, p.protocol, p.to, got, p.want)
			}
		}
	}
}

// A family that the sidecar has no route for is refused where it would go through the proxy, and nowhere else.
func TestWithoutRoute(t *testing.T) {
	l := newLab(t, false)
	s := l.spec(t, l.listen(t), phaseOf(t, "public"), phaseOf(t, "allowlist", "2001:db8:2::10", "ok.test"), phaseOf(t, "denylist", "evil.test"))
	s.NoRoute6 = true
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	for phase, want := range map[policy.Phase]map[string]string{
		policy.Baseline:   {"tcp [2001:db8:2::40]:80": "refused", "udp [2001:db8:2::40]:80": "direct", "tcp [2001:db8:1::1]:80": "direct", "tcp 192.0.2.40:80": "proxy", "udp [2001:db8:2::40]:53": "dns"},
		policy.Run:        {"tcp [2001:db8:2::40]:80": "refused", "udp [2001:db8:2::10]:80": "direct", "tcp 192.0.2.40:80": "proxy", "udp [2001:db8:2::40]:53": "dns"},
		policy.Evaluation: {"tcp [2001:db8:2::40]:80": "refused", "udp [2001:db8:2::40]:80": "direct", "tcp [2001:db8:1::1]:80": "direct", "tcp 192.0.2.40:80": "proxy"},
	} {
		if err := l.gate.Switch(phase); err != nil {
			t.Fatal(err)
		}
		for what, want := range want {
			protocol, to, _ := strings.Cut(what, " ")
			if got := l.probe(t, protocol, to); got != want {
				t.Errorf("phase %v, %s: got %s, want %s", phase, what, got, want)
			}
		}
	}
}

// Ports of the host that no phase may reach, and some that every phase may.
func TestClosedAndOpen(t *testing.T) {
	l := newLab(t, false)
	s := l.spec(t, l.listen(t), phaseOf(t, "public"), phaseOf(t, "allowlist", "198.51.100.1", "203.0.113.1", "2001:db8:1::1"), phaseOf(t, "no-network"))
	for _, a := range []string{"198.51.100.1:9464", "203.0.113.1:9464", "[2001:db8:1::1]:9464"} {
		s.Closed = append(s.Closed, netip.MustParseAddrPort(a))
	}
	for _, a := range []string{"198.51.100.20:8080", "[2001:db8:1::20]:8080"} {
		s.Open = append(s.Open, netip.MustParseAddrPort(a))
	}
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	for _, phase := range []policy.Phase{policy.Baseline, policy.Run, policy.Evaluation} {
		if err := l.gate.Switch(phase); err != nil {
			t.Fatal(err)
		}
		for _, a := range s.Closed {
			if got := l.probe(t, "tcp", a.String()); got != "refused" {
				t.Errorf("phase %v, closed %v: got %s", phase, a, got)
			}
		}
		for _, a := range s.Open {
			if got := l.probe(t, "tcp", a.String()); got != "direct" {
				t.Errorf("phase %v, open %v: got %s", phase, a, got)
			}
		}
		want := "direct"
		if phase == policy.Evaluation {
			want = "refused"
		}
		if got := l.probe(t, "tcp", "198.51.100.1:9465"); got != want {
			t.Errorf("phase %v, the port beside the closed one: got %s, want %s", phase, got, want)
		}
	}
}

// Names of siblings become addresses, which are targets like any other.
func TestNamedSiblings(t *testing.T) {
	l := newLab(t, false)
	named := []netip.AddrPort{netip.MustParseAddrPort("198.51.100.20:5432"), netip.AddrPortFrom(sibling6, 0)}
	allow, deny := phaseOf(t, "allowlist", "db"), phaseOf(t, "denylist", "db")
	allow.Named, deny.Named = named, named
	if err := l.gate.Install(l.spec(t, l.listen(t), allow, deny), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ protocol, to, allow, deny string }{
		{"tcp", "198.51.100.20:5432", "direct", "refused"},
		{"udp", "198.51.100.20:5432", "direct", "refused"},
		{"tcp", "198.51.100.20:5433", "refused", "direct"},
		{"tcp", "[2001:db8:1::20]:99", "direct", "refused"},
		{"ping", "2001:db8:1::20", "direct", "refused"},
		{"ping", "198.51.100.20", "refused", "direct"},
		{"tcp", "198.51.100.1:5432", "refused", "direct"},
	} {
		for phase, want := range map[policy.Phase]string{policy.Baseline: tt.allow, policy.Run: tt.deny} {
			if err := l.gate.Switch(phase); err != nil {
				t.Fatal(err)
			}
			if got := l.probe(t, tt.protocol, tt.to); got != want {
				t.Errorf("phase %v, %s to %s: got %s, want %s", phase, tt.protocol, tt.to, got, want)
			}
		}
	}
}

func TestCounters(t *testing.T) {
	l := newLab(t, false)
	g := newGate(t, l.workload)
	if c, err := g.Counters(); err != nil || c != (Counters{}) {
		t.Errorf("without a table: got %+v, %v", c, err)
	}
	if err := g.Install(l.spec(t, l.listen(t), phaseOf(t, "allowlist", "192.0.2.10"), phaseOf(t, "public")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	for _, p := range []struct{ protocol, to string }{
		{"udp", "192.0.2.10:80"}, {"udp", "192.0.2.40:80"}, {"tcp", "192.0.2.40:80"}, {"udp", "192.0.2.40:53"},
	} {
		l.probe(t, p.protocol, p.to)
	}
	if err := g.Switch(policy.Run); err != nil {
		t.Fatal(err)
	}
	l.probe(t, "udp", "192.0.2.40:80")
	if err := newGate(t, l.workload).Install(l.spec(t, l.listen(t), phaseOf(t, "public")), policy.Baseline); err != nil {
		t.Fatal(err)
	}
	c, err := g.Counters()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		got  uint64
		want uint64
	}{
		{"direct in baseline", c.Direct[policy.Baseline].Packets, 1},
		{"refused in baseline", c.Refused[policy.Baseline].Packets, 1},
		{"redirected", c.Redirected.Packets, 1},
		{"dns", c.DNS.Packets, 1},
		{"direct in run", c.Direct[policy.Run].Packets, 1},
		{"refused in run", c.Refused[policy.Run].Packets, 0},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %d packets, want %d", tt.name, tt.got, tt.want)
		}
	}
}
