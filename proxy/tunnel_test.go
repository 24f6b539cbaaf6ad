package proxy

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/control"
)

// Case L-02.
func TestHalfCloseIsKept(t *testing.T) {
	reply := make([]byte, 1<<20)
	_, _ = rand.Read(reply)
	port := listen(t, func(c net.Conn) {
		if _, err := io.Copy(io.Discard, c); err == nil {
			_, _ = c.Write(reply)
		}
	})
	r := start(t, allow("127.0.0.1:"+port), Config{})
	c, _ := r.connect("127.0.0.1:"+port, "")
	if _, err := io.WriteString(c.TCPConn, "request\n"); err != nil {
		t.Fatal(err)
	}
	if err := c.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, reply) {
		t.Errorf("%d of %d bytes, %v", len(got), len(reply), err)
	}
}

// Case L-03.
func TestServerClosesFirst(t *testing.T) {
	port := listen(t, func(c net.Conn) { _, _ = io.WriteString(c, "bye") })
	r := start(t, allow("127.0.0.1:"+port), Config{})
	c, _ := r.connect("127.0.0.1:"+port, "")
	got, err := io.ReadAll(c)
	if err != nil || string(got) != "bye" {
		t.Errorf("got %q, %v", got, err)
	}
	c.Close()
	r.wantFlows(0)
}

// wantFlows waits until the session has that many open flows.
func (r *rig) wantFlows(want int64) {
	r.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for r.session.flows.Load() != want {
		if time.Now().After(deadline) {
			r.Fatalf("%d flows are open, want %d", r.session.flows.Load(), want)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestServerSpeaksFirst(t *testing.T) {
	port := listen(t, func(c net.Conn) {
		_, _ = io.WriteString(c, "220 hello\r\n")
		echo(c)
	})
	r := start(t, allow("127.0.0.1:"+port), Config{})
	c, _ := r.connect("127.0.0.1:"+port, "")
	if line, err := c.ReadString('\n'); err != nil || line != "220 hello\r\n" {
		t.Fatalf("got %q, %v", line, err)
	}
	wantEcho(t, c, "EHLO x\r\n")
}

// A word without an end of line might become HTTP; it must not wait for that.
func TestAmbiguousBytesPass(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{})
	c, _ := r.connect("127.0.0.1:"+port, "")
	for _, word := range []string{"P", "I", "NG", " ", "x"} {
		wantEcho(t, c, word)
	}
	wantEcho(t, c, "\n\x00 now it is something else")
}

// What may end a request line for some server waits until it is known, and nothing else does.
func TestEndOfLineWaits(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("ok.test"), Config{Hosts: names{"ok.test": {"127.0.0.1"}}.hosts})
	c, _ := r.connect("ok.test:"+port, "")
	const line = "GET http://evil.test/ HTTP/1.1"
	if _, err := io.WriteString(c.TCPConn, line+"\r"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, make([]byte, len(line))); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c.TCPConn, "Host: evil.test\r\r"); err != nil {
		t.Fatal(err)
	}
	wantReset(t, c)
	c, _ = r.connect("ok.test:"+port, "")
	wantEcho(t, c, "ATZ\r")
	wantEcho(t, c, "AT+X\r")
}

// A ClientHello has a time limit as a whole, not for each piece.
func TestSlowHello(t *testing.T) {
	port := listen(t, echo)
	r := start(t, `"public"`, Config{HeaderTimeout: 50 * time.Millisecond})
	c, _ := r.connect("127.0.0.1:"+port, "")
	hello := clientHello(t, "ok.test")
	for i := range len(hello) - 1 {
		if _, err := io.WriteString(c.TCPConn, hello[i:i+1]); err != nil {
			return // it was reset
		}
		time.Sleep(2 * time.Millisecond)
	}
	t.Error("it took seconds, and nobody minded")
}

