package resolve

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
)

const (
	dnsPort = 53
	// behindStub is where systemd-resolved, which listens on 127.0.0.53, names the servers that it asks itself
	// (systemd-resolved.service(8)).
	behindStub = "/run/systemd/resolve/resolv.conf"
)

// dockerDNS is the engine's resolver in the namespace of a container: the one loopback address that is not a stub of
// the host's.
var dockerDNS = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// Upstreams reads the name servers of a resolv.conf(5) file, such as /etc/resolv.conf. A server on a loopback address
// is a stub of the host's, which cannot be reached from another network namespace: it is replaced by the servers that
// systemd-resolved asks, if it is that. If no server is left, the error says what to do.
func Upstreams(resolvConf string) ([]netip.AddrPort, error) { return upstreams(resolvConf, behindStub) }

func upstreams(resolvConf, behindStub string) ([]netip.AddrPort, error) {
	list, err := nameservers(resolvConf)
	if err != nil {
		return nil, err
	}
	stub := ""
	var servers []netip.AddrPort
	for _, addr := range list {
		if isStub(addr) {
			stub = addr.String()
			continue
		}
		servers = append(servers, netip.AddrPortFrom(addr, dnsPort))
	}
	if stub == "" {
		if len(servers) == 0 {
			return nil, fmt.Errorf("%s names no server: add a line such as \"nameserver 192.0.2.53\" or give the upstream name servers to the proxy", resolvConf)
		}
		return servers, nil
	}
	behind, err := nameservers(behindStub)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, addr := range behind {
		if server := netip.AddrPortFrom(addr, dnsPort); !isStub(addr) && !slices.Contains(servers, server) {
			servers = append(servers, server)
		}
	}
	if len(servers) == 0 {
		return nil, fmt.Errorf("%s names only %s, which listens on this host's loopback device, and %s names no other server: "+
			"give the upstream name servers to the proxy", resolvConf, stub, behindStub)
	}
	return servers, nil
}

func isStub(addr netip.Addr) bool { return addr.IsLoopback() && addr != dockerDNS }

// nameservers reads the addresses on the nameserver lines of a file, in order, without duplicates.
func nameservers(path string) ([]netip.Addr, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the name servers: %w", err)
	}
	defer f.Close()
	var list []netip.Addr
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) < 2 || words[0] != "nameserver" {
			continue
		}
		addr, err := netip.ParseAddr(words[1])
		if err != nil {
			return nil, fmt.Errorf("%s line %d: %q is not an IP address: write \"nameserver\" and one address", path, n, words[1])
		}
		if addr = addr.Unmap(); !slices.Contains(list, addr) {
			list = append(list, addr)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the name servers in %s: %w", path, err)
	}
	return list, nil
}
