// Package policy is the pure model of a network policy: it parses, normalises, checks and prints what a user wrote.
//
// Nothing here does I/O, and every value is immutable once made: copies may be shared by any number of goroutines.
package policy

import "net/netip"

// Mode says what a policy does with a destination that no target names.
// The zero Mode is [NoNetwork], so a policy that was never filled in refuses everything.
type Mode uint8

const (
	NoNetwork Mode = iota // refuse everything
	Public                // allow everything but the floor
	Allowlist             // allow the targets, refuse the rest
	Denylist              // refuse the targets, allow the rest but the floor
)

// hasTargets reports whether the mode needs targets; the others have none.
func (m Mode) hasTargets() bool { return m == Allowlist || m == Denylist }

// Kind is the form of a target's host.
type Kind uint8

const (
	Hostname Kind = iota + 1 // "api.example.com": that name only
	Wildcard                 // "*.example.com": any number of labels under it, never itself
	IPv4Address
	IPv6Address
	IPv4CIDR
	IPv6CIDR
)

// IsName reports whether the kind is judged by host name and not by address.
func (k Kind) IsName() bool { return k == Hostname || k == Wildcard }

// Target is one host, wildcard, address or network that a policy names, in normal form.
type Target struct {
	// Host is the normal form: lower case, no trailing dot, compressed address, strict prefix.
	Host string
	// Port is 1..65535, or 0 for every port.
	Port uint16
	Kind Kind
	// Prefix is what an address or network covers as it is judged: a single address has all its bits, an
	// IPv4-mapped address is the IPv4 one. It is the zero Prefix for names.
	Prefix netip.Prefix
}

// Policy is what one phase allows. Its zero value is no-network.
type Policy struct {
	Mode Mode
	// Targets are the allowed (Allowlist) or denied (Denylist) ones, sorted by host, then no port before
	// ports in numeric order, without duplicates; empty in the other modes.
	Targets []Target
	Options Options
}

// Phase is a part of an evaluation that has a policy of its own.
type Phase uint8

const (
	Baseline Phase = iota
	Run
	Evaluation

	PhaseCount = 3
)

// Phases holds the policy of every phase, indexed by [Phase]. Nothing is inherited between them.
type Phases [PhaseCount]Policy