// An answer that is under way when the client begins to speak HTTP is not the answer to a request.
func TestServerSpeaksBeforeRequest(t *testing.T) {
	const bulk = 8 << 20
	port := listen(t, func(c net.Conn) {
		_, _ = c.Write(make([]byte, bulk))
		echo(c)
	})
	r := start(t, `"public"`, Config{Workers: 1})
	c, _ := r.connect("127.0.0.1:"+port, "")
	w := r.server.workers[0]
	for waiting := false; !waiting; { // until the client's buffer is full
		if err := w.Do(t.Context(), func() {
			for _, h := range w.all() {
				waiting = waiting || h.up.holds()
			}
		}); err != nil {
			t.Fatal(err)
		}
	}
	const request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n"
	if _, err := io.WriteString(c.TCPConn, request); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(io.LimitReader(c, bulk+int64(len(request))))
	if err != nil || len(got) != bulk+len(request) || string(got[bulk:]) != request {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if receipt := r.apply(allow("ok.test")); receipt.FlowsCut != 1 {
		t.Errorf("receipt %+v; want one cut", receipt)
	}
}

// Bulk in both directions at once, by splice and by copying, to a slow reader.
func TestBulkBothWays(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{})
	c, _ := r.connect("127.0.0.1:"+port, "")
	sent := make([]byte, 32<<20)
	_, _ = rand.Read(sent)
	sent[0] = 0
	go func() {
		_, _ = c.TCPConn.Write(sent)
		_ = c.CloseWrite()
	}()
	got, err := io.ReadAll(&slow{r: c})
	if err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d of %d bytes came back, equal %v, %v", len(got), len(sent), bytes.Equal(got, sent), err)
	}
}

// slow reads in bursts.
type slow struct {
	r io.Reader
	n int
}

func (s *slow) Read(b []byte) (int, error) {
	if s.n++; s.n%64 == 0 {
		time.Sleep(2 * time.Millisecond)
	}
	return s.r.Read(b)
}

// An upstream that answers in the middle of an upload and closes: the answer arrives.
func TestEarlyAnswerArrives(t *testing.T) {
	port := listen(t, func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 1000))
		_, _ = io.WriteString(c, "too large\n")
		_ = c.(*net.TCPConn).CloseWrite()
		_, _ = io.CopyN(io.Discard, c, 4<<20)
	})
	r := start(t, allow("127.0.0.1:"+port), Config{})
	c, _ := r.connect("127.0.0.1:"+port, "")
	go func() {
		for range 100 {
			if _, err := c.TCPConn.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}()
	if line, err := c.ReadString('\n'); err != nil || line != "too large\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

func TestUpstreamResetReachesClient(t *testing.T) {
	port := listen(t, func(c net.Conn) {
		_, _ = io.ReadFull(c, make([]byte, 1))
		_ = c.(*net.TCPConn).SetLinger(0)
	})
	r := start(t, allow("127.0.0.1:"+port), Config{})
	c, _ := r.connect("127.0.0.1:"+port, "\x00")
	wantReset(t, c)
	r.wantFlows(0)
}

// A tunnel that is quiet keeps two descriptors and no pipe, also after bulk went through it.
func TestIdleTunnelHoldsTwoSockets(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{Workers: 1})
	const tunnels = 20
	before := descriptors(t)
	var clients []client
	for range tunnels {
		c, _ := r.connect("127.0.0.1:"+port, "")
		bulk := strings.Repeat("\x00", 4<<20)
		go func() { _, _ = io.WriteString(c.TCPConn, bulk) }()
		if _, err := io.CopyN(io.Discard, c, int64(len(bulk))); err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	// Each tunnel is four sockets here: ours, the proxy's two, the upstream's. Some pipes may be kept by the worker.
	if opened := descriptors(t) - before; opened > 4*tunnels+2*maxPipes {
		t.Errorf("%d descriptors for %d tunnels", opened, tunnels)
	}
	for _, c := range clients {
		wantEcho(t, c, "still there")
	}
}

// descriptors counts the open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open("/proc/self/fd", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	n, buffer := 0, make([]byte, 64<<10)
	for {
		size, err := unix.Getdents(fd, buffer)
		if err != nil {
			t.Fatal(err)
		}
		if size <= 0 {
			return n
		}
		_, count, _ := unix.ParseDirent(buffer[:size], -1, nil)
		n += count
	}
}

