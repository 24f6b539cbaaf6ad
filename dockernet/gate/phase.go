package gate

import (
	"net/netip"
	"slices"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// Observed ends the prefix of messages about packets that a phase lets through and only watches.
const Observed = "observed"

// phase makes the chains of a phase: the filter's, that of new connections, and that of what comes in.
func (b *builder) phase(r ref) {
	n := r.phase
	refused, let := nft.Goto(b.name(n.String(), "refuse")), nft.Return
	if b.Phases[n].Rules.Observed() != nil {
		let = nft.Goto(b.name(n.String(), "observed"))
		b.chain(nft.AnyKind, let.Chain(), nft.Rule{fresh, nft.Limit{Rate: logRate, Burst: logBurst},
			nft.Log{Prefix: tableID.Name + " " + n.String() + " " + Observed, Group: b.LogGroup, Snaplen: logBytes}}, nft.Rule{nft.Return})
	}
	b.chain(nft.AnyKind, refused.Chain(), b.account(hushChain, refusedCounter(n), n.String(), nft.Goto(rejectChain))...)
	for _, f := range b.families() {
		rules, chains := b.plan.Judge(n, f, direct.Outcomes{
			Refuse: refused,
			Let: func(tests ...nft.Part) nft.Rule {
				return append(slices.Clone(tests), nft.Count{Counter: directCounter(n)}, let)
			},
			// A first segment is here only if it could not be redirected.
			Redirected: []nft.Part{nft.Is(nft.CTState, nft.AnyOf{"new", "untracked"}), refused},
			Floor:      b.floor,
		})
		b.chains = append(b.chains, chains...)
		b.chain(f, r.chain(f), slices.Concat(b.onlyTCP(n, refused), b.replies(n, f, refused), rules)...)
	}
	if r.proxied {
		b.chain(nft.AnyKind, r.steer(), b.steering(n)...)
	}
	if r.restricted {
		b.chain(nft.AnyKind, r.input(), b.input(n, refused)...)
	}
}

var isReply = nft.Is(nft.CTDirection, nft.Replied)

// replies lets connections into the container work, those that the phase lets in.
func (b *builder) replies(n policy.Phase, f nft.Kind, refused nft.Verdict) []nft.Rule {
	of := layouts[f]
	others := nft.Rule{nft.Not(of.icmpType, of.echo), refused}
	switch b.inbound(n) {
	case policy.InboundAll:
		return []nft.Rule{{isReply, notJoined, nft.Return}}
	case policy.InboundHost:
		return append(b.plan.Host(f, isReply, notJoined, nft.Return), others)
	default:
		return []nft.Rule{others}
	}
}

// input refuses connections into the container.
func (b *builder) input(n policy.Phase, refused nft.Verdict) []nft.Rule {
	rules := []nft.Rule{
		{isReply, nft.Return},
		{nft.Is(nft.IP6Next, nft.Word("ipv6-icmp")), nft.Is(nft.ICMP6Type, nft.Range{First: routerSearch, Last: neighbourAnswer}), nft.Return},
	}
	if b.inbound(n) == policy.InboundHost {
		for _, f := range b.families() {
			for _, a := range b.hosts(f) {
				rules = append(rules, nft.Rule{nft.Is(f.Source(), nft.Single(a)), nft.Return})
			}
		}
	}
	return append(rules, nft.Rule{refused})
}

// hosts are the host's addresses of the family, each once and in order.
func (s *Spec) hosts(f nft.Kind) []netip.Addr {
	list := slices.DeleteFunc(slices.Clone(s.Host), func(a netip.Addr) bool { return a.Is4() != (f == nft.IPv4) })
	slices.SortFunc(list, netip.Addr.Compare)
	return slices.Compact(list)
}

// dnsTo sends what goes to port 53 elsewhere. What is neither TCP nor UDP may look so, and comes to nothing there.
func dnsTo(elsewhere nft.Verdict) nft.Rule {
	return nft.Rule{nft.Is(nft.AnyPort, nft.Number(dnsPort)), elsewhere}
}

const dnsPort = 53

// steering sends new connections to the proxy, but for those that the filter judges.
func (b *builder) steering(n policy.Phase) []nft.Rule {
	dns, rest := toProxy, nft.Goto(b.name(restChain))
	var named, own []nft.Rule
	for _, f := range b.families() {
		named = append(named, b.plan.DNS(n, f, nft.Return)...)
		own = append(own, b.plan.Steer(n, f, nft.Return, rest)...)
	}
	if named != nil {
		// What is named with port 53 goes straight, and nothing else does on that port.
		dns = nft.Goto(b.name(n.String(), "steer", "dns"))
		b.chain(nft.AnyKind, dns.Chain(), append(named, nft.Rule{toProxy})...)
	}
	return slices.Concat([]nft.Rule{dnsTo(dns), {nft.Not(nft.Protocol, nft.Word("tcp")), nft.Return}}, own, []nft.Rule{{rest}})
}

// restChain steers what the phases have no rules of their own for.
const restChain = "steer_rest"

// rest makes that chain, if any phase leads there.
func (b *builder) rest() {
	if !slices.ContainsFunc([]policy.Phase{policy.Baseline, policy.Run, policy.Evaluation}, b.Proxies) {
		return
	}
	var rules []nft.Rule
	for _, f := range b.families() {
		rules = append(rules, b.plan.Stay(f, nft.Return)...)
	}
	for _, f := range b.families() {
		if !b.routes(f) {
			rules = append(rules, nft.Rule{nft.Is(nft.Family, word(f)), nft.Return})
		}
	}
	b.chain(nft.AnyKind, b.name(restChain), append(rules, nft.Rule{toProxy})...)
}
