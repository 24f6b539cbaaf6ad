package engine

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/network"
	"github.com/google/go-cmp/cmp"
)

func prefixes(list ...string) []netip.Prefix {
	var p []netip.Prefix
	for _, s := range list {
		p = append(p, netip.MustParsePrefix(s))
	}
	return p
}

func TestCreateNetwork(t *testing.T) {
	f, c := newFake(t)
	f.bridge("n0", "bridge", func(n *network.Inspect) { n.IPAM.Config[0].Subnet = "10.207.0.0/25" })
	got, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: "task", Internal: true, IPv6: true, Policy: `{"network_mode":"no-network"}`,
		Taken: prefixes("10.207.0.128/26", "10.207.1.0/24", "fd5c:1ce0:5afe::/63")})
	if err != nil {
		t.Fatal(err)
	}
	want := Network{
		ID: got.ID, Name: "task", Driver: "bridge", Internal: true, IPv6: true, Bridge: got.Bridge,
		Labels:   map[string]string{LabelManaged: "true", LabelPolicy: `{"network_mode":"no-network"}`},
		Subnets:  prefixes("10.207.0.192/26", "fd5c:1ce0:5afe:2::/64"),
		Gateways: []netip.Addr{netip.MustParseAddr("10.207.0.193"), netip.MustParseAddr("fd5c:1ce0:5afe:2::1")},
	}
	if diff := cmp.Diff(want, got, compare...); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if !got.Managed() || len(got.Bridge) != 15 || !strings.HasPrefix(got.Bridge, "sluice-") {
		t.Errorf("managed %v, on bridge %q", got.Managed(), got.Bridge)
	}
	if _, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: "task"}); err == nil || !strings.Contains(err.Error(), "exists") {
		t.Errorf("the same name again: error %v", err)
	}
	second, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: "other"})
	if err != nil {
		t.Fatal(err)
	}
	if second.Subnets[0].Overlaps(got.Subnets[0]) || second.Bridge == got.Bridge || second.Labels[LabelPolicy] != "" {
		t.Errorf("second network %+v", second)
	}
	f.bridge("n1", "of-a-swarm", func(n *network.Inspect) { // what networks of a swarm are made from
		n.ConfigOnly, n.Driver, n.Labels = true, "null", map[string]string{LabelManaged: "true"}
	})
	list, err := c.ManagedNetworks(t.Context())
	if err != nil || len(list) != 2 {
		t.Errorf("%d managed networks (%v), want 2", len(list), err)
	}
}

// Case L-35: networks take over a smaller MTU, of the default bridge in this case.
func TestSmallerMTU(t *testing.T) {
	for _, tt := range []struct{ uplink, bridge, want int }{
		{0, 0, 0}, {1500, 0, 0}, {1500, 1500, 0}, {9000, 9000, 0}, {1500, 1400, 1400}, {1420, 1500, 1420}, {1420, 0, 1420}, {1420, 1400, 1400},
		{576, 0, lowestMTU},
	} {
		if got := smallerMTU(tt.uplink, tt.bridge); got != tt.want {
			t.Errorf("%d and %d: %d, want %d", tt.uplink, tt.bridge, got, tt.want)
		}
	}
	f, c := newFake(t)
	delete(f.networks, bridgeNet)
	if _, err := c.MTU(t.Context()); err != nil {
		t.Errorf("no default bridge: %v", err)
	}
	f.bridge(bridgeNet, bridgeNet, func(n *network.Inspect) { n.Options = map[string]string{OptionMTU: "1285"} })
	mtu, err := c.MTU(t.Context())
	if err != nil || mtu != 1285 && mtu != lowestMTU { // unless the machine's own is smaller still
		t.Fatalf("got %d, %v, want that of the bridge", mtu, err)
	}
	for _, want := range []int{0, mtu} {
		n, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: strconv.Itoa(want), MTU: want})
		if err != nil {
			t.Fatal(err)
		}
		if got := f.networks[n.ID].Options[OptionMTU]; got != strings.TrimPrefix(strconv.Itoa(want), "0") {
			t.Errorf("made with %q, want %d", got, want)
		}
	}
}

