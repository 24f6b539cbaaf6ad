package forward

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"sluice/matcher"
	"sluice/proxy/refusal"
)

// Credentials are asked for with every request, also of a connection that has shown them before, and never passed on.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	server := listenEcho(t)
	p := newProxy(t, "ok.test:80", server)
	p.conn.Authorize = func(header string) bool { return header == "Basic right" }
	p.start()
	right, wrong := "Proxy-Authorization: Basic right\r\n", "Proxy-Authorization: Basic wrong\r\n"
	tests := []struct {
		name, fields string
		status       int
	}{
		{"right", right, 200},
		{"none", "", 407},
		{"wrong", wrong, 407},
		{"right-again", right, 200},
		{"both", right + wrong, 407},
		{"twice", right + right, 407},
		{"folded-with-another", "Proxy-Authorization: Basic right, Basic wrong\r\n", 407},
	}
	c := p.client()
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			a := c.get("GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n" + test.fields + "\r\n")
			if a.StatusCode != test.status || a.Close || strings.Contains(a.body, "Basic") {
				t.Errorf("got %d %q, close %v", a.StatusCode, a.body, a.Close)
			}
			if test.status == 407 {
				if got := a.Header.Get("Proxy-Authenticate"); got != `Basic realm="test"` {
					t.Errorf("the challenge is %q", got)
				}
				if told := p.gate.refused(); told.refusal.Reason != Unauthorized {
					t.Errorf("the audit has %+v", told)
				}
			}
		})
	}
	if a := p.client().get("GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n"); a.StatusCode != 407 {
		t.Errorf("a malformed request without credentials got %d", a.StatusCode)
	}
	if n := len(p.gate.seen()); n != 2 {
		t.Errorf("%d requests were judged", n)
	}
}

// Cases I-24, L-12, L-49: all methods get the same 403, which names the missing target, and the connection goes on.
func TestRefusedByPolicy(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "git.test:80", listen(t, func(conn net.Conn) {
		s := newPeer(t, conn)
		s.head()
		s.send("HTTP/1.1 302 Found\r\nLocation: http://x.git.test/\r\nContent-Length: 0\r\n\r\n")
		_ = conn.Close()
	})).start()
	c := p.client()
	if a := c.get("GET http://git.test/ HTTP/1.1\r\nHost: git.test\r\n\r\n"); a.StatusCode != 302 || a.Header.Get("Location") != "http://x.git.test/" {
		t.Errorf("got %d %v", a.StatusCode, a.Header)
	}
	for _, method := range []string{"GET", "HEAD", "OPTIONS", "DELETE", "PROPFIND", "TRACE", "POST"} {
		c.send(method + " http://x.git.test/secret?token=x HTTP/1.1\r\nHost: x.git.test\r\n\r\n")
		a := c.answer(method)
		if a.StatusCode != 403 || a.Close || a.Header.Get("Sluice-Decision") != "fromgate" ||
			a.Header.Get("Proxy-Status") != `sluice; error=http_request_denied; details="not-listed: x.git.test:80"` {
			t.Errorf("%s got %d %v", method, a.StatusCode, a.Header)
		}
		if method != "HEAD" && a.body != "sluice: x.git.test:80: not-listed\nAdd it to the policy.\ndecision: fromgate\n" {
			t.Errorf("%s got %q", method, a.body)
		}
	}
	c.send("POST http://x.git.test/ HTTP/1.1\r\nHost: x.git.test\r\nContent-Length: 1000000\r\n\r\n")
	if a := c.answer("POST"); a.StatusCode != 403 || !a.Close {
		t.Errorf("a body that has not come: got %d, close %v", a.StatusCode, a.Close)
	}
	c.send(strings.Repeat("x", 1000000)) // may be sent, and is dropped
	c.gone()
}

