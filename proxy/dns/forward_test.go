package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/proxy/dnstest"
)

// TestSpelling: the question comes back as it was spelt, and the upstream learns nothing from the spelling. [L-18]
func TestSpelling(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		q.Name = "Ok.Test."
		m := addresses(q)
		m.Question[0].Name = "OK.test."
		return m
	})
	f := newFilter(t, allow("ok.test"), Options{}, up.Addr)
	for _, name := range []string{"oK.TeSt.", "ok.test.", "OK.TEST."} {
		m := f.ask(name, dns.TypeA)
		if m.Question[0].Name != name || len(m.Answer) != 1 {
			t.Errorf("%s: %v", name, m)
		}
	}
	for _, q := range up.Queries() {
		if q.Name != "ok.test." {
			t.Errorf("asked for %q", q.Name)
		}
	}
	if got := up.Count(); got != 1 {
		t.Errorf("the upstream was asked %d times; the spelling makes no difference to the cache", got)
	}
}

// TestForwardedMessage: nothing leaves that the client could hide data in.
func TestForwardedMessage(t *testing.T) {
	up := dnstest.New(t, addresses)
	f := newFilter(t, public, Options{}, up.Addr)
	q := question("ok.test", dns.TypeA)
	q.Id = 4711
	q.Zero = true
	q.CheckingDisabled = true
	q.IsEdns0().SetDo()
	q.IsEdns0().SetUDPSize(4321)
	q.IsEdns0().Option = []dns.EDNS0{
		&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IPv4(192, 0, 2, 0)},
		&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"},
		&dns.EDNS0_PADDING{Padding: []byte("secret")},
		&dns.EDNS0_LOCAL{Code: dns.EDNS0LOCALSTART, Data: []byte("secret")},
	}
	q.Extra = append(q.Extra, &dns.TXT{Hdr: dns.RR_Header{Name: "x.", Rrtype: dns.TypeTXT, Class: dns.ClassINET}, Txt: []string{"secret"}})
	if m := f.exchange("udp", q); len(m.Answer) != 1 || m.Id != 4711 {
		t.Fatalf("got %v", m)
	}
	got := up.Queries()[0]
	want := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA).SetEdns0(1232, true)
	want.Id, want.CheckingDisabled = got.Id, true
	if got.Msg.String() != want.String() {
		t.Errorf("sent on was\n%v\nwant\n%v", got.Msg, want)
	}
	if got.Id == 4711 {
		t.Error("the id is the client's")
	}
	// What is filtered cannot be verified, so signatures are not asked for.
	f.switchTo(allow("ok.test"))
	f.exchange("udp", q)
	if opt := up.Queries()[1].IsEdns0(); opt == nil || opt.Do() {
		t.Errorf("in an allowlist: %v", opt)
	}
}

// TestListeners: on every address, answers leave from the one that was asked.
func TestListeners(t *testing.T) {
	up := dnstest.New(t, addresses)
	rules := newFilter(t, public, Options{}, up.Addr).rules.Load()
	for _, tt := range []struct{ network, listen, ask string }{
		{"udp4", "0.0.0.0", "127.0.0.9"},
		{"udp6", "::1", "::1"},
		{"udp", "::", "127.0.0.9"},
		{"udp", "::", "::1"},
	} {
		t.Run(tt.network+"-"+tt.listen+"-"+tt.ask, func(t *testing.T) {
			s := New(Options{Rules: func() Rules { return *rules }, Upstreams: []netip.AddrPort{up.Addr}})
			defer s.Close()
			udp, err := net.ListenUDP(tt.network, &net.UDPAddr{IP: net.ParseIP(tt.listen)})
			if err != nil {
				t.Fatal(err)
			}
			defer udp.Close()
			ctx, cancel := context.WithCancel(t.Context())
			var serving sync.WaitGroup
			serving.Go(func() {
				if err := s.ServeUDP(ctx, udp); err != nil {
					t.Errorf("ServeUDP: %v", err)
				}
			})
			defer serving.Wait()
			defer cancel()
			_, port, _ := net.SplitHostPort(udp.LocalAddr().String())
			// The client's socket is connected: it hears nobody but the address that it asked.
			m, err := dns.Exchange(question("ok.test", dns.TypeA), net.JoinHostPort(tt.ask, port))
			if err != nil || len(m.Answer) != 1 {
				t.Errorf("got %v, %v", m, err)
			}
		})
	}
}

