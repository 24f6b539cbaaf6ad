package guard

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/policy"
)

// Addresses of both families with the same part to play.
var roles = map[string][2]string{
	"named":        {"192.0.2.5", "2001:db8:2::5"},     // a target without a port
	"in_net":       {"192.0.2.70", "2001:db8:2:1::70"}, // in a network that is one
	"below_net":    {"192.0.2.63", "2001:db8:2:0:ffff:ffff:ffff:ffff"},
	"above_net":    {"192.0.2.128", "2001:db8:2:2::"},
	"with_port":    {"192.0.2.7", "2001:db8:2::7"},           // a target with port 443
	"dns_server":   {"192.0.2.9", "2001:db8:2::9"},           // a target with port 53
	"other":        {"192.0.2.200", "2001:db8:2:3::200"},     // no target
	"sibling":      {"198.51.100.3", "2001:db8:1::3"},        // container b, a target with port 5432
	"gateway":      {"198.51.100.1", "2001:db8:1::1"},        // the host on the link
	"host":         {"203.0.113.1", "2001:db8:ffff::1"},      // and elsewhere
	"metadata":     {"169.254.169.254", "fd00:ec2::254"},     // on the floor
	"named_floor":  {"169.254.169.253", "fd00:ec2::253"},     // on the floor, and a target
	"hidden_floor": {"", "64:ff9b::169.254.169.254"},         // hides one of the floor
	"translated":   {"", "64:ff9b::192.0.2.5"},               // hides a target
	"unreadable":   {"", "64:ff9b:1:c000:2:500::"},           // may hide a target
	"tunnelled":    {"", "2002:c000:205::1"},                 // hides a target, in a form that other hosts are behind
	"teredo_floor": {"", "2001:0:0:0:0:0:5601:5601"},         // 169.254.169.254 with its bits inverted
	"isatap_floor": {"", "2001:db8:9::5efe:169.254.169.254"}, //
}

// planeColumns are the policies in force.
var planeColumns = []struct {
	name     string
	phases   func(t testing.TB) []direct.Phase
	internal bool
}{
	{"public", func(t testing.TB) []direct.Phase { return []direct.Phase{phaseOf(t, "public")} }, false},
	{"public_beside_names", func(t testing.TB) []direct.Phase {
		return []direct.Phase{phaseOf(t, "public"), phaseOf(t, "allowlist", "ok.test")}
	}, false},
	{"public_internal", func(t testing.TB) []direct.Phase { return []direct.Phase{phaseOf(t, "public")} }, true},
	{"no_network", func(t testing.TB) []direct.Phase {
		return []direct.Phase{phaseOf(t, "no-network"), phaseOf(t, "public")}
	}, false},
	{"allowlist", func(t testing.TB) []direct.Phase {
		return []direct.Phase{phaseOf(t, "allowlist", append(planeSiblings, planeTargets...)...), phaseOf(t, "public")}
	}, false},
	{"allowlist_beside_denied_names", func(t testing.TB) []direct.Phase {
		return []direct.Phase{phaseOf(t, "allowlist", append(planeSiblings, planeTargets...)...), phaseOf(t, "denylist", "evil.test")}
	}, false},
	{"allowlist_internal", func(t testing.TB) []direct.Phase {
		return []direct.Phase{phaseOf(t, "allowlist", append(planeSiblings, planeTargets...)...)}
	}, true},
	{"denylist", func(t testing.TB) []direct.Phase { return []direct.Phase{phaseOf(t, "denylist", planeTargets...)} }, false},
	{"denylist_names", func(t testing.TB) []direct.Phase {
		return []direct.Phase{phaseOf(t, "denylist", append([]string{"evil.test"}, planeTargets...)...)}
	}, false},
}

var (
	planeTargets = []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443", "192.0.2.9:53",
		"2001:db8:2::5", "2001:db8:2:1::/64", "[2001:db8:2::7]:443", "[2001:db8:2::9]:53"}
	planeSiblings = []string{"198.51.100.3:5432", "[2001:db8:1::3]:5432", "169.254.169.253", "fd00:ec2::253"}
)

