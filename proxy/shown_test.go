package proxy

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"sluice/proxy/dnstest"
)

// listenOn443 runs an upstream on port 443 of an address of loopback that no other test has.
func listenOn443(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	var b [3]byte
	_, _ = rand.Read(b[:])
	address = fmt.Sprintf("127.%d.%d.%d", 1+b[0]%250, b[1], 1+b[2]%250)
	l, err := net.Listen("tcp", address+":443")
	if errors.Is(err, os.ErrPermission) {
		t.Skip("needs root to listen on port 443: run with -exec sudo")
	}
	if err != nil {
		t.Fatal(err)
	}
	serveOn(t, l, serve)
	return address
}

// Case I-28, on the port where TLS must name a server.
func TestNoServerName(t *testing.T) {
	hello := clientHello(t, "")
	address := listenOn443(t, echo)
	known := names{"ok.test": {address}}
	for name, c := range map[string]struct {
		policy, target, first string
		passes                bool
	}{
		"name-rule":     {allow("ok.test"), "ok.test", hello, false},
		"wildcard-rule": {allow("*.test"), "ok.test", hello, false},
		"address-rule":  {allow(address), address, hello, true},
		"denylist":      {deny("evil.test"), "ok.test", hello, true},
		"public":        {`"public"`, "ok.test", hello, true},
		"ssh":           {allow("ok.test"), "ok.test", "SSH-2.0-x\r\n", true},
		"other-bytes":   {allow("ok.test"), "ok.test", "\x00\x01", true},
		"sslv2":         {allow("ok.test"), "ok.test", "\x80\x2e\x01\x03\x01\x00\x15", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.policy, Config{Hosts: known.hosts})
			tunnel, _ := r.connect(c.target+":443", "")
			if c.passes {
				wantEcho(t, tunnel, c.first)
				return
			}
			_, _ = tunnel.TCPConn.Write([]byte(c.first))
			wantReset(t, tunnel)
		})
	}
	t.Run("http-to-another-name", func(t *testing.T) {
		r := start(t, allow("ok.test"), Config{Hosts: known.hosts})
		tunnel, _ := r.connect("ok.test:443", "")
		if status, _ := tunnel.ask(t, "GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"); status != 403 {
			t.Errorf("%d, want 403", status)
		}
	})
}

// A switch judges an open tunnel by what was shown in it before, under rules that did not care.
func TestSwitchJudgesWhatWasShown(t *testing.T) {
	port := listen(t, echo)
	known := names{"ok.test": {"127.0.0.1"}, "also.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}
	both := allow("ok.test", "also.test")
	for name, c := range map[string]switched{
		"same":                  {`"public"`, "ok.test:" + port, clientHello(t, "ok.test"), allow("ok.test"), true},
		"other-name":            {`"public"`, "ok.test:" + port, clientHello(t, "evil.test"), allow("ok.test"), false},
		"other-name-denied":     {`"public"`, "ok.test:" + port, clientHello(t, "evil.test"), deny("evil.test"), false},
		"other-name-by-address": {`"public"`, "127.0.0.1:" + port, clientHello(t, "evil.test"), allow("127.0.0.1"), true},
		"no-name":               {`"public"`, "ok.test:" + port, clientHello(t, ""), allow("ok.test"), true},
		"http2":                 {`"public"`, "ok.test:" + port, http2Request("evil.test:" + port), allow("ok.test"), false},
		"proxy-header":          {`"public"`, "ok.test:" + port, "PROXY TCP4 1 2 3 4\r\n", allow("ok.test"), false},
		"other-bytes":           {`"public"`, "ok.test:" + port, "\x00", allow("ok.test"), true},
		"also-allowed":          {both, "ok.test:" + port, clientHello(t, "also.test"), allow("ok.test", "also.test"), true},
		"also-gone":             {both, "ok.test:" + port, clientHello(t, "also.test"), allow("ok.test"), false},
	} {
		t.Run(name, func(t *testing.T) { c.run(t, known) })
	}
}

func TestSwitchJudgesNoServerName(t *testing.T) {
	known := names{"ok.test": {listenOn443(t, echo)}}
	hello := clientHello(t, "")
	for name, c := range map[string]switched{
		"name-rule":  {`"public"`, "ok.test:443", hello, allow("ok.test"), false},
		"not-denied": {`"public"`, "ok.test:443", hello, deny("evil.test"), true},
	} {
		t.Run(name, func(t *testing.T) { c.run(t, known) })
	}
}

// switched is a tunnel that a switch finds open, after its client has said something.
type switched struct {
	before, target, first, after string
	kept                         bool
}

func (c switched) run(t *testing.T, known names) {
	r := start(t, c.before, Config{Hosts: known.hosts})
	tunnel, _ := r.connect(c.target, "")
	wantEcho(t, tunnel, c.first)
	receipt := r.apply(c.after)
	if c.kept {
		if receipt.FlowsKept != 1 {
			t.Errorf("receipt %+v; want one kept", receipt)
		}
		wantEcho(t, tunnel, "goes on")
		return
	}
	if receipt.FlowsCut != 1 {
		t.Errorf("receipt %+v; want one cut", receipt)
	}
	wantReset(t, tunnel)
}

// A name that was seen to stand for the address does so for as long as the flow is open, whatever the name servers say
// meanwhile: a flow that both policies allow goes on.
func TestSwitchKeepsNameOfBefore(t *testing.T) {
	port := listen(t, echo)
	var gone atomic.Bool
	server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		switch {
		case gone.Load():
			return q.Code(dns.RcodeServerFailure)
		case q.Type != dns.TypeA:
			return q.Records()
		}
		return q.Records(q.Name + " 0 A 127.0.0.1")
	})
	r := start(t, allow("ok.test", "also.test"), Config{Upstreams: []netip.AddrPort{server.Addr}})
	tunnel, _ := r.connect("ok.test:"+port, "")
	wantEcho(t, tunnel, clientHello(t, "also.test"))
	gone.Store(true)
	if receipt := r.apply(allow("ok.test", "also.test", "third.test")); receipt.FlowsKept != 1 {
		t.Errorf("receipt %+v; want one kept", receipt)
	}
	wantEcho(t, tunnel, "goes on")
}
