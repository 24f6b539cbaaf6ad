package agentcompass

import (
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestIsCommand(t *testing.T) {
	for name, want := range map[string]bool{
		"python": true, "python3": true, "python3.12": true, "/usr/local/bin/python": true,
		"sluice-proxy": false, "/bin/sluice-proxy": false, "python2": false, "pythonx": false, "/python/x": false, "": false,
	} {
		if got := IsCommand(name); got != want {
			t.Errorf("%q: got %v", name, got)
		}
	}
}

func TestServeCommand(t *testing.T) {
	for _, args := range []string{"/opt/agentcompass/docker_egress_proxy.py", "docker_egress_proxy.py", "../x/docker_egress_proxy.py"} {
		if c, err := ParseCommand([]string{args}); err != nil || c.Probe != nil {
			t.Errorf("%s: got %v, %v", args, c, err)
		}
	}
}

func TestOtherCommands(t *testing.T) {
	for _, line := range []string{"", "--version", "-V", "-c", "-c pass x", "-m http.server", "-", "docker_egress_proxy.py x", "-u docker_egress_proxy.py",
		"other.py", "docker_egress_proxy.pyc", "x/docker_egress_proxy.py/y", "/opt/agentcompass/"} {
		c, err := ParseCommand(strings.Fields(line))
		if err == nil || !strings.Contains(err.Error(), "not Python") || !strings.Contains(err.Error(), "sluice-proxy") {
			t.Errorf("%q: got %v, %v, want an error that says what this is", line, c, err)
		}
	}
}

func TestProbeCommand(t *testing.T) {
	at := func(address string, timeout time.Duration) Probe {
		return Probe{Address: netip.MustParseAddrPort(address), Timeout: timeout}
	}
	for _, row := range []struct {
		name, code string
		want       Probe
	}{
		// As AgentCompass 1.0.1 sends it.
		{"provider", "import socket; s=socket.create_connection(('127.0.0.1', 8080), timeout=1); s.close()", at("127.0.0.1:8080", time.Second)},
		{"other-port", "import socket; s=socket.create_connection(('127.0.0.1', 9), timeout=1); s.close()", at("127.0.0.1:9", time.Second)},
		{"other-timeout", "import socket; s=socket.create_connection(('127.0.0.1', 8080), timeout=0.25); s.close()", at("127.0.0.1:8080", 250*time.Millisecond)},
		{"positional-timeout", "import socket; s=socket.create_connection(('127.0.0.1', 8080), 2); s.close()", at("127.0.0.1:8080", 2*time.Second)},
		{"no-timeout", "import socket; s=socket.create_connection(('127.0.0.1', 8080)); s.close()", at("127.0.0.1:8080", defaultProbeTimeout)},
		{"long-timeout", "import socket; s=socket.create_connection(('127.0.0.1', 8080), timeout=999999999); s.close()", at("127.0.0.1:8080", maxProbeTimeout)},
		{"tiny-timeout", "import socket; s=socket.create_connection(('127.0.0.1', 8080), timeout=.000000001); s.close()", at("127.0.0.1:8080", 1)},
		{"name", "import socket; s=socket.create_connection(('localhost', 8080), timeout=1); s.close()", at("127.0.0.1:8080", time.Second)},
		{"ipv6", "import socket; s=socket.create_connection(('::1', 8080), timeout=1); s.close()", at("[::1]:8080", time.Second)},
		{"double-quotes", `import socket; s=socket.create_connection(("127.0.0.1", 8080), timeout=1); s.close()`, at("127.0.0.1:8080", time.Second)},
		{"white-space", "\n import  socket\nsock = socket.create_connection( ( '127.0.0.1' ,8080 , ) , timeout = 1. , )\nsock.close( ) ;\n", at("127.0.0.1:8080", time.Second)},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := ParseCommand([]string{"-c", row.code})
			if err != nil {
				t.Fatal(err)
			}
			if *c.Probe != row.want {
				t.Errorf("got %v, want %v", *c.Probe, row.want)
			}
		})
	}
}