// planeTable says for each of planeColumns whether a first packet passes (+) or not (-). It passes where the gate sends
// it straight.
var planeTable = []struct {
	protocol, role string
	port           uint16
	want           string
}{
	{"tcp", "named", 80, "+---+----"},
	{"udp", "named", 80, "++--++---"},
	{"ping", "named", 0, "++--++---"},
	{"tcp", "in_net", 80, "+---+----"},
	{"udp", "in_net", 443, "++--++---"},
	{"ping", "in_net", 0, "++--++---"},
	{"tcp", "below_net", 80, "+------+-"},
	{"udp", "below_net", 80, "++-----++"},
	{"udp", "above_net", 80, "++-----++"},
	{"tcp", "with_port", 443, "+---+----"},
	{"tcp", "with_port", 442, "+------+-"},
	{"tcp", "with_port", 444, "+------+-"},
	{"udp", "with_port", 443, "++--++---"},
	{"udp", "with_port", 444, "++-----++"},
	{"ping", "with_port", 0, "++-----++"},
	{"udp", "dns_server", 53, "----++---"},
	{"tcp", "dns_server", 53, "----++---"},
	{"udp", "dns_server", 54, "++-----++"},
	{"tcp", "other", 80, "+------+-"},
	{"udp", "other", 80, "++-----++"},
	{"udp", "other", 443, "++-----+-"},
	{"ping", "other", 0, "++-----++"},
	{"udp", "named", 53, "---------"},
	{"tcp", "named", 53, "---------"},
	{"udp", "sibling", 53, "---------"},
	{"tcp", "sibling", 5432, "+++-+++++"},
	{"tcp", "sibling", 5433, "+++----++"},
	{"udp", "sibling", 5432, "+++-+++++"},
	{"udp", "sibling", 443, "+++----++"},
	{"ping", "sibling", 0, "+++----++"},
	{"tcp", "gateway", 80, "+++----++"},
	{"tcp", "host", 80, "+++----++"},
	{"udp", "host", 80, "+++----++"},
	{"tcp", "metadata", 80, "---------"},
	{"udp", "metadata", 80, "---------"},
	{"ping", "metadata", 0, "---------"},
	{"tcp", "named_floor", 80, "----+----"},
	{"udp", "named_floor", 80, "----++---"},
	{"udp", "hidden_floor", 80, "---------"},
	{"udp", "teredo_floor", 80, "---------"},
	{"udp", "isatap_floor", 80, "---------"},
	{"udp", "unreadable", 80, "---------"},
	{"tcp", "translated", 80, "+--------"},
	{"udp", "translated", 80, "++--++---"},
	{"udp", "tunnelled", 80, "++-------"},
}

func TestPlanes(t *testing.T) {
	for column, plane := range planeColumns {
		t.Run(plane.name, func(t *testing.T) {
			l := newLab(t, "abs")
			s := l.spec(t, "a", plane.phases(t)...)
			s.Internal = plane.internal
			if err := l.port("a").Install(s, 0); err != nil {
				t.Fatal(err)
			}
			source := uint16(20000)
			for _, row := range planeTable {
				for _, to := range roles[row.role] {
					if to == "" {
						continue
					}
					passes := row.want[column] == '+'
					for _, f := range l.attempts(row.protocol, netip.MustParseAddr(to), row.port) {
						source++
						key := l.token()
						got := l.where(t, "a", []byte(key), f.frame(source, key))
						if want := passes && !f.never; (got != "") != want {
							t.Errorf("%s to %s %s port %d: reaches %q, want to pass: %v", f.name, row.role, to, row.port, got, want)
						}
					}
				}
			}
		})
	}
}

