package sniff

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"testing"
)

func certificate(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

type tap struct {
	net.Conn
	sent []byte
}

func (c *tap) Write(b []byte) (int, error) {
	c.sent = append(c.sent, b...)
	return c.Conn.Write(b)
}

// handshake returns all that the client sends until its handshake with a server is done.
func handshake(t *testing.T, client, server *tls.Config) []byte {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") // a pipe would hang: both ends write before they read
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		far, err := l.Accept()
		if err != nil {
			done <- err
			return
		}
		defer far.Close()
		conn := tls.Server(far, server)
		if err := conn.Handshake(); err != nil {
			done <- err
			return
		}
		_, err = conn.Write([]byte("x")) // so that the client reads the session tickets too
		done <- err
	}()
	near, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer near.Close()
	c := &tap{Conn: near}
	conn := tls.Client(c, client)
	if _, err := conn.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	return c.sent
}

// watch gives b to a Second in steps of that many bytes, forwarding what it may, until the watch is over or b ends.
func watch(t testing.TB, first Result, b []byte, step int) (passed int, r Result) {
	t.Helper()
	s := Second{EarlyData: first.EarlyData}
	var held []byte
	for len(b) > 0 {
		n := min(step, len(b))
		held = append(held, b[:n]...)
		b = b[n:]
		var pass int
		pass, r = s.Next(held, false)
		passed += pass
		held = held[pass:]
		if r.Kind != Incomplete {
			return passed, r
		}
	}
	return passed, r
}

func TestSecondHelloOfRealHandshakes(t *testing.T) {
	certs := []tls.Certificate{certificate(t)}
	for _, row := range []struct {
		name   string
		server *tls.Config
		want   Kind
	}{
		{"tls13", &tls.Config{Certificates: certs}, Other},
		{"tls13-retry", &tls.Config{Certificates: certs, CurvePreferences: []tls.CurveID{tls.CurveP384}}, TLS},
		{"tls12", &tls.Config{Certificates: certs, MaxVersion: tls.VersionTLS12}, Other},
	} {
		t.Run(row.name, func(t *testing.T) {
			client := &tls.Config{ServerName: "ok.test", InsecureSkipVerify: true,
				CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP384}}
			b := handshake(t, client, row.server)
			first := Classify(b, false)
			if !first.Retry || first.Size == 0 {
				t.Fatalf("first hello: %+v", first)
			}
			for step := 1; step < len(b); step++ {
				passed, r := watch(t, first, b[first.Size:], step)
				if r.Kind != row.want || r.Malformed {
					t.Fatalf("in steps of %d: %+v", step, r)
				}
				if r.Kind == TLS && (string(r.ServerName) != "ok.test" || b[first.Size+passed] != recordHandshake) {
					t.Fatalf("in steps of %d: name %q behind %d bytes", step, r.ServerName, passed)
				}
			}
		})
	}
}

func TestSecond(t *testing.T) {
	ccs, alert, data := record(20, []byte{1}), record(21, []byte{1, 90}), record(23, make([]byte, 300))
	evil := record(22, message(sni("evil.test")))
	named := Result{Kind: TLS, HasSNI: true, ServerName: []byte("evil.test")}
	other, bad, more := Result{Kind: Other}, Result{Kind: TLS, Malformed: true}, Result{}
	for _, row := range []struct {
		name  string
		early bool
		b     []byte
		want  Result
	}{
		{"at-once", false, evil, named},
		{"behind-ccs", false, cat(ccs, evil), named},
		{"behind-warning", false, cat(alert, ccs, ccs, evil), named},
		{"fragmented", false, cat(ccs, fragment(message(sni("evil.test")), 1)), named},
		{"behind-early-data", true, cat(ccs, data, data, evil), named},
		{"behind-too-much-early-data", true, cat(bytes.Repeat(data, maxEarlyData/len(data)+1), evil), other},
		{"behind-data-not-announced", false, cat(data, evil), other},
		{"empty-record-first", false, cat(record(22, nil), evil), bad},
		{"version-2.1", false, cat([]byte{22, 2, 1}, evil[3:]), bad},
		{"two-names", false, record(22, message(sni("ok.test"), sni("evil.test"))), bad},
		{"client-key-exchange", false, record(22, []byte{16, 0, 0, 0}), other},
		{"finished", false, cat(ccs, data), other},
		{"not-tls", false, []byte("GET / HTTP/1.1\r\n"), other},
		{"ccs-only", false, ccs, more},
		{"half-hello", false, cat(ccs, evil[:20]), more},
		{"early-data-only", true, data, more},
	} {
		t.Run(row.name, func(t *testing.T) {
			for _, step := range []int{1, 7, len(row.b)} {
				passed, r := watch(t, Result{EarlyData: row.early}, row.b, step)
				check(t, r, row.want)
				if r.Kind == TLS && !r.Malformed && r.Size != len(row.b)-passed {
					t.Errorf("in steps of %d: hello of %d bytes behind %d of %d", step, r.Size, passed, len(row.b))
				}
			}
		})
	}
}

// A client that half-closes is not waited for.
func TestSecondAtEndOfInput(t *testing.T) {
	hello := record(22, message(sni("evil.test")))
	for _, row := range []struct {
		name string
		b    []byte
		want Result
	}{
		{"nothing", nil, Result{Kind: Other}},
		{"half-header", hello[:4], Result{Kind: Other}},
		{"half-hello", hello[:9], Result{Kind: TLS, Malformed: true}},
		{"half-ccs", record(20, []byte{1})[:5], Result{Kind: Other}},
	} {
		t.Run(row.name, func(t *testing.T) {
			var s Second
			_, r := s.Next(row.b, true)
			check(t, r, row.want)
		})
	}
}
