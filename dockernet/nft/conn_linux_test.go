package nft_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft"
)

var table = nft.ID{Family: "inet", Name: "test"}

func dial(t *testing.T) *nft.Conn {
	t.Helper()
	ns := netnstest.New(t)
	var c *nft.Conn
	ns.Run(t, func() (err error) {
		c, err = nft.Dial()
		return err
	})
	t.Cleanup(func() { c.Close() })
	return c
}

func send(t *testing.T, c *nft.Conn, fill func(*nft.Batch)) error {
	t.Helper()
	b := new(nft.Batch)
	fill(b)
	return c.Send(b)
}

// elements are n addresses, or ranges, that do not touch.
func elements(n int, family string, ranges bool, port uint16) (list []nft.Element) {
	for i := range n {
		first := netip.AddrFrom4([4]byte{10, byte(i >> 14), byte(i >> 6), byte(i<<2 | 1)})
		if family == "ipv6" {
			first = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 12: byte(i >> 14), 13: byte(i >> 6), 15: byte(i<<2 | 1)})
		}
		e := nft.Element{First: first, Last: first, Port: port}
		if ranges {
			e.Last = first.Next()
		}
		list = append(list, e)
	}
	return list
}

// However many elements a set has, it has all of them, and Verify tells if it has not.
func TestSetsAreComplete(t *testing.T) {
	const n = 10_000
	for _, tt := range []struct {
		kind   nft.Type
		ranges bool
	}{
		{nft.Address4, false}, {nft.Address4, true}, {nft.Address6, false}, {nft.Address6, true},
		{nft.Address4Port, false}, {nft.Address4Port, true}, {nft.Address6Port, false}, {nft.Address6Port, true},
	} {
		t.Run(fmt.Sprintf("%s_%v", strings.ReplaceAll(tt.kind.String(), " ", ""), tt.ranges), func(t *testing.T) {
			c := dial(t)
			family, port := tt.kind.String()[:4], uint16(0)
			if strings.Contains(tt.kind.String(), "service") {
				port = 443
			}
			s := nft.Set{Name: "large", Type: tt.kind, Interval: tt.ranges, Elements: elements(n, family, tt.ranges, port)}
			if err := send(t, c, func(b *nft.Batch) { b.AddTable(table); b.AddSets(table, s) }); err != nil {
				t.Fatal(err)
			}
			if err := c.Verify(table, []nft.Set{s}); err != nil {
				t.Error(err)
			}
			less := s
			less.Elements = s.Elements[:n-1]
			if err := c.Verify(table, []nft.Set{less}); err == nil {
				t.Error("one element too many is not noticed")
			}
			last := s
			last.Elements = s.Elements[n-1:]
			if err := send(t, c, func(b *nft.Batch) { b.DeleteElements(table, last) }); err != nil {
				t.Fatal(err)
			}
			if err := c.Verify(table, []nft.Set{s}); err == nil {
				t.Error("one element too few is not noticed")
			}
		})
	}
}

// The last address of a family has no address behind it.
func TestEndOfAFamily(t *testing.T) {
	c := dial(t)
	var sets []nft.Set
	for kind, list := range map[nft.Type][2]string{
		nft.Address4: {"255.0.0.0", "255.255.255.255"},
		nft.Address6: {"ff00::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"},
	} {
		sets = append(sets, nft.Set{Name: fmt.Sprint("end", kind.String()[:4]), Type: kind, Interval: true,
			Elements: []nft.Element{{First: netip.MustParseAddr(list[0]), Last: netip.MustParseAddr(list[1])}}})
	}
	if err := send(t, c, func(b *nft.Batch) { b.AddTable(table); b.AddSets(table, sets...) }); err != nil {
		t.Fatal(err)
	}
}

