package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/miekg/dns"

	"sluice/controller"
	"sluice/dockernet/netns"
	"sluice/e2e/lab/internet"
)

// soakLimit is how long anything may take that passes or is refused: nothing is left to time out.
const soakLimit = 20 * time.Second

// soakPhase is a phase with what it alone allows: a name with its address, and an address without a name.
type soakPhase struct {
	phase, name string
	named, bare netip.Addr
}

var (
	soakRun = soakPhase{"run", "run.soak.test", netip.MustParseAddr("203.0.113.242"), netip.MustParseAddr("203.0.113.243")}
	soakEnd = soakPhase{"evaluation", "evaluation.soak.test", netip.MustParseAddr("203.0.113.244"), netip.MustParseAddr("203.0.113.245")}
)

// other is the phase that refuses what p allows.
func (p *soakPhase) other() *soakPhase {
	if p == &soakRun {
		return &soakEnd
	}
	return &soakRun
}

func (st *stage) nameSoak() error {
	return errors.Join(st.Internet.SetName(soakRun.name, "A "+soakRun.named.String()), st.Internet.SetName(soakEnd.name, "A "+soakEnd.named.String()))
}

func soakPolicy() json.RawMessage {
	allowlist := func(p soakPhase) string {
		return fmt.Sprintf(`{"network_mode": "allowlist", "allowed_hosts": [%q, %q, %q]}`, p.name, p.bare, "*."+floodZone)
	}
	return json.RawMessage(`{"baseline_network_policy": "no-network", "run_network_policy": ` + allowlist(soakRun) +
		`, "evaluation_network_policy": ` + allowlist(soakEnd) + `}`)
}

// soaker uses one container. One worker does at a time.
type soaker struct {
	*stage
	id      string
	ns      *netns.Namespace
	sandbox string // the path of ns, for another process; simulated containers have one
	now     *soakPhase
	last    string    // the last step that changed its rules, for messages
	lastAt  time.Time // when that was done
}

// soakSteps are what may be done with a container. Each is an error if something else becomes of it than the policy says.
var soakSteps = []struct {
	name string
	do   func(*soaker, context.Context) error
}{
	{"tunnel", (*soaker).allowedTunnel},
	{"tunnel refused", func(s *soaker, _ context.Context) error {
		conn, err := s.tunnel(s.now.other().name)
		if err == nil {
			conn.Close()
			return errors.New("it was opened")
		}
		if !errors.Is(err, errForbidden) {
			return err
		}
		return nil
	}},
	{"request", (*soaker).request},
	{"TLS", func(s *soaker, _ context.Context) error { return s.tls(s.now) }},
	{"TLS refused", func(s *soaker, _ context.Context) error { return refused(s.tls(s.now.other())) }},
	{"direct", func(s *soaker, _ context.Context) error { return s.echo("tcp4", s.now.bare) }},
	{"direct refused", func(s *soaker, _ context.Context) error { return refused(s.echo("tcp4", s.now.other().bare)) }},
	{"datagram", func(s *soaker, _ context.Context) error { return s.echo("udp4", s.now.bare) }},
	{"datagram refused", func(s *soaker, _ context.Context) error { return refused(s.echo("udp4", s.now.other().bare)) }},
	{"look-up", func(s *soaker, _ context.Context) error { return s.lookUp(s.now.name, dns.RcodeSuccess) }},
	{"look-up refused", func(s *soaker, _ context.Context) error { return s.lookUp(s.now.other().name, dns.RcodeNameError) }},
	{"switch", (*soaker).turn},
	{"attach again", func(s *soaker, ctx context.Context) error {
		if err := s.api.Detach(ctx, s.id); err != nil {
			return err
		}
		s.now = &soakRun
		return s.attachForSoak(ctx, s.id)
	}},
}

// errTimeout is a refusal that was none: the client was left to wait.
var errTimeout = errors.New("left to time out")

// refused turns an error into none, and none into an error. Only waiting is no refusal.
func refused(err error) error {
	var timeout net.Error
	switch {
	case err == nil:
		return errors.New("it was let through")
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("%w: %w", errTimeout, err)
	}
	return nil
}

