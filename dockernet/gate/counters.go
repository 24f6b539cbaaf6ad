package gate

import (
	"sluice/dockernet/nft"
	"sluice/policy"
)

// Counters of the table, besides two a phase, see directCounter and refusedCounter.
const (
	refusedCount = "refused" // by what does not depend on a phase
	proxiedCount = "proxied" // TCP connections that were redirected
	dnsCount     = "dns"     // UDP flows that were redirected
)

func directCounter(p policy.Phase) string  { return p.String() + "_direct" }
func refusedCounter(p policy.Phase) string { return p.String() + "_refused" }

func allCounters() []string {
	list := []string{refusedCount, proxiedCount, dnsCount}
	for p := range policy.Phase(policy.PhaseCount) {
		list = append(list, directCounter(p), refusedCounter(p))
	}
	return list
}

// Counters are what the table has counted since it was made. While two phases are in force, a packet may count in both.
type Counters struct {
	Direct, Refused [policy.PhaseCount]nft.Counter
	// RefusedAlways is what no phase allows: the floor, other protocols, false sources; and what a quarantine refuses.
	RefusedAlways nft.Counter
	// Redirected are TCP connections, DNS are UDP flows to the DNS filter.
	Redirected, DNS nft.Counter
}
