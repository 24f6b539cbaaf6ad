package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"go.uber.org/goleak"

	"sluice/proxy/dnstest"
	"sluice/proxy/dnswire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result is what became of a query.
type result struct {
	msg *dns.Msg
	err error
}

// sink hands results to the channel that is the query's owner.
type sink struct{ t testing.TB }

func (s sink) Answer(q *Query, msg []byte) {
	m := new(dns.Msg)
	err := m.Unpack(msg)
	q.Owner.(chan result) <- result{m, err}
}
func (s sink) Fail(q *Query, err error) { q.Owner.(chan result) <- result{err: err} }
func (s sink) Flush()                   {}

func newClient(t testing.TB, o Options) *Client {
	t.Helper()
	o.NewSink = func() Sink { return sink{t} }
	c := New(o)
	t.Cleanup(c.Close)
	return c
}

// query makes a question for the A records of name.
func query(t testing.TB, name string) *Query {
	t.Helper()
	m := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	msg, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	question, ok := dnswire.ReadQuestion(msg)
	if !ok {
		t.Fatal("no question")
	}
	return &Query{Msg: msg, Question: question, Owner: make(chan result, 1)}
}

func await(t testing.TB, q *Query) result {
	t.Helper()
	select {
	case r := <-q.Owner.(chan result):
		return r
	case <-time.After(20 * time.Second):
		t.Fatal("nothing became of the query")
		return result{}
	}
}

// ask sends one question and waits for what becomes of it.
func ask(t testing.TB, c *Client, name string) result {
	t.Helper()
	q := query(t, name)
	if err := c.Send(q); err != nil {
		return result{err: err}
	}
	return await(t, q)
}

func a(q dnstest.Query) *dns.Msg { return q.Records(q.Name + " 60 IN A 192.0.2.1") }

func servers(addrs ...netip.AddrPort) []netip.AddrPort { return addrs }

const short = 50 * time.Millisecond // the time limit where a server is to be given up

func TestAnswer(t *testing.T) {
	s := dnstest.New(t, a)
	c := newClient(t, Options{Servers: servers(s.Addr)})
	const n = 200
	var queries []*Query
	sender := c.NewSender()
	for i := range n {
		q := query(t, fmt.Sprintf("n%d.test", i))
		if err := sender.Add(q); err != nil {
			t.Fatal(err)
		}
		queries = append(queries, q)
		if i%5 == 0 { // each batch leaves from a socket drawn at random
			sender.Flush()
		}
	}
	sender.Flush()
	for i, q := range queries {
		r := await(t, q)
		if r.err != nil || len(r.msg.Answer) != 1 || r.msg.Question[0].Name != fmt.Sprintf("n%d.test.", i) {
			t.Fatalf("query %d: %v, %v", i, r.msg, r.err)
		}
	}
	if got := c.Outstanding(); got != 0 {
		t.Errorf("%d queries are still under way", got)
	}
	ids := map[uint16]bool{}
	ports := map[uint16]bool{}
	for _, q := range s.Queries() {
		ids[q.Id] = true
		ports[q.From.Port()] = true
	}
	// 200 random ids are all the same, or in sequence, with no chance worth naming.
	if len(ids) < n-10 {
		t.Errorf("only %d different ids", len(ids))
	}
	if len(ports) < 2 {
		t.Errorf("all questions came from one port")
	}
}

func TestFailures(t *testing.T) {
	good := func(t *testing.T) netip.AddrPort { return dnstest.New(t, a).Addr }
	code := func(rcode int) func(*testing.T) netip.AddrPort {
		return func(t *testing.T) netip.AddrPort {
			return dnstest.New(t, func(q dnstest.Query) *dns.Msg { return q.Code(rcode) }).Addr
		}
	}
	silent := func(t *testing.T) netip.AddrPort { return dnstest.Silent(t) }
	closed := func(t *testing.T) netip.AddrPort { return dnstest.Closed(t) }
	type server = func(*testing.T) netip.AddrPort
	tests := []struct {
		name    string
		servers []server
		rcode   int
		err     error
	}{
		{"one-good", []server{good}, 0, nil},
		{"silent-then-good", []server{silent, good}, 0, nil},
		{"closed-then-good", []server{closed, good}, 0, nil},
		{"failing-then-good", []server{code(dns.RcodeServerFailure), good}, 0, nil},
		{"refusing-then-good", []server{code(dns.RcodeRefused), good}, 0, nil},
		{"all-failing", []server{code(dns.RcodeServerFailure), code(dns.RcodeServerFailure)}, dns.RcodeServerFailure, nil},
		{"no-such-name-is-an-answer", []server{code(dns.RcodeNameError), good}, dns.RcodeNameError, nil},
		{"all-silent", []server{silent, silent}, 0, ErrTimeout},
		{"all-closed", []server{closed}, 0, ErrUnreachable},
		{"none", nil, 0, ErrNoServer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{Timeout: short}
			for _, s := range tt.servers {
				o.Servers = append(o.Servers, s(t))
			}
			c := newClient(t, o)
			r := ask(t, c, "ok.test")
			if !errors.Is(r.err, tt.err) || (r.err == nil) != (tt.err == nil) {
				t.Fatalf("error %v, want %v", r.err, tt.err)
			}
			if r.err == nil && r.msg.Rcode != tt.rcode {
				t.Errorf("rcode %d, want %d", r.msg.Rcode, tt.rcode)
			}
			if got := c.Outstanding(); got != 0 {
				t.Errorf("%d queries are still under way", got)
			}
		})
	}
}

