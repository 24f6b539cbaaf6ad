package gate

import (
	"net"
	"net/netip"
	"strconv"
	"testing"

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
	"sibling":      {"198.51.100.20", "2001:db8:1::20"},      // on the container's network, a target with port 5432
	"gateway":      {"198.51.100.1", "2001:db8:1::1"},        // the host on that network
	"host":         {"203.0.113.1", "2001:db8:ffff::1"},      // another address of the host
	"metadata":     {"169.254.169.254", "fd00:ec2::254"},     // on the floor
	"named_floor":  {"169.254.169.253", "fd00:ec2::253"},     // on the floor, and a target
	"hidden_floor": {"", "64:ff9b::169.254.169.254"},         // hides one of the floor
	"translated":   {"", "64:ff9b::192.0.2.5"},               // hides a target
	"tunnelled":    {"", "2002:c000:205::1"},                 // the same in a form that other hosts are behind
	"teredo_floor": {"", "2001:0:0:0:0:0:5601:5601"},         // 169.254.169.254 with its bits inverted
	"isatap_floor": {"", "2001:db8:9::5efe:169.254.169.254"}, //
	"own":          {"198.51.100.2", "2001:db8:1::2"},        // the container's
	"loopback":     {"127.0.0.1", "::1"},                     //
	"engine":       {"127.0.0.11", ""},                       // the engine's resolver
}