// TestFailures: a name that is allowed and cannot be looked up gets SERVFAIL, soon.
func TestFailures(t *testing.T) {
	t.Run("no-upstream", func(t *testing.T) {
		f := newFilter(t, public, Options{})
		m := f.ask("ok.test", dns.TypeA)
		if m.Rcode != dns.RcodeServerFailure || extendedError(m) == nil {
			t.Errorf("got %v", m)
		}
	})
	t.Run("closed-upstream", func(t *testing.T) {
		f := newFilter(t, public, Options{}, dnstest.Closed(t))
		if m := f.ask("ok.test", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %v", m)
		}
		if e := f.lastEvent(); e.Decision.Verdict != matcher.Allow || e.Decision.Reason != ReasonFailed || e.Rcode != dns.RcodeServerFailure {
			t.Errorf("event %+v", e)
		}
	})
	t.Run("too-many", func(t *testing.T) {
		up := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
		f := newFilter(t, public, Options{MaxOutstanding: 1}, up.Addr)
		conn, err := net.Dial("udp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		packed, _ := question("first.test", dns.TypeA).Pack()
		if _, err := conn.Write(packed); err != nil {
			t.Fatal(err)
		}
		up.Wait(t, 1)
		if m := f.ask("second.test", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %v", m)
		}
		if got := f.lastEvent().Decision.Reason; got != ReasonCapacity {
			t.Errorf("reason %q", got)
		}
	})
	t.Run("malformed-answer", func(t *testing.T) {
		up := rawUpstream(t, func(query []byte) []byte {
			answer := slices.Clone(query)
			answer[2] |= 0x80
			answer[7] = 1 // an answer that is not there
			return answer
		})
		f := newFilter(t, public, Options{}, up)
		if m := f.ask("ok.test", dns.TypeA); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("got %v", m)
		}
	})
}

// One client cannot take all places from others, whatever it asks that nobody answers.
func TestRoomForOthers(t *testing.T) {
	up := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
	const most = 32
	f := newFilter(t, public, Options{MaxOutstanding: most}, up.Addr)
	flood := func(from string) int {
		t.Helper()
		conn, err := (&net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}).Dial("udp", f.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		before := f.asking.Load().Outstanding()
		for i := range 2 * most {
			packed, err := question(fmt.Sprintf("n%d.test", i), dns.TypeA).Pack()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := conn.Write(packed); err != nil {
				t.Fatal(err)
			}
			if i >= most { // those beyond its share are answered at once
				if _, err := conn.Read(make([]byte, 512)); err != nil {
					t.Fatal(err)
				}
			}
		}
		return f.asking.Load().Outstanding() - before
	}
	// Each leaves as many free as it has.
	for i, want := range []int{most / 2, most / 4, most / 8} {
		if got := flood(fmt.Sprintf("127.0.0.%d", 2+i)); got != want {
			t.Errorf("client %d has %d queries under way, want %d", i, got, want)
		}
	}
}

// Other name servers are asked from the next query on, and what the former ones said is forgotten. Their answers to what
// they were asked before still come, but are not kept.
func TestSetUpstreams(t *testing.T) {
	release := make(chan struct{})
	first := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		if q.Name == "slow.test." {
			<-release
		}
		return q.Records(q.Name + " 60 A 192.0.2.1")
	})
	second := dnstest.New(t, func(q dnstest.Query) *dns.Msg { return q.Records(q.Name + " 60 A 192.0.2.2") })
	f := newFilter(t, public, Options{}, first.Addr)
	want := func(m *dns.Msg, address string) {
		t.Helper()
		if m == nil || values(m) != address {
			t.Errorf("got %v, want %s", m, address)
		}
	}
	conn := f.dial() // a connection lives through the change
	overTCP := func() *dns.Msg {
		if _, err := conn.Write(framed(t, question("tcp.test", dns.TypeA))); err != nil {
			t.Fatal(err)
		}
		return answer(t, conn)
	}
	want(f.ask("ok.test", dns.TypeA), "192.0.2.1")
	want(overTCP(), "192.0.2.1")
	slow := f.later("udp", question("slow.test", dns.TypeA))
	first.Wait(t, 3)
	f.SetUpstreams([]netip.AddrPort{second.Addr})
	want(f.ask("ok.test", dns.TypeA), "192.0.2.2")
	want(overTCP(), "192.0.2.2")
	close(release)
	want(<-slow, "192.0.2.1")
	want(f.ask("slow.test", dns.TypeA), "192.0.2.2")
}