func TestOtherCode(t *testing.T) {
	const fine = "import socket; s=socket.create_connection(('127.0.0.1', 8080), timeout=1); s.close()"
	for _, row := range []struct{ name, code, want string }{
		{"empty", "", "not Python"},
		{"pass", "pass", "not Python"},
		{"more-behind", fine + "; import os", "not Python"},
		{"more-before", "import os; " + fine, "not Python"},
		{"comment", fine + " # x", "not Python"},
		{"other-variable", strings.Replace(fine, "s.close", "t.close", 1), "not Python"},
		{"no-close", strings.Replace(fine, "; s.close()", "", 1), "not Python"},
		{"other-call", strings.Replace(fine, "create_connection", "create_server", 1), "not Python"},
		{"escape", strings.Replace(fine, "127.0.0.1", `127.0.0.1\x00`, 1), "not Python"},
		{"negative-timeout", strings.Replace(fine, "timeout=1", "timeout=-1", 1), "not Python"},
		{"negative-port", strings.Replace(fine, "8080", "-1", 1), "not Python"},
		{"other-quotes", strings.Replace(fine, "'127.0.0.1'", `'127.0.0.1"`, 1), "not Python"},
		{"zero-timeout", strings.Replace(fine, "timeout=1", "timeout=0", 1), "above 0"},
		{"zero-port", strings.Replace(fine, "8080", "0", 1), "1 to 65535"},
		{"large-port", strings.Replace(fine, "8080", "65536", 1), "1 to 65535"},
		{"outside", strings.Replace(fine, "127.0.0.1", "192.0.2.1", 1), "loopback"},
		{"outside-name", strings.Replace(fine, "127.0.0.1", "a.test", 1), "loopback"},
		{"short-address", strings.Replace(fine, "127.0.0.1", "127.1", 1), "loopback"},
		{"no-host", strings.Replace(fine, "127.0.0.1", "", 1), "loopback"},
		{"zone", strings.Replace(fine, "127.0.0.1", "::1%lo", 1), "loopback"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c, err := ParseCommand([]string{"-c", row.code})
			if err == nil || !strings.Contains(err.Error(), row.want) {
				t.Errorf("got %v, %v, want an error with %q", c.Probe, err, row.want)
			}
		})
	}
}

func TestProbeRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().(*net.TCPAddr).AddrPort()
	code := fmt.Sprintf("import socket; s=socket.create_connection(('127.0.0.1', %d), timeout=1); s.close()", address.Port())
	c, err := ParseCommand([]string{"-c", code})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Probe.Run(t.Context()); err != nil {
		t.Errorf("with a listener: %v", err)
	}
	l.Close()
	if err := c.Probe.Run(t.Context()); err == nil || !strings.Contains(err.Error(), address.String()) {
		t.Errorf("without a listener: got %v, want an error that names it", err)
	}
}

// Whatever is asked for, only loopback is dialled, in a bounded time.
func FuzzProbe(f *testing.F) {
	f.Add("import socket; s=socket.create_connection(('127.0.0.1', 8080), timeout=1); s.close()")
	f.Add("import socket\ns=socket.create_connection((\"::1\", 1),)\ns.close()")
	f.Add("import socket; s=socket.create_connection(('192.0.2.1', 8080)); s.close()")
	only := regexp.MustCompile(`^[\sA-Za-z0-9_.:;=(),'"]+$`)
	f.Fuzz(func(t *testing.T, code string) {
		p, err := parseProbe(code)
		if err != nil {
			return
		}
		if !p.Address.Addr().IsLoopback() || p.Address.Port() == 0 || p.Timeout <= 0 || p.Timeout > maxProbeTimeout || !only.MatchString(code) {
			t.Errorf("%q is taken for %v", code, p)
		}
	})
}
