package forward

import (
	"net/http"
	"net/url"
	"strings"

	"sluice/proxy/refusal"
)

// destination is what a request asks for: who is judged, and what that server is asked.
type destination struct {
	authority
	path string   // with the query, as the client wrote it; or "*"
	url  *url.URL // makes net/http ask for path, byte for byte
}

// destination reads the request target and the Host field (RFC 9112 section 3.2). The request is as far as it is
// known, also if it is refused.
func (c *client) destination(h *head) (d destination, r Request, refused *refusal.Refusal) {
	r.Method, r.Protocol = h.method, "http"
	var host authority
	if h.host != "" {
		var err error
		if host, err = parseAuthority(h.host); err != nil {
			return d, r, malformed("The Host field is not valid: " + err.Error() + ".")
		}
	}
	scheme, rest, absolute := strings.Cut(h.target, "://")
	switch {
	case strings.IndexByte(h.target, '#') >= 0:
		return d, r, malformed("There is a fragment in the request target.")
	case h.target[0] == '/' || h.target == "*":
		if c.Mode == Explicit {
			return d, r, malformed("This is a proxy: the request target must be a whole http:// URL.")
		}
		if h.hosts == 0 {
			host.host = c.Host
		}
		if host.host == "" {
			return d, r, malformed("The request names no host.")
		}
		d.authority, d.path = host, h.target
		r.Port = c.Port
	case !absolute:
		return d, r, malformed("The request target is neither a path nor a URL.")
	case strings.EqualFold(scheme, "https"):
		return d, r, malformed("To reach https URLs through a proxy, ask for a tunnel with CONNECT.")
	case !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "ws"):
		return d, r, malformed("The only URLs served are http ones.")
	default:
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		var err error
		if d.authority, err = parseAuthority(rest[:end]); err != nil {
			return d, r, malformed("The host in the request target is not valid: " + err.Error() + ".")
		}
		d.path = rest[end:]
	}
	switch {
	case d.path == "" && h.method == http.MethodOptions:
		d.path = "*" // RFC 9112 section 3.2.4
	case d.path == "" || d.path[0] == '?':
		d.path = "/" + d.path
	case d.path == "*" && h.method != http.MethodOptions:
		return d, r, malformed("Only OPTIONS asks for *.")
	}
	var err error
	if d.url, err = d.makeURL(); err != nil {
		return d, r, malformed("The path in the request target is not valid.")
	}
	r.Host = d.host
	if d.port != 0 {
		r.Port = d.port
	}
	if r.Port == 0 {
		r.Port = 80
	}
	return d, r, nil
}

func (d destination) makeURL() (*url.URL, error) {
	u := &url.URL{Scheme: "http", Host: d.field()}
	if !strings.HasPrefix(d.path, "//") {
		u.Opaque = d.path
		return u, nil
	}
	// An opaque part that begins like this would get the scheme put before it.
	var err error
	u.RawPath, u.RawQuery, u.ForceQuery = strings.Cut(d.path, "?")
	u.Path, err = url.PathUnescape(u.RawPath)
	return u, err
}