// TestSilentServerIsLastChoice: questions no longer wait for a server that has been silent several times.
func TestSilentServerIsLastChoice(t *testing.T) {
	mute := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
	good := dnstest.New(t, a)
	c := newClient(t, Options{Servers: servers(mute.Addr, good.Addr), Timeout: short})
	for range deadAfter {
		if r := ask(t, c, "ok.test"); r.err != nil {
			t.Fatal(r.err)
		}
	}
	asked := mute.Count()
	if r := ask(t, c, "ok.test"); r.err != nil {
		t.Fatal(r.err)
	}
	if mute.Count() != asked {
		t.Error("the silent server was asked first again")
	}
}

func TestBounded(t *testing.T) {
	c := newClient(t, Options{Servers: servers(dnstest.Silent(t)), Timeout: short, MaxOutstanding: 3})
	var queries []*Query
	for range 3 {
		q := query(t, "ok.test")
		if err := c.Send(q); err != nil {
			t.Fatal(err)
		}
		queries = append(queries, q)
	}
	if err := c.Send(query(t, "ok.test")); !errors.Is(err, ErrBusy) {
		t.Errorf("the fourth query gives %v, want %v", err, ErrBusy)
	}
	for _, q := range queries {
		if r := await(t, q); !errors.Is(r.err, ErrTimeout) {
			t.Errorf("got %v", r.err)
		}
	}
	q := query(t, "ok.test")
	if err := c.Send(q); err != nil {
		t.Errorf("there is room again, but: %v", err)
	}
}

func TestClose(t *testing.T) {
	c := newClient(t, Options{Servers: servers(dnstest.Silent(t))})
	q := query(t, "ok.test")
	if err := c.Send(q); err != nil {
		t.Fatal(err)
	}
	c.Close()
	if r := await(t, q); !errors.Is(r.err, ErrClosed) {
		t.Errorf("got %v", r.err)
	}
	if err := c.Send(query(t, "ok.test")); !errors.Is(err, ErrClosed) {
		t.Errorf("got %v", err)
	}
	c.Close() // once more does no harm
}

func TestCancel(t *testing.T) {
	c := newClient(t, Options{Servers: servers(dnstest.Silent(t)), Timeout: short})
	gone, kept := query(t, "gone.test"), query(t, "kept.test")
	for _, q := range []*Query{gone, kept} {
		if err := c.Send(q); err != nil {
			t.Fatal(err)
		}
	}
	c.Cancel(func(q *Query) bool { return q == gone })
	if r := await(t, gone); !errors.Is(r.err, ErrCancelled) {
		t.Errorf("got %v", r.err)
	}
	if r := await(t, kept); !errors.Is(r.err, ErrTimeout) {
		t.Errorf("got %v", r.err)
	}
}

// TestAgain: a query that may not be asked again is not.
func TestAgain(t *testing.T) {
	mute := dnstest.New(t, func(dnstest.Query) *dns.Msg { return nil })
	var gate sync.Mutex
	asked := 0
	c := newClient(t, Options{Servers: servers(mute.Addr), Timeout: short, Gate: &gate, Again: func(*Query) bool {
		if gate.TryLock() {
			t.Error("asked without the gate")
		}
		asked++
		return asked < 2
	}})
	if r := ask(t, c, "ok.test"); !errors.Is(r.err, ErrCancelled) {
		t.Errorf("got %v", r.err)
	}
	if got := mute.Count(); got != 2 {
		t.Errorf("sent %d times, want 2", got)
	}
}