// Case L-41: many networks, a VPN, and the end of the pool.
func TestCreateNetworkPools(t *testing.T) {
	_, c := newFake(t)
	spec := NetworkSpec{Pools: prefixes("10.207.0.0/16", "172.30.0.0/24"), Taken: prefixes("10.0.0.0/8")}
	for _, name := range []string{"a", "b", "c", "d"} {
		spec.Name = name
		n, err := c.CreateNetwork(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if !spec.Pools[1].Contains(n.Subnets[0].Addr()) {
			t.Errorf("network %s has %v, where the VPN is", name, n.Subnets)
		}
	}
	spec.Name = "e"
	_, err := c.CreateNetwork(t.Context(), spec)
	if !errors.Is(err, ErrPoolDry) {
		t.Fatalf("error %v, want ErrPoolDry", err)
	}
	for _, part := range []string{"network e", "/26", "10.207.0.0/16", "172.30.0.0/24", "4 networks have one (a, b, c, d)", "another pool"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q says nothing of %q", err, part)
		}
	}
	if err := c.RemoveNetwork(t.Context(), "b", false); err != nil {
		t.Fatal(err)
	}
	if n, err := c.CreateNetwork(t.Context(), spec); err != nil || n.Subnets[0] != netip.MustParsePrefix("172.30.0.64/26") {
		t.Errorf("got %v (%v), want the subnet that became free", n.Subnets, err)
	}
}

// Forty networks beside the engine's own, and none overlaps another.
func TestCreateManyNetworks(t *testing.T) {
	_, c := newFake(t)
	var all []netip.Prefix
	for i := range 40 {
		n, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: strings.Repeat("x", i+1)})
		if err != nil {
			t.Fatal(err)
		}
		for _, other := range all {
			if other.Overlaps(n.Subnets[0]) {
				t.Fatalf("%v overlaps %v", n.Subnets[0], other)
			}
		}
		all = append(all, n.Subnets[0])
	}
}

// The engine knows of overlaps that nobody else sees.
func TestCreateNetworkTriesTheNextSubnet(t *testing.T) {
	f, c := newFake(t)
	f.createNetwork = func(r network.CreateRequest) (int, string) {
		if r.IPAM.Config[0].Subnet == "10.207.0.0/26" {
			return http.StatusForbidden, "Pool overlaps with other one on this address space"
		}
		return 0, ""
	}
	n, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: "task"})
	if err != nil || n.Subnets[0] != netip.MustParsePrefix("10.207.0.64/26") {
		t.Errorf("got %v, error %v", n.Subnets, err)
	}
	f.createNetwork = func(network.CreateRequest) (int, string) { return http.StatusForbidden, "Pool overlaps" }
	if _, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: "never"}); !errors.Is(err, ErrPoolDry) {
		t.Errorf("error %v, want ErrPoolDry", err)
	}
	f.createNetwork = func(network.CreateRequest) (int, string) { return http.StatusInternalServerError, "no memory" }
	before := f.count("POST /networks/create")
	if _, err := c.CreateNetwork(t.Context(), NetworkSpec{Name: "never"}); err == nil || !strings.Contains(err.Error(), "no memory") {
		t.Errorf("error %v", err)
	}
	if n := f.count("POST /networks/create") - before; n != 1 {
		t.Errorf("tried %d times, want once", n)
	}
}

