package probe

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft/nfttest"
)

// What becomes of each kind of probe where rules refuse it, where nobody is, and where somebody answers.
func TestSend(t *testing.T) {
	ns := netnstest.New(t)
	nfttest.Run(t, ns, `table inet t { chain output {
		type filter hook output priority 0;
		meta mark 0x3000 reject
		udp dport 9 reject
		tcp dport 9 reject with tcp reset
		udp dport 10 drop
		icmp type echo-request reject
	}; }`, "-f", "-")
	names := serveDNS(t, ns)
	proxy := serveProxy(t, ns)
	local := func(port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), port)
	}
	for _, row := range []struct {
		name  string
		probe Probe
		want  Outcome
	}{
		{"tcp_reset", Probe{Kind: TCP, To: local(9)}, Refused},
		{"tcp_closed", Probe{Kind: TCP, To: serveNothing(t, ns)}, Closed},
		{"udp_rejected", Probe{Kind: UDP, To: local(9)}, Refused},
		{"udp_dropped", Probe{Kind: UDP, To: local(10)}, Refused}, // the call says so
		{"udp_marked", Probe{Kind: UDP, To: names, Mark: 0x3000}, Refused},
		{"echo_rejected", Probe{Kind: Echo, To: local(0)}, Refused},
		{"no_route", Probe{Kind: TCP, To: netip.AddrPortFrom(Nobody4, 9)}, Unreachable},
		{"no_route_for_echo6", Probe{Kind: Echo, To: netip.AddrPortFrom(Nobody6, 0)}, Unreachable},
		{"name_blocked", Probe{Kind: DNS, To: names, Name: "blocked.test"}, Blocked},
		{"name_unknown", Probe{Kind: DNS, To: names, Name: "unknown.test"}, Answered},
		{"name_blocked_by_tcp", Probe{Kind: DNSTCP, To: names, Name: "blocked.test"}, Blocked},
		{"tunnel_refused", Probe{Kind: Connect, To: proxy, Name: "192.0.2.1:80"}, Blocked},
		{"tunnel_open", Probe{Kind: Connect, To: proxy, Name: "allowed.test:443"}, Answered},
		{"loopback", Probe{Kind: Loopback}, Answered},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := Send(t.Context(), ns.Do, row.probe)
			if a.Outcome != row.want || a.Outcome == Blocked && row.probe.Kind == Connect && a.Decision != "d1" {
				t.Errorf("got %v (%s, decision %q), want %v", a.Outcome, a.Detail, a.Decision, row.want)
			}
		})
	}
}

// serveDNS answers every name with NXDOMAIN, and says of one that it is blocked.
func serveDNS(t *testing.T, ns *netnstest.Namespace) (at netip.AddrPort) {
	handler := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg).SetRcode(q, dns.RcodeNameError)
		if strings.HasPrefix(q.Question[0].Name, "blocked.") {
			o := a.SetEdns0(dns.DefaultMsgSize, false).IsEdns0()
			o.Option = append(o.Option, &dns.EDNS0_EDE{InfoCode: dns.ExtendedErrorCodeBlocked})
		}
		_ = w.WriteMsg(a)
	})
	packets, streams := &dns.Server{Handler: handler}, &dns.Server{Handler: handler}
	ns.Run(t, func() (err error) {
		if packets.PacketConn, err = net.ListenPacket("udp4", "127.0.0.1:0"); err != nil {
			return err
		}
		at = packets.PacketConn.LocalAddr().(*net.UDPAddr).AddrPort()
		streams.Listener, err = net.Listen("tcp4", at.String())
		return err
	})
	for _, s := range []*dns.Server{packets, streams} {
		done := make(chan error, 1)
		started := make(chan struct{})
		s.NotifyStartedFunc = func() { close(started) }
		go func() { done <- s.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := s.Shutdown(); err != nil {
				t.Error(err)
			}
			<-done
		})
	}
	return at
}

// serveNothing closes every connection.
func serveNothing(t *testing.T, ns *netnstest.Namespace) netip.AddrPort {
	var l net.Listener
	ns.Run(t, func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// serveProxy opens tunnels to one name, in which nothing comes.
func serveProxy(t *testing.T, ns *netnstest.Namespace) netip.AddrPort {
	var l net.Listener
	ns.Run(t, func() (err error) {
		l, err = net.Listen("tcp4", "127.0.0.1:0")
		return err
	})
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !strings.HasPrefix(req.Host, "allowed.test:") {
			w.Header().Set("Sluice-Decision", "d1")
			w.WriteHeader(http.StatusForbidden)
		}
	})}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// A forged frame arrives as it was meant to: it is not for anybody, and says what is not so.
func TestFrames(t *testing.T) {
	ns, outside := netnstest.New(t), netnstest.New(t)
	netnstest.Link(t, netnstest.End{In: ns, Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.9/24")}},
		netnstest.End{In: outside, Name: "peer"})
	nfttest.Run(t, outside, `table netdev t {
		counter frames { }
		counter requests { }
		chain c {
			type filter hook ingress device peer priority 0;
			ether daddr 02:00:00:00:00:01 ip saddr 198.51.100.77 ip daddr 192.0.2.1 udp dport 9 counter name frames
			ether daddr 02:00:00:00:00:01 arp operation request arp saddr ip 198.51.100.77 arp daddr ip 192.0.2.9 counter name requests
		}
	}`, "-f", "-")
	came := func() bool { return strings.Count(nfttest.Run(t, outside, "", "list", "counters"), "packets 0 ") == 0 }
	for end := time.Now().Add(10 * time.Second); !came() && time.Now().Before(end); { // the link may not be ready yet
		sendFrames(t, ns)
	}
	if !came() {
		t.Errorf("what came:\n%s", nfttest.Run(t, outside, "", "list", "counters"))
	}
	nfttest.Run(t, ns, `table ip t { chain output { type filter hook output priority 0; ip saddr 198.51.100.77 drop; }; }`, "-f", "-")
	if a := Send(t.Context(), ns.Do, Probe{Kind: RawSource, To: netip.AddrPortFrom(Nobody4, 0)}); a.Outcome != Refused {
		t.Errorf("raw socket: %v (%s)", a.Outcome, a.Detail)
	}
}

func sendFrames(t *testing.T, ns *netnstest.Namespace) {
	t.Helper()
	for _, k := range []Kind{Frame, ARP} {
		if a := Send(t.Context(), ns.Do, Probe{Kind: k, To: netip.AddrPortFrom(Nobody4, 0)}); a.Outcome != Silent || a.Sent != 1 {
			t.Errorf("kind %d: %v (%s), on %d interfaces", k, a.Outcome, a.Detail, a.Sent)
		}
	}
}

// Whoever answers in place of the proxy cannot make us keep what it sends.
func TestAnswerWithoutEnd(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const far = 64 << 20 // more than sockets hold
	sent := make(chan int, 1)
	go func() {
		total := 0
		defer func() { sent <- total }()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		n, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nX: ")
		for more := strings.Repeat("x", 1<<20); err == nil && total < far; n, err = io.WriteString(c, more) {
			total += n
		}
	}()
	a := Send(t.Context(), func(f func() error) error { return f() }, Probe{Kind: Connect, To: l.Addr().(*net.TCPAddr).AddrPort(), Name: "allowed.test:443"})
	if total := <-sent; total >= far || a.Outcome == Answered || a.Outcome == Blocked {
		t.Errorf("%v (%.60s) after %d bytes", a.Outcome, a.Detail, total)
	}
}
