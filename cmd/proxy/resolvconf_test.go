package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"
)

func TestResolvConfChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	r := &resolvConf{path: path, log: slog.New(slog.DiscardHandler)}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want := func(when, server string) {
		t.Helper()
		servers, ok := r.changed()
		if ok != (server != "") || ok && servers[0].String() != server {
			t.Errorf("%s: %v, %v; want %q", when, servers, ok, server)
		}
	}
	want("no file", "")
	write("nameserver 192.0.2.1\n")
	want("first", "192.0.2.1:53")
	want("again", "")
	write("search test\nnameserver 192.0.2.1\n")
	want("same servers", "")
	write("")
	want("half-written", "")
	write("nameserver 192.0.2.22\n")
	want("other", "192.0.2.22:53")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	want("gone", "")
}
