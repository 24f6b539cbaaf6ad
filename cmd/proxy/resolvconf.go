package main

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"

	"sluice/proxy/resolve"
)

const resolvConfPath = "/etc/resolv.conf"

// resolvConf notices that the engine wrote the container's name servers anew, as it does when it connects or
// disconnects a network.
type resolvConf struct {
	path string
	log  *slog.Logger

	mu      sync.Mutex // guards what follows
	seen    os.FileInfo
	servers []netip.AddrPort
}

// changed returns the servers if they are others than the last time. A file that cannot be used changes nothing.
func (r *resolvConf) changed() ([]netip.AddrPort, bool) {
	info, err := os.Stat(r.path)
	if err != nil {
		return nil, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen != nil && os.SameFile(info, r.seen) && info.ModTime().Equal(r.seen.ModTime()) && info.Size() == r.seen.Size() {
		return nil, false
	}
	servers, err := resolve.Upstreams(r.path)
	if err != nil {
		return nil, false // perhaps half-written: the next look-up looks again
	}
	first := r.seen == nil
	r.seen = info
	if slices.Equal(servers, r.servers) {
		return nil, false
	}
	r.servers = servers
	if !first {
		r.log.Info("name servers have changed", "path", r.path, "servers", servers)
	}
	return servers, true
}
