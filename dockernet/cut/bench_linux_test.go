package cut

import (
	"fmt"
	"net"
	"testing"
)

// A switch with this many connections open of which 20 are refused.
func BenchmarkCut(b *testing.B) {
	for _, open := range []int{20, 200, 2000} {
		b.Run(fmt.Sprint(open), func(b *testing.B) {
			w := newWorld(b)
			nft(b, w.inside, gateRules)
			serve(b, w.outside, servicePort, beyond...)
			for range open - 20 {
				connect(b, w.inside, "tcp", allowed[0], servicePort)
			}
			for b.Loop() {
				b.StopTimer()
				goes := make([]net.Conn, 20)
				for i := range goes {
					goes[i] = connect(b, w.inside, "tcp", refused[0], servicePort)
				}
				b.StartTimer()
				want(b, w.cut(b, w.spec(false)), Report{Ended: 20, Sockets: 20, Entries: 20, HostEntries: 20, Kept: open - 20})
				b.StopTimer()
				for _, c := range goes {
					c.Close()
				}
				b.StartTimer()
			}
		})
	}
}

// What an attach takes, when the host has so many connections of others.
func BenchmarkCutFirst(b *testing.B) {
	for _, entries := range []int{0, 10 * fewEntries} {
		for _, muted := range []bool{true, false} {
			b.Run(fmt.Sprintf("entries_%d/muted_%v", entries, muted), func(b *testing.B) {
				w := newWorld(b)
				nft(b, w.inside, gateRules)
				if entries > 0 {
					w.fill(b, entries)
				}
				s := w.spec(false)
				s.First, s.Muted = true, muted
				for b.Loop() {
					w.cut(b, s)
				}
			})
		}
	}
}
