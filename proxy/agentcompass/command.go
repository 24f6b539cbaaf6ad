package agentcompass

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"time"
)

// Command is what a command line that begins with "python" asks for: to serve, or Probe if that is set.
type Command struct {
	Probe *Probe
}

// Probe is a health check: connect to an address and close.
type Probe struct {
	Address netip.AddrPort // loopback
	Timeout time.Duration
}

// script is the name of AgentCompass's proxy, which it mounts and names to an interpreter that is not there.
const script = "docker_egress_proxy.py"

const (
	defaultProbeTimeout = 5 * time.Second // Python waits for as long as the kernel does
	maxProbeTimeout     = time.Minute
)

var (
	interpreter = regexp.MustCompile(`^python(3(\.[0-9]+)?)?$`)
	// probe is AgentCompass's check and nothing else, but for white space, the names of things, and the numbers in it.
	probe = regexp.MustCompile(`^\s*import\s+socket\s*[;\n]\s*` +
		`([A-Za-z_][A-Za-z_0-9]*)\s*=\s*socket\s*\.\s*create_connection\s*\(\s*` +
		`\(\s*(?:'([^'\\\n]*)'|"([^"\\\n]*)")\s*,\s*([0-9]{1,5})\s*,?\s*\)\s*` +
		`(?:,\s*(?:timeout\s*=\s*)?([0-9]{1,9}(?:\.[0-9]{0,9})?|\.[0-9]{1,9})\s*,?\s*)?\)\s*[;\n]\s*` +
		`([A-Za-z_][A-Za-z_0-9]*)\s*\.\s*close\s*\(\s*\)\s*;?\s*$`)
)

// IsCommand reports whether a program of this name is to be read by [ParseCommand].
func IsCommand(name string) bool { return interpreter.MatchString(path.Base(name)) }

// ParseCommand reads the arguments behind the name "python". Only the two command lines that AgentCompass uses are
// understood; the error says so.
func ParseCommand(args []string) (Command, error) {
	switch {
	case len(args) == 1 && path.Base(args[0]) == script:
		return Command{}, nil
	case len(args) == 2 && args[0] == "-c":
		p, err := parseProbe(args[1])
		if err != nil {
			return Command{}, err
		}
		return Command{Probe: &p}, nil
	}
	return Command{}, fmt.Errorf("this is sluice-proxy, not Python: under this name it only stands in for AgentCompass's egress proxy, "+
		"as in %q and in AgentCompass's health check (python -c …); use the name sluice-proxy for everything else", "python /opt/agentcompass/"+script)
}

func parseProbe(code string) (Probe, error) {
	m := probe.FindStringSubmatch(code)
	if m == nil || m[1] != m[6] {
		return Probe{}, fmt.Errorf("this is sluice-proxy, not Python: of Python code it only understands AgentCompass's health check, "+
			"%q", "import socket; s=socket.create_connection(('127.0.0.1', 8080), timeout=1); s.close()")
	}
	host := m[2] + m[3]
	if host == "localhost" {
		host = "127.0.0.1"
	}
	addr, err := netip.ParseAddr(host)
	if err != nil || !addr.IsLoopback() || addr.Zone() != "" {
		return Probe{}, fmt.Errorf("health check of %.60q: only the proxy itself is checked; name a loopback address, as in 127.0.0.1", host)
	}
	port, err := strconv.ParseUint(m[4], 10, 16)
	if err != nil || port == 0 {
		return Probe{}, fmt.Errorf("health check of port %s: name a port from 1 to 65535", m[4])
	}
	p := Probe{Address: netip.AddrPortFrom(addr, uint16(port)), Timeout: defaultProbeTimeout}
	if m[5] != "" {
		seconds, err := strconv.ParseFloat(m[5], 64)
		if err != nil || seconds <= 0 {
			return Probe{}, fmt.Errorf("health check with a timeout of %s s: give one above 0", m[5])
		}
		p.Timeout = max(1, time.Duration(min(seconds, maxProbeTimeout.Seconds())*float64(time.Second))) // 0 would be none
	}
	return p, nil
}

// Run connects and closes.
func (p Probe) Run(ctx context.Context) error {
	c, err := (&net.Dialer{Timeout: p.Timeout}).DialContext(ctx, "tcp", p.Address.String())
	if err != nil {
		return fmt.Errorf("health check: %w", err)
	}
	return c.Close()
}
