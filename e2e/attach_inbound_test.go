package e2e

import (
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"sluice/controller/api"
)

// TestAttachKeepsInbound attaches a container on the default bridge, where nothing inside has looked at connections until
// then. One from the host goes on, although the container may reach nobody and is the first to say something.
func TestAttachKeepsInbound(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	l := &late{api.Client{Socket: theController.socket()}, "bridge"}
	app, own := l.start(t, "inbound-app")
	var server net.Listener
	if err := app.Do(func() (err error) {
		server, err = net.Listen("tcp4", ":9000")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	var client net.Conn
	if err := lab.InEngineNamespace(func() (err error) {
		client, err = net.DialTimeout("tcp4", netip.AddrPortFrom(own, 9000).String(), waitLimit)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	accepted, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { accepted.Close() })

	l.attach(t, "inbound-app", "run")
	if _, err := accepted.Write([]byte("first")); err != nil {
		t.Fatal(err)
	}
	if err := client.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(client, b); err != nil || string(b) != "first" {
		t.Errorf("the client has got %q, %v", b, err)
	}
}