func TestTruncated(t *testing.T) {
	long := func(q dnstest.Query) *dns.Msg {
		var records []string
		for i := range 60 {
			records = append(records, fmt.Sprintf("%s 60 IN A 192.0.2.%d", q.Name, i))
		}
		return q.Records(records...)
	}
	t.Run("asked-again-over-tcp", func(t *testing.T) {
		s := dnstest.New(t, long)
		c := newClient(t, Options{Servers: servers(s.Addr)})
		r := ask(t, c, "ok.test")
		if r.err != nil || r.msg.Truncated || len(r.msg.Answer) != 60 {
			t.Fatalf("got %v, %v", r.msg, r.err)
		}
		q := s.Queries()
		if len(q) != 2 || q[0].TCP || !q[1].TCP || q[0].Id != q[1].Id {
			t.Errorf("asked %+v", q)
		}
	})
	t.Run("no-answer-over-tcp", func(t *testing.T) {
		s := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
			if q.TCP {
				return nil
			}
			return long(q)
		})
		c := newClient(t, Options{Servers: servers(s.Addr), Timeout: short})
		r := ask(t, c, "ok.test")
		if r.err != nil || !r.msg.Truncated {
			t.Errorf("got %v, %v, want the truncated answer", r.msg, r.err)
		}
	})
	t.Run("wrong-answer-over-tcp", func(t *testing.T) {
		s := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
			m := long(q)
			if q.TCP {
				m.Question[0].Name = "other.test."
			}
			return m
		})
		c := newClient(t, Options{Servers: servers(s.Addr)})
		r := ask(t, c, "ok.test")
		if r.err != nil || !r.msg.Truncated || r.msg.Question[0].Name != "ok.test." {
			t.Errorf("got %v, %v, want the truncated answer", r.msg, r.err)
		}
	})
}

// TestForged: what does not belong to the question does not hinder the answer that comes later.
func TestForged(t *testing.T) {
	server, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	other, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()

	forgeries := map[string]func(m *dns.Msg){
		"other-id":       func(m *dns.Msg) { m.Id++ },
		"other-id-high":  func(m *dns.Msg) { m.Id ^= 0x8000 },
		"other-name":     func(m *dns.Msg) { m.Question[0].Name = "on.test." },
		"other-type":     func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeAAAA },
		"other-class":    func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS },
		"no-question":    func(m *dns.Msg) { m.Question = nil },
		"two-questions":  func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) },
		"not-a-response": func(m *dns.Msg) { m.Response = false },
		"other-opcode":   func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify },
	}
	for name, forge := range forgeries {
		t.Run(name, func(t *testing.T) {
			c := newClient(t, Options{Servers: servers(server.LocalAddr().(*net.UDPAddr).AddrPort())})
			q := query(t, "ok.test")
			if err := c.Send(q); err != nil {
				t.Fatal(err)
			}
			b := make([]byte, 512)
			n, from, err := server.ReadFromUDP(b)
			if err != nil {
				t.Fatal(err)
			}
			m := new(dns.Msg)
			if err := m.Unpack(b[:n]); err != nil {
				t.Fatal(err)
			}
			reply := func(conn *net.UDPConn, text string, change func(*dns.Msg)) {
				r := new(dns.Msg).SetReply(m)
				rr, _ := dns.NewRR(`ok.test. 60 IN TXT "` + text + `"`)
				r.Answer = append(r.Answer, rr)
				change(r)
				packed, err := r.Pack()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := conn.WriteToUDP(packed, from); err != nil {
					t.Fatal(err)
				}
			}
			server.WriteToUDP([]byte{b[0], b[1]}, from) // too short
			reply(server, "forged", forge)
			reply(other, "forged", func(*dns.Msg) {}) // right, but from another port
			reply(server, "true", func(m *dns.Msg) { m.Question[0].Name = "OK.tEst." })
			r := await(t, q)
			if r.err != nil || r.msg.Answer[0].(*dns.TXT).Txt[0] != "true" {
				t.Errorf("got %v, %v", r.msg, r.err)
			}
		})
	}
}

// TestSocketsAreReplaced: no port is used for ever.
func TestSocketsAreReplaced(t *testing.T) {
	s := dnstest.New(t, a)
	c := newClient(t, Options{Servers: servers(s.Addr)})
	seen := map[*socket]bool{}
	for range socketsPerServer * (socketQueries + 1) {
		c.mu.Lock()
		socket, err := c.socketLocked(0, c.now())
		if err == nil {
			socket.sent++
			seen[socket] = true
		}
		c.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(seen) <= socketsPerServer {
		t.Errorf("%d sockets in all", len(seen))
	}
	c.mu.Lock()
	idle := c.takeIdleLocked(c.now() + 2*socketIdle)
	open := c.openLocked()
	c.mu.Unlock()
	if len(idle) != len(seen) || open {
		t.Errorf("%d of %d idle sockets are closed; others open: %v", len(idle), len(seen), open)
	}
	for _, s := range idle {
		s.close()
	}
}

func BenchmarkExchange(b *testing.B) {
	s := dnstest.New(b, a)
	c := newClient(b, Options{Servers: servers(s.Addr)})
	for b.Loop() {
		if r := ask(b, c, "ok.test"); r.err != nil {
			b.Fatal(r.err)
		}
	}
}
