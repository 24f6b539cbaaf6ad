package proxy

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/proxy/dnstest"
)

// answers makes a name server that gives each name its records for A; a name with several lists gives one list after
// the other, and stays with the last.
func answers(t *testing.T, records map[string][][]string) Config {
	var asked atomic.Int64
	server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		name := strings.TrimSuffix(strings.ToLower(q.Name), ".")
		lists, ok := records[name]
		if !ok {
			return q.Code(dns.RcodeNameError)
		}
		if q.Type != dns.TypeA {
			return q.Records()
		}
		return q.Records(lists[min(int(asked.Add(1))-1, len(lists)-1)]...)
	})
	return Config{Upstreams: []netip.AddrPort{server.Addr}}
}

// silent listens on an address of loopback that must see no connection.
func silent(t *testing.T, address string) (port string) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			t.Errorf("%s was dialled", l.Addr())
			c.Close()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	_, port, _ = net.SplitHostPort(l.Addr().String())
	return port
}

// Cases I-11, I-12 and I-13: what an allowed name stands for is judged, each address, at every look-up.
func TestAddressesBehindNamesAreJudged(t *testing.T) {
	port := silent(t, "127.0.0.1")
	for name, c := range map[string]struct {
		policy  string
		records [][]string
		tries   int
		status  int
		reason  matcher.Reason
	}{
		"loopback":             {allow("ok.test"), [][]string{{"ok.test. 60 A 127.0.0.1"}}, 1, 403, matcher.Floor},
		"metadata":             {allow("ok.test"), [][]string{{"ok.test. 60 A 169.254.169.254"}}, 1, 403, matcher.Floor},
		"private-wildcard":     {allow("*.test"), [][]string{{"ok.test. 60 A 10.0.0.1"}}, 1, 403, matcher.PrivateWildcard},
		"public-mode":          {`"public"`, [][]string{{"ok.test. 60 A 127.0.0.1"}}, 1, 403, matcher.Floor},
		"not-denied":           {deny("evil.test"), [][]string{{"ok.test. 60 A 127.0.0.1"}}, 1, 403, matcher.Floor},
		"alias-of-denied":      {deny("evil.test"), [][]string{{"ok.test. 60 CNAME evil.test.", "evil.test. 60 A 192.0.2.1"}}, 1, 403, matcher.NameRule},
		"denied-address":       {deny("192.0.2.0/24"), [][]string{{"ok.test. 60 A 192.0.2.1"}}, 1, 403, matcher.AddressRule},
		"both-floor":           {allow("ok.test"), [][]string{{"ok.test. 60 A 127.0.0.1", "ok.test. 60 A 169.254.169.254"}}, 1, 403, matcher.Floor},
		"changed-to-loopback":  {allow("ok.test", "127.0.0.9"), [][]string{{"ok.test. 0 A 127.0.0.9"}, {"ok.test. 0 A 127.0.0.1"}}, 2, 403, matcher.Floor},
		"named-address-passes": {allow("ok.test", "127.0.0.9"), [][]string{{"ok.test. 60 A 127.0.0.9"}}, 1, 502, reasonDialRefused},
	} {
		t.Run(name, func(t *testing.T) {
			config := answers(t, map[string][][]string{"ok.test": c.records})
			r := startWithFloor(t, c.policy, config)
			for try := range c.tries {
				_, response := r.connect("ok.test:"+port, "")
				if try == c.tries-1 {
					wantRefused(t, response, c.status, c.reason)
				} else if response.StatusCode == 200 {
					t.Errorf("try %d: %s", try, response.Status)
				}
			}
		})
	}
}

// Cases I-14 and I-15.
func TestFloorInEveryMode(t *testing.T) {
	port := silent(t, "127.0.0.1")
	for _, rules := range []string{`"public"`, deny("evil.test"), allow("0.0.0.0/0", "::/0")} {
		r := startWithFloor(t, rules, Config{})
		for _, address := range []string{"127.0.0.1", "169.254.169.254", "100.100.100.200", "168.63.129.16", "0.0.0.0", "[::1]",
			"[fd00:ec2::254]", "[::ffff:127.0.0.1]", "[64:ff9b::a9fe:a9fe]", "[2002:7f00:1::]", "[::127.0.0.1]"} {
			_, response := r.connect(address+":"+port, "")
			wantRefused(t, response, 403, matcher.Floor)
			client := r.open()
			status, body := client.ask(t, "GET http://"+address+":"+port+"/ HTTP/1.1\r\nHost: "+address+":"+port+"\r\n\r\n")
			if status != 403 || !strings.Contains(body, string(matcher.Floor)) {
				t.Errorf("GET %s under %s: %d %q", address, rules, status, body)
			}
		}
	}
}

// An address that fails is followed by the next; forbidden ones are never tried.
func TestNextAddressIsTried(t *testing.T) {
	port := listen(t, echo)
	known := names{"ok.test": {"127.0.0.2", "127.0.0.3", "127.0.0.1"}, "v6.test": {"2001:db8::1", "127.0.0.1"}}
	r := start(t, allow("ok.test", "v6.test"), Config{Hosts: known.hosts})
	for name := range known {
		c, response := r.connect(name+":"+port, "")
		if response.StatusCode != 200 {
			t.Fatalf("%s: %s", name, response.Status)
		}
		wantEcho(t, c, "\x00hello")
	}
}

// Case L-34.
func TestCapacityIsAnAnswer(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{MaxConnections: 3})
	var open []client
	for range 3 {
		c, response := r.connect("127.0.0.1:"+port, "")
		if response.StatusCode != 200 {
			t.Fatal(response.Status)
		}
		open = append(open, c)
	}
	_, response := r.connect("127.0.0.1:"+port, "")
	wantRefused(t, response, 503, reasonCapacity)
	open[0].Close()
	r.wantFlows(2)
	for response.StatusCode == 503 { // the place is free a moment after the flow has ended
		_, response = r.connect("127.0.0.1:"+port, "")
	}
	if response.StatusCode != 200 {
		t.Errorf("with a place free: %s", response.Status)
	}
}
