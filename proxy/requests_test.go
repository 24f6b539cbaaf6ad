package proxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// upstream2 is an HTTP/2 server without TLS that says which host it was asked for.
func upstream2(t *testing.T) (port string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		_, _ = io.WriteString(w, r.Proto+" "+r.Host+" "+string(body))
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	t.Cleanup(server.Close)
	_, port, _ = net.SplitHostPort(server.Listener.Addr().String())
	return port
}

// A real client and a real server, through a tunnel and through a redirect.
func TestHTTP2WithoutTLSWorks(t *testing.T) {
	port := upstream2(t)
	known := names{"ok.test": {"127.0.0.1"}}
	for name, dial := range map[string]func(r *rig) net.Conn{
		"tunnel": func(r *rig) net.Conn {
			c, _ := r.connect("ok.test:"+port, "")
			return c
		},
		"redirected": func(r *rig) net.Conn {
			r.session.learned.add("ok.test", []netip.Addr{netip.MustParseAddr("127.0.0.1")})
			r.redirect("127.0.0.1:" + port)
			return r.dial()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, allow("ok.test"), Config{Hosts: known.hosts})
			protocols := new(http.Protocols)
			protocols.SetUnencryptedHTTP2(true)
			transport := &http.Transport{Protocols: protocols, DialContext: func(context.Context, string, string) (net.Conn, error) {
				return dial(r), nil
			}}
			defer transport.CloseIdleConnections()
			client := &http.Client{Transport: transport}
			for range 3 {
				answer, err := client.Post("http://ok.test:"+port+"/", "text/plain", bytes.NewReader(bytes.Repeat([]byte("x"), 100<<10)))
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(answer.Body)
				answer.Body.Close()
				if want := "HTTP/2.0 ok.test:" + port + " "; err != nil || len(body) != len(want)+100<<10 || string(body[:len(want)]) != want {
					t.Fatalf("%d bytes, %.40q, %v", len(body), body, err)
				}
			}
		})
	}
}

func TestHTTP2RequestsAreJudged(t *testing.T) {
	known := names{"ok.test": {"127.0.0.1"}, "also.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}, "hidden.test": {"127.0.0.3"}}
	for name, c := range map[string]struct {
		policy, target, authority string
		passes                    bool
	}{
		"same":          {allow("ok.test"), "ok.test", "ok.test", true},
		"other-case":    {allow("ok.test"), "ok.test", "OK.test", true},
		"not-allowed":   {allow("ok.test"), "ok.test", "evil.test", false},
		"second-name":   {allow("ok.test", "also.test"), "ok.test", "also.test", false}, // not looked up
		"address-rule":  {allow("127.0.0.1"), "127.0.0.1", "evil.test", true},
		"denied":        {deny("hidden.test"), "ok.test", "hidden.test", false},
		"denied-inside": {deny("hidden.test"), "127.0.0.1", "hidden.test", false},
		"not-denied":    {deny("hidden.test"), "127.0.0.1", "ok.test", true},
		"public":        {`"public"`, "127.0.0.1", "evil.test", true},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan []byte, 1)
			port := listen(t, func(c net.Conn) {
				b, _ := io.ReadAll(c)
				got <- b
			})
			r := start(t, c.policy, Config{Hosts: known.hosts})
			tunnel, response := r.connect(c.target+":"+port, "")
			if response.StatusCode != 200 {
				t.Fatal(response.Status)
			}
			s := newSession2()
			s.request(1, c.target+":"+port)
			first := s.Len()
			s.request(3, c.authority+":"+port)
			_ = s.framer.WriteData(3, true, []byte("secret"))
			_, err := tunnel.TCPConn.Write(s.Bytes())
			if c.passes {
				if err != nil {
					t.Fatal(err)
				}
				_ = tunnel.CloseWrite()
				if b := <-got; !bytes.Equal(b, s.Bytes()) {
					t.Errorf("%d bytes arrived, want %d", len(b), s.Len())
				}
				return
			}
			if err == nil {
				wantReset(t, tunnel)
			}
			if b := <-got; len(b) > first {
				t.Errorf("%d bytes arrived, want no more than %d: %q", len(b), first, b[first:])
			}
		})
	}
}
