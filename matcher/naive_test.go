package matcher_test

import (
	"encoding/hex"
	"math/big"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"sluice/matcher"
	"sluice/policy"
)

// naive judges as the design says it, target by target, on strings. It shares no code with the package and stays
// slow and plain, so that a reader can compare it with the design.
type naive struct {
	policy  policy.Policy
	options matcher.Options
}

// answer is what the naive matcher says, with every target that may be named for it (none: no rule).
type answer struct {
	verdict   matcher.Verdict
	reason    matcher.Reason
	rules     []policy.Target
	privateOK bool
	either    bool // not-listed and port-not-listed are both right: of the readings some are listed with other ports
}

// somePort stands for a port that is not known yet.
const somePort = -1

var (
	hostLabel = regexp.MustCompile(`^[A-Za-z0-9_-]{1,63}$`)
	dnsLabel  = regexp.MustCompile(`^[!-\[\]-~]{1,63}$`)
	number    = regexp.MustCompile(`^([0-9]+|0[xX][0-9a-fA-F]*)$`)
)

// labels splits a name, in lower case; nil if it is none.
func labels(name string, label *regexp.Regexp) []string {
	name = strings.TrimSuffix(name, ".")
	if len(name) > 253 {
		return nil
	}
	list := strings.Split(name, ".")
	for i, l := range list {
		if !label.MatchString(l) || strings.Contains(l, ".") {
			return nil
		}
		b := []byte(l)
		for j := range b {
			if b[j] >= 'A' && b[j] <= 'Z' {
				b[j] += 'a' - 'A'
			}
		}
		list[i] = string(b)
	}
	if number.MatchString(list[len(list)-1]) {
		return nil
	}
	return list
}

// isUnder reports whether a name lies in a domain, with at least least labels more.
func isUnder(name, domain []string, least int) bool {
	more := len(name) - len(domain)
	return more >= least && slices.Equal(name[more:], domain)
}

func hasPort(t policy.Target, port int) bool {
	return t.Port == 0 || port == somePort || int(t.Port) == port
}

func (n naive) name(host string, port int) answer {
	return n.judgeLabels(labels(host, hostLabel), port)
}

func (n naive) judgeLabels(name []string, port int) answer {
	switch {
	case name == nil:
		return answer{reason: matcher.BadName}
	case n.policy.Mode == policy.Public:
		return answer{verdict: matcher.Allow, reason: matcher.PublicMode}
	case n.policy.Mode == policy.NoNetwork:
		return answer{reason: matcher.NoNetworkMode}
	}
	listed := false
	best := 0 // the more labels, the better; a host beats every wildcard
	var rules []policy.Target
	for _, t := range n.policy.Targets {
		rank := 0
		domain := strings.Split(strings.TrimPrefix(t.Host, "*."), ".")
		switch {
		case t.Kind == policy.Hostname && slices.Equal(name, domain):
			rank = 1000
		case t.Kind == policy.Wildcard && isUnder(name, domain, 1):
			rank = len(domain)
		default:
			continue
		}
		listed = true
		if !hasPort(t, port) || rank < best {
			continue
		}
		if rank > best {
			best, rules = rank, nil
		}
		rules = append(rules, t)
	}
	switch {
	case rules != nil && n.policy.Mode == policy.Denylist:
		return answer{reason: matcher.NameRule, rules: rules}
	case rules != nil:
		return answer{verdict: matcher.Allow, reason: matcher.NameRule, rules: rules, privateOK: best == 1000 || n.isPrivateName(name)}
	case n.policy.Mode == policy.Denylist:
		return answer{verdict: matcher.Allow, reason: matcher.NotDenied}
	}
	a := answer{reason: matcher.NotListed}
	if listed {
		a.reason = matcher.PortNotListed
	}
	if n.options.ResolveForAddressRules && slices.ContainsFunc(n.policy.Targets, func(t policy.Target) bool { return t.Prefix.IsValid() && hasPort(t, port) }) {
		a.verdict = matcher.ByAddress
	}
	return a
}

func (n naive) isPrivateName(name []string) bool {
	for _, z := range n.options.PrivateZones {
		if isUnder(name, strings.Split(z, "."), 0) {
			return true
		}
	}
	return n.options.WildcardPrivate
}

