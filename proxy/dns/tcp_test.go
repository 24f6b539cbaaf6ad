package dns

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
)

func (f *filter) dial() *net.TCPConn {
	f.t.Helper()
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(20 * time.Second)) // a test that hangs should say where
	return conn.(*net.TCPConn)
}

func framed(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	packed, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(packed))), packed...)
}

// answer reads one answer.
func answer(t testing.TB, conn net.Conn) *dns.Msg {
	t.Helper()
	co := dns.Conn{Conn: conn}
	m, err := co.ReadMsg()
	if err != nil {
		t.Fatalf("reading an answer: %v", err)
	}
	return m
}

// closed waits for the end of a connection.
func closed(t testing.TB, conn net.Conn) {
	t.Helper()
	if n, err := conn.Read(make([]byte, 1)); n > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes, %v; want the end of the connection", n, err)
	}
}

// TestPipelining: all that is asked on one connection is answered, even if the client closes its half at once, and
// slow names do not hold up others. [L-24]
func TestPipelining(t *testing.T) {
	release := make(chan struct{})
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		if q.Name == "slow.test." {
			<-release
		}
		return addresses(q)
	})
	f := newFilter(t, allow("*.test"), Options{}, up.Addr)
	conn := f.dial()
	out := framed(t, question("slow.test", dns.TypeA))
	const n = 150 // more than may be under way
	for i := range n {
		name := fmt.Sprintf("n%d.test", i)
		if i%2 == 1 {
			name = fmt.Sprintf("n%d.evil", i)
		}
		m := question(name, dns.TypeA)
		m.Id = uint16(i)
		out = append(out, framed(t, m)...)
	}
	if _, err := conn.Write(out); err != nil {
		t.Fatal(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	seen := map[uint16]bool{}
	for range n {
		m := answer(t, conn)
		if blocked(m) != (m.Id%2 == 1) || seen[m.Id] {
			t.Errorf("got %v", m)
		}
		seen[m.Id] = true
	}
	close(release)
	if m := answer(t, conn); m.Question[0].Name != "slow.test." {
		t.Errorf("got %v", m)
	}
	if _, err := conn.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("got %v, want the end", err)
	}
}

// TestIdleConnections are closed, and half a query does not help. [L-24]
func TestIdleConnections(t *testing.T) {
	up := dnstest.New(t, addresses)
	f := newFilter(t, public, Options{IdleTCP: 500 * time.Millisecond}, up.Addr)
	query := framed(t, question("ok.test", dns.TypeA))
	tests := []struct {
		name    string
		answers bool // after a query
		sent    []byte
	}{
		{"nothing", false, nil},
		{"half-a-length", false, query[:1]},
		{"length", false, query[:2]},
		{"half-a-query", false, query[:20]},
		{"too-long", false, []byte{0xff, 0xff}},
		{"no-query", false, []byte{0, 12, 0, 0, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0}},
		{"empty-message", false, []byte{0, 0}},
		{"nothing-after-a-query", true, nil},
		{"half-a-query-after-a-query", true, query[:20]},
	}
	var conns []net.Conn
	for _, tt := range tests {
		conn := f.dial()
		conns = append(conns, conn)
		if tt.answers {
			if _, err := conn.Write(query); err != nil {
				t.Fatal(err)
			}
			answer(t, conn)
		}
		if _, err := conn.Write(tt.sent); err != nil {
			t.Fatal(err)
		}
	}
	for i, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { closed(t, conns[i]) })
	}
}

// TestConnectionLimits: one more connection takes the place of the idlest, never of one that waits for an answer.
// [L-24]
func TestConnectionLimits(t *testing.T) {
	release := make(chan struct{})
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		<-release
		return addresses(q)
	})
	t.Cleanup(func() { close(release) })
	for name, o := range map[string]Options{
		"in-all":     {MaxTCP: 3},
		"per-client": {MaxTCPPerClient: 3},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFilter(t, allow("ok.test"), o, up.Addr)
			refused := question("evil.test", dns.TypeA)
			var conns []*net.TCPConn
			for i := range 3 {
				conn := f.dial()
				conns = append(conns, conn)
				if i == 0 { // the one that has been quiet the longest waits for an answer
					before := up.Count()
					if _, err := conn.Write(framed(t, question("ok.test", dns.TypeA))); err != nil {
						t.Fatal(err)
					}
					up.Wait(t, before+1)
					continue
				}
				if _, err := conn.Write(framed(t, refused)); err != nil {
					t.Fatal(err)
				}
				answer(t, conn)
			}
			next := f.dial()
			if _, err := next.Write(framed(t, refused)); err != nil {
				t.Fatal(err)
			}
			if m := answer(t, next); !blocked(m) {
				t.Errorf("got %v", m)
			}
			closed(t, conns[1])
			if _, err := conns[2].Write(framed(t, refused)); err != nil {
				t.Fatal(err)
			}
			answer(t, conns[2])
			release <- struct{}{}
			if m := answer(t, conns[0]); len(m.Answer) != 1 {
				t.Errorf("got %v", m)
			}
		})
	}
}

// TestManyIdleConnections do not keep others out. [L-24]
func TestManyIdleConnections(t *testing.T) {
	f := newFilter(t, noNetwork, Options{})
	for range 600 {
		f.dial()
	}
	if m := f.exchange("tcp", question("ok.test", dns.TypeA)); !blocked(m) {
		t.Errorf("got %v", m)
	}
	f.tcp.mu.Lock()
	open := len(f.tcp.open)
	f.tcp.mu.Unlock()
	if open > 128 {
		t.Errorf("%d connections of one client are open", open)
	}
}

// TestClientThatDoesNotRead loses its connection and nothing else.
func TestClientThatDoesNotRead(t *testing.T) {
	up := dnstest.New(t, many(200))
	f := newFilter(t, public, Options{}, up.Addr)
	conn := f.dial()
	query := framed(t, question("ok.test", dns.TypeA))
	conn.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for {
		if _, err := conn.Write(query); err != nil {
			break // both directions are full
		}
	}
	if m := f.ask("other.test", dns.TypeA); m.Rcode != dns.RcodeSuccess {
		t.Errorf("got %v", m)
	}
}

// An answer with EDNS counts its OPT record, by either transport: what stands behind the last record that is counted is
// no part of a message.
func TestRepliesCountTheirRecords(t *testing.T) {
	f := newFilter(t, allow("ok.test", "local.test"), Options{Hosts: func(name []byte) []netip.Addr {
		if string(name) == "local.test" {
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}
		}
		return nil
	}})
	for _, row := range []struct {
		name  string
		qtype uint16
		rcode int
	}{
		{"no.test", dns.TypeA, dns.RcodeNameError}, {"ok.test", dns.TypeA, dns.RcodeServerFailure}, {"local.test", dns.TypeA, dns.RcodeSuccess},
		{"local.test", dns.TypeAAAA, dns.RcodeSuccess}, {"ok.test", dns.TypeANY, dns.RcodeSuccess},
		{strings.Repeat("a-long-label.", 15) + "no.test", dns.TypeTXT, dns.RcodeNameError},
	} {
		query := question(row.name, row.qtype)
		for _, network := range []string{"udp", "tcp"} {
			m := f.exchange(network, query)
			if m.Rcode != row.rcode || m.IsEdns0() == nil || len(m.Extra) != 1 {
				t.Errorf("%s by %s: %v, want %s and an OPT record", row.name, network, m, dns.RcodeToString[row.rcode])
			}
		}
	}
}
