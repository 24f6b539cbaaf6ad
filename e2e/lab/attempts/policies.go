package attempts

import (
	"net/netip"
	"strings"

	"sluice/e2e/lab/attack"
)

// Target is whom an attempt is for.
type Target int

const (
	nobody  Target = iota // what no policy opens: the floor, other networks, false sources, odd packets
	outside               // an address that no policy names
	allowed               // what the allowlist names
	denied                // what the denylists name
	sibling               // a container on the same network
	host                  // an address of the host
	targets
)

// Way is how an attempt tries it. A policy may open a target by some ways only.
type Way int

const (
	connection Way = iota // TCP of the kernel's: to the proxy, or straight
	segments              // TCP made by hand, which is of use only where TCP goes straight
	datagrams             // UDP and ping, by the kernel or by hand: straight
	quic                  // UDP to port 443
	broadcast             // UDP to all of a network: no more than to each of them, but only the guard knows the address
	question              // a name that no policy names, by DNS
	named                 // such a name at the address of an allowed one, shown in TLS or HTTP
	odd                   // the same in a form that no client uses, and that the proxy need not pass on
	within                // data in a question for an allowed name, which the filter never passes on
	explicit              // a request to the proxy, at the address for that
	unasked               // a request to the proxy's own listener
	stray                 // what belongs to no connection: it may pass where the target is open, but need not
)

// Attempt is one attempt and what is expected of it.
type Attempt struct {
	attack.Attempt
	Name string
	Whom Target
	Way  Way
	// Flow is looked for beside the token, if it is not empty.
	Flow string
	// Blind is set if nobody sees it without a policy either, or not for sure. It is made to see that no policy of ours
	// opens it, but passes no judgement on the test itself.
	Blind bool
}

// Policy is one that attempts are made under.
type Policy struct {
	Name, Document string
	// Next is the policy of the phase "run", if that is another one.
	Next *Policy
	// open are the targets that it opens, straight those to which TCP goes without the proxy.
	open, straight [targets]bool
	// names are asked for and shown as one likes; otherwise only those of the policy.
	names bool
	// noQUIC: UDP 443 is refused but to local addresses.
	noQUIC bool
	// anyFrames: the gate leaves it to the guard what IPv4 the workload sends past its own kernel.
	anyFrames bool
	// shared: the proxy sends from where the workload does, so it need not leave near targets to that.
	shared bool
	// confined: nothing leaves but TCP.
	confined bool
}

// Shared is the policy as a sidecar enforces it that shares the workload's network.
func (p *Policy) Shared() *Policy {
	s := *p
	s.shared, s.anyFrames, s.confined = true, false, p.open != everything
	return &s
}

var (
	everything = [targets]bool{outside: true, allowed: true, denied: true, sibling: true, host: true}
	notDenied  = [targets]bool{outside: true, allowed: true, sibling: true, host: true}
	near       = [targets]bool{sibling: true, host: true}
)

// allowed and denied addresses, by family, and that of web.test.
var (
	allowedAddresses = [2]netip.Addr{netip.MustParseAddr("203.0.113.40"), netip.MustParseAddr("2001:db8::40")}
	deniedAddresses  = [2]netip.Addr{netip.MustParseAddr("203.0.113.66"), netip.MustParseAddr("2001:db8:66::66")}
	webAddresses     = [2]netip.Addr{netip.MustParseAddr("203.0.113.10"), netip.MustParseAddr("2001:db8::10")}
)

const allowlistDocument = `{"network_mode":"allowlist","allowed_hosts":["203.0.113.40","2001:db8::40","web.test"]}`

// Allowlist is one of addresses and a name.
var Allowlist = &Policy{Name: "allowlist", Document: allowlistDocument, open: [targets]bool{allowed: true}, straight: [targets]bool{allowed: true}}

// Policies are those under which everything is tried.
var Policies = []*Policy{
	{Name: "public", Document: `"public"`, open: everything, straight: everything, names: true, anyFrames: true},
	{Name: "public-before-names", Document: `{"baseline_network_policy":"public","run_network_policy":` + allowlistDocument + `}`,
		open: everything, straight: near, names: true, Next: Allowlist},
	{Name: "no-network", Document: `"no-network"`},
	Allowlist,
	{Name: "denylist", Document: `{"network_mode":"denylist","denied_hosts":["203.0.113.66","2001:db8:66::/48"]}`,
		open: notDenied, straight: notDenied, names: true},
	{Name: "denylist-of-names", Document: `{"network_mode":"denylist","denied_hosts":["203.0.113.66","2001:db8:66::/48","evil.test"]}`,
		open: notDenied, straight: near, names: true, noQUIC: true},
}

// Passes says what must pass under the policy, and what may. Without a gate there is no proxy either, and only what
// the guard takes for the direct plane passes.
func (p *Policy) Passes(a *Attempt, internal, gate bool) (must, may bool) {
	if a.Network == "frame" && gate && !(p.anyFrames && strings.HasPrefix(a.Name, "v4/")) {
		return false, false
	}
	if p.confined && (a.Way == datagrams || a.Way == quic) {
		return false, false
	}
	local := a.Near()
	straight := p.straight[a.Whom] && (local || !internal)
	switch a.Way {
	case connection:
		may = p.open[a.Whom] && gate || straight
	case segments:
		may = straight
	case datagrams, quic:
		may = p.open[a.Whom] && (local || !internal) && (a.Way != quic || local || !p.noQUIC)
	case broadcast:
		return false, p.shared && p.open[sibling]
	case question:
		may = p.names && gate
	case named:
		may = p.names && (gate || p.straight[outside] && !internal)
	case odd:
		return false, p.names && (gate || p.straight[outside] && !internal)
	case within:
		return false, false // and past the filter, the guard refuses port 53
	case explicit:
		may = p.open[a.Whom] && (!local || p.shared) && gate
		return may && !local && !a.Blind, may
	case unasked:
		return false, p.open[a.Whom] && !local
	case stray:
		return false, p.open[a.Whom]
	}
	return may && !a.Blind, may
}

// Near reports whether the attempt is for the host or for a container of the same network.
func (a *Attempt) Near() bool { return a.Whom == sibling || a.Whom == host }

// Arrives reports whether the attempt has to arrive somewhere where there is no policy.
func (a *Attempt) Arrives(internal bool) bool {
	return !a.Blind && a.Way != explicit && a.Way != unasked && (a.Near() || !internal)
}

// Answered reports whether a refusal has to be told to the program at once. Nobody is told of what its kernel does not
// send itself; and where a policy lets all but a few addresses pass, the engine may drop what goes to its other networks.
func (p *Policy) Answered(a *Attempt) bool {
	switch a.Network {
	case "tcp", "mptcp", "udp":
		return !(a.Blind && p.open[outside])
	}
	return false
}