func (n naive) query(host string) answer {
	switch n.policy.Mode {
	case policy.Public:
		return answer{verdict: matcher.Allow, reason: matcher.PublicMode}
	case policy.NoNetwork:
		return answer{reason: matcher.NoNetworkMode}
	}
	name := labels(host, dnsLabel)
	a := n.judgeLabels(name, n.unknownPort())
	if a.reason != matcher.NameRule && len(name) > 2 && name[0][0] == '_' && name[1][0] == '_' {
		if b := n.judgeLabels(name[2:], n.unknownPort()); b.reason == matcher.NameRule {
			return b
		}
	}
	return a
}

// unknownPort: DNS lets through what some port may reach, a denylist all that some port is not denied for.
func (n naive) unknownPort() int {
	if n.policy.Mode == policy.Denylist {
		return 0
	}
	return somePort
}

func (n naive) addr(a netip.Addr, port int) answer {
	return n.resolved(answer{verdict: matcher.ByAddress, reason: matcher.NotListed}, a, port)
}

// resolved refuses what must never be dialled only where nothing else does, so that the reason is the policy's if it
// has one.
func (n naive) resolved(name answer, a netip.Addr, port int) answer {
	judged := n.judged(name, a, port)
	outer, hidden, _ := reveal(a)
	for _, c := range append([]netip.Addr{outer}, hidden...) {
		if judged.verdict == matcher.Allow && inAny(c, n.options.Never) {
			return answer{reason: matcher.OwnAddress}
		}
	}
	return judged
}

func (n naive) judged(name answer, a netip.Addr, port int) answer {
	switch {
	case name.verdict == matcher.Refuse:
		return name
	case n.policy.Mode == policy.NoNetwork:
		return answer{reason: matcher.NoNetworkMode}
	}
	outer, hidden, translated := reveal(a)
	all := append([]netip.Addr{outer}, hidden...)
	if n.policy.Mode == policy.Denylist {
		for _, c := range all {
			if rules, _ := n.covering(c, port); rules != nil {
				return answer{reason: matcher.AddressRule, rules: rules}
			}
		}
	}
	for _, c := range all {
		if !n.options.NoFloor && inAny(c, onTheFloor) && !n.namesVery(c, port) && !n.namesVery(outer, port) {
			return answer{reason: matcher.Floor}
		}
	}
	switch n.policy.Mode {
	case policy.Public:
		return answer{verdict: matcher.Allow, reason: matcher.PublicMode}
	case policy.Denylist:
		return answer{verdict: matcher.Allow, reason: matcher.NotDenied}
	}
	private := slices.ContainsFunc(all, func(c netip.Addr) bool { return inAny(c, inside) })
	if name.verdict == matcher.Allow && (name.privateOK || !private) {
		return name
	}
	rules, listed := n.covering(outer, port)
	if rules == nil && translated {
		missing := false
		for _, h := range hidden {
			one, l := n.covering(h, port)
			listed = listed || l
			missing = missing || one == nil
			rules = append(rules, one...)
		}
		if missing {
			rules = nil
		}
	}
	switch {
	case rules != nil:
		return answer{verdict: matcher.Allow, reason: matcher.AddressRule, rules: rules}
	case name.verdict == matcher.Allow:
		return answer{reason: matcher.PrivateWildcard, rules: name.rules}
	case listed:
		return answer{reason: matcher.PortNotListed, either: len(hidden) > 1}
	}
	return answer{reason: name.reason}
}

// covering returns the targets with the longest prefix that cover address and port.
func (n naive) covering(a netip.Addr, port int) (rules []policy.Target, listed bool) {
	longest := -1
	for _, t := range n.policy.Targets {
		if !t.Prefix.IsValid() || !in(a, t.Prefix) {
			continue
		}
		listed = true
		if !hasPort(t, port) || t.Prefix.Bits() < longest {
			continue
		}
		if t.Prefix.Bits() > longest {
			longest, rules = t.Prefix.Bits(), nil
		}
		rules = append(rules, t)
	}
	return rules, listed
}

// namesVery reports whether an allowlist names this very address with the port.
func (n naive) namesVery(a netip.Addr, port int) bool {
	return n.policy.Mode == policy.Allowlist && slices.ContainsFunc(n.policy.Targets, func(t policy.Target) bool {
		return t.Prefix.IsValid() && t.Prefix.Bits() == a.BitLen() && t.Prefix.Addr() == a && hasPort(t, port)
	})
}

