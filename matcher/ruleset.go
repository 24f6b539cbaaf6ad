// Package matcher decides what a policy says about a destination: it compiles a [policy.Policy] into an immutable
// [Ruleset], which answers for names and addresses in nanoseconds and without allocating.
//
// It does no I/O, knows nothing of who asks, and gives the same answers for every order of the targets.
package matcher

import (
	"fmt"
	"iter"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/gaissmai/bart"

	"sluice/policy"
)

// Options change what a policy means, beyond the policy itself. The zero value is the safe one.
type Options struct {
	// PrivateZones are domains such as "corp.example": an allowed wildcard's name that is one of them or under one
	// may have private addresses.
	PrivateZones []string
	// WildcardPrivate lets the names of every wildcard have private addresses.
	WildcardPrivate bool
	// ResolveForAddressRules makes a name that an allowlist does not list [ByAddress] where an address target
	// covers the port. It does not change a denylist.
	ResolveForAddressRules bool
	// NoFloor lets loopback, link-local, metadata and the other addresses of the floor be judged like all others.
	NoFloor bool
	// Never are refused whatever the policy says, because dialling them would get round it: the proxy's own
	// addresses and networks. The reason is [OwnAddress] where the policy would allow them.
	Never []netip.Prefix
}

// Ruleset answers for one policy. It is immutable: any number of goroutines may use it at once.
//
// In all its methods a port is 1 to 65535, or 0 for traffic that has no port (ICMP echo), which only targets without
// a port match.
type Ruleset struct {
	mode    policy.Mode
	options Options
	// observed is what the policy says that is only watched for; nil elsewhere.
	observed *Ruleset

	addresses        *addresses
	wildcards, hosts index      // wildcards by what follows the "*."
	zones            index      // of Options.PrivateZones
	never            *bart.Lite // of Options.Never
}

