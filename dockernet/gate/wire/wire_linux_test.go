package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"sluice/dockernet/netns/netnstest"
)

var testTable = &nftables.Table{Name: "test", Family: nftables.TableFamilyINet}

func dial(t *testing.T) *Conn {
	t.Helper()
	c, err := Dial(netnstest.New(t).Namespace)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// elements are n ranges of a family, none of which touches another.
func elements(n int, ipv6 bool, port uint16) []Element {
	list := make([]Element, n)
	for i := range list {
		first := netip.AddrFrom4([4]byte{10, byte(i >> 14), byte(i >> 6), byte(i << 2)})
		if ipv6 {
			first = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 12: byte(i >> 14), 13: byte(i >> 6), 14: byte(i << 2)})
		}
		list[i] = Element{First: first, Last: first.Next(), Port: port}
	}
	return list
}

// All elements are in the kernel, however many they are: a list that does not fit its message would be cut.
func TestElements(t *testing.T) {
	const n = 5000
	for _, tt := range []struct {
		name string
		set  Set
	}{
		{"ipv4", Set{}},
		{"ipv4_ranges", Set{Interval: true}},
		{"ipv4_ports", Set{WithPort: true}},
		{"ipv4_ranges_ports", Set{WithPort: true, Interval: true}},
		{"ipv6", Set{IPv6: true}},
		{"ipv6_ranges", Set{IPv6: true, Interval: true}},
		{"ipv6_ports", Set{IPv6: true, WithPort: true}},
		{"ipv6_ranges_ports", Set{IPv6: true, WithPort: true, Interval: true}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.set
			s.Table, s.Name = testTable, "set"
			var b Batch
			b.AddTable(testTable)
			b.AddSet(&s)
			b.AddElements(&s, elements(n, s.IPv6, 443))
			for _, m := range b.messages[2:] {
				if len(m.Data) >= 1<<16 {
					t.Errorf("a message has %d bytes", len(m.Data))
				}
			}
			c := dial(t)
			if err := c.Send(&b); err != nil {
				t.Fatal(err)
			}
			nft, err := c.Read()
			if err != nil {
				t.Fatal(err)
			}
			// A dump of a hash set that the kernel is still resizing may skip elements: look until it has them all.
			// What was not set stays missing.
			got := make(map[string]bool)
			for deadline := time.Now().Add(10 * time.Second); len(got) < n && time.Now().Before(deadline); {
				list, err := nft.GetSetElements(&nftables.Set{Table: testTable, Name: "set"})
				if err != nil {
					t.Fatal(err)
				}
				clear(got)
				for _, e := range list {
					if !e.IntervalEnd {
						got[string(e.Key)] = true
					}
				}
			}
			for _, e := range elements(n, s.IPv6, 443) {
				key := e.First.AsSlice()
				if s.WithPort {
					key = append(binary.BigEndian.AppendUint16(key, e.Port), 0, 0)
				}
				if !got[string(key)] {
					t.Fatalf("%v is not in the set, which has %d elements of %d", e.First, len(got), n)
				}
			}
		})
	}
}

// The last address of a family has nothing behind it.
func TestRangeUpToTheEnd(t *testing.T) {
	s := &Set{Table: testTable, Name: "set", Interval: true}
	var b Batch
	b.AddTable(testTable)
	b.AddSet(s)
	b.AddElements(s, []Element{{First: netip.MustParseAddr("255.255.255.0"), Last: netip.MustParseAddr("255.255.255.255")}})
	if err := dial(t).Send(&b); err != nil {
		t.Error(err)
	}
}

// A batch with a mistake changes nothing, and the error says what the kernel thinks of it.
func TestMistake(t *testing.T) {
	ns := netnstest.New(t)
	c, err := Dial(ns.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	var b Batch
	b.AddTable(testTable)
	b.AddRule(&nftables.Chain{Table: testTable, Name: "missing"}, []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})
	err = c.Send(&b)
	if err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("error %v, want one about the missing chain", err)
	}
	c.Close()
	again, err := Dial(ns.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	nft, err := again.Read()
	if err != nil {
		t.Fatal(err)
	}
	tables, err := nft.ListTables()
	if err != nil || len(tables) != 0 {
		t.Errorf("tables %v, %v: want none", tables, err)
	}
}

// What cannot be written down is an error before anything is sent.
func TestBadExpression(t *testing.T) {
	var b Batch
	b.AddTable(testTable)
	b.AddChain(&nftables.Chain{Table: testTable, Name: "chain"})
	b.AddRule(&nftables.Chain{Table: testTable, Name: "chain"}, []expr.Any{&expr.Ct{Key: 9999, Register: 1}})
	if err := dial(t).Send(&b); err == nil {
		t.Error("an unknown key is taken")
	}
}

func TestNothingToSend(t *testing.T) {
	if err := dial(t).Send(new(Batch)); err != nil {
		t.Error(err)
	}
}

// A connection serves many batches, also one that is larger than those before it.
func TestManyBatches(t *testing.T) {
	c := dial(t)
	for i, n := range []int{1, 10_000, 1} {
		s := &Set{Table: testTable, Name: fmt.Sprintf("set%d", i), IPv6: true}
		var b Batch
		b.AddTable(testTable)
		b.AddSet(s)
		b.AddElements(s, elements(n, true, 0))
		if err := c.Send(&b); err != nil {
			t.Fatalf("%d elements: %v", n, err)
		}
	}
}