// probes of the table "Which plane": protocol, role and port, and for each plane who answers. "-" stands for refused.
var planeTable = []struct {
	protocol, role, port string
	want                 map[string]string
}{
	{"tcp", "named", "80", rows("direct", "proxy", "proxy", "-", "direct", "proxy", "proxy", "-", "-")},
	{"udp", "named", "80", rows("direct", "direct", "-", "-", "direct", "direct", "-", "-", "-")},
	{"ping", "named", "", rows("direct", "direct", "-", "-", "direct", "direct", "-", "-", "-")},
	{"tcp", "in_net", "80", rows("direct", "proxy", "proxy", "-", "direct", "proxy", "proxy", "-", "-")},
	{"udp", "in_net", "443", rows("direct", "direct", "-", "-", "direct", "direct", "-", "-", "-")},
	{"ping", "in_net", "", rows("direct", "direct", "-", "-", "direct", "direct", "-", "-", "-")},
	{"tcp", "below_net", "80", rows("direct", "proxy", "proxy", "-", "proxy", "proxy", "proxy", "direct", "proxy")},
	{"udp", "below_net", "80", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"udp", "above_net", "80", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"tcp", "with_port", "443", rows("direct", "proxy", "proxy", "-", "direct", "proxy", "proxy", "-", "-")},
	{"tcp", "with_port", "442", rows("direct", "proxy", "proxy", "-", "proxy", "proxy", "proxy", "direct", "proxy")},
	{"tcp", "with_port", "444", rows("direct", "proxy", "proxy", "-", "proxy", "proxy", "proxy", "direct", "proxy")},
	{"udp", "with_port", "443", rows("direct", "direct", "-", "-", "direct", "direct", "-", "-", "-")},
	{"udp", "with_port", "444", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"ping", "with_port", "", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"udp", "dns_server", "53", rows("dns", "dns", "dns", "dns", "direct", "direct", "dns", "dns", "dns")},
	{"tcp", "dns_server", "53", rows("proxy", "proxy", "proxy", "proxy", "direct", "direct", "proxy", "proxy", "proxy")},
	{"udp", "dns_server", "54", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"tcp", "other", "80", rows("direct", "proxy", "proxy", "-", "proxy", "proxy", "proxy", "direct", "proxy")},
	{"udp", "other", "80", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"udp", "other", "443", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "-")},
	{"ping", "other", "", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"udp", "named", "53", rows("dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns")},
	{"tcp", "named", "53", rows("proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy")},
	{"udp", "sibling", "53", rows("dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns")},
	{"tcp", "sibling", "5432", rows("direct", "direct", "direct", "-", "direct", "direct", "direct", "direct", "direct")},
	{"tcp", "sibling", "5433", rows("direct", "direct", "direct", "-", "-", "-", "-", "direct", "direct")},
	{"udp", "sibling", "5432", rows("direct", "direct", "direct", "-", "direct", "direct", "direct", "direct", "direct")},
	{"udp", "sibling", "443", rows("direct", "direct", "direct", "-", "-", "-", "-", "direct", "direct")},
	{"ping", "sibling", "", rows("direct", "direct", "direct", "-", "-", "-", "-", "direct", "direct")},
	{"tcp", "gateway", "80", rows("direct", "direct", "direct", "-", "-", "-", "-", "direct", "direct")},
	// Without a route, what is not on the link is out of reach, see addRoutes.
	{"tcp", "host", "80", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"udp", "host", "80", rows("direct", "direct", "-", "-", "-", "-", "-", "direct", "direct")},
	{"tcp", "metadata", "80", rows("-", "proxy", "proxy", "-", "proxy", "proxy", "proxy", "-", "proxy")},
	{"udp", "metadata", "80", rows("-", "-", "-", "-", "-", "-", "-", "-", "-")},
	{"ping", "metadata", "", rows("-", "-", "-", "-", "-", "-", "-", "-", "-")},
	{"tcp", "named_floor", "80", rows("-", "proxy", "proxy", "-", "direct", "proxy", "proxy", "-", "proxy")},
	{"udp", "named_floor", "80", rows("-", "-", "-", "-", "direct", "direct", "-", "-", "-")},
	{"udp", "hidden_floor", "80", rows("-", "-", "-", "-", "-", "-", "-", "-", "-")},
	{"udp", "teredo_floor", "80", rows("-", "-", "-", "-", "-", "-", "-", "-", "-")},
	{"udp", "isatap_floor", "80", rows("-", "-", "-", "-", "-", "-", "-", "-", "-")},
	{"tcp", "translated", "80", rows("direct", "proxy", "proxy", "-", "proxy", "proxy", "proxy", "-", "proxy")},
	{"udp", "translated", "80", rows("direct", "direct", "-", "-", "direct", "direct", "-", "-", "-")},
	{"udp", "tunnelled", "80", rows("direct", "direct", "-", "-", "-", "-", "-", "-", "-")},
	{"udp", "engine", "53", rows("dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns")},
	{"tcp", "engine", "53", rows("proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy")},
	{"udp", "engine", "40000", rows("dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns", "dns")},
	{"tcp", "engine", "40000", rows("proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy")},
	{"ping", "engine", "", rows("-", "-", "-", "-", "-", "-", "-", "-", "-")},
	{"tcp", "loopback", "3128", rows("proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy", "proxy")},
	{"tcp", "loopback", "7000", rows("own", "own", "own", "own", "own", "own", "own", "own", "own")},
	{"tcp", "own", "7000", rows("own", "own", "own", "own", "own", "own", "own", "own", "own")},
	{"udp", "own", "53", rows("own", "own", "own", "own", "own", "own", "own", "own", "own")},
	{"udp", "loopback", "53", rows("own", "own", "own", "own", "own", "own", "own", "own", "own")},
}

// The planes that the columns above are about.
var columns = []string{"public", "public_beside_names", "public_internal", "no_network", "allowlist",
	"allowlist_beside_denied_names", "allowlist_internal", "denylist", "denylist_names"}

func rows(want ...string) map[string]string {
	m := make(map[string]string)
	for i, w := range want {
		if w == "-" {
			w = "refused"
		}
		m[columns[i]] = w
	}
	return m
}

