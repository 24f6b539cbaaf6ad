package proxy

import (
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// Case I-72: a second ClientHello, which the server may go by, names another server.
func TestSecondHello(t *testing.T) {
	got := make(chan int, 1)
	port := listen(t, func(c net.Conn) {
		n, _ := io.Copy(io.Discard, c)
		got <- int(n)
	})
	known := names{"ok.test": {"127.0.0.1"}, "evil.test": {"127.0.0.1"}}
	ok, evil := clientHello(t, "ok.test"), clientHello(t, "evil.test")
	for name, c := range map[string]struct {
		second string
		passes bool
	}{
		"same":  {ok, true},
		"other": {evil, false},
		"none":  {"\x14\x03\x03\x00\x01\x01\x17\x03\x03\x00\x02ab", true},
	} {
		for _, cut := range []int{0, 1, 6, len(c.second)} {
			t.Run(name, func(t *testing.T) {
				r := start(t, allow("ok.test"), Config{Hosts: known.hosts})
				tunnel, _ := r.connect("ok.test:"+port, ok+c.second[:cut])
				_, err := io.WriteString(tunnel.TCPConn, c.second[cut:])
				if c.passes {
					if err != nil {
						t.Fatal(err)
					}
					if err := tunnel.CloseWrite(); err != nil {
						t.Fatal(err)
					}
					if n := <-got; n != len(ok)+len(c.second) {
						t.Errorf("%d bytes passed, want %d", n, len(ok)+len(c.second))
					}
					return
				}
				if err == nil {
					wantReset(t, tunnel)
				}
				if n := <-got; n > len(ok) {
					t.Errorf("%d bytes passed, want no more than the first %d", n, len(ok))
				}
			})
		}
	}
}

func TestHelloRetryRequestWorks(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	server.TLS = &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP384}, MinVersion: tls.VersionTLS13}
	server.StartTLS()
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())
	known := names{"ok.test": {"127.0.0.1"}}
	r := start(t, allow("ok.test"), Config{Hosts: known.hosts})
	tunnel, _ := r.connect("ok.test:"+port, "")
	client := tls.Client(tunnel, &tls.Config{ServerName: "ok.test", InsecureSkipVerify: true,
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}})
	if err := client.Handshake(); err != nil {
		t.Fatal(err)
	}
	if !client.ConnectionState().HelloRetryRequest {
		t.Fatal("the server did not ask for a second hello: the test tests nothing")
	}
	if _, err := io.WriteString(client, "GET / HTTP/1.0\r\nHost: ok.test\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(client); err != nil || len(answer) == 0 {
		t.Errorf("%q, %v", answer, err)
	}
}