// Case L-07.
func TestNothingIsLeftOpen(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{Workers: 1})
	use := func(n int) {
		for i := range n {
			switch c := r.dial(); i % 4 {
			case 0: // used
				_, _ = io.WriteString(c, "CONNECT 127.0.0.1:"+port+" HTTP/1.1\r\n\r\n\x00")
				_, _ = io.ReadFull(c, make([]byte, len(established)+1))
				c.Close()
			case 1: // reset
				_, _ = io.WriteString(c, "CONNECT 127.0.0.1:"+port+" HTTP/1.1\r\n\r\n\x00")
				_ = c.SetLinger(0)
				c.Close()
			case 2: // refused
				_, _ = io.WriteString(c, "CONNECT evil.test:1 HTTP/1.1\r\n\r\n")
				_, _ = io.ReadAll(c)
				c.Close()
			case 3: // abandoned
				_, _ = io.WriteString(c, "CONN")
				c.Close()
			}
		}
		r.wantFlows(0)
		for deadline := time.Now().Add(10 * time.Second); r.server.places.connections.Load() != 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%d connections are open", r.server.places.connections.Load())
			}
		}
	}
	use(100)
	before := descriptors(t)
	use(1000)
	r.wantNothingKept()
	if after := descriptors(t); after > before+5 {
		t.Errorf("%d descriptors are open, %d before", after, before)
	}
}

func TestServerName(t *testing.T) {
	// The upstream's answer does not matter: what counts is whether it got the ClientHello.
	hello := make(chan string, 1)
	port := listen(t, func(c net.Conn) {
		config := &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			hello <- h.ServerName
			return nil, io.EOF
		}}
		_ = tls.Server(c, config).Handshake()
	})
	known := names{"ok.test": {"127.0.0.1"}, "also.test": {"127.0.0.1"}, "elsewhere.test": {"127.0.0.2"}, "evil.test": {"127.0.0.1"},
		"hidden.test": {"127.0.0.3"}}
	for name, c := range map[string]struct {
		policy, target, sni string
		passes              bool
	}{
		"same":                     {allow("ok.test"), "ok.test", "ok.test", true},
		"same-in-other-case":       {allow("ok.test"), "ok.test", "OK.test", true},
		"not-allowed":              {allow("ok.test"), "ok.test", "evil.test", false},
		"allowed-and-same-address": {allow("ok.test", "also.test"), "ok.test", "also.test", true},
		"allowed-elsewhere":        {allow("ok.test", "elsewhere.test"), "ok.test", "elsewhere.test", false},
		"none-on-other-port":       {allow("ok.test"), "ok.test", "", true},
		"address-rule":             {allow("127.0.0.1"), "127.0.0.1", "evil.test", true},
		"denied":                   {deny("evil.test"), "ok.test", "evil.test", false},
		"denied-behind-address":    {deny("hidden.test"), "127.0.0.1", "hidden.test", false},
		"not-denied":               {deny("hidden.test"), "127.0.0.1", "ok.test", true},
		"public":                   {`"public"`, "ok.test", "evil.test", true},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, c.policy, Config{Hosts: known.hosts})
			tunnel, response := r.connect(c.target+":"+port, "")
			if response.StatusCode != 200 {
				t.Fatal(response.Status)
			}
			config := &tls.Config{ServerName: c.sni, InsecureSkipVerify: true}
			err := tls.Client(tunnel, config).Handshake()
			if !c.passes {
				if err == nil || !strings.Contains(err.Error(), "reset") {
					t.Errorf("handshake: %v; want a reset", err)
				}
				select {
				case got := <-hello:
					t.Errorf("the upstream got a ClientHello for %q", got)
				default:
				}
				return
			}
			if got := <-hello; !strings.EqualFold(got, c.sni) {
				t.Errorf("the upstream got a ClientHello for %q, want %q", got, c.sni)
			}
		})
	}
}

// Cases I-58 and I-59.
func TestSwitchCutsWhatItRefusesAndNothingElse(t *testing.T) {
	port := listen(t, echo)
	known := names{"a.test": {"127.0.0.1"}, "b.test": {"127.0.0.1"}}
	r := start(t, allow("a.test", "b.test"), Config{Hosts: known.hosts})
	var kept, cut []client
	for range 20 {
		a, _ := r.connect("a.test:"+port, "")
		wantEcho(t, a, "\x00a")
		b, _ := r.connect("b.test:"+port, "")
		wantEcho(t, b, "\x00b")
		kept, cut = append(kept, a), append(cut, b)
	}
	receipt := r.apply(allow("a.test"))
	if receipt.FlowsCut != 20 || receipt.FlowsKept != 20 || receipt.Generation != 2 {
		t.Errorf("receipt %+v; want 20 cut, 20 kept, generation 2", receipt)
	}
	for _, c := range cut {
		wantReset(t, c)
	}
	for _, c := range kept {
		wantEcho(t, c, "unbroken")
	}
	if again := r.apply(allow("a.test")); !again.Unchanged || again.Generation != 2 {
		t.Errorf("receipt of the same policy %+v; want unchanged and generation 2", again)
	}
	if receipt = r.apply(`"no-network"`); receipt.FlowsCut != 20 {
		t.Errorf("receipt %+v; want 20 cut", receipt)
	}
	for _, c := range kept {
		wantReset(t, c)
	}
}