// dial opens a socket in the container. Its end is [soakLimit] away.
func (s *soaker) dial(network, address string) (conn net.Conn, err error) {
	err = s.ns.Do(func() error {
		dialer := net.Dialer{Timeout: soakLimit}
		dialer.SetMultipathTCP(false)
		conn, err = dialer.Dial(network, address)
		return err
	})
	if err == nil {
		conn.SetDeadline(time.Now().Add(soakLimit))
	}
	return conn, err
}

// tunnel opens one to the echo port of a name.
func (s *soaker) tunnel(name string) (net.Conn, error) {
	conn, err := s.dial("tcp4", controller.ExplicitProxy.String())
	if err != nil {
		return nil, err
	}
	if err := connect(conn, net.JoinHostPort(name, strconv.Itoa(internet.PortEcho))); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// exchange sends a line and waits for it to come back.
func exchange(conn net.Conn) error {
	const line = "a line that comes back\n"
	if _, err := io.WriteString(conn, line); err != nil {
		return err
	}
	var back [len(line)]byte
	if _, err := io.ReadFull(conn, back[:]); err != nil {
		return err
	}
	if string(back[:]) != line {
		return fmt.Errorf("%q came back", back)
	}
	return nil
}

func (s *soaker) allowedTunnel(context.Context) error {
	conn, err := s.tunnel(s.now.name)
	if err != nil {
		return err
	}
	return errors.Join(exchange(conn), conn.Close())
}

// request asks for a page by plain HTTP through the explicit proxy.
func (s *soaker) request(ctx context.Context) error {
	conn, err := s.dial("tcp4", controller.ExplicitProxy.String())
	if err != nil {
		return err
	}
	defer conn.Close()
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		Proxy: nil}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.now.name+"/", nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode == http.StatusForbidden || answer.StatusCode >= 500 {
		return fmt.Errorf("status %s", answer.Status)
	}
	return nil
}

// tls shakes hands with the address of a phase's name, which is redirected to the proxy.
func (s *soaker) tls(p *soakPhase) error {
	conn, err := s.dial("tcp4", net.JoinHostPort(p.named.String(), strconv.Itoa(internet.PortHTTPS)))
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{RootCAs: s.roots(), ServerName: p.name}).Handshake()
}

func (st *stage) roots() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(st.Internet.CA())
	return pool
}

// echo exchanges a line with the echo port of an address.
func (s *soaker) echo(network string, to netip.Addr) error {
	conn, err := s.dial(network, netip.AddrPortFrom(to, internet.PortEcho).String())
	if err != nil {
		return err
	}
	return errors.Join(exchange(conn), conn.Close())
}

// lookUp asks the name server of the lab, which is redirected to the DNS filter.
func (s *soaker) lookUp(name string, want int) error {
	conn, err := s.dial("udp4", netip.AddrPortFrom(internet.Resolver, 53).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	answer, _, err := new(dns.Client).ExchangeWithConn(question, &dns.Conn{Conn: conn})
	if err != nil {
		return err
	}
	if answer.Rcode != want || want == dns.RcodeSuccess && len(answer.Answer) == 0 {
		return fmt.Errorf("%s with %d records, want %s", dns.RcodeToString[answer.Rcode], len(answer.Answer), dns.RcodeToString[want])
	}
	return nil
}

// turn switches with flows open, which have to end.
func (s *soaker) turn(ctx context.Context) error {
	old, err := s.tunnel(s.now.name)
	if err != nil {
		return err
	}
	defer old.Close()
	straight, err := s.dial("tcp4", netip.AddrPortFrom(s.now.bare, internet.PortEcho).String())
	if err != nil {
		return err
	}
	defer straight.Close()
	for _, conn := range []net.Conn{old, straight} {
		if err := exchange(conn); err != nil {
			return err
		}
	}
	receipt, err := s.api.Phase(ctx, s.id, s.now.other().phase, 0)
	if err != nil {
		return err
	}
	s.now = s.now.other()
	if receipt.FlowsCut < 2 {
		return fmt.Errorf("the receipt says that %d flows were cut, want 2", receipt.FlowsCut)
	}
	return errors.Join(refused(exchange(old)), refused(exchange(straight)))
}
