package e2e

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"sluice/e2e/lab/internet"
)

// arrival is a packet of the load that may not come in every phase.
type arrival struct {
	at       time.Time
	allowed  allowed
	from, to netip.AddrPort
	opens    bool // it has a SYN
}

// see is told of every packet that arrives.
func (s *switched) see(p *internet.Packet) {
	for _, prober := range s.probers {
		for a := always; a <= never; a++ {
			if p.To.Addr() != prober.address(a) {
				continue
			}
			switch {
			case a == never:
				s.t.Errorf("prober %s: a packet for %v arrived", prober.name, p.To)
			case prober.name != "tunnels" && len(p.Payload) >= 8:
				prober.seen = append(prober.seen, bigEndian(p.Payload))
			}
			return
		}
	}
	if p.Length == 0 && !p.SYN {
		return
	}
	a, ok := s.allowedAt(p)
	if ok {
		s.arrivals = append(s.arrivals, arrival{at: p.Time, allowed: a, from: p.From, to: p.To, opens: p.SYN})
	}
}

func bigEndian(b []byte) (n uint64) {
	for _, x := range b[:8] {
		n = n<<8 | uint64(x)
	}
	return n
}

// addresses has all far ends of the load.
var addresses = func() map[netip.Addr]allowed {
	all := map[netip.Addr]allowed{}
	for k := byConnect; k < inbound; k++ {
		for a := always; a < never; a++ {
			for i := range perKind {
				all[address(k, a, i)] = a
			}
		}
	}
	return all
}()

func (s *switched) allowedAt(p *internet.Packet) (allowed, bool) {
	if a, ok := addresses[p.To.Addr()]; ok {
		return a, true // also from the published port: the engine's network gives what leaves it the same address, and any port
	}
	return inRun, p.TCP && p.From == s.load.published // an answer to the internet's connection
}

// TestPublishedPortLeaves: a connection of the sidecar may leave from the very port that the container has published.
func TestPublishedPortLeaves(t *testing.T) {
	s := &switched{load: &workload{published: netip.MustParseAddrPort("100.64.0.1:32768")}}
	own, other := s.load.published, netip.MustParseAddrPort("100.64.0.1:32770")
	outside := netip.MustParseAddrPort("100.64.0.2:40000")
	evaluation := netip.AddrPortFrom(address(byTLS, inEvaluation, 17), internet.PortHTTPS)
	for name, test := range map[string]struct {
		packet internet.Packet
		want   allowed
		known  bool
	}{
		"answer":         {internet.Packet{TCP: true, From: own, To: outside}, inRun, true},
		"flow":           {internet.Packet{TCP: true, From: other, To: evaluation}, inEvaluation, true},
		"flow-same-port": {internet.Packet{TCP: true, From: own, To: evaluation}, inEvaluation, true},
		"another":        {internet.Packet{TCP: true, From: other, To: outside}, inRun, false},
		"look-up":        {internet.Packet{From: own, To: netip.AddrPortFrom(internet.Resolver, 53)}, inRun, false},
	} {
		if a, known := s.allowedAt(&test.packet); known != test.known || known && a != test.want {
			t.Errorf("%s: allowed %v, known %v; want %v, %v", name, a, known, test.want, test.known)
		}
	}
}

// wrongArrivals says what of a refused flow arrived from shortly after the answer on: nothing at all may before the next
// switch, and nothing of that very flow for as long as it is watched. Another one between the same ends is another flow.
func (s *switched) wrongArrivals() (wrong []string) {
	type ends struct{ from, to netip.AddrPort }
	live, dead := map[ends]allowed{}, map[ends]time.Time{}
	phase, next := inRun.String(), 0
	slices.SortStableFunc(s.arrivals, func(a, b arrival) int { return cmp.Compare(a.at.UnixNano(), b.at.UnixNano()) })
	for _, p := range s.arrivals {
		for next < len(s.changes) && p.at.After(s.changes[next].answered.Add(settled)) {
			c := s.changes[next]
			phase = c.to
			for flow, a := range live {
				if !a.in(phase) {
					dead[flow] = c.answered
					delete(live, flow)
				}
			}
			next++
		}
		flow := ends{p.from, p.to}
		if p.opens {
			delete(dead, flow)
		}
		ended, refused := dead[flow]
		switching := next < len(s.changes) && p.at.After(s.changes[next].began)
		if refused && p.at.Before(ended.Add(watched)) || !switching && !p.allowed.in(phase) {
			since := "before the first switch"
			if next > 0 {
				since = p.at.Sub(s.changes[next-1].answered).String() + " after the last answer"
			}
			wrong = append(wrong, fmt.Sprintf("%s a packet from %v arrived for %v, allowed %v, in phase %q", since, p.from, p.to, p.allowed, phase))
			continue
		}
		live[flow] = p.allowed
	}
	return wrong
}

func TestWrongArrivals(t *testing.T) {
	published, outside := netip.MustParseAddrPort("100.64.0.1:32768"), netip.MustParseAddrPort("100.64.0.2:36522")
	start := time.Unix(0, 0)
	at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
	changes := []change{{to: "evaluation", began: at(100), answered: at(200)}, {to: "run", began: at(300), answered: at(400)}}
	for name, test := range map[string]struct {
		at    []int // ms
		opens []bool
		wrong int
	}{
		"while-allowed":      {[]int{10, 50, 99}, []bool{true, false, false}, 0},
		"during-the-switch":  {[]int{10, 199}, []bool{true, false}, 0},
		"after-the-answer":   {[]int{10, 206}, []bool{true, false}, 1},
		"new-after-answer":   {[]int{10, 206}, []bool{true, true}, 1},
		"old-one-goes-on":    {[]int{10, 450, 475}, []bool{true, false, false}, 2},
		"during-the-next":    {[]int{10, 350}, []bool{true, false}, 1},
		"another-same-ends":  {[]int{10, 450, 475}, []bool{true, true, false}, 0},
		"longer-than-anyone": {[]int{10, 2201}, []bool{true, false}, 0},
	} {
		s := &switched{changes: changes}
		for i, ms := range test.at {
			s.arrivals = append(s.arrivals, arrival{at: at(ms), allowed: inRun, from: published, to: outside, opens: test.opens[i]})
		}
		if wrong := s.wrongArrivals(); len(wrong) != test.wrong {
			t.Errorf("%s: %q, want %d", name, wrong, test.wrong)
		}
	}
}
