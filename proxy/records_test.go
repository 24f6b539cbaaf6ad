package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"sluice/matcher"
	"sluice/proxy/audit"
)

// record is what a test reads of an audit line.
type record struct {
	Protocol, Target, Address, Verdict, Reason, Rule, Decision string
	Port                                                       uint16
	BytesIn                                                    uint64 `json:"bytes_in"`
	BytesOut                                                   uint64 `json:"bytes_out"`
}

func (r record) String() string {
	return fmt.Sprintf("%s %s:%d %s %s %d/%d", r.Protocol, r.Target, r.Port, r.Verdict, r.Reason, r.BytesIn, r.BytesOut)
}

// trail is an audit sink in memory.
type trail struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *trail) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// startAudited is start with an audit, which records returns when every connection has ended.
func startAudited(t *testing.T, rules string, config Config) (r *rig, records func() []record) {
	t.Helper()
	l := new(trail)
	w := audit.New(l)
	config.Audit = w
	r = start(t, rules, config)
	return r, func() (all []record) {
		t.Helper()
		r.wantConnections(0)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		for d := json.NewDecoder(&l.text); ; {
			var one record
			if err := d.Decode(&one); err == io.EOF {
				return all
			} else if err != nil {
				t.Fatal(err)
			}
			all = append(all, one)
		}
	}
}

// wantConnections waits until that many clients are connected.
func (r *rig) wantConnections(want int64) {
	r.Helper()
	for deadline := time.Now().Add(10 * time.Second); r.server.places.connections.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%d clients are connected, want %d", r.server.places.connections.Load(), want)
		}
	}
}

// wantRecords compares records, in any order, with the counters as well.
func (r *rig) wantRecords(got []record, want ...string) {
	r.Helper()
	left := make(map[string]int)
	for _, text := range want {
		left[text]++
	}
	counted := make(map[connectionKey]float64)
	r.session.tally.connections.each(func(k connectionKey, n float64) { counted[k] = n })
	for _, one := range got {
		left[one.String()]--
		counted[connectionKey{protocol: protocol(one.Protocol), outcome: outcome(one.Verdict), reason: matcher.Reason(one.Reason)}]--
	}
	for text, n := range left {
		if n != 0 {
			r.Errorf("record %q: %+d", text, -n)
		}
	}
	for k, n := range counted {
		if n != 0 {
			r.Errorf("counter %v: %+v more than records", k, n)
		}
	}
}

// The bytes of a flow are counted to the last one, also if it breaks.
func TestRecordOfBrokenTunnel(t *testing.T) {
	port := listen(t, func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_, _ = c.Write(make([]byte, 1000))
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	r, records := startAudited(t, allow("127.0.0.1"), Config{Workers: 1})
	var want []string
	for range 20 {
		c, _ := r.connect("127.0.0.1:"+port, "")
		goOn := r.server.workers[0].stop(t)
		_, _ = io.WriteString(c.TCPConn, "\x00")
		goOn()
		_, _ = io.ReadAll(c)
		c.Close()
		r.wantConnections(0)
	}
	all := records()
	for _, one := range all {
		if one.BytesIn != 1000 || one.BytesOut != 1 {
			t.Errorf("%v; want 1000/1 bytes", one)
		}
		want = append(want, fmt.Sprintf("connect 127.0.0.1:%s allow address-rule 1000/1", port))
	}
	r.wantRecords(all, want...)
}

// A request that is allowed and cannot be served is no success.
func TestRecordOfFailedRequest(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	r, records := startAudited(t, allow("127.0.0.1"), Config{})
	c := r.open()
	if status, _ := c.ask(t, "GET http://127.0.0.1:"+port+"/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"); status != 502 {
		t.Errorf("%d, want 502", status)
	}
	c.Close()
	r.wantRecords(records(), "http 127.0.0.1:"+port+" error connection-refused 0/0")
}

// A look-up that ends when its client has been told that it took too long changes nothing any more.
func TestRecordOfLateLookup(t *testing.T) {
	silent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	r, records := startAudited(t, allow("ok.test"), Config{DialTimeout: 20 * time.Millisecond,
		Upstreams: []netip.AddrPort{netip.MustParseAddrPort(silent.LocalAddr().String())}})
	const clients = 50
	for range clients {
		c, response := r.connect("ok.test:80", "")
		if response.StatusCode != 504 {
			t.Errorf("%s, want 504", response.Status)
		}
		if rest, err := io.ReadAll(c); err != nil || strings.Contains(string(rest), "HTTP/1.1") {
			t.Errorf("behind the answer: %q, %v", rest, err)
		}
		c.Close()
	}
	if n := len(records()); n != clients {
		t.Errorf("%d records of %d connections", n, clients)
	}
}

// A record names the host that was judged, also where the connection leads to was known by another name.
func TestRecordNamesTheRequestsHost(t *testing.T) {
	port := origin(t)
	known := names{"ok.test": {"127.0.0.1"}, "also.test": {"127.0.0.1"}}
	request := "GET / HTTP/1.1\r\nHost: also.test:" + port + "\r\n\r\n"
	for name, open := range map[string]func(*rig) client{
		"tunnel": func(r *rig) client {
			c, _ := r.connect("ok.test:"+port, "")
			return c
		},
		"redirected": func(r *rig) client {
			r.redirect("127.0.0.1:" + port)
			return r.open()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, records := startAudited(t, allow("ok.test", "also.test"), Config{Hosts: known.hosts})
			c := open(r)
			if status, body := c.ask(t, request); status != 200 {
				t.Fatal(status, body)
			}
			c.Close()
			all := records()
			for _, one := range all {
				if one.Verdict == string(allowed) && one.Reason == string(matcher.NotListed) {
					t.Errorf("%v: what is not listed is not allowed", one)
				}
			}
			if last := all[len(all)-1]; last.Protocol != "http" || last.Target != "also.test" || last.Address != "127.0.0.1" || last.Rule != "also.test" {
				t.Errorf("%+v; want also.test", last)
			}
		})
	}
}

