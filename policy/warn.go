package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/net/publicsuffix"
)

// Warning is something legal in a policy that likely does not mean what its author wanted.
type Warning struct {
	// Pointer leads to the value (RFC 6901), Text is what stands there.
	Pointer string `json:"pointer"`
	Text    string `json:"text"`
	// Problem says what it means, Advice what to do instead.
	Problem string `json:"problem"`
	Advice  string `json:"advice"`
}

func (w Warning) String() string {
	return w.Pointer + ": " + w.Text + ": " + w.Problem + "; " + w.Advice
}

// Warnings returns what is likely wrong with p, that of a target in the order of the targets. Pointers lead into the
// normal form that [Policy.MarshalJSON] prints. floor is what is refused unless a target names the very address, as
// the matcher's FloorPrefixes returns it.
func Warnings(p Policy, floor []netip.Prefix) []Warning {
	c := newChecker(p, floor)
	c.checkPolicy()
	for i, t := range p.Targets {
		c.at = pointer(listField(p.Mode)).AppendToken(strconv.Itoa(i))
		c.checkTarget(t)
	}
	return c.found
}

// Warnings returns the [Warnings] of every policy in the document. Pointers lead into the document as it was read.
func (d Document) Warnings(floor []netip.Prefix) []Warning {
	if d.Policy != nil {
		return d.places[Baseline].locate(*d.Policy, Warnings(*d.Policy, floor))
	}
	var all []Warning
	for phase, p := range d.Phases {
		if p != nil && slices.Index(d.Phases[:], p) == phase { // an inherited policy is checked once
			all = append(all, d.places[phase].locate(*p, Warnings(*p, floor))...)
		}
	}
	return all
}

// locate turns pointers into p's normal form into pointers into the document that p stood in.
func (pl place) locate(p Policy, warnings []Warning) []Warning {
	list := string(pointer(listField(p.Mode))) + "/"
	for i := range warnings {
		w := &warnings[i]
		if tail, found := strings.CutPrefix(w.Pointer, list); found {
			index, err := strconv.Atoi(tail)
			if err == nil && index < len(pl.indices) {
				w.Pointer = list + strconv.Itoa(pl.indices[index])
			}
		}
		if pl.field != "" {
			w.Pointer = string(pointer(pl.field)) + w.Pointer
		}
	}
	return warnings
}

type hostPort struct {
	host string
	port uint16
}

type prefixPort struct {
	prefix netip.Prefix
	port   uint16
}

// A checker collects warnings. Its indices make the search for shadowed targets linear in the number of targets.
type checker struct {
	policy   Policy
	floor    []netip.Prefix
	at       jsontext.Pointer
	found    []Warning
	names    map[hostPort]bool // wildcards without their star, so that a name's own tail is the key
	prefixes map[prefixPort]string
	lengths  []int // of prefixes that occur, longest first
}

func newChecker(p Policy, floor []netip.Prefix) *checker {
	c := &checker{policy: p, floor: floor, names: map[hostPort]bool{}, prefixes: map[prefixPort]string{}}
	for _, t := range p.Targets {
		if t.Kind.IsName() {
			c.names[hostPort{strings.TrimPrefix(t.Host, "*"), t.Port}] = true
			continue
		}
		key := prefixPort{t.Prefix, t.Port}
		if _, seen := c.prefixes[key]; !seen {
			c.prefixes[key] = t.Host
		}
		if !slices.Contains(c.lengths, t.Prefix.Bits()) {
			c.lengths = append(c.lengths, t.Prefix.Bits())
		}
	}
	slices.Sort(c.lengths)
	slices.Reverse(c.lengths)
	return c
}

func (c *checker) warn(text, problem, advice string) {
	c.found = append(c.found, Warning{Pointer: string(c.at), Text: text, Problem: problem, Advice: advice})
}

