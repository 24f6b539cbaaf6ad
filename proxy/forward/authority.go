package forward

import (
	"errors"
	"net/netip"
	"strconv"
	"strings"
)

// authority is a host and port as a request names them, in normal form.
type authority struct {
	host string // lower case, no dot at the end, addresses compressed and without brackets
	port uint16 // 0 if none was written
}

// What is wrong with an authority, for the client to read.
var (
	errUserinfo  = errors.New("it has user info or a stray @")
	errPort      = errors.New("its port is not 1 to 65535 in plain digits")
	errBrackets  = errors.New("brackets stand round an IPv6 address without zone, and round nothing else")
	errHostName  = errors.New("its host is not letters, digits, hyphens and dots (write other letters as xn-- labels)")
	errEmptyHost = errors.New("it has no host")
)

// parseAuthority reads host [ ":" port ] of RFC 3986 section 3.2 without user info, percent-encoding and empty ports.
// Whatever two readers could take for two different hosts is an error. A number-like name passes: whether it is one
// is the matcher's question.
func parseAuthority(s string) (authority, error) {
	host, port, hasPort := s, "", false
	if i := strings.LastIndexByte(s, ':'); i >= 0 && strings.IndexByte(s[i:], ']') < 0 {
		host, port, hasPort = s[:i], s[i+1:], true
	}
	var a authority
	if strings.IndexByte(s, '@') >= 0 {
		return a, errUserinfo
	}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 || port[0] == '0' {
			return a, errPort
		}
		a.port = uint16(n)
	}
	if host == "" {
		return a, errEmptyHost
	}
	if host[0] == '[' {
		addr, err := netip.ParseAddr(strings.TrimSuffix(host[1:], "]"))
		if err != nil || !addr.Is6() || addr.Zone() != "" || host[len(host)-1] != ']' {
			return a, errBrackets
		}
		a.host = addr.String()
		return a, nil
	}
	if strings.ContainsAny(host, "[]:") {
		return a, errBrackets
	}
	if !isHostName(strings.TrimSuffix(host, ".")) {
		return a, errHostName
	}
	a.host = strings.ToLower(strings.TrimSuffix(host, "."))
	return a, nil
}

// isHostName reports whether s looks like a host name: labels of 1 to 63 letters, digits, hyphens or underscores, at
// most 253 bytes in all.
func isHostName(s string) bool {
	if len(s) == 0 || len(s) > 253 {
		return false
	}
	label := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.':
			if label == 0 {
				return false
			}
			label = 0
			continue
		case c|0x20 >= 'a' && c|0x20 <= 'z', c >= '0' && c <= '9', c == '-', c == '_':
		default:
			return false
		}
		if label++; label > 63 {
			return false
		}
	}
	return label > 0
}

// field returns a as the value of a Host field: with a port exactly if the client wrote one.
func (a authority) field() string {
	host := a.host
	if strings.IndexByte(host, ':') >= 0 {
		host = "[" + host + "]"
	}
	if a.port == 0 {
		return host
	}
	return host + ":" + strconv.Itoa(int(a.port))
}
