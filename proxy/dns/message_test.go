package dns

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
	"sluice/proxy/dnswire"
)

// many answers A with n addresses.
func many(n int) func(dnstest.Query) *dns.Msg {
	return func(q dnstest.Query) *dns.Msg {
		var records []string
		for i := range n {
			records = append(records, fmt.Sprintf("%s 60 IN A 192.0.2.%d", q.Name, i))
		}
		return q.Records(records...)
	}
}

// TestSizes: no answer is longer than the client can take, none is lost, and a part is better than nothing. [L-20,
// L-21, L-22]
func TestSizes(t *testing.T) {
	for _, p := range []struct {
		name  string
		rules string
	}{{"allowlist", "ok.test"}, {"public", ""}} {
		for _, size := range []int{0, 100, 512, 1232, 4096, 65535} {
			for _, n := range []int{1, 60, 100, 200} {
				t.Run(fmt.Sprintf("%s/%d-bytes/%d-addresses", p.name, size, n), func(t *testing.T) {
					up := dnstest.New(t, many(n))
					policy := public
					if p.rules != "" {
						policy = allow(p.rules)
					}
					f := newFilter(t, policy, Options{}, up.Addr)
					q := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA)
					if size > 0 {
						q.SetEdns0(uint16(size), false)
					}
					for range 2 { // the second time from the cache
						packed := f.exchangeRaw(q)
						limit := min(max(size, 512), maxUDP)
						if len(packed) > limit {
							t.Errorf("the answer has %d bytes", len(packed))
						}
						m := new(dns.Msg)
						if err := m.Unpack(packed); err != nil {
							t.Fatal(err)
						}
						whole := 12 + 13 + n*16
						if size > 0 {
							whole += 11
						}
						if m.Truncated != (whole > limit) {
							t.Errorf("TC is %v with %d of %d addresses in %d bytes", m.Truncated, len(m.Answer), n, len(packed))
						}
						if m.Truncated && len(packed) < limit-40 || !m.Truncated && len(m.Answer) != n {
							t.Errorf("%d of %d addresses in %d bytes", len(m.Answer), n, len(packed))
						}
						if (m.IsEdns0() != nil) != (size > 0) {
							t.Errorf("OPT record: %v", m.IsEdns0())
						}
					}
					m := f.exchange("tcp", q)
					if m.Truncated || len(m.Answer) != n {
						t.Errorf("over TCP: TC %v, %d of %d addresses", m.Truncated, len(m.Answer), n)
					}
				})
			}
		}
	}
}

// exchangeRaw sends a query by UDP and returns the answer as it came.
func (f *filter) exchangeRaw(m *dns.Msg) []byte {
	f.t.Helper()
	packed, err := m.Pack()
	if err != nil {
		f.t.Fatal(err)
	}
	answer := f.send(packed)
	if answer == nil {
		f.t.Fatal("no answer")
	}
	return answer
}

