package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
)

// serveSites answers HTTP requests on one port of several addresses.
func serveSites(t *testing.T, addresses ...string) (port string) {
	t.Helper()
	port = "0"
	for _, a := range addresses {
		l, err := net.Listen("tcp", net.JoinHostPort(a, port))
		if err != nil {
			t.Fatal(err)
		}
		_, port, _ = net.SplitHostPort(l.Addr().String())
		serveOn(t, l, func(c net.Conn) {
			for b := bufio.NewReader(c); ; {
				if _, err := http.ReadRequest(b); err != nil {
					return
				}
				if _, err := io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n"); err != nil {
					return
				}
			}
		})
	}
	return port
}

// An address that a request names opens that address, and no other one to which the client was going.
func TestAddressInHostOpensNoOther(t *testing.T) {
	port := serveSites(t, "127.0.0.2", "127.0.0.3")
	known := names{"ok.test": {"127.0.0.4"}, "shared.test": {"127.0.0.3"}, "alias.test": {"127.0.0.3"}}
	for _, row := range []struct {
		name, policy, host string
		status             int
	}{
		{"not-listed", allow("ok.test", "127.0.0.2"), "127.0.0.2", 403},
		{"not-listed-itself", allow("ok.test", "127.0.0.2"), "127.0.0.3", 403},
		{"listed-by-name", allow("shared.test", "127.0.0.2"), "127.0.0.2", 403},
		{"itself-by-name", allow("shared.test", "127.0.0.2"), "127.0.0.3", 403},
		{"itself-by-address", allow("ok.test", "127.0.0.3"), "127.0.0.3", 204},
		{"another-at-listed", allow("ok.test", "127.0.0.3"), "127.0.0.2", 204}, // the address is open, whatever is asked there
		{"denied-address", deny("127.0.0.2", "evil.test"), "127.0.0.2", 403},
		{"not-denied", deny("127.0.0.2", "evil.test"), "127.0.0.3", 204},
		{"of-a-denied-host", deny("alias.test"), "127.0.0.3", 403},
		{"of-a-denied-name", deny("*.learned.test"), "127.0.0.3", 403},
		{"public", `"public"`, "127.0.0.2", 204},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := start(t, row.policy, Config{Hosts: known.hosts})
			r.session.learned.add("x.learned.test", []netip.Addr{netip.MustParseAddr("127.0.0.3")})
			r.redirect("127.0.0.3:" + port)
			_, response := r.send("GET / HTTP/1.1\r\nHost: " + row.host + ":" + port + "\r\n\r\n")
			if response.StatusCode != row.status {
				t.Errorf("status %d, want %d", response.StatusCode, row.status)
			}
		})
	}
}

// The same inside a tunnel to a name, and for HTTP/2.
func TestAddressInTunnelOpensNoOther(t *testing.T) {
	port := serveSites(t, "127.0.0.3")
	known := names{"shared.test": {"127.0.0.3"}}
	for _, row := range []struct {
		name, policy, target, host string
		status                     int
	}{
		{"of-the-name", allow("shared.test"), "shared.test", "127.0.0.3", 403},
		{"listed-one", allow("shared.test", "127.0.0.2"), "shared.test", "127.0.0.2", 403},
		{"of-the-tunnel", allow("127.0.0.3"), "127.0.0.3", "127.0.0.3", 204},
		{"not-denied", deny("evil.test"), "shared.test", "127.0.0.3", 204},
		{"public", `"public"`, "shared.test", "127.0.0.2", 204},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := start(t, row.policy, Config{Hosts: known.hosts})
			tunnel, response := r.connect(row.target+":"+port, "")
			if response.StatusCode != http.StatusOK {
				t.Fatal(response.Status)
			}
			if _, err := io.WriteString(tunnel, "GET / HTTP/1.1\r\nHost: "+row.host+":"+port+"\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			response, err := http.ReadResponse(tunnel.Reader, nil)
			if err != nil || response.StatusCode != row.status {
				t.Errorf("%v, %v; want %d", response, err, row.status)
			}
		})
	}
	t.Run("http2", func(t *testing.T) {
		got := make(chan int, 1)
		port := listen(t, func(c net.Conn) {
			b, _ := io.ReadAll(c)
			got <- len(b)
		})
		r := start(t, allow("ok.test", "127.0.0.2"), Config{})
		r.session.learned.add("ok.test", []netip.Addr{netip.MustParseAddr("127.0.0.1")})
		r.redirect("127.0.0.1:" + port)
		s := newSession2()
		first := s.Len()
		s.request(1, "127.0.0.2:"+port)
		conn := r.dial()
		if _, err := conn.Write(s.Bytes()); err != nil {
			t.Fatal(err)
		}
		_ = conn.CloseWrite()
		if n := <-got; n > first {
			t.Errorf("%d bytes arrived, want no more than %d", n, first)
		}
		wantReset(t, conn)
	})
}