func TestPlanes(t *testing.T) {
	targets := []string{"192.0.2.5", "192.0.2.64/26", "192.0.2.7:443", "192.0.2.9:53", "ok.test",
		"2001:db8:2::5", "2001:db8:2:1::/64", "[2001:db8:2::7]:443", "[2001:db8:2::9]:53"}
	allowed := append([]string{"198.51.100.20:5432", "[2001:db8:1::20]:5432", "169.254.169.253", "fd00:ec2::253"}, targets...)
	var denied []string
	for _, h := range targets {
		if h != "ok.test" {
			denied = append(denied, h)
		}
	}
	public, names := phaseOf(t, "public"), phaseOf(t, "allowlist", "ok.test")
	for _, tt := range []struct {
		name     string
		phases   []direct.Phase
		internal bool
	}{
		{"public", []direct.Phase{public}, false},
		{"public_beside_names", []direct.Phase{public, names}, false},
		{"public_internal", []direct.Phase{public}, true},
		{"no_network", []direct.Phase{phaseOf(t, "no-network"), names}, false},
		{"allowlist", []direct.Phase{phaseOf(t, "allowlist", allowed...), public}, false},
		{"allowlist_beside_denied_names", []direct.Phase{phaseOf(t, "allowlist", allowed...), phaseOf(t, "denylist", "evil.test")}, false},
		{"allowlist_internal", []direct.Phase{phaseOf(t, "allowlist", allowed...)}, true},
		{"denylist", []direct.Phase{phaseOf(t, "denylist", denied...)}, false},
		{"denylist_names", []direct.Phase{phaseOf(t, "denylist", append(denied, "evil.test")...)}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, tt.internal)
			s := l.spec(t, l.listen(t), tt.phases...)
			s.Internal = tt.internal
			if err := l.gate.Install(s, policy.Baseline); err != nil {
				t.Fatal(err)
			}
			l.workload.Run(t, func() error {
				tcp, err := net.Listen("tcp", ":7000")
				if err != nil {
					return err
				}
				serveTCP(t, tcp, "own")
				for _, a := range []string{"127.0.0.1:53", "[::1]:53", "198.51.100.2:53", "[2001:db8:1::2]:53"} {
					udp, err := net.ListenPacket("udp", a)
					if err != nil {
						return err
					}
					serveUDP(t, udp, "own")
				}
				return nil
			})
			for _, row := range planeTable {
				for _, host := range roles[row.role] {
					if host == "" {
						continue
					}
					to := host
					if row.port != "" {
						to = net.JoinHostPort(host, row.port)
					}
					l.forget(t)
					want := row.want[tt.name]
					if got := l.probe(t, row.protocol, to); got != want {
						t.Errorf("%s to %s %s: got %s, want %s", row.protocol, row.role, to, got, want)
					}
					port, _ := strconv.Atoi(row.port)
					if got := l.seen(t, row.protocol, netip.MustParseAddr(host), uint16(port)); got != (want == "direct") {
						t.Errorf("%s to %s %s: reached the outside: %v", row.protocol, row.role, to, got)
					}
				}
			}
		})
	}
}

// On a network of IPv4 only, the IPv6 targets of an allowlist are no neighbours, and TCP to them is not local.
func TestPlanesOfAFamilyWithoutLocalAddresses(t *testing.T) {
	to := netip.MustParseAddrPort("[2001:db8:2::10]:80")
	allow := phaseOf(t, "allowlist", to.Addr().String())
	for _, tt := range []struct {
		name     string
		internal bool
		want     string // of UDP
		beside   []direct.Phase
	}{
		{"internal", true, "refused", nil},
		{"beside_denied_names", false, "direct", []direct.Phase{phaseOf(t, "denylist", "evil.test")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, false)
			listeners := l.listen(t)
			if err := l.gate.Install(l.spec(t, listeners, phaseOf(t, "public")), policy.Baseline); err != nil {
				t.Fatal(err)
			}
			before := l.open(t, "tcp", to, "direct")
			s := ipv4Only(l.spec(t, listeners, append([]direct.Phase{allow}, tt.beside...)...))
			s.Internal = tt.internal
			if err := l.gate.Install(s, policy.Baseline); err != nil {
				t.Fatal(err)
			}
			if got := l.probe(t, "udp", to.String()); got != tt.want {
				t.Errorf("udp: got %s, want %s", got, tt.want)
			}
			if got := exchange(before.conn); got != "refused" {
				t.Errorf("a connection from before: got %s", got)
			}
		})
	}
}