// in compares the numbers.
func in(a netip.Addr, p netip.Prefix) bool {
	if a.BitLen() != p.Addr().BitLen() {
		return false
	}
	shift := uint(a.BitLen() - p.Bits())
	x := new(big.Int).SetBytes(a.AsSlice())
	y := new(big.Int).SetBytes(p.Addr().AsSlice())
	return x.Rsh(x, shift).Cmp(y.Rsh(y, shift)) == 0
}

func inAny(a netip.Addr, list []netip.Prefix) bool {
	return slices.ContainsFunc(list, func(p netip.Prefix) bool { return in(a, p) })
}

func prefixes(text string) (list []netip.Prefix) {
	for _, s := range strings.Fields(text) {
		list = append(list, netip.MustParsePrefix(s))
	}
	return list
}

var (
	onTheFloor = prefixes(`0.0.0.0/8 127.0.0.0/8 169.254.0.0/16 224.0.0.0/4 255.255.255.255/32 ::/128 ::1/128 fe80::/10 ff00::/8
		100.100.100.200/32 168.63.129.16/32 192.0.0.192/32 fd00:ec2::/32 fd20:ce::254/128 fd00:c1::a9fe:a9fe/128 fd00:42::42/128
		fd00:a9fe:a9fe::1/128 fd00:100::100:200/128`)
	inside = prefixes(`10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 192.0.0.0/24 198.18.0.0/15 240.0.0.0/4
		fc00::/7 fec0::/10 100::/64 100:0:0:1::/64 2001:2::/48 5f00::/16`)
)

// reveal returns the address without zone and mapping, and the IPv4 addresses in it. It reads the 32 hexadecimal
// digits. translated: a packet ends at the IPv4 address and not behind it.
func reveal(a netip.Addr) (outer netip.Addr, hidden []netip.Addr, translated bool) {
	a = a.WithZone("")
	if a.Is4() {
		return a, nil, false
	}
	b := a.As16()
	digits := hex.EncodeToString(b[:])
	v4 := func(s string) netip.Addr {
		b, _ := hex.DecodeString(s)
		return netip.AddrFrom4([4]byte(b))
	}
	zeros := func(s string) bool { return strings.Trim(s, "0") == "" }
	last := digits[24:]
	switch {
	case zeros(digits[:20]) && digits[20:24] == "ffff":
		return v4(last), nil, false
	case zeros(digits[:16]) && digits[16:24] == "ffff0000":
		return a, []netip.Addr{v4(last)}, true
	case zeros(digits[:24]):
		if zeros(last) || last == "00000001" {
			return a, nil, false
		}
		return a, []netip.Addr{v4(last)}, false
	case digits[:24] == "0064ff9b0000000000000000":
		return a, []netip.Addr{v4(last)}, true
	case digits[:12] == "0064ff9b0001":
		// RFC 6052 §2.2: digits 16 and 17 are the octet u, which is zero but where the prefix has 96 bits, and what
		// follows the IPv4 address is zero.
		hidden = []netip.Addr{v4(last)}
		if zeros(digits[16:18]) {
			if zeros(digits[26:]) {
				hidden = append(hidden, v4(digits[18:26]))
			}
			if zeros(digits[24:]) {
				hidden = append(hidden, v4(digits[14:16]+digits[18:24]))
			}
			if zeros(digits[22:]) {
				hidden = append(hidden, v4(digits[12:16]+digits[18:22]))
			}
		}
		// What begins with a zero octet is what the padding of another length looks like, if there is another.
		if real := slices.DeleteFunc(slices.Clone(hidden), func(h netip.Addr) bool { return h.As4()[0] == 0 }); len(real) > 0 {
			return a, real, true
		}
		return a, hidden[:1], true
	case digits[:4] == "2002":
		return a, []netip.Addr{v4(digits[4:12])}, false
	case digits[:8] == "20010000":
		flipped := new(big.Int).SetBytes(b[12:])
		flipped.Xor(flipped, big.NewInt(0xffffffff))
		var four [4]byte
		return a, []netip.Addr{netip.AddrFrom4([4]byte(flipped.FillBytes(four[:])))}, false
	case digits[16:24] == "00005efe" || digits[16:24] == "02005efe":
		return a, []netip.Addr{v4(last)}, false
	}
	return a, nil, false
}