func (c *checker) checkPolicy() {
	if c.policy.Options.Observe {
		c.at = pointer("observe")
		c.warn("true", "refuses nothing but what no policy opens: everything else is let through, and recorded",
			"remove it when sluice suggest has made the policy, or where the workload is not trusted")
	}
	if c.policy.Mode == Denylist {
		c.at = pointer("network_mode")
		c.warn(strconv.Quote(Denylist.String()),
			"is not containment: relays, further names of a service, encrypted DNS and encrypted names reach what it denies",
			"write an allowlist where the workload is not trusted")
	}
	wildcard := func(t Target) bool { return t.Kind == Wildcard }
	o := c.policy.Options
	for _, budget := range []struct {
		field string
		n     int
	}{{"dns_unique_names", o.DNSUniqueNames}, {"dns_question_bytes", o.DNSQuestionBytes}} {
		if budget.n != 0 && (c.policy.Mode != Allowlist || !slices.ContainsFunc(c.policy.Targets, wildcard)) {
			c.at = pointer(budget.field)
			c.warn(strconv.Itoa(budget.n), "limits names under wildcards of an allowlist, and there are none", "remove it")
		}
	}
}

func (c *checker) checkTarget(t Target) {
	if t.Kind.IsName() {
		c.checkPublicSuffix(t)
		c.checkUDP(t)
		c.checkShadowedName(t)
		return
	}
	c.checkSpelling(t)
	c.checkReach(t)
	c.checkShadowedPrefix(t)
}

func (c *checker) checkPublicSuffix(t Target) {
	under, wildcard := strings.CutPrefix(t.Host, "*.")
	if !wildcard {
		return
	}
	suffix, icann := publicsuffix.PublicSuffix(under)
	if listed := icann || strings.IndexByte(suffix, '.') >= 0; suffix != under || !listed {
		return
	}
	what := "allows"
	if c.policy.Mode == Denylist {
		what = "denies"
	}
	c.warn(t.input(), fmt.Sprintf("%s everybody who registers a name under %q", what, under), "name the domains that are meant")
}

// udpPorts are ports of services that answer over UDP alone, or nearly so (IANA service name registry).
var udpPorts = map[uint16]string{
	67: "DHCP", 69: "TFTP", 123: "NTP", 161: "SNMP", 500: "IKE", 1900: "SSDP", 3478: "STUN", 4500: "IPsec", 5353: "mDNS", 51820: "WireGuard",
}

func (c *checker) checkUDP(t Target) {
	if c.policy.Mode != Allowlist {
		return
	}
	if t.Port == 53 {
		c.warn(t.input(), "does not open that DNS server: queries go to the filter, which has its own", "remove it, names that the policy allows resolve without it")
		return
	}
	service, byPort := udpPorts[t.Port]
	if !byPort && t.Port != 0 {
		return
	}
	if !byPort {
		service = udpService(strings.TrimPrefix(t.Host, "*."))
	}
	if service != "" {
		c.warn(t.input(), "suggests "+service+" over UDP, which a name never opens", `name the addresses too, as in "192.0.2.1:123"`)
	}
}

// udpService guesses from a name that it is only used over UDP.
func udpService(name string) string {
	first, rest, _ := strings.Cut(name, ".")
	switch {
	case name == "ntp.org" || strings.HasSuffix(name, ".ntp.org") || strings.TrimRight(first, "0123456789") == "ntp":
		return "NTP"
	case first == "time" && strings.IndexByte(rest, '.') > 0: // time.example.com, but not time.com
		return "NTP"
	case first == "stun":
		return "STUN"
	}
	return ""
}

