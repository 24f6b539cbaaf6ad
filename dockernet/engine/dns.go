package engine

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"

	"github.com/docker/docker/api/types/container"
	"github.com/miekg/dns"

	"sluice/dockernet/resolver"
)

// resolvConfBytes bounds what is read of a file that the container can change.
const resolvConfBytes = 64 << 10

// dnsOf reads the container's settings, and in the file that the engine has made for it what became of them.
func dnsOf(h *container.HostConfig, resolvConf string) (DNS, error) {
	d := DNS{Search: h.DNSSearch, Options: h.DNSOptions}
	for _, s := range h.DNS {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return DNS{}, fmt.Errorf("DNS server: %w", err)
		}
		d.Servers = append(d.Servers, a)
	}
	if resolvConf == "" {
		return d, nil
	}
	f, err := os.Open(resolvConf)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil // it has not been started, or is of another machine's
	}
	if err != nil {
		return DNS{}, fmt.Errorf("the container's resolv.conf: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, resolvConfBytes))
	if err != nil {
		return DNS{}, fmt.Errorf("the container's resolv.conf: %w", err)
	}
	d.Forwarders = resolver.Forwarders(string(text))
	return d, nil
}

// resolvesOnHost reports whether the engine may ask servers from the host's network namespace for what the container
// asks, where no rule of the container's holds. hostServers are those in the host's resolv.conf.
func (c *Container) resolvesOnHost(info Info, hostServers []netip.Addr) bool {
	// Servers that the container was given are asked from its own namespace.
	if len(c.DNS.Servers) > 0 && !anyLoopback(c.DNS.Servers) {
		return false
	}
	if info.keepsDNSInside() && allInternal(c.Endpoints) {
		return false
	}
	if len(c.DNS.Forwarders) > 0 {
		for _, f := range c.DNS.Forwarders {
			if f.FromHost || f.Addr.IsLoopback() {
				return true
			}
		}
		return false
	}
	// Engines that do not tell ask from the host where the server is a loopback address of the host's. Since 28.5,
	// which does tell, they always do.
	return versionAtLeast(info.APIVersion, 1, 45) || len(hostServers) == 0 || anyLoopback(hostServers)
}

// DNSWarning says what containers of a managed network need because of how the engine asks DNS servers; it is empty where
// they need nothing.
func (o *Conditions) DNSWarning(n Network) string {
	c := Container{Endpoints: []Endpoint{{Network: n}}}
	if !c.resolvesOnHost(o.Info, o.HostServers) {
		return ""
	}
	return "this engine asks DNS servers from the host's network, past the policy of a container that is not admitted yet, so containers are not " +
		"admitted here without --dns: " + engineDNSRepair("them")
}

func engineDNSRepair(whom string) string {
	return "give " + whom + " --dns with a server that is not a loopback address, or use an internal network with Docker 23.0.11, 25.0.5, 26.0 or newer"
}

// hostResolvConf is read for the servers that the host asks.
const hostResolvConf = "/etc/resolv.conf"

// hostServers reads them; a file that is not there has none.
func hostServers(path string) ([]netip.Addr, error) {
	config, err := dns.ClientConfigFromFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the host's DNS servers: %w", err)
	}
	var list []netip.Addr
	for _, s := range config.Servers {
		if a, err := netip.ParseAddr(s); err == nil {
			list = append(list, a)
		}
	}
	return list, nil
}

func anyLoopback(list []netip.Addr) bool {
	for _, a := range list {
		if a.IsLoopback() {
			return true
		}
	}
	return false
}

func allInternal(list []Endpoint) bool {
	for _, e := range list {
		if !e.Internal {
			return false
		}
	}
	return true
}
