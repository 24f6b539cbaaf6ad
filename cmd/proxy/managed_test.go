package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"sluice/control"
)

// controller is the other side of a managed proxy.
type controller struct {
	*testing.T
	dir       string
	listeners *net.UnixListener
	control   *os.File
}

func newController(t *testing.T) *controller {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	c := &controller{T: t, dir: filepath.Join(dir, "run")}
	c.listeners = c.listen("unixpacket", control.ListenersName)
	l := c.listen("unix", control.SocketName)
	c.control = c.file(l)
	return c
}

func (c *controller) listen(network, name string) *net.UnixListener {
	c.Helper()
	l, err := control.Listen(network, filepath.Join(c.dir, name))
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { l.Close() })
	return l
}

func (c *controller) file(of interface{ File() (*os.File, error) }) *os.File {
	c.Helper()
	f, err := of.File()
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { f.Close() })
	return f
}

// accept waits for the proxy to connect.
func (c *controller) accept() *net.UnixConn {
	c.Helper()
	conn, err := c.listeners.AcceptUnix()
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { conn.Close() })
	return conn
}

func (c *controller) send(conn *net.UnixConn, session, kind string, f *os.File) {
	c.Helper()
	if err := control.SendListener(conn, session, kind, f); err != nil {
		c.Fatal(err)
	}
}

func TestManaged(t *testing.T) {
	c := newController(t)
	p := launchSilently(t, []string{"sluice-proxy", "serve", "--control", c.dir, "--audit", "none", "--upstream", "127.0.0.1:9"})
	conn := c.accept()
	client := &control.Client{Dir: c.dir}

	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	c.send(conn, "", control.KindControl, c.control)
	c.send(conn, "s1", control.KindProxy, c.file(tcp.(*net.TCPListener)))
	c.send(conn, "s1", control.KindUDP, c.file(udp.(*net.UDPConn)))
	redirected, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer redirected.Close()
	c.send(conn, "s1", control.KindTCP, c.file(redirected.(*net.TCPListener)))
	// What makes no sense is refused, and the rest goes on.
	c.send(conn, "s1", control.KindTCP, c.file(udp.(*net.UDPConn)))
	c.send(conn, "s1", "made-up", c.file(udp.(*net.UDPConn)))
	c.send(conn, "../s1", control.KindTCP, c.file(tcp.(*net.TCPListener)))
	p.until("three refusals", func() bool { return strings.Count(p.stderr.String(), "is refused") == 3 })

	// A session without a rule set refuses everything.
	origin := echo(t).String()
	connect(t, tcp.Addr().String(), origin, "").want(403)
	policies := map[string]json.RawMessage{}
	for _, phase := range []string{"baseline", "run", "evaluation"} {
		policies[phase] = json.RawMessage(allow(origin))
	}
	if _, err := client.SetSession(t.Context(), "s1", control.SessionSpec{Generation: 5, Container: "web", ContainerID: "0123", Policies: policies}); err != nil {
		t.Fatal(err)
	}
	open := connect(t, tcp.Addr().String(), origin, "").want(200)
	answer, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("other.test.", dns.TypeA), udp.LocalAddr().String())
	if err != nil || answer.Rcode != dns.RcodeNameError {
		t.Errorf("dns: %v, %v", answer, err)
	}

	// The controller goes and comes back: nothing is cut, and the proxy finds it.
	conn.Close()
	conn = c.accept()
	open.ping()
	c.send(conn, "", control.KindControl, c.control)
	p.until("the control socket again", func() bool {
		all, err := client.Sessions(t.Context())
		return err == nil && len(all) == 1 && all[0].Generation == 5 && all[0].Flows == 1
	})
	if _, err := client.DeleteSession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	open.cut()
	if code := p.stop(); code != 0 {
		t.Errorf("ended with %d: %s", code, p.stderr.String())
	}
}

func TestManagedWithoutController(t *testing.T) {
	p := launchSilently(t, []string{"sluice-proxy", "--control", t.TempDir(), "--audit", "none"})
	p.until("a warning", func() bool { return strings.Contains(p.stderr.String(), "no controller") })
	if code := p.stop(); code != 0 {
		t.Errorf("ended with %d", code)
	}
}
