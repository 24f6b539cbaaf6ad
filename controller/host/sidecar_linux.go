package host

import (
	"fmt"
	"net/netip"
	"slices"

	"sluice/dockernet/nft"
)

// CloseToSidecar makes the host accept nothing that begins at the sidecars' bridge but questions to name servers, as
// far as those are the host itself. What it refuses is dropped before any other program's rules for input. It does so
// again when others have flushed the host's rules.
func (h *Host) CloseToSidecar(bridge string, servers []netip.Addr) error {
	h.mu.Lock()
	h.closed = func() error { return closeToSidecar(bridge, servers) }
	h.mu.Unlock()
	return closeToSidecar(bridge, servers)
}

func closeToSidecar(bridge string, servers []netip.Addr) error {
	c, err := nft.Dial()
	if err != nil {
		return fmt.Errorf("close the host to the sidecar: %w", err)
	}
	defer c.Close()
	t := sidecarTable(bridge, servers)
	b := new(nft.Batch)
	b.AddTable(t.ID)
	b.AddSets(t.ID, t.Sets...)
	b.AddChains(t.ID, t.Chains...)
	b.Replace(t.ID, t.Chains...)
	if err := c.Send(b); err != nil {
		return fmt.Errorf("close the host to the sidecar: %w", err)
	}
	return nil
}

// openToSidecar takes that back.
func openToSidecar(bridge string) error {
	c, err := nft.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	b := new(nft.Batch)
	b.DeleteTable(sidecarTable(bridge, nil).ID)
	return c.Send(b)
}

// sidecarPriority is before that of other rules for input, which are at 0.
const sidecarPriority = -10

// bridgeSet has the one bridge that the table is about.
const bridgeSet = "bridge"

func sidecarTable(bridge string, servers []netip.Addr) nft.Table {
	rules := []nft.Rule{
		{nft.In{Fields: []*nft.Field{nft.InName}, Set: bridgeSet, Not: true}, nft.Accept},
		{nft.Is(nft.CTState, nft.AnyOf{"established", "related"}), nft.Accept},
		{nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-solicit")), nft.Accept},
		{nft.Is(nft.ICMP6Type, nft.Word("nd-neighbor-advert")), nft.Accept},
	}
	servers = slices.Clone(servers)
	slices.SortFunc(servers, netip.Addr.Compare)
	for _, s := range slices.Compact(servers) {
		kind := nft.IPv6
		if s.Is4() {
			kind = nft.IPv4
		}
		for _, port := range []*nft.Field{nft.UDPPort, nft.TCPPort} {
			rules = append(rules, nft.Rule{nft.Is(kind.Destination(), nft.Single(s)), nft.Is(port, nft.Number(dnsPort)), nft.Accept})
		}
	}
	return nft.Table{
		ID:   nft.ID{Family: "inet", Name: "sluice_" + bridge},
		Sets: []nft.Set{{Name: bridgeSet, Type: nft.InterfaceName, Elements: []nft.Element{{Name: bridge}}}},
		Chains: []nft.Chain{{Name: "input", Rules: append(rules, nft.Rule{nft.Drop}),
			Hook: &nft.Hook{Type: "filter", At: "input", Priority: sidecarPriority, Accept: true}}},
	}
}
