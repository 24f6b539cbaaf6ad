package main

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"
)

// However many connections are opened, the controller has a few: descriptors are for containers.
func TestReadersAreLimited(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveAt(ctx, l, http.NotFoundHandler(), slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	// ask opens a connection, and tells when it is answered.
	ask := func() (c net.Conn, answered chan struct{}) {
		t.Helper()
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		answered = make(chan struct{})
		go func() {
			if _, err := c.Read(make([]byte, 1)); err == nil {
				close(answered)
			}
		}()
		return c, answered
	}
	wait := func(answered chan struct{}) {
		t.Helper()
		select {
		case <-answered:
		case <-time.After(10 * time.Second):
			t.Fatal("no answer")
		}
	}
	var first net.Conn
	for range maxReaders {
		c, answered := ask()
		wait(answered)
		first = c
	}
	_, more := ask()
	select {
	case <-more:
		t.Errorf("more than %d are answered", maxReaders)
	case <-time.After(100 * time.Millisecond):
	}
	first.Close()
	wait(more)
}