func TestFree(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pool  string
		taken []string
		bits  int
		want  string // "" for none
	}{
		{"empty", "10.0.0.0/16", nil, 26, "10.0.0.0/26"},
		{"host_bits", "10.0.0.77/16", nil, 26, "10.0.0.0/26"},
		{"exact", "10.0.0.0/26", nil, 26, "10.0.0.0/26"},
		{"too_small", "10.0.0.0/27", nil, 26, ""},
		{"all_taken", "10.0.0.0/16", []string{"10.0.0.0/8"}, 26, ""},
		{"one_address", "10.0.0.0/16", []string{"10.0.0.63/32"}, 26, "10.0.0.64/26"},
		{"larger", "10.0.0.0/16", []string{"10.0.0.0/24"}, 26, "10.0.1.0/26"},
		{"hole", "10.0.0.0/16", []string{"10.0.0.0/26", "10.0.0.128/25"}, 26, "10.0.0.64/26"},
		{"last", "255.255.255.192/26", []string{"255.255.255.255/32"}, 26, ""},
		{"everything", "0.0.0.0/0", []string{"0.0.0.0/0"}, 26, ""},
		{"other_family_taken", "10.0.0.0/16", []string{"::/0"}, 26, "10.0.0.0/26"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := free(prefixes(tt.pool), true, tt.bits, prefixes(tt.taken...))
			switch {
			case tt.want == "" && !errors.Is(err, ErrPoolDry):
				t.Errorf("got %v, %v, want none", p, err)
			case tt.want != "" && (err != nil || p.String() != tt.want):
				t.Errorf("got %v, %v, want %s", p, err, tt.want)
			}
		})
	}
}

// Case L-43.
func TestRemoveNetwork(t *testing.T) {
	f, c := newFake(t)
	managed := func(endpoints map[string]network.EndpointResource) {
		f.bridge("n1", "task", func(n *network.Inspect) {
			n.Labels, n.Containers = map[string]string{LabelManaged: "true"}, endpoints
		})
	}
	t.Run("gone", func(t *testing.T) {
		if err := c.RemoveNetwork(t.Context(), "task", false); err != nil {
			t.Error(err)
		}
	})
	t.Run("not_ours", func(t *testing.T) {
		f.bridge("n2", "theirs", nil)
		if err := c.RemoveNetwork(t.Context(), "theirs", true); err == nil || !strings.Contains(err.Error(), "docker network rm") {
			t.Errorf("error %v", err)
		}
		if f.count("DELETE /networks/n2") != 0 {
			t.Error("the engine was asked to remove it")
		}
	})
	t.Run("still_busy", func(t *testing.T) {
		managed(nil)
		refusals := 3
		f.removeNetwork = func() (int, string) {
			if refusals--; refusals >= 0 {
				return http.StatusForbidden, "error while removing network: network task id n1 has active endpoints"
			}
			return 0, ""
		}
		defer func() { f.removeNetwork = nil }()
		if err := c.RemoveNetwork(t.Context(), "task", false); err != nil {
			t.Error(err)
		}
		if _, there := f.networks["n1"]; there {
			t.Error("it is still there")
		}
	})
	endpoints := func() map[string]network.EndpointResource {
		return map[string]network.EndpointResource{"c1": {Name: "web"}, "ep-2": {Name: "ghost"}}
	}
	t.Run("in_use", func(t *testing.T) {
		managed(endpoints())
		err := c.RemoveNetwork(t.Context(), "task", false)
		if err == nil || !strings.Contains(err.Error(), "ghost, web") {
			t.Errorf("error %v, want the containers in it", err)
		}
	})
	t.Run("forced", func(t *testing.T) {
		managed(endpoints())
		if err := c.RemoveNetwork(t.Context(), "task", true); err != nil {
			t.Error(err)
		}
	})
	t.Run("other_error", func(t *testing.T) {
		managed(nil)
		before := f.count("DELETE /networks/n1")
		f.removeNetwork = func() (int, string) { return http.StatusInternalServerError, "broken" }
		defer func() { f.removeNetwork = nil }()
		if err := c.RemoveNetwork(t.Context(), "task", false); err == nil || !strings.Contains(err.Error(), "broken") {
			t.Errorf("error %v", err)
		}
		if n := f.count("DELETE /networks/n1") - before; n != 1 {
			t.Errorf("tried %d times, want once", n)
		}
	})
}
