package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Send sends p from the namespace that in runs functions in, and waits for what comes of it, for [Limit] at most. It
// needs CAP_NET_ADMIN and CAP_NET_RAW there. It may be called by any number of goroutines.
func Send(ctx context.Context, in func(func() error) error, p Probe) Answer {
	ctx, cancel := context.WithTimeout(ctx, Limit)
	defer cancel()
	var a Answer
	var err error
	switch p.Kind {
	case TCP, UDP:
		a, err = exchange(ctx, in, p)
	case Echo:
		err = in(func() error { return echo(p.To.Addr(), p.nonce) })
		a.Outcome = Silent
	case DNS, DNSTCP:
		a, err = ask(ctx, in, p)
	case Connect:
		a, err = connect(ctx, in, p)
	case Loopback:
		a, err = loopback(ctx, in)
	case RawSource:
		err = in(func() error { return rawPacket(p.To.Addr(), p.nonce) })
		a.Outcome = Silent
	case Frame, ARP:
		err = in(func() (err error) { a.Sent, a.Stopped, err = frames(p); return err })
		a.Outcome = Silent
	default:
		err = fmt.Errorf("kind %d is unknown", p.Kind)
	}
	if err != nil {
		a.Outcome, a.Detail = outcome(err), err.Error()
	}
	if a.Outcome == Unreachable && errors.Is(err, unix.ENETUNREACH) && routed(in, p.To.Addr()) {
		a.Outcome = Refused // by somebody outside, or by a rule
	}
	return a
}

// routed reports whether the namespace knows a way to an address.
func routed(in func(func() error) error, to netip.Addr) bool {
	return in(func() error { _, err := netlink.RouteGet(to.AsSlice()); return err }) == nil
}

// outcome says what an error means.
func outcome(err error) Outcome {
	switch {
	case errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EAFNOSUPPORT):
		return Unreachable
	case errors.Is(err, unix.ECONNREFUSED), errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EHOSTUNREACH):
		return Refused
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return Silent
	case errors.Is(err, io.EOF), errors.Is(err, unix.ECONNRESET), errors.Is(err, unix.EPIPE):
		return Closed
	}
	return Failed
}

// dial opens a connection from the namespace. The context's deadline is that of the connection too.
func dial(ctx context.Context, in func(func() error) error, network string, to netip.AddrPort, mark uint32) (c net.Conn, err error) {
	d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		if mark != 0 {
			err = errors.Join(raw.Control(func(fd uintptr) {
				err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(mark))
			}), err)
		}
		return err
	}}
	err = in(func() (err error) {
		c, err = d.DialContext(ctx, network, to.String()) // makes the socket of an address on this very thread
		return err
	})
	if err != nil {
		return nil, err
	}
	if end, ok := ctx.Deadline(); ok {
		err = c.SetDeadline(end)
	}
	return c, err
}

// exchange sends a line and waits for an answer.
func exchange(ctx context.Context, in func(func() error) error, p Probe) (a Answer, err error) {
	network := "tcp"
	if p.Kind == UDP {
		network = "udp"
	}
	c, err := dial(ctx, in, network, p.To, p.Mark)
	if err != nil {
		return a, err
	}
	defer c.Close()
	line := "sluice verify\n"
	if p.Kind == UDP {
		line = string(p.nonce[:]) + line
	}
	if _, err := io.WriteString(c, line); err != nil {
		return a, err
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		if p.Kind == TCP && outcome(err) == Silent {
			return Answer{Outcome: Answered, Detail: "the connection was made and stays open"}, nil
		}
		return a, err
	}
	return Answer{Outcome: Answered, Detail: "an answer came"}, nil
}

// ask asks for a name.
func ask(ctx context.Context, in func(func() error) error, p Probe) (a Answer, err error) {
	network := "udp"
	if p.Kind == DNSTCP {
		network = "tcp"
	}
	c, err := dial(ctx, in, network, p.To, 0)
	if err != nil {
		return a, err
	}
	defer c.Close()
	q := new(dns.Msg).SetQuestion(dns.Fqdn(p.Name), dns.TypeA).SetEdns0(dns.DefaultMsgSize, false)
	answer, _, err := new(dns.Client).ExchangeWithConnContext(ctx, q, &dns.Conn{Conn: c})
	if err != nil {
		return a, err
	}
	a = Answer{Outcome: Answered, Detail: dns.RcodeToString[answer.Rcode]}
	if o := answer.IsEdns0(); o != nil {
		for _, option := range o.Option {
			if ede, ok := option.(*dns.EDNS0_EDE); ok && ede.InfoCode == dns.ExtendedErrorCodeBlocked {
				a.Outcome, a.Detail = Blocked, a.Detail+", Blocked"
			}
		}
	}
	return a, nil
}

// maxAnswer bounds what is read of a proxy's answer, in bytes.
const maxAnswer = 16 << 10

// connect asks a proxy for a tunnel, and sends nothing in it.
func connect(ctx context.Context, in func(func() error) error, p Probe) (a Answer, err error) {
	c, err := dial(ctx, in, "tcp", p.To, 0)
	if err != nil {
		return a, err
	}
	defer c.Close()
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", p.Name); err != nil {
		return a, err
	}
	// Where rules are missing it may be the workload that answers.
	r, err := http.ReadResponse(bufio.NewReader(io.LimitReader(c, maxAnswer)), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return a, err
	}
	defer r.Body.Close()
	a = Answer{Outcome: Answered, Detail: r.Status, Decision: r.Header.Get("Sluice-Decision")}
	if r.StatusCode == http.StatusForbidden {
		a.Outcome = Blocked
	}
	return a, nil
}

// loopback lets the container talk to itself.
func loopback(ctx context.Context, in func(func() error) error) (a Answer, err error) {
	var l net.Listener
	if err := in(func() (err error) {
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		return a, err
	}
	defer l.Close()
	c, err := dial(ctx, in, "tcp", l.Addr().(*net.TCPAddr).AddrPort(), 0)
	if err != nil {
		return a, err
	}
	defer c.Close()
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(Limit)); err != nil {
		return a, err
	}
	served, err := l.Accept()
	if err != nil {
		return a, err
	}
	defer served.Close()
	if _, err := io.WriteString(served, "x"); err != nil {
		return a, err
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		return a, err
	}
	return Answer{Outcome: Answered, Detail: "the loopback works"}, nil
}

// interfaces are those of the namespace that frames can leave by.
func interfaces() (list []net.Interface, err error) {
	all, err := netns.Interfaces()
	for _, i := range all {
		if i.Flags&net.FlagLoopback == 0 && i.Flags&net.FlagUp != 0 && len(i.HardwareAddr) == 6 {
			list = append(list, i)
		}
	}
	return list, err
}
