package proxy

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// However a client cuts what it says first, and whenever it says it, the same passes: all of what is allowed, and of
// what is not no more than may pass before that is known.
func TestFragments(t *testing.T) {
	ok, evil := clientHello(t, "ok.test"), clientHello(t, "evil.test")
	second := newSession2()
	second.request(1, "ok.test")
	before := second.Len()
	second.request(3, "evil.test")
	long := "GET /" + strings.Repeat("x", 9000) + " HTTP/1.1\r\nHost: evil.test\r\n\r\n"
	for name, c := range map[string]struct {
		text   string
		passes int // bytes that may; all must if it is all
	}{
		"hello":                  {ok + "\x14\x03\x03\x00\x01\x01\x17\x03\x03\x00\x04data", -1},
		"other-hello":            {evil, 0},
		"second-hello":           {ok + evil, len(ok)},
		"second-hello-after-ccs": {ok + "\x14\x03\x03\x00\x01\x01" + evil, len(ok) + 6},
		"hello-in-small-records": {refragment(evil, 7), 0},
		"request":                {"GET http://evil.test/x HTTP/1.1\r\nHost: evil.test\r\n\r\n", len("GET http://evil.test/x HTTP/1.1")},
		"request-behind-blanks":  {"\r\n \t\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", len("\r\n \t\r\nGET / HTTP/1.1")},
		"request-with-bare-cr":   {"GET / HTTP/1.1\rHost: evil.test\r\r", len("GET / HTTP/1.1")},
		"request-with-bare-lf":   {"GET / HTTP/1.1\nHost: evil.test\n\n", len("GET / HTTP/1.1")},
		"long-request":           {long, 8 << 10},
		"http2":                  {second.String(), before},
		"proxy-header":           {"PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n" + evil, len("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r")},
		"proxy-header-2":         {"\r\n\r\n\x00\r\nQUIT\n\x21\x11" + evil, 4},
		"text":                   {"EHLO client.test\r\nMAIL FROM:<a@b>\r\n", -1},
		"bytes":                  {"\x00\x01\x02GET / HTTP/1.1\r\n", -1},
		"ssh":                    {"SSH-2.0-x\r\n\x00\x00\x01", -1},
	} {
		for _, way := range []string{"tunnel", "redirected", "redirected-unknown"} {
			t.Run(name+"-"+way, func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				random := rand.New(rand.NewPCG(seed, 0))
				got := make(chan string, 10)
				port := listen(t, func(c net.Conn) {
					b, _ := io.ReadAll(c)
					got <- string(b)
				})
				r := start(t, allow("ok.test"), Config{Hosts: names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}.hosts})
				head := "CONNECT ok.test:" + port + " HTTP/1.1\r\n\r\n"
				if way != "tunnel" {
					head = ""
					r.redirect("127.0.0.1:" + port)
				}
				for range 30 {
					r.forgetNames()
					if way == "redirected" {
						r.session.learned.add("ok.test", []netip.Addr{netip.MustParseAddr("127.0.0.1")})
					}
					client := r.dial()
					for _, part := range cut(random, []byte(head+c.text)) {
						if _, err := client.Write(part); err != nil {
							break
						}
						switch random.IntN(4) {
						case 0:
							time.Sleep(time.Duration(random.IntN(300)) * time.Microsecond)
						case 1:
							runtime.Gosched()
						}
					}
					_ = client.CloseWrite()
					_, _ = io.Copy(io.Discard, client)
					client.Close()
					r.wantConnections(0)
					if c.passes < 0 {
						if passed := <-got; passed != c.text {
							t.Fatalf("%d bytes passed: %.80q", len(passed), passed)
						}
						continue
					}
					for len(got) > 0 {
						passed := <-got
						if !strings.HasPrefix(c.text, passed) || len(passed) > c.passes {
							t.Fatalf("%d bytes passed: %.80q", len(passed), passed)
						}
					}
				}
			})
		}
	}
}

// cut cuts b at random places, often near its ends and into single bytes.
func cut(random *rand.Rand, b []byte) (parts [][]byte) {
	var at []int
	for range random.IntN(6) {
		at = append(at, random.IntN(len(b)))
	}
	if random.IntN(3) == 0 {
		first := random.IntN(len(b))
		for i := range min(20, len(b)-first) {
			at = append(at, first+i)
		}
	}
	slices.Sort(at)
	from := 0
	for _, i := range append(slices.Compact(at), len(b)) {
		if i > from {
			parts = append(parts, b[from:i])
			from = i
		}
	}
	return parts
}

// refragment puts a ClientHello, in one record, into records of so many bytes.
func refragment(hello string, size int) string {
	var out bytes.Buffer
	for part := range slices.Chunk([]byte(hello[5:]), size) {
		out.WriteString("\x16\x03\x01\x00")
		out.WriteByte(byte(len(part)))
		out.Write(part)
	}
	return out.String()
}

// forgetNames makes the session one that has looked nothing up. A run of look-ups that is under way has done so, and must
// not be joined by the next client.
func (r *rig) forgetNames() {
	r.Helper()
	running := func() bool {
		r.session.exact.mu.Lock()
		defer r.session.exact.mu.Unlock()
		return r.session.exact.rules != nil
	}
	for deadline := time.Now().Add(time.Minute); running(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal("a run of look-ups does not end")
		}
	}
	l := &r.session.learned
	l.mu.Lock()
	defer l.mu.Unlock()
	l.names, l.bytes = nil, 0
}
