package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"time"
)

// tickEvery is the pace of the stream that the origin sends on port 7000, and maxTicks its end.
const (
	tickEvery = 20 * time.Millisecond
	maxTicks  = 30_000
)

// serveOrigin plays every host of the demo: HTTP, HTTPS, and a stream of numbered lines. It runs in a container.
func serveOrigin(ctx context.Context) error {
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "hello from %s\n", r.Host) })
	cert, err := selfSigned()
	if err != nil {
		return err
	}
	plain := &http.Server{Addr: ":80", Handler: hello, ReadHeaderTimeout: time.Minute}
	secure := &http.Server{Addr: ":443", Handler: hello, ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}}}
	streams, err := net.Listen("tcp", ":7000")
	if err != nil {
		return err
	}
	failed := make(chan error, 3)
	go func() { failed <- plain.ListenAndServe() }()
	go func() { failed <- secure.ListenAndServeTLS("", "") }()
	go func() {
		for {
			conn, err := streams.Accept()
			if err != nil {
				failed <- err
				return
			}
			go serveStream(conn)
		}
	}()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done(): // the container is stopped
		return nil
	}
}

func serveStream(conn net.Conn) {
	defer conn.Close()
	for n := range maxTicks {
		if _, err := fmt.Fprintf(conn, "%d\n", n); err != nil {
			return
		}
		time.Sleep(tickEvery)
	}
	io.Copy(io.Discard, conn)
}

// selfSigned returns a certificate that nobody trusts: the demo's client looks at the way, not at the peer.
func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), DNSNames: originNames}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