// Compile makes a rule set of a policy as package policy makes them: targets in normal form. The order of the targets
// and duplicates do not matter. A list mode without a target is taken literally: an allowlist then allows nothing, a
// denylist denies only what the floor does.
//
// The Ruleset keeps of p only the targets that are addresses or networks. Compile gives an error and no Ruleset for
// an unknown mode, targets in a mode that has none, targets and options that are not in normal form, and more than
// 2^31-1 targets or 4 GiB of names.
//
// A policy that only observes gives the rules of public. What it says itself is in [Ruleset.Observed].
func Compile(p policy.Policy, o Options) (*Ruleset, error) {
	if !p.Options.Observe {
		return compileAlone(p, o)
	}
	r, err := compileAlone(p.InForce(), o)
	if err == nil {
		r.observed, err = compileAlone(p, o)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

func compileAlone(p policy.Policy, o Options) (*Ruleset, error) {
	switch p.Mode {
	case policy.Allowlist, policy.Denylist:
	case policy.NoNetwork, policy.Public:
		if len(p.Targets) > 0 {
			return nil, fmt.Errorf("mode %v has %d targets: only allowlist and denylist take targets", p.Mode, len(p.Targets))
		}
	default:
		return nil, fmt.Errorf("mode %d is unknown", p.Mode)
	}
	if len(p.Targets) > math.MaxInt32 {
		return nil, fmt.Errorf("%d targets are too many: use wildcards and networks", len(p.Targets))
	}
	r := &Ruleset{mode: p.Mode, options: o}
	var err error
	if r.never, err = neverSet(o.Never); err != nil {
		return nil, err
	}
	r.options.Never, r.options.PrivateZones = nil, nil // not to keep them
	if err := r.addZones(o.PrivateZones); err != nil {
		return nil, err
	}
	targets, hosts, err := split(p.Targets)
	if err != nil {
		return nil, err
	}
	if r.addresses, err = newAddresses(targets, hosts[addressRules], o.ResolveForAddressRules); err != nil {
		return nil, err
	}
	if r.wildcards, err = newIndex(targets, hosts[wildcardRules], hashOf); err != nil {
		return nil, err
	}
	if r.hosts, err = newIndex(targets, hosts[hostRules], hashHost); err != nil {
		return nil, err
	}
	return r, nil
}

// split sorts targets if they are not, and returns for each table where in them its hosts are.
func split(targets []policy.Target) ([]policy.Target, [tables][]span, error) {
	var hosts [tables][]span
	var sizes [tables]int
	for i := range targets {
		sizes[tableOf(targets[i].Kind)]++
	}
	for i := range hosts {
		hosts[i] = make([]span, 0, sizes[i])
	}
	for i := range targets {
		t := &targets[i]
		list := &hosts[tableOf(t.Kind)]
		if i > 0 {
			before := &targets[i-1]
			order := strings.Compare(before.Host, t.Host)
			if order > 0 || order == 0 && before.Port > t.Port {
				return split(slices.SortedFunc(slices.Values(targets), policy.Target.Compare))
			}
			if order == 0 && before.Kind != t.Kind {
				return nil, hosts, fmt.Errorf("target %q is of two kinds", t.Host)
			}
			if order == 0 {
				(*list)[len(*list)-1].end++
				continue
			}
		}
		*list = append(*list, span{first: int32(i), end: int32(i) + 1})
	}
	if len(hosts[noTable]) > 0 {
		t := &targets[hosts[noTable][0].first]
		return nil, hosts, fmt.Errorf("target %q: kind %d is unknown", t.Host, t.Kind)
	}
	return targets, hosts, nil
}

func (r *Ruleset) addZones(zones []string) error {
	targets := make([]policy.Target, len(zones))
	for i, z := range zones {
		targets[i] = policy.Target{Host: strings.ToLower(strings.TrimSuffix(z, ".")), Kind: policy.Hostname}
	}
	targets, hosts, err := split(targets)
	if err != nil {
		return err
	}
	if r.zones, err = newIndex(targets, hosts[hostRules], hashOf); err != nil {
		return fmt.Errorf("private zones: %w; write a domain, such as corp.example", err)
	}
	return nil
}

// Mode returns the mode of the policy.
func (r *Ruleset) Mode() policy.Mode { return r.mode }

// Observed returns what a policy says that only observes, nil for others.
func (r *Ruleset) Observed() *Ruleset { return r.observed }

// HasNameRules reports whether any target is a host name or wildcard.
func (r *Ruleset) HasNameRules() bool { return r.hosts.hosts+r.wildcards.hosts > 0 }

// The tables that a rule can be in.
const (
	noTable = iota // where the zero RuleID is
	addressRules
	wildcardRules
	hostRules
	tables
)

func tableOf(k policy.Kind) int {
	switch k {
	case policy.Hostname:
		return hostRules
	case policy.Wildcard:
		return wildcardRules
	case policy.IPv4Address, policy.IPv6Address, policy.IPv4CIDR, policy.IPv6CIDR:
		return addressRules
	default:
		return noTable
	}
}

// addressRule packs the index of an address target.
func addressRule(index int) RuleID { return addressRules<<56 | RuleID(index) }

// nameRule packs the table of a name, where its entry ends, and which of its targets it is.
func nameRule(table, end, n int) RuleID { return RuleID(table)<<56 | RuleID(n)<<32 | RuleID(end) }

// Target returns the target that a decision of this Ruleset names, or the zero Target for [NoRule]. For the id of
// another Ruleset it may be any target.
func (r *Ruleset) Target(id RuleID) policy.Target {
	position, n := int(id&math.MaxUint32), int(id>>32&0xffff)
	t := policy.Target{Kind: policy.Hostname}
	switch id >> 56 {
	case addressRules:
		if position < len(r.addresses.targets) {
			return r.addresses.targets[position]
		}
	case wildcardRules:
		if t.Host, t.Port = r.wildcards.targetAt(position, n); t.Host != "" {
			t.Host, t.Kind = "*."+t.Host, policy.Wildcard
			return t
		}
	case hostRules:
		if t.Host, t.Port = r.hosts.targetAt(position, n); t.Host != "" {
			return t
		}
	}
	return policy.Target{}
}

// Prefixes iterates over the address and network targets as they are judged, each with its port (0: every port): what
// an allowlist lets through, or a denylist refuses, by address alone. The floor and Options.Never stay to be taken out
// of what is allowed, see [FloorPrefixes].
func (r *Ruleset) Prefixes() iter.Seq2[netip.Prefix, uint16] {
	return func(yield func(netip.Prefix, uint16) bool) {
		for i := range r.addresses.targets {
			if t := &r.addresses.targets[i]; !yield(t.Prefix, t.Port) {
				return
			}
		}
	}
}