// Chains, sets and counters are listed, and their tables need not be there.
func TestLists(t *testing.T) {
	c := dial(t)
	names := nft.Set{Name: "names", Type: nft.InterfaceName, Elements: []nft.Element{{Name: "br-0"}, {Name: "exactly15letter"}}}
	for range 2 {
		if sets, err := c.Sets(table); err != nil || len(sets) != 0 {
			t.Errorf("sets without a table: %v, %v", sets, err)
		}
		if counters, err := c.Counters(table); err != nil || len(counters) != 0 {
			t.Errorf("counters without a table: %v, %v", counters, err)
		}
		if list, err := c.Interfaces(table, "names"); err != nil || len(list) != 0 {
			t.Errorf("names without a table: %v, %v", list, err)
		}
		if err := send(t, c, func(b *nft.Batch) {
			b.AddTable(table)
			b.AddCounters(table, "one", "two")
			b.AddSets(table, names)
			b.AddChains(table, nft.Chain{Name: "a"}, nft.Chain{Name: "b"})
			b.AddRules(table, nft.Chain{Name: "a", Rules: []nft.Rule{{nft.Jump("b")}}})
		}); err != nil {
			t.Fatal(err)
		}
		if sets, err := c.Sets(table); err != nil || fmt.Sprint(sets) != "[names]" {
			t.Errorf("sets: %v, %v", sets, err)
		}
		if counters, err := c.Counters(table); err != nil || fmt.Sprint(counters) != "map[one:{0 0} two:{0 0}]" {
			t.Errorf("counters: %v, %v", counters, err)
		}
		if list, err := c.Interfaces(table, "names"); err != nil || len(list) != 2 || !strings.Contains(fmt.Sprint(list), "exactly15letter") {
			t.Errorf("names: %v, %v", list, err)
		}
		if chains, err := c.Chains("inet"); err != nil || fmt.Sprint(chains) != "map[test:[a b]]" {
			t.Errorf("chains: %v, %v", chains, err)
		}
		if err := send(t, c, func(b *nft.Batch) { b.DeleteTable(table) }); err != nil {
			t.Fatal(err)
		}
	}
}

// A list is complete although others change their tables while the kernel writes it down, part by part.
func TestListsAreComplete(t *testing.T) {
	ns := netnstest.New(t)
	conns := make([]*nft.Conn, 2)
	for i := range conns {
		ns.Run(t, func() (err error) {
			conns[i], err = nft.Dial()
			return err
		})
		t.Cleanup(func() { conns[i].Close() })
	}
	var ours, others []nft.Chain
	for i := range 400 {
		ours, others = append(ours, nft.Chain{Name: fmt.Sprintf("ours%d", i)}), append(others, nft.Chain{Name: fmt.Sprintf("other%d", i)})
	}
	other := nft.ID{Family: "inet", Name: "other"}
	fill := func(id nft.ID, chains []nft.Chain) error {
		return send(t, conns[0], func(b *nft.Batch) { b.AddTable(id); b.AddChains(id, chains...) })
	}
	if err := errors.Join(fill(other, others), fill(table, ours)); err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	done := make(chan error)
	go func() {
		var err error
		for i := 0; err == nil && !stop.Load(); i = (i + 1) % len(others) {
			b := new(nft.Batch)
			b.Delete(other, nft.Objects{Chains: []string{others[i].Name}})
			err = conns[0].Send(b)
			time.Sleep(time.Millisecond) // so that some lists are not interrupted
			if err == nil {
				b = new(nft.Batch)
				b.AddChains(other, others[i])
				err = conns[0].Send(b)
			}
		}
		done <- err
	}()
	for range 200 {
		chains, err := conns[1].Chains("inet")
		if err != nil {
			t.Error(err)
			break
		}
		got := chains[table.Name]
		if n := len(got); n != len(ours) || len(slices.Compact(slices.Sorted(slices.Values(got)))) != n {
			t.Errorf("%d chains of %d, or some twice", n, len(ours))
			break
		}
	}
	stop.Store(true)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A batch that the kernel or the library cannot take changes nothing.
func TestBatchesAreWhole(t *testing.T) {
	for name, rule := range map[string]nft.Rule{
		"no_such_chain":    {nft.Goto("nowhere")},
		"no_such_counter":  {nft.Count{Counter: "nothing"}},
		"no_such_set":      {nft.In{Fields: []*nft.Field{nft.IPSource}, Set: "nothing"}},
		"no_such_word":     {nft.Is(nft.Protocol, nft.Word("nothing")), nft.Drop},
		"wrong_size":       {nft.Is(nft.IPSource, nft.Bytes{1}), nft.Drop},
		"wrong_family":     {nft.Is(nft.IPSource, nft.Single(netip.IPv6Unspecified())), nft.Drop},
		"hardware_of_ip":   {nft.Is(nft.IPSource, nft.Hardware{}), nft.Drop},
		"range_of_length":  {nft.Is(nft.Length, nft.Range{First: 1, Last: 2}), nft.Drop},
		"no_verdict":       {nft.Verdict{}},
		"mark_is_no_range": {nft.Is(nft.Mark, nft.Network{}), nft.Drop},
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t)
			if err := send(t, c, func(b *nft.Batch) {
				b.AddTable(table)
				b.AddChains(table, nft.Chain{Name: "a"})
				b.AddRules(table, nft.Chain{Name: "a", Rules: []nft.Rule{{nft.Accept}, rule}})
			}); err == nil {
				t.Error("no error")
			}
		})
	}
}
