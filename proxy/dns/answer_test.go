package dns

import (
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnswire"
)

// FuzzAnswer: whatever an upstream says, what comes out can be walked, was judged, and fits.
func FuzzAnswer(f *testing.F) {
	const denied = "evil.test"
	policies := []policy.Policy{public, allow("ok.test"), allow("*.test"), deny(denied, "10.0.0.0/8")}
	for _, records := range [][]string{
		{"ok.test. 60 IN A 192.0.2.1", "ok.test. 60 IN A 10.0.0.1"},
		{"ok.test. 60 IN CNAME evil.test.", "evil.test. 9 IN AAAA fd00::1"},
		{`ok.test. 60 IN HTTPS 1 . alpn="h3,h2" ech="AEX+DQBBpQAgACBi" ipv4hint="10.0.0.1"`},
		{`ok.test. 60 IN SVCB 1 evil.test. mandatory="ech" ech="AEX+DQBBpQAgACBi"`},
		{"ok.test. 60 IN SOA ns.test. root.test. 1 2 3 4 5"},
	} {
		m := new(dns.Msg).SetReply(question("ok.test", dns.TypeA))
		for _, s := range records {
			rr, err := dns.NewRR(s)
			if err != nil {
				f.Fatal(err)
			}
			m.Answer, m.Ns = append(m.Answer, rr), append(m.Ns, rr)
		}
		m.Extra = append(m.Extra, m.Answer[0])
		m.SetEdns0(4096, true)
		m.Compress = true
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		q, _ := dnswire.ReadQuestion(packed)
		for kind := range uint8(len(policies)) {
			f.Add(packed[:dnswire.HeaderLen], packed[q.End:], kind, uint16(dns.TypeA), true)
			f.Add(packed[:dnswire.HeaderLen], packed[q.End:], kind, uint16(dns.TypeHTTPS), false)
		}
	}
	s := New(Options{Rules: func() Rules { return Rules{} }})
	f.Cleanup(s.Close)
	f.Fuzz(func(t *testing.T, header, records []byte, kind uint8, qtype uint16, edns bool) {
		if len(header) < dnswire.HeaderLen {
			return
		}
		rs, err := matcher.Compile(policies[int(kind)%len(policies)], matcher.Options{})
		if err != nil {
			t.Fatal(err)
		}
		rules := &Rules{Ruleset: rs, Generation: 1}
		asked := new(dns.Msg).SetQuestion("ok.test.", qtype)
		if edns {
			asked.SetEdns0(1232, false)
		}
		packed, err := asked.Pack()
		if err != nil {
			t.Fatal(err)
		}
		q := newQuery()
		defer q.release()
		q.udp = &udpConn{}
		if code := q.read(packed); code != readable {
			t.Fatalf("code %d", code)
		}
		var what action
		if q.decision, what = decide(rules, q); what != forward {
			return
		}
		msg := append(append(append([]byte(nil), header[:dnswire.HeaderLen]...), q.Msg[dnswire.HeaderLen:q.Question.End]...), records...)
		dnswire.SetCount(msg, 0, 1) // the client has checked that
		k := &sink{s: s}
		msg, _, err = k.filter(rules, q, msg)
		if err != nil || k.v.alias {
			return
		}
		checkAnswer(t, rules, q, msg)
		if cut := truncate(k.room[:], msg, minUDP); len(cut) > minUDP {
			t.Errorf("truncated to %d bytes", len(cut))
		} else {
			checkAnswer(t, rules, q, cut)
		}
	})
}

func checkAnswer(t *testing.T, rules *Rules, q *query, msg []byte) {
	t.Helper()
	var v survey
	if err := v.walk(rules, q, msg); err != nil || v.change || v.alias || v.end != len(msg) {
		t.Fatalf("%x: %v, %+v", msg, err, v)
	}
	if v.hasOPT && !q.edns {
		t.Error("an OPT record that was not asked for")
	}
	m := new(dns.Msg)
	if m.Unpack(msg) != nil || rules.Ruleset.Mode() == policy.Public {
		return // records of which only the length is right
	}
	for _, rr := range append(m.Answer, m.Extra...) {
		var ip []byte
		switch rr := rr.(type) {
		case *dns.A:
			ip = rr.A
		case *dns.AAAA:
			ip = rr.AAAA
		default:
			continue
		}
		addr, _ := netip.AddrFromSlice(ip)
		if rules.Ruleset.Answer(q.decision, addr.Unmap()).Verdict != matcher.Allow {
			t.Errorf("hands out %v", addr)
		}
	}
}