// An adopted provider's proxy can be reached in every phase, and what a policy names by name is a target like others.
func TestOpenAndNamed(t *testing.T) {
	l := newLab(t, "absc")
	b, c := l.containers["b"], l.containers["c"]
	for _, option := range []policy.Inbound{policy.InboundAll, policy.InboundNone} {
		named := inbound(phaseOf(t, "allowlist", "db.test:5432"), option)
		named.Named = []netip.AddrPort{netip.AddrPortFrom(c.ip4, 5432), netip.AddrPortFrom(c.ip6, 5432)}
		s := l.spec(t, "a", named, inbound(phaseOf(t, "no-network"), option))
		s.Open = []netip.AddrPort{netip.AddrPortFrom(b.ip4, 8080), netip.AddrPortFrom(b.ip6, 8080)}
		if err := l.port("a").Install(s, policy.Baseline); err != nil {
			t.Fatal(err)
		}
		for phase, rows := range map[policy.Phase][]struct {
			protocol string
			to       station
			port     uint16
			passes   bool
		}{
			policy.Baseline: {{"tcp", b.station, 8080, true}, {"tcp", b.station, 8081, false}, {"udp", b.station, 8080, false},
				{"tcp", c.station, 5432, true}, {"udp", c.station, 5432, true}, {"tcp", c.station, 5433, false}, {"ping", c.station, 0, false}},
			policy.Run: {{"tcp", b.station, 8080, true}, {"udp", b.station, 8080, false}, {"tcp", c.station, 5432, false}},
		} {
			if err := l.port("a").Switch(phase); err != nil {
				t.Fatal(err)
			}
			// Behind a header that could lead it elsewhere nothing is let through.
			key, h := l.token(), ip{from: l.containers["a"].ip6, to: b.ip6, proto: 43}
			routed := h.packet(append([]byte{unix.IPPROTO_TCP, 0, 0, 0, 0, 0, 0, 0}, h.segment(30001, 8080, syn, 0, key)[40:]...))
			if got := l.where(t, "a", []byte(key), l.fromA(b.ip6, routed)); got != "" {
				t.Errorf("%v: a segment behind a routing header reaches %q", phase, got)
			}
			for _, row := range rows {
				for _, to := range []netip.Addr{row.to.ip4, row.to.ip6} {
					key := l.token()
					f := l.attempts(row.protocol, to, row.port)[0]
					if got := l.where(t, "a", []byte(key), f.frame(30000, key)); (got != "") != row.passes {
						t.Errorf("%v: %s to %v port %d reaches %q, want to pass: %v", phase, row.protocol, to, row.port, got, row.passes)
					}
				}
			}
		}
	}
}

// attempt is a way to send something to a destination.
type attempt struct {
	name  string
	frame func(source uint16, key string) []byte
	never bool // it does not pass, whatever the policy
}

// attempts are frames of a protocol from container a that would all do as the first packet of something.
func (l *lab) attempts(protocol string, to netip.Addr, port uint16) []attempt {
	h := ip{from: l.containers["a"].ip4, to: to}
	if to.Is6() {
		h.from = l.containers["a"].ip6
	}
	frame := func(packet []byte) []byte { return l.fromA(to, packet) }
	segment := func(flags byte) func(uint16, string) []byte {
		return func(source uint16, key string) []byte { return frame(h.segment(source, port, flags, 0, key)) }
	}
	switch protocol {
	case "tcp":
		return []attempt{
			{"SYN", segment(syn), false},
			{"SYN_FIN", segment(syn | fin), false},
			{"ACK", segment(ack), false},
			{"SYN_ACK", segment(syn | ack), false},
			{"FIN_ACK", segment(fin | ack), false},
			{"RST", segment(rst), false},
			{"RST_ACK", segment(rst | ack), false},
			{"no_flags", segment(0), false},
		}
	case "udp":
		return []attempt{{"UDP", func(source uint16, key string) []byte { return frame(h.datagram(source, port, key)) }, false}}
	}
	request, reply, unreachable := byte(8), byte(0), byte(3)
	if to.Is6() {
		request, reply, unreachable = 128, 129, 1
	}
	// An error quotes what it is about: here, something that has never come.
	quote := ip{from: h.to, to: h.from}.datagram(4000, 5000, "")
	return []attempt{
		{"echo_request", func(_ uint16, key string) []byte { return frame(h.echo(request, key)) }, false},
		{"echo_reply", func(_ uint16, key string) []byte { return frame(h.echo(reply, key)) }, true},
		{"unreachable", func(_ uint16, key string) []byte {
			return frame(h.message(unreachable, 1, append([]byte{0, 0, 0, 0}, append(quote, key...)...)))
		}, true},
	}
}

// fromA is a frame of container a on its way to an address: to a sibling, or to the router.
func (l *lab) fromA(to netip.Addr, packet []byte) []byte {
	kind, hardware := uint16(unix.ETH_P_IP), bridgeA
	if to.Is6() {
		kind = unix.ETH_P_IPV6
	}
	for _, c := range l.containers {
		if c.ip4 == to || c.ip6 == to {
			hardware = c.hardware
		}
	}
	return ethernet(hardware, l.containers["a"].hardware, kind, packet)
}
