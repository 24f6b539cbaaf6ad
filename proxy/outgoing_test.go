package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"testing"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
	"sluice/proxy/outgoing"
)

// announced are the connections that a proxy has told of.
type announced struct {
	mu     sync.Mutex // guards what follows
	open   map[string]int
	total  int
	refuse bool
}

func (a *announced) key(to netip.AddrPort, from uint16) string {
	return fmt.Sprintf("%v from %d", to, from)
}

func (a *announced) Open(to netip.AddrPort, from uint16) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.refuse {
		return errors.New("refused by the test")
	}
	if a.open == nil {
		a.open = make(map[string]int)
	}
	a.open[a.key(to, from)]++
	a.total++
	return nil
}

func (a *announced) Opened(to netip.AddrPort, from uint16) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[a.key(to, from)]--
	return nil
}

// knows reports whether a connection from the port has been told of, now or before.
func (a *announced) knows(to netip.AddrPort, from uint16) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	_, ok := a.open[a.key(to, from)]
	return ok
}

func addrPort(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// Whatever the proxy connects is announced before it is, and that is taken back: tunnels, plain requests, and questions
// for names by UDP and TCP.
func TestConnectionsAreAnnounced(t *testing.T) {
	a := new(announced)
	seen := make(chan bool, 8)
	origin := func(c net.Conn) { seen <- a.knows(addrPort(c.LocalAddr()), addrPort(c.RemoteAddr()).Port()) }
	port := listen(t, func(c net.Conn) {
		origin(c)
		buffer := make([]byte, 4096)
		if n, err := c.Read(buffer); err == nil && n > 4 && string(buffer[:3]) == "GET" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		} else if err == nil {
			_, _ = c.Write(buffer[:n])
		}
	})
	var overTCP sync.Once
	tcp := make(chan struct{})
	var server *dnstest.Server
	ready := make(chan struct{})
	server = dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		<-ready
		if !a.knows(server.Addr, q.From.Port()) {
			t.Errorf("question for %s from port %d, TCP %v, was not announced", q.Name, q.From.Port(), q.TCP)
		}
		if q.TCP {
			overTCP.Do(func() { close(tcp) })
		}
		if q.Type != dns.TypeA {
			return q.Records()
		}
		var records []string
		if q.Name == "long.test." { // too long for UDP
			for i := range 200 {
				records = append(records, fmt.Sprintf("%s 60 A 127.0.1.%d", q.Name, i+1))
			}
			return q.Records(records...)
		}
		return q.Records(q.Name + " 60 A 127.0.0.1")
	})
	close(ready)
	r := start(t, `"public"`, Config{Upstreams: []netip.AddrPort{server.Addr}, Outgoing: &outgoing.Sockets{Announcer: a}})

	tunnel, response := r.connect("a.test:"+port, "")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("tunnel: %s", response.Status)
	}
	wantEcho(t, tunnel, "hello")
	if !<-seen {
		t.Error("the tunnel's connection was not announced")
	}
	_, response = r.send("GET http://b.test:" + port + "/ HTTP/1.1\r\nHost: b.test:" + port + "\r\n\r\n")
	if response.StatusCode != http.StatusOK {
		t.Fatalf("request: %s", response.Status)
	}
	if !<-seen {
		t.Error("the request's connection was not announced")
	}
	if _, err := r.server.resolver.LookupIf(t.Context(), "long.test", nil); err != nil {
		t.Fatal(err)
	}
	<-tcp

	r.server.Close()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.total < 4 {
		t.Errorf("%d connections were announced", a.total)
	}
	for c, n := range a.open {
		if n != 0 {
			t.Errorf("to %s: announced %d times more than taken back", c, n)
		}
	}
}

// What cannot be announced is not connected.
func TestNothingUnannounced(t *testing.T) {
	port := listen(t, func(net.Conn) { t.Error("a connection came") })
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		t.Errorf("question for %s came", q.Name)
		return nil
	})
	a := &announced{refuse: true}
	r := start(t, `"public"`, Config{Upstreams: []netip.AddrPort{server.Addr}, Outgoing: &outgoing.Sockets{Announcer: a}})
	to := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(number))
	if _, response := r.connect(to.String(), ""); response.StatusCode != http.StatusBadGateway {
		t.Errorf("tunnel: %s", response.Status)
	}
	if _, response := r.send(fmt.Sprintf("GET http://%v/ HTTP/1.1\r\nHost: %[1]v\r\n\r\n", to)); response.StatusCode != http.StatusBadGateway {
		t.Errorf("request: %s", response.Status)
	}
	if _, err := r.server.resolver.LookupIf(t.Context(), "a.test", nil); err == nil {
		t.Error("a name was looked up")
	}
}