func (c *checker) checkShadowedName(t Target) {
	if t.Port != 0 && c.names[hostPort{strings.TrimPrefix(t.Host, "*"), 0}] {
		c.warn(t.input(), fmt.Sprintf("is covered by %q", t.Host), "remove it, or the target without a port")
		return
	}
	name := strings.TrimPrefix(t.Host, "*.")
	for {
		i := strings.IndexByte(name, '.')
		if i < 0 {
			return
		}
		tail := name[i:]
		for _, port := range slices.Compact([]uint16{0, t.Port}) {
			if !c.names[hostPort{tail, port}] {
				continue
			}
			advice := "remove it"
			if t.Kind == Hostname && c.policy.Mode == Allowlist {
				advice = "remove it, unless its addresses are private: answers under a wildcard may not be"
			}
			c.warn(t.input(), "is covered by "+Target{Host: "*" + tail, Port: port}.input(), advice)
			return
		}
		name = name[i+1:]
	}
}

// checkSpelling warns of addresses that a reader may take for something else.
func (c *checker) checkSpelling(t Target) {
	if t.Kind == IPv6Address && t.Port == 0 && t.Prefix.Addr().Is6() {
		i := strings.LastIndexByte(t.Host, ':')
		host, port := t.Host[:i], t.Host[i+1:]
		if _, err := netip.ParseAddr(host); err == nil && isDigits(port) && len(port) > 1 {
			c.warn(t.input(), fmt.Sprintf("is one address, without a port: its last part is not port %s", port),
				fmt.Sprintf(`write "[%s]:%s" if the port is meant`, host, port))
		}
	}
	if (t.Kind == IPv6Address || t.Kind == IPv6CIDR) && t.Prefix.Addr().Is4() {
		c.warn(t.input(), "is judged as IPv4", "write "+Target{Host: judgedText(t), Port: t.Port}.input())
	}
}

func judgedText(t Target) string {
	if t.Prefix.IsSingleIP() {
		return t.Prefix.Addr().String()
	}
	return t.Prefix.String()
}

func (c *checker) checkReach(t Target) {
	family := "IPv4"
	if t.Prefix.Addr().Is6() {
		family = "IPv6"
	}
	switch allow := c.policy.Mode == Allowlist; {
	case allow && opensDNS(t, c.policy.Mode):
		c.warn(t.input(), "lets DNS go straight to that server, past the filter", "remove it unless the workload must ask that very server")
	case allow && t.Prefix.Bits() == 0:
		c.warn(t.input(), "allows every "+family+" address but the floor", "write the mode public if that is meant")
	case allow && c.inFloor(t.Prefix) && t.Prefix.IsSingleIP():
		c.warn(t.input(), "opens an address that the floor keeps closed otherwise", "remove it unless the workload needs that very address")
	case allow && c.inFloor(t.Prefix):
		c.warn(t.input(), "opens nothing: the floor refuses all of it", "name the very addresses that are meant")
	case !allow && t.Prefix.Bits() == 0 && len(c.policy.Targets) == 1:
		c.warn(t.input(), "leaves the other address family open", "write an allowlist or the mode no-network")
	}
}

// inFloor reports whether the floor refuses all of p.
func (c *checker) inFloor(p netip.Prefix) bool {
	return slices.ContainsFunc(c.floor, func(f netip.Prefix) bool { return f.Bits() <= p.Bits() && f.Contains(p.Addr()) })
}

func (c *checker) checkShadowedPrefix(t Target) {
	if t.Prefix.IsSingleIP() && c.inFloor(t.Prefix) {
		return // a network round it does not open it
	}
	for _, bits := range c.lengths {
		if bits > t.Prefix.Bits() {
			continue
		}
		cover := netip.PrefixFrom(t.Prefix.Addr(), bits).Masked()
		for _, port := range slices.Compact([]uint16{0, t.Port}) {
			host, found := c.prefixes[prefixPort{cover, port}]
			if !found || host == t.Host && port == t.Port || opensDNS(t, c.policy.Mode) {
				continue
			}
			by := Target{Host: host, Port: port, Kind: t.Kind}.input()
			if cover == t.Prefix && port == t.Port {
				c.warn(t.input(), "means the same as "+by, "keep one of them")
			} else {
				c.warn(t.input(), "is covered by "+by, "remove it, or what covers it")
			}
			return
		}
	}
}