// send sends a packet and returns the answer, or nil if the filter has seen it and gives none: one that it must
// answer goes behind it.
func (f *filter) send(packet []byte) []byte {
	f.t.Helper()
	conn, err := net.Dial("udp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Write(packet); err != nil {
		f.t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	b := make([]byte, 65536)
	probe := new(dns.Msg).SetQuestion("probe.", dns.TypeNone)
	probe.Id = 0xfffe
	packed, err := probe.Pack()
	if err != nil {
		f.t.Fatal(err)
	}
	if f.mayDrop(packet) {
		if _, err := conn.Write(packed); err != nil {
			f.t.Fatal(err)
		}
	}
	n, err := conn.Read(b)
	if err != nil {
		f.t.Fatal(err)
	}
	if b[0] == 0xff && b[1] == 0xfe {
		return nil
	}
	return b[:n]
}

// mayDrop reports whether a packet is one that gets no answer.
func (f *filter) mayDrop(packet []byte) bool {
	return len(packet) < dnswire.HeaderLen || packet[2]&dnswire.FlagResponse != 0 || len(packet) > 2048
}

// TestTruncatedUpstream: where the upstream has no more than a part, the client gets that part. [L-21]
func TestTruncatedUpstream(t *testing.T) {
	up := rawUpstream(t, func(query []byte) []byte { // nothing listens there for TCP
		q := new(dns.Msg)
		if err := q.Unpack(query); err != nil {
			t.Errorf("the upstream got %x: %v", query, err)
			return nil
		}
		m := many(100)(dnstest.Query{Msg: q, Name: q.Question[0].Name})
		m.Truncate(dns.MinMsgSize)
		packed, err := m.Pack()
		if err != nil {
			t.Errorf("packing an answer: %v", err)
		}
		return packed
	})
	f := newFilter(t, allow("ok.test"), Options{}, up)
	q := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA)
	if m := f.exchange("udp", q); !m.Truncated || len(m.Answer) == 0 {
		t.Errorf("by UDP: %v", m)
	}
	if m := f.exchange("tcp", q); m.Truncated || m.Rcode != dns.RcodeServerFailure {
		t.Errorf("over TCP: %v", m)
	}
}

// TestEDNS [L-22]
func TestEDNS(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		m := addresses(q)
		if opt := q.IsEdns0(); opt != nil {
			m.SetEdns0(4096, opt.Do())
			m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeStaleAnswer}}
		}
		return m
	})
	for _, p := range []string{"public", "allowlist"} {
		t.Run(p, func(t *testing.T) {
			policy := public
			if p == "allowlist" {
				policy = allow("ok.test")
			}
			f := newFilter(t, policy, Options{}, up.Addr)
			q := question("ok.test", dns.TypeA)
			q.IsEdns0().SetVersion(1)
			before := up.Count()
			m := f.exchange("udp", q)
			if m.Rcode != dns.RcodeBadVers || len(m.Answer) > 0 || m.IsEdns0() == nil || m.IsEdns0().Version() != 0 || up.Count() != before {
				t.Errorf("version 1: %v", m)
			}
			if got := f.lastEvent(); got.Rcode != dns.RcodeBadVers || got.Decision.Reason != ReasonUnsupported {
				t.Errorf("event %+v", got)
			}

			m = f.ask("ok.test", dns.TypeA)
			opt := m.IsEdns0()
			if opt == nil || opt.UDPSize() != ownSize || extendedError(m) == nil || len(m.Answer) != 1 {
				t.Errorf("got %v", m)
			}
			m = f.exchange("tcp", new(dns.Msg).SetQuestion("ok.test.", dns.TypeA).SetEdns0(512, false))
			if m.Truncated || len(m.Answer) != 1 {
				t.Errorf("over TCP, 512 bytes: %v", m)
			}
		})
	}
}

// TestOPTNotAskedFor: a client without EDNS gets none, whatever the upstream does.
func TestOPTNotAskedFor(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg { return addresses(q).SetEdns0(4096, false) })
	f := newFilter(t, public, Options{}, up.Addr)
	if m := f.exchange("udp", new(dns.Msg).SetQuestion("ok.test.", dns.TypeA)); m.IsEdns0() != nil || len(m.Answer) != 1 {
		t.Errorf("got %v", m)
	}
}

// TestExtendedRcode: an upstream's code of more than four bits is no answer to keep.
func TestExtendedRcode(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		m := q.Code(dns.RcodeBadVers)
		return m.SetEdns0(1232, false)
	})
	f := newFilter(t, public, Options{}, up.Addr)
	for range 2 {
		if m := f.ask("ok.test", dns.TypeA); m.Rcode != dns.RcodeBadVers {
			t.Errorf("got %v", m)
		}
	}
	if up.Count() != 2 {
		t.Errorf("the upstream was asked %d times", up.Count())
	}
}

