package proxy

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// endpoint is a host and port that a client asked for: a name, or an address if addr is valid.
type endpoint struct {
	host string // as a name or address without brackets, lower case not required
	addr netip.Addr
	port uint16
}

// String returns host:port as a policy would write it.
func (e endpoint) String() string {
	if e.addr.IsValid() {
		return netip.AddrPortFrom(e.addr, e.port).String()
	}
	return e.host + ":" + strconv.Itoa(int(e.port))
}

var errAuthority = errors.New("not host:port")

// parseAuthority reads the authority form of RFC 9112 section 3.2.3 strictly: host ":" port, brackets round IPv6
// addresses and nothing else, a port of 1..65535 in plain digits, no user info, no zone. Whether a host is a name
// that can be judged is the matcher's question; what might be read as an address by a resolver is not let through
// as a name there.
func parseAuthority(s string) (endpoint, error) {
	colon := strings.LastIndexByte(s, ':')
	if colon <= 0 {
		return endpoint{}, errAuthority
	}
	host := s[:colon]
	port, ok := parsePort(s[colon+1:])
	if !ok {
		return endpoint{}, errAuthority
	}
	return makeEndpoint(host, port)
}

// makeEndpoint reads a host as it stands in an authority, brackets included.
func makeEndpoint(host string, port uint16) (endpoint, error) {
	if host == "" {
		return endpoint{}, errAuthority
	}
	if host[0] == '[' {
		if host[len(host)-1] != ']' {
			return endpoint{}, errAuthority
		}
		addr, err := netip.ParseAddr(host[1 : len(host)-1])
		if err != nil || !addr.Is6() || addr.Zone() != "" {
			return endpoint{}, errAuthority
		}
		return endpoint{host: host[1 : len(host)-1], addr: addr.Unmap(), port: port}, nil
	}
	// The first byte of most names tells that they are no address.
	if c := host[0]; c >= '0' && c <= '9' {
		if addr, err := netip.ParseAddr(host); err == nil && addr.Is4() {
			return endpoint{host: host, addr: addr, port: port}, nil
		}
	}
	for i := range len(host) {
		if c := host[i]; c <= ' ' || c >= 0x7f || strings.IndexByte(`@/\?#[]:%`, c) >= 0 {
			return endpoint{}, errAuthority
		}
	}
	if host = strings.TrimSuffix(host, "."); host == "" || host[len(host)-1] == '.' {
		return endpoint{}, errAuthority
	}
	return endpoint{host: host, port: port}, nil
}

// parsePort reads 1..65535 in decimal digits without sign or leading zero.
func parsePort(s string) (uint16, bool) {
	if s == "" || s[0] == '0' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}
