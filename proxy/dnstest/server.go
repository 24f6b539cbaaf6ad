// Package dnstest is a name server for tests, on the loopback device, which counts what it is asked.
package dnstest

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// A Query is a question that a [Server] was asked.
type Query struct {
	*dns.Msg
	Name string // as it was spelt, with a trailing dot
	Type uint16
	TCP  bool
	From netip.AddrPort
}

// Records returns an answer to q with these records, in the notation of zone files.
func (q Query) Records(records ...string) *dns.Msg {
	m := new(dns.Msg).SetReply(q.Msg)
	m.RecursionAvailable = true
	for _, s := range records {
		rr, err := dns.NewRR(s)
		if err != nil || rr == nil {
			panic(fmt.Sprintf("dnstest: record %q: %v", s, err)) // a mistake in a test
		}
		m.Answer = append(m.Answer, rr)
	}
	return m
}

// Code returns an answer to q with a response code and nothing else.
func (q Query) Code(rcode int) *dns.Msg {
	m := new(dns.Msg).SetRcode(q.Msg, rcode)
	m.RecursionAvailable = true
	return m
}

// A Server answers UDP and TCP on one port.
type Server struct {
	Addr netip.AddrPort

	mu      sync.Mutex // guards what follows
	queries []Query
	changed chan struct{} // closed when a query comes
}

// New starts a server that ends with the test. answer is called for one query after the other, in goroutines of
// their own; nil is no answer. A UDP answer that is longer than the client can take is truncated.
func New(t testing.TB, answer func(Query) *dns.Msg) *Server {
	t.Helper()
	udp, tcp := listen(t)
	s := &Server{Addr: udp.LocalAddr().(*net.UDPAddr).AddrPort(), changed: make(chan struct{})}
	handler := func(overTCP bool) dns.Handler {
		return dns.HandlerFunc(func(w dns.ResponseWriter, m *dns.Msg) {
			q := Query{Msg: m, TCP: overTCP, From: netip.MustParseAddrPort(w.RemoteAddr().String())}
			if len(m.Question) > 0 {
				q.Name, q.Type = m.Question[0].Name, m.Question[0].Qtype
			}
			s.note(q)
			reply := answer(q)
			if reply == nil {
				return
			}
			reply.Compress = true
			if !overTCP {
				size := dns.MinMsgSize
				if opt := m.IsEdns0(); opt != nil {
					size = int(opt.UDPSize())
				}
				reply.Truncate(size)
			}
			_ = w.WriteMsg(reply) // the client may have gone
		})
	}
	var wg sync.WaitGroup
	for _, srv := range []*dns.Server{
		{PacketConn: udp, Handler: handler(false)},
		{Listener: tcp, Handler: handler(true)},
	} {
		started := make(chan struct{})
		srv.NotifyStartedFunc = func() { close(started) }
		wg.Go(func() { _ = srv.ActivateAndServe() })
		<-started
		t.Cleanup(func() { _ = srv.Shutdown() })
	}
	t.Cleanup(func() {
		udp.Close()
		tcp.Close()
		wg.Wait()
	})
	return s
}

// listen finds a port that is free for both.
func listen(t testing.TB) (*net.UDPConn, *net.TCPListener) {
	t.Helper()
	for range 20 {
		tcp, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(tcp.Addr().(*net.TCPAddr).AddrPort()))
		if err == nil {
			return udp, tcp
		}
		tcp.Close()
	}
	t.Fatal("no port is free for both UDP and TCP")
	return nil, nil
}

func (s *Server) note(q Query) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queries = append(s.queries, q)
	close(s.changed)
	s.changed = make(chan struct{})
}

// Queries returns what was asked so far, in order.
func (s *Server) Queries() []Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Query(nil), s.queries...)
}

// Count returns how many queries there were so far.
func (s *Server) Count() int { return len(s.Queries()) }

// Wait returns when there were n queries, and fails the test if there are not after 10 seconds.
func (s *Server) Wait(t testing.TB, n int) {
	t.Helper()
	late := time.After(10 * time.Second)
	for {
		s.mu.Lock()
		got, changed := len(s.queries), s.changed
		s.mu.Unlock()
		if got >= n {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("the name server was asked %d times, not %d", got, n)
		}
	}
}

// Silent returns the address of a server that takes packets and never answers. Nothing listens there for TCP.
func Silent(t testing.TB) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

// Closed returns an address on which nothing listens.
func Closed(t testing.TB) netip.AddrPort {
	t.Helper()
	udp, tcp := listen(t)
	defer tcp.Close()
	defer udp.Close()
	return udp.LocalAddr().(*net.UDPAddr).AddrPort()
}
