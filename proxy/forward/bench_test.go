package forward

import (
	"bufio"
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"testing"

	"github.com/elazarl/goproxy"
)

// BenchmarkGet is a small GET on a kept connection, here and in a default goproxy.
func BenchmarkGet(b *testing.B) {
	server := site(b, "ok")
	b.Run("sluice", func(b *testing.B) {
		benchmarkGet(b, newProxy(b, "ok.test:80", server).start().address)
	})
	b.Run("goproxy", func(b *testing.B) {
		p := goproxy.NewProxyHttpServer()
		p.Tr.Proxy = nil
		p.Tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		web := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
		go func() { _ = web.Serve(l) }()
		b.Cleanup(func() {
			_ = web.Close()
			p.Tr.CloseIdleConnections()
		})
		benchmarkGet(b, l.Addr().String())
	})
}

func benchmarkGet(b *testing.B, address string) {
	c, err := net.Dial("tcp", address)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	r := bufio.NewReader(c)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := io.WriteString(c, get); err != nil {
			b.Fatal(err)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 {
			b.Fatal(resp.StatusCode, err)
		}
	}
}

// BenchmarkHead is reading and checking a head, without net/http.
func BenchmarkHead(b *testing.B) {
	head := []byte("GET http://deb.test/pool/main/x/x.deb HTTP/1.1\r\nHost: deb.test\r\nUser-Agent: Debian APT-HTTP/1.3\r\n" +
		"Accept: text/*\r\nCache-Control: max-age=0\r\n\r\n")
	var out []byte
	b.SetBytes(int64(len(head)))
	b.ReportAllocs()
	for b.Loop() {
		if headEnd(head, 0) != len(head) {
			b.Fatal("no end")
		}
		h, o := parseHead(head, out[:0])
		if out = o; h.bad != nil {
			b.Fatal(h.bad)
		}
	}
}