// TestSections: in list modes nothing passes that nobody has judged.
func TestSections(t *testing.T) {
	answer := func(q dnstest.Query) *dns.Msg {
		m := addresses(q)
		ns, _ := dns.NewRR("ok.test. 60 IN NS ns.other.test.")
		glue, _ := dns.NewRR("ns.other.test. 60 IN A 10.0.0.53")
		m.Ns, m.Extra = append(m.Ns, ns), append(m.Extra, glue)
		if q.IsEdns0() != nil {
			m.SetEdns0(4096, false)
			m.Extra = append(m.Extra, dns.Copy(glue)) // behind OPT too
		}
		return m
	}
	up := dnstest.New(t, answer)
	for _, edns := range []bool{false, true} {
		q := new(dns.Msg).SetQuestion("ok.test.", dns.TypeA)
		if edns {
			q.SetEdns0(4096, false)
		}
		f := newFilter(t, deny("evil.test"), Options{}, up.Addr)
		for range 2 { // the second time from the cache
			m := f.exchange("udp", q)
			if len(m.Answer) != 1 || len(m.Ns) != 0 || strings.Contains(m.String(), "10.0.0.53") || (m.IsEdns0() != nil) != edns {
				t.Errorf("EDNS %v: %v", edns, m)
			}
		}
		f = newFilter(t, public, Options{}, up.Addr)
		m := f.exchange("udp", q)
		if len(m.Answer) != 1 || len(m.Ns) != 1 || !strings.Contains(m.String(), "10.0.0.53") || (m.IsEdns0() != nil) != edns {
			t.Errorf("public, EDNS %v: %v", edns, m)
		}
	}
}

// TestMalformed: what cannot be read is answered by FORMERR or not at all. [L-23]
func TestMalformed(t *testing.T) {
	const header = "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	const opt = "\x00\x00\x29\x10\x00\x00\x00\x00\x00"
	ok := "\x02ok\x04test\x00\x00\x01\x00\x01"
	one := "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01" // with one additional record
	const none = -1
	tests := []struct {
		name, packet string
		rcode        int
	}{
		{"empty", "", none},
		{"one-byte", "\x12", none},
		{"half-a-header", header[:8], none},
		{"a-response", "\x12\x34\x81\x80\x00\x01\x00\x00\x00\x00\x00\x00" + ok, none},
		{"junk-of-64K", strings.Repeat("\xaa", 65000), none},
		{"header-alone", header, dns.RcodeFormatError},
		{"no-question", "\x12\x34\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00", dns.RcodeFormatError},
		{"two-questions", "\x12\x34\x01\x00\x00\x02\x00\x00\x00\x00\x00\x00" + ok + ok, dns.RcodeFormatError},
		{"name-cut-short", header + "\x02ok\x04te", dns.RcodeFormatError},
		{"no-type", header + "\x02ok\x04test\x00", dns.RcodeFormatError},
		{"pointer-loop", header + "\xc0\x0c\x00\x01\x00\x01", dns.RcodeFormatError},
		{"pointer-in-name", header + "\x02ok\xc0\x0c\x00\x01\x00\x01", dns.RcodeFormatError},
		{"reserved-label", header + "\x82ok\x00\x00\x01\x00\x01", dns.RcodeFormatError},
		{"long-name", header + strings.Repeat("\x3f"+strings.Repeat("a", 63), 5) + "\x00\x00\x01\x00\x01", dns.RcodeFormatError},
		{"bytes-behind", header + ok + "x", dns.RcodeFormatError},
		{"an-answer-inside", "\x12\x34\x01\x00\x00\x01\x00\x01\x00\x00\x00\x00" + ok + "\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x00\x00\x00", dns.RcodeFormatError},
		{"record-that-is-not-there", one + ok, dns.RcodeFormatError},
		{"record-cut-short", one + ok + opt, dns.RcodeFormatError},
		{"two-opt", one[:11] + "\x02" + ok + opt + "\x00\x00" + opt + "\x00\x00", dns.RcodeFormatError},
		{"opt-with-a-name", one + ok + "\x01x" + opt + "\x00\x00", dns.RcodeFormatError},
		{"option-too-long", one + ok + opt + "\x00\x04\x00\x0a\x00\x09", dns.RcodeFormatError},
		{"notify", "\x12\x34\x21\x00\x00\x01\x00\x00\x00\x00\x00\x00" + ok, dns.RcodeNotImplemented},
		{"update", "\x12\x34\x28\x00\x00\x01\x00\x00\x00\x00\x00\x00" + ok, dns.RcodeNotImplemented},
		{"good", header + ok, dns.RcodeSuccess},
	}
	up := dnstest.New(t, addresses)
	f := newFilter(t, public, Options{}, up.Addr)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f.t = t
			got := f.send([]byte(tt.packet))
			if (got == nil) != (tt.rcode == none) {
				t.Fatalf("answer %x", got)
			}
			if got == nil {
				return
			}
			m := new(dns.Msg)
			if err := m.Unpack(got); err != nil {
				t.Fatalf("answer %x: %v", got, err)
			}
			if m.Rcode != tt.rcode || m.Id != 0x1234 || !m.Response {
				t.Errorf("got %v", m)
			}
		})
	}
	if got := up.Count(); got != 1 {
		t.Errorf("the upstream was asked %d times, of which 1 is right", got)
	}
}