// Case P-28.
func TestStaleGenerationIsRefused(t *testing.T) {
	r := start(t, `"public"`, Config{})
	p := [3]string{`"public"`, allow("a.test"), `"no-network"`}
	spec := func(generation uint64, phase string) control.SessionSpec {
		return control.SessionSpec{Generation: generation, Phase: phase, Policies: map[string]json.RawMessage{
			"baseline": json.RawMessage(p[0]), "run": json.RawMessage(p[1]), "evaluation": json.RawMessage(p[2])}}
	}
	if _, err := r.server.SetSession(t.Context(), "test", spec(10, "run")); err != nil {
		t.Fatal(err)
	}
	for _, late := range []uint64{9, 10} {
		_, err := r.server.SetSession(t.Context(), "test", spec(late, "evaluation"))
		if e, ok := err.(*control.Error); !ok || e.Code != control.CodeStale {
			t.Errorf("generation %d: %v; want a stale one refused", late, err)
		}
	}
	receipt, err := r.server.SetSession(t.Context(), "test", spec(10, "run"))
	if err != nil || !receipt.Unchanged {
		t.Errorf("the same again: %+v, %v; want unchanged", receipt, err)
	}
}

func TestHealth(t *testing.T) {
	r := start(t, `"no-network"`, Config{})
	every := make(map[uint16]struct{}) // as of many containers, each in a namespace of its own
	for port := range 1 << 16 {
		every[uint16(port)] = struct{}{}
	}
	r.server.own.Store(&every)
	h, err := r.server.Health(t.Context())
	if err != nil || !h.OK {
		t.Fatalf("%+v, %v", h, err)
	}
	if n := r.session.tally.connections.set.Load(); n != nil {
		t.Errorf("the health check was counted: %v", *n)
	}
}

// Case I-60.
func TestSwitchIsWhole(t *testing.T) {
	port := listen(t, echo)
	known := names{"a.test": {"127.0.0.1"}, "b.test": {"127.0.0.1"}}
	r := start(t, allow("a.test"), Config{Hosts: known.hosts})
	want := map[bool][2]int{false: {403, 200}, true: {200, 403}}
	for i := range 200 {
		isA := i%2 == 1
		if isA {
			r.apply(allow("a.test"))
		} else {
			r.apply(allow("b.test"))
		}
		for j, name := range []string{"a.test", "b.test"} {
			c, response := r.connect(name+":"+port, "")
			if response.StatusCode != want[isA][j] {
				t.Fatalf("round %d, %s: %s, want %d", i, name, response.Status, want[isA][j])
			}
			c.Close()
		}
	}
}

// Whoever asks the proxy itself (RFC 9110 section 7.6.2) learns whether it forwards, also without credentials and under
// a policy that refuses everything. There is no trace of it.
func TestAskTheProxy(t *testing.T) {
	const head = " HTTP/1.1\r\nHost: x\r\n"
	ask := func(r *rig, raw string) int {
		t.Helper()
		c, answer := r.send(raw)
		defer c.Close()
		return answer.StatusCode
	}
	r, records := startAudited(t, `"no-network"`, Config{})
	r.session.SetAuth("u", "secret-word")
	for range 3 {
		if got := ask(r, "OPTIONS *"+head+"Max-Forwards: 0\r\n\r\n"); got != 204 {
			t.Errorf("got %d, want 204", got)
		}
	}
	if all := records(); len(all) != 0 {
		t.Errorf("records: %+v", all)
	}
	for _, raw := range []string{
		"OPTIONS *" + head + "\r\n",
		"OPTIONS *" + head + "Max-Forwards: 1\r\n\r\n",
		"OPTIONS *" + head + "Max-Forwards: 0\r\nMax-Forwards: 0\r\n\r\n",
		"OPTIONS *" + head + "Max-Forwards: 0\r\nContent-Length: 1\r\n\r\nx",
		"GET *" + head + "Max-Forwards: 0\r\n\r\n",
		"OPTIONS http://x/" + head + "Max-Forwards: 0\r\n\r\n",
	} {
		if got := ask(r, raw); got != 407 {
			t.Errorf("%q: got %d, want 407", raw, got)
		}
	}
}
