// Package matcher decides what a policy says about a destination: it compiles a [policy.Policy] into an immutable
// [Ruleset], which answers for names and addresses in nanoseconds and without allocating.
//
// It does no I/O, knows nothing of who asks, and gives the same answers for every order of the targets.
package matcher

import (
	"cmp"
	"errors"
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
	// addresses and networks.
	Never []netip.Prefix
}

// Ruleset answers for one policy. It is immutable: any number of goroutines may use it at once.
//
// In all its methods a port is 1 to 65535, or 0 for traffic that has no port (ICMP echo), which only targets without
// a port match.
type Ruleset struct {
	mode    policy.Mode
	options Options

	addresses        *addresses
	wildcards, hosts index // wildcards by what follows the "*."
	zones            index // of Options.PrivateZones
	never            *bart.Lite
}

// Compile makes a rule set of a policy as package policy makes them: targets in normal form. The order of the targets
// and duplicates do not matter. A list mode without a target is taken literally: an allowlist then allows nothing, a
// denylist denies only what the floor does.
//
// The Ruleset keeps of p only the targets that are addresses or networks. Compile gives an error and no Ruleset for
// an unknown mode, targets in a mode that has none, targets and options that are not in normal form, and more than
// 2^31-1 targets or 4 GiB of names.
func Compile(p policy.Policy, o Options) (*Ruleset, error) {
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
	r := &Ruleset{mode: p.Mode, options: o, never: new(bart.Lite)}
	for _, n := range o.Never {
		if n = unmap(n); !n.IsValid() {
			return nil, errors.New("an option Never is not a valid prefix")
		}
		r.never.Insert(n)
	}
	if err := r.addZones(o.PrivateZones); err != nil {
		return nil, err
	}
	targets := p.Targets
	if !isSorted(targets) {
		targets = slices.SortedFunc(slices.Values(targets), compareTargets)
	}
	for i := range targets {
		if k := targets[i].Kind; k < policy.Hostname || k > policy.IPv6CIDR {
			return nil, fmt.Errorf("target %q: kind %d is unknown", targets[i].Host, k)
		}
	}
	var err error
	if r.addresses, err = newAddresses(targets); err != nil {
		return nil, err
	}
	if r.wildcards, err = newIndex(targets, policy.Wildcard); err != nil {
		return nil, err
	}
	if r.hosts, err = newIndex(targets, policy.Hostname); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *Ruleset) addZones(zones []string) error {
	targets := make([]policy.Target, len(zones))
	for i, z := range zones {
		targets[i] = policy.Target{Host: strings.ToLower(strings.TrimSuffix(z, ".")), Kind: policy.Hostname}
	}
	slices.SortFunc(targets, compareTargets)
	var err error
	if r.zones, err = newIndex(targets, policy.Hostname); err != nil {
		return fmt.Errorf("private zones: %w; write a domain, such as corp.example", err)
	}
	return nil
}

func unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96) // invalid if it covers more than mapped addresses
	}
	return p
}

// compareTargets gives the order of a policy's targets.
func compareTargets(a, b policy.Target) int {
	return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
}

func isSorted(targets []policy.Target) bool {
	for i := 1; i < len(targets); i++ {
		a, b := &targets[i-1], &targets[i]
		if a.Host > b.Host || a.Host == b.Host && a.Port > b.Port {
			return false
		}
	}
	return true
}

// Mode returns the mode of the policy.
func (r *Ruleset) Mode() policy.Mode { return r.mode }

// HasNameRules reports whether any target is a host name or wildcard.
func (r *Ruleset) HasNameRules() bool { return r.hosts.targets+r.wildcards.targets > 0 }

// The tables that a rule can be in.
const (
	addressRules = iota
	wildcardRules
	hostRules
)

// addressRule packs the index of an address target.
func addressRule(index int) RuleID { return addressRules<<56 | RuleID(index) }

// nameRule packs the table of a name, where its entry ends, and which of its targets it is.
func nameRule(table, end, n int) RuleID { return RuleID(table)<<56 | RuleID(n)<<32 | RuleID(end) }

// Target returns the target that a decision of this Ruleset names, or the zero Target for [NoRule].
func (r *Ruleset) Target(id RuleID) policy.Target {
	end, n := int(id&math.MaxUint32), int(id>>32&(1<<24-1))
	switch id >> 56 {
	case addressRules:
		return r.addresses.targets[id]
	case wildcardRules:
		name, port := r.wildcards.targetAt(end, n)
		return policy.Target{Host: "*." + name, Port: port, Kind: policy.Wildcard}
	case hostRules:
		name, port := r.hosts.targetAt(end, n)
		return policy.Target{Host: name, Port: port, Kind: policy.Hostname}
	default:
		return policy.Target{}
	}
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