// handleOne has one packet handled, as if it came by UDP, and returns the answer or nil.
func handleOne(s *Server, packet []byte) []byte {
	w := s.newWorker()
	defer w.release()
	s.switching.RLock()
	defer s.switching.RUnlock()
	w.begin()
	return w.handle(nil, packet, &udpConn{}, nil, nil)
}

func FuzzServe(f *testing.F) {
	for _, m := range []*dns.Msg{
		question("ok.test", dns.TypeA), question("a.ok.test", dns.TypeHTTPS), question("4.3.2.10.in-addr.arpa", dns.TypePTR),
		question("_x._tcp.ok.test", dns.TypeSRV), new(dns.Msg).SetQuestion(".", dns.TypeNS), question("db", dns.TypeAAAA),
	} {
		packed, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		for mode := range uint8(4) {
			f.Add(packed, mode)
		}
	}
	policies := []*filter{}
	for _, p := range []struct{ targets []string }{{nil}, {[]string{"ok.test", "*.ok.test", "db"}}} {
		policy := noNetwork
		if p.targets != nil {
			policy = allow(p.targets...)
		}
		// Without an upstream: what is allowed is answered by SERVFAIL.
		policies = append(policies, newFilter(f, policy, Options{Hosts: localhosts}))
	}
	policies = append(policies, newFilter(f, public, Options{Hosts: localhosts}), newFilter(f, deny("evil.test", "*.ok.test"), Options{}))
	f.Fuzz(func(t *testing.T, packet []byte, mode uint8) {
		checkReply(t, packet, handleOne(policies[int(mode)%len(policies)].Server, packet))
	})
}

// checkReply checks an answer against the packet that it is for.
func checkReply(t *testing.T, packet, reply []byte) {
	if len(reply) == 0 {
		if len(packet) >= dnswire.HeaderLen && packet[2]&dnswire.FlagResponse == 0 {
			t.Error("a query has no answer")
		}
		return
	}
	if len(reply) > 512 || string(reply[:2]) != string(packet[:2]) || reply[2]&dnswire.FlagResponse == 0 {
		t.Errorf("answer %x", reply)
	}
	m := new(dns.Msg)
	if err := m.Unpack(reply); err != nil {
		t.Errorf("answer %x: %v", reply, err)
	}
	if len(m.Question) == 1 {
		q, ok := dnswire.ReadQuestion(reply)
		if !ok || string(reply[12:q.End]) != string(packet[12:q.End]) {
			t.Errorf("the question %x comes back as %x", packet, reply)
		}
	}
}
