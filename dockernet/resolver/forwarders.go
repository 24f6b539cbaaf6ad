package resolver

import (
	"net/netip"
	"strings"
)

// Address is where the engine answers inside of a container, on port 53.
var Address = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// Forwarder is a server that the engine's resolver asks.
type Forwarder struct {
	Addr netip.Addr
	// FromHost is set if the engine asks it from the host's network namespace.
	FromHost bool
}

// Forwarders reads the comment "# ExtServers: [192.0.2.1 host(127.0.0.53)]" in the resolv.conf that engines write since
// 26.0 (libnetwork/internal/resolvconf). What it does not understand is left out.
func Forwarders(resolvConf string) []Forwarder {
	var list []Forwarder
	for line := range strings.Lines(resolvConf) {
		servers, ok := strings.CutPrefix(strings.TrimSpace(line), "# ExtServers: [")
		if !ok {
			continue
		}
		for _, s := range strings.Fields(strings.TrimSuffix(servers, "]")) {
			inner, fromHost := strings.CutPrefix(s, "host(")
			if a, err := netip.ParseAddr(strings.TrimSuffix(inner, ")")); err == nil {
				list = append(list, Forwarder{a, fromHost})
			}
		}
	}
	return list
}
