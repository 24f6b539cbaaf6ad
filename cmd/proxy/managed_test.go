package main

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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

// send hands a descriptor over and returns what the proxy says of it.
func (c *controller) send(conn *net.UnixConn, d control.Descriptor) error {
	c.Helper()
	if err := control.SendListener(conn, d); err != nil {
		c.Fatal(err)
	}
	return control.ReadAcknowledgement(conn)
}

func (c *controller) hand(conn *net.UnixConn, session, kind string, set uint64, f *os.File) {
	c.Helper()
	if err := c.send(conn, control.Descriptor{Session: session, Kind: kind, Set: set, File: f}); err != nil {
		c.Fatal(err)
	}
}

// tcp is a listener and its descriptor.
func (c *controller) tcp() (address string, f *os.File) {
	c.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String(), c.file(l.(*net.TCPListener))
}

func (c *controller) udp() (address string, f *os.File) {
	c.Helper()
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		c.Fatal(err)
	}
	defer u.Close()
	return u.LocalAddr().String(), c.file(u.(*net.UDPConn))
}

// everywhere is one policy for all phases.
func everywhere(policy string) map[string]json.RawMessage {
	policies := map[string]json.RawMessage{}
	for _, phase := range []string{"baseline", "run", "evaluation"} {
		policies[phase] = json.RawMessage(policy)
	}
	return policies
}

func TestManaged(t *testing.T) {
	c := newController(t)
	p := launchSilently(t, []string{"sluice-proxy", "serve", "--control", c.dir, "--audit", "none", "--upstream", "127.0.0.1:9"})
	conn := c.accept()
	client := &control.Client{Dir: c.dir}

	tcp, tcpFile := c.tcp()
	udp, udpFile := c.udp()
	_, redirected := c.tcp()
	c.hand(conn, "", control.KindControl, 0, c.control)
	c.hand(conn, "s1", control.KindProxy, 1, tcpFile)
	c.hand(conn, "s1", control.KindUDP, 1, udpFile)
	c.hand(conn, "s1", control.KindTCP, 1, redirected)
	// What makes no sense is refused, and the rest goes on.
	for _, d := range []control.Descriptor{
		{Session: "s1", Kind: control.KindTCP, File: udpFile},
		{Session: "s1", Kind: "made-up", File: udpFile},
		{Session: "../s1", Kind: control.KindTCP, File: tcpFile},
	} {
		if err := c.send(conn, d); !errors.Is(err, control.ErrNotTaken) {
			t.Errorf("%s of %s: got %v, want a refusal", d.Kind, d.Session, err)
		}
	}

	// A session without a rule set refuses everything.
	origin := echo(t).String()
	connect(t, tcp, origin, "").want(403)
	if _, err := client.SetSession(t.Context(), "s1", control.SessionSpec{Generation: 5, Container: "web", ContainerID: "0123", Policies: everywhere(allow(origin))}); err != nil {
		t.Fatal(err)
	}
	open := connect(t, tcp, origin, "").want(200)
	answer, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("other.test.", dns.TypeA), udp)
	if err != nil || answer.Rcode != dns.RcodeNameError {
		t.Errorf("dns: %v, %v", answer, err)
	}

	// The controller goes and comes back: nothing is cut, and the proxy finds it.
	conn.Close()
	conn = c.accept()
	open.ping()
	c.hand(conn, "", control.KindControl, 0, c.control)
	p.until("the control socket again", func() bool {
		all, err := client.Sessions(t.Context())
		return err == nil && len(all) == 1 && all[0].Generation == 5 && all[0].Flows == 1
	})

	// It hands other listeners over, and takes the old ones back: they serve whoever is there, and nobody new.
	again, againFile := c.tcp()
	udpAgain, udpAgainFile := c.udp()
	c.hand(conn, "s1", control.KindProxy, 2, againFile)
	c.hand(conn, "s1", control.KindUDP, 2, udpAgainFile)
	for _, f := range []*os.File{tcpFile, redirected} {
		f.Close() // the proxy has the only descriptors now
	}
	if err := client.DropListeners(t.Context(), "s1", 2); err != nil {
		t.Fatal(err)
	}
	open.ping()
	if c, err := net.Dial("tcp", tcp); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a listener that was dropped: %v, %v", c, err)
	}
	connect(t, again, origin, "").want(200).ping()
	if answer, _, err := new(dns.Client).Exchange(new(dns.Msg).SetQuestion("other.test.", dns.TypeA), udpAgain); err != nil || answer.Rcode != dns.RcodeNameError {
		t.Errorf("dns: %v, %v", answer, err)
	}
	status, err := client.Session(t.Context(), "s1")
	if want := []string{"proxy " + again, "udp " + udpAgain}; err != nil || !slices.Equal(status.Listeners, want) {
		t.Errorf("listeners %v, %v: want %v", status.Listeners, err, want)
	}
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
