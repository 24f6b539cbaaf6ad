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
	for deadline := time.Now().Add(10 * time.Second); r.server.connections.Load() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%d clients are connected, want %d", r.server.connections.Load(), want)
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