// A dial that fails is answered by what went wrong, or by what the flow says.
func TestFailedDials(t *testing.T) {
	t.Parallel()
	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	tests := []struct {
		name   string
		err    error
		status int
		kind   refusal.Kind
		reason matcher.Reason
	}{
		{"refused", dial(os.NewSyscallError("connect", syscall.ECONNREFUSED)), 502, refusal.ConnectRefused, Refused},
		{"timeout", dial(os.ErrDeadlineExceeded), 504, refusal.ConnectTimeout, DialTimeout},
		{"deadline", context.DeadlineExceeded, 504, refusal.ConnectTimeout, DialTimeout},
		{"system-timeout", dial(os.NewSyscallError("connect", syscall.ETIMEDOUT)), 504, refusal.ConnectTimeout, DialTimeout},
		{"no-route", dial(os.NewSyscallError("connect", syscall.EHOSTUNREACH)), 502, refusal.Unroutable, Unreachable},
		{"no-network", dial(os.NewSyscallError("connect", syscall.ENETUNREACH)), 502, refusal.Unroutable, Unreachable},
		{"no-name", &net.DNSError{Err: "no such host", IsNotFound: true}, 502, refusal.DNSError, NoSuchName},
		{"name-timeout", &net.DNSError{Err: "timeout", IsTimeout: true}, 504, refusal.DNSTimeout, LookupTimeout},
		{"name-failure", &net.DNSError{Err: "server misbehaving"}, 502, refusal.DNSError, LookupFailed},
		{"anything", errors.New("password=secret"), 502, refusal.Unavailable, Unreachable},
		{"a-refusal", fmt.Errorf("dialling: %w", &refusal.Refusal{Status: 403, Kind: refusal.Denied, Reason: matcher.Floor, Decision: "later"}), 403, refusal.Denied, matcher.Floor},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			p := newProxy(t, "ok.test:80", "")
			p.gate.dial = func(context.Context, string) (net.Conn, error) { return nil, test.err }
			c := p.start().client()
			for range 2 {
				a := c.get(get)
				if want := fmt.Sprintf("sluice; error=%s; details=\"%s", test.kind, test.reason); a.StatusCode != test.status || a.Close ||
					!strings.HasPrefix(a.Header.Get("Proxy-Status"), want) || strings.Contains(a.body, "secret") {
					t.Errorf("got %d %v %q", a.StatusCode, a.Header, a.body)
				}
				if a.Header.Get("Sluice-Decision") == "later" {
					if len(p.gate.told) > 0 {
						t.Errorf("the audit was told of the flow's own refusal: %+v", p.gate.told)
					}
				} else if told := p.gate.refused(); told.refusal.Decision != a.Header.Get("Sluice-Decision") || told.refusal.Reason != test.reason || told.request.Host != "ok.test" {
					t.Errorf("the audit has %+v", told)
				}
			}
			c.send("POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 1000000\r\n\r\n")
			if a := c.answer("POST"); a.StatusCode != test.status || !a.Close {
				t.Errorf("with a body that has not come: got %d, close %v", a.StatusCode, a.Close)
			}
		})
	}
}

// A refusal is shown as the callers of another proxy expect it; the audit keeps the original.
func TestAdapt(t *testing.T) {
	t.Parallel()
	p := newProxy(t, "ok.test:80", "")
	p.gate.dial = func(context.Context, string) (net.Conn, error) { return nil, os.ErrDeadlineExceeded }
	p.options.Adapt = func(r *refusal.Refusal) {
		switch r.Status {
		case 502, 504:
			r.Status, r.NoBody = 403, true
		case 431:
			r.Status = 400
		}
	}
	p.start()
	a := p.client().get(get)
	told := p.gate.refused()
	if a.StatusCode != 403 || a.Header.Get("Content-Length") != "0" || a.Header.Get("Sluice-Decision") != told.refusal.Decision || told.refusal.Status != 504 {
		t.Errorf("got %d %v, and the audit %+v", a.StatusCode, a.Header, told)
	}
	if a := p.client().get("GET http://ok.test/" + strings.Repeat("x", 65<<10)); a.StatusCode != 400 {
		t.Errorf("a large head got %d", a.StatusCode)
	}
}

// A gate that fails to decide lets nothing through.
func TestNobodyJudges(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	p.conn.Gate = undecided{}
	if a := p.start().client().get(get); a.StatusCode != 403 || a.Header.Get("Sluice-Decision") == "" {
		t.Errorf("got %d %v", a.StatusCode, a.Header)
	}
}

type undecided struct{}

// Judge implements [Gate].
func (undecided) Judge(context.Context, net.Conn, Request) (Flow, *refusal.Refusal) { return nil, nil }

// A flow that wants to know how its request failed is told, and nobody else.
func TestFailer(t *testing.T) {
	t.Parallel()
	address, _ := once(t, "nonsense\r\n\r\n")
	p := newProxy(t, "ok.test:80", address)
	failed := make(chan refusal.Refusal, 1)
	p.conn.Gate = failerGate{p.gate, failed}
	a := p.start().client().get(get)
	told := <-failed
	if a.StatusCode != 502 || told.Decision != a.Header.Get("Sluice-Decision") || told.Target != "ok.test:80" || told.Reason != Broken {
		t.Errorf("got %d, and the flow %+v", a.StatusCode, told)
	}
	p.gate.settled()
	if len(p.gate.told) > 0 {
		t.Errorf("the audit was told of %+v too", p.gate.told)
	}
}

type failerGate struct {
	*gate
	failed chan refusal.Refusal
}

// Judge implements [Gate].
func (g failerGate) Judge(ctx context.Context, c net.Conn, r Request) (Flow, *refusal.Refusal) {
	f, no := g.gate.Judge(ctx, c, r)
	return failerFlow{f, g.failed}, no
}

type failerFlow struct {
	Flow
	failed chan refusal.Refusal
}

// Fail implements [Failer].
func (f failerFlow) Fail(no *refusal.Refusal) { f.failed <- *no }