// Each connection and each request leaves one record, which says what became of it, and is counted once.
func TestRecords(t *testing.T) {
	port, web := listen(t, echo), origin(t)
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	_, nobody, _ := net.SplitHostPort(closed.Addr().String())
	known := names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}
	ask := func(request, host, rest string) string {
		return request + " HTTP/1.1\r\nHost: " + host + "\r\n" + rest + "\r\n"
	}
	// do sends text, closes the sending half, and reads to the end.
	do := func(text string) func(*rig) {
		return func(r *rig) {
			c := r.dial()
			_, _ = io.WriteString(c, text)
			_ = c.CloseWrite()
			_, _ = io.ReadAll(c)
			c.Close()
		}
	}
	hello := clientHello(t, "evil.test")
	for name, c := range map[string]struct {
		act  func(*rig)
		want []string
	}{
		"nothing-asked":      {do(""), nil},
		"half-a-head":        {do("CONNECT ok.te"), nil},
		"tunnel":             {do("CONNECT ok.test:" + port + " HTTP/1.1\r\n\r\n\x00abc"), []string{"connect ok.test:" + port + " allow name-rule 4/4"}},
		"unused-tunnel":      {do("CONNECT ok.test:" + port + " HTTP/1.1\r\n\r\n"), []string{"connect ok.test:" + port + " allow name-rule 0/0"}},
		"refused":            {do("CONNECT evil.test:1 HTTP/1.1\r\n\r\n"), []string{"connect evil.test:1 refuse not-listed 0/0"}},
		"malformed":          {do("CONNECT ok.test HTTP/1.1\r\n\r\n"), []string{"connect :0 refuse malformed 0/0"}},
		"too-large":          {do("CONNECT " + strings.Repeat("a", 70<<10)), []string{"connect :0 refuse header-too-large 0/0"}},
		"nobody-there":       {do("CONNECT ok.test:" + nobody + " HTTP/1.1\r\n\r\n"), []string{"connect ok.test:" + nobody + " error connection-refused 0/0"}},
		"no-such-name":       {do("CONNECT none.ok.test:1 HTTP/1.1\r\n\r\n"), []string{"connect none.ok.test:1 error no-such-name 0/0"}},
		"other-server-name":  {do("CONNECT ok.test:" + port + " HTTP/1.1\r\n\r\n" + hello), []string{"tls ok.test:" + port + " refuse other-name 0/0"}},
		"http-refused":       {do(ask("GET http://evil.test/", "evil.test", "")), []string{"http evil.test:80 refuse not-listed 0/0"}},
		"http-malformed":     {do(ask("GET /", "ok.test", "")), []string{"http :0 refuse malformed 0/0"}},
		"http-nobody-there":  {do(ask("GET http://ok.test:"+nobody+"/", "ok.test", "")), []string{"http ok.test:" + nobody + " error connection-refused 0/0"}},
		"http-no-such-name":  {do(ask("GET http://none.ok.test/", "x", "")), []string{"http none.ok.test:80 error no-such-name 0/0"}},
		"websocket-refused":  {do(ask("GET http://evil.test/", "x", "Upgrade: websocket\r\nConnection: upgrade\r\n")), []string{"websocket evil.test:80 refuse not-listed 0/0"}},
		"upgrade-refused":    {do(ask("GET http://ok.test/", "x", "Upgrade: x\r\nConnection: upgrade\r\n")), []string{"http ok.test:80 refuse upgrade 0/0"}},
		"two-requests-apart": {do(ask("GET http://evil.test/", "x", "") + ask("GET http://evil.test:81/", "x", "")), []string{"http evil.test:80 refuse not-listed 0/0", "http evil.test:81 refuse not-listed 0/0"}},
		"request-then-tunnel": {do(ask("GET http://evil.test/", "x", "") + "CONNECT evil.test:1 HTTP/1.1\r\n\r\n"),
			[]string{"http evil.test:80 refuse not-listed 0/0", "connect evil.test:1 refuse not-listed 0/0"}},
		"requests-in-tunnel": {func(r *rig) {
			c, _ := r.connect("ok.test:"+web, "")
			_, _ = c.ask(t, ask("GET /", "ok.test:"+web, ""))
			_, _ = c.ask(t, ask("GET /", "evil.test:"+web, ""))
			c.Close()
		}, []string{"connect ok.test:" + web + " allow name-rule 0/0", "http ok.test:" + web + " allow name-rule", "http evil.test:" + web + " refuse other-name 0/0"}},
		"http": {func(r *rig) {
			c := r.open()
			_, _ = c.ask(t, ask("GET http://ok.test:"+web+"/", "x", ""))
			c.Close()
		}, []string{"http ok.test:" + web + " allow name-rule"}},
		"cut": {func(r *rig) {
			c, _ := r.connect("ok.test:"+port, "")
			wantEcho(t, c, "\x00")
			r.apply(`"no-network"`)
			wantReset(t, c)
		}, []string{"connect ok.test:" + port + " cut no-network 1/1"}},
		"websocket-cut": {func(r *rig) {
			c := r.open()
			if status, _ := c.ask(t, ask("GET http://ok.test:"+web+"/", "x", "Upgrade: websocket\r\nConnection: upgrade\r\n")); status != 101 {
				t.Fatal(status)
			}
			r.apply(`"no-network"`)
			wantReset(t, c)
		}, []string{"websocket ok.test:" + web + " cut no-network"}},
		"gone-while-looked-up": {func(r *rig) {
			c := r.dial()
			_, _ = io.WriteString(c, "CONNECT slow.ok.test:1 HTTP/1.1\r\n\r\n")
			r.waitFor(looking)
			_ = c.SetLinger(0)
			c.Close()
		}, []string{"connect slow.ok.test:1 error client-gone 0/0"}},
	} {
		t.Run(name, func(t *testing.T) {
			config := answers(t, nil)
			config.Workers = 1
			config.Hosts = func(name string) []netip.Addr {
				if name == "slow.ok.test" {
					time.Sleep(100 * time.Millisecond)
				}
				return known.hosts(name)
			}
			r, records := startAudited(t, allow("ok.test", "*.ok.test"), config)
			c.act(r)
			all := records()
			var want []string
			for _, text := range c.want {
				for _, one := range all { // the bytes of requests are not foreseen
					if strings.Count(text, " ") == 3 && strings.HasPrefix(one.String(), text+" ") {
						text = one.String()
					}
				}
				want = append(want, text)
			}
			r.wantRecords(all, want...)
			for _, one := range all {
				if told := one.Verdict == string(refused) || one.Verdict == string(failed); told != (one.Decision != "") && one.Reason != string(reasonClientGone) {
					t.Errorf("%v: decision %q", one, one.Decision)
				}
			}
		})
	}
}
