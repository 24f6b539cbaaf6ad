package proxy

import (
	"bytes"
	"crypto/subtle"
	"errors"
	"strings"

	"golang.org/x/sys/unix"
)

// connectMethod is how a request that asks for a tunnel begins (RFC 9110 section 9.3.6).
var connectMethod = []byte("CONNECT ")

var (
	headEnd = []byte("\r\n\r\n")
	// bareHeadEnd ends a head for some programs. It is refused, but at once.
	bareHeadEnd = []byte("\n\n")
)

// readHead reads until the request head is complete, and acts on it.
func (c *conn) readHead() {
	w := c.worker
	for c.client.readable {
		n, err := readSocket(c.client.fd, w.scratch)
		switch {
		case err == unix.EAGAIN:
			c.client.readable = false
			return
		case err != nil, n == 0:
			// Nothing was asked: a port check, or a client that gave up.
			c.close()
			return
		case n < len(w.scratch) && !c.client.doubt:
			c.client.readable = false
		}
		seen := len(c.in)
		head := w.scratch[:n]
		if seen > 0 || !complete(head, 0) {
			c.keep(head)
			head = c.in
		}
		if c.readOn(head, seen) {
			return
		}
	}
}

// readOn acts on what was read of a head, of which seen bytes were looked at before, and reports whether it is done.
func (c *conn) readOn(head []byte, seen int) bool {
	config := &c.session.server.config
	switch {
	case !asksForTunnel(head):
		c.handToWeb(head)
	case complete(head, seen):
		c.connect(head)
	case len(head) > config.HeaderLimit:
		c.refuse(config.LargeHeadStatus, reasonHeaderSize)
	case c.worker.full():
		c.fail(statusBusy, reasonCapacity)
	default:
		return false
	}
	return true
}

// complete reports whether what decides how to go on is there: the end of a CONNECT's head, or the first byte that
// shows that it is none. seen bytes were looked at before.
func complete(head []byte, seen int) bool {
	if !asksForTunnel(head) {
		return true
	}
	last := head[max(0, seen-len(headEnd)+1):]
	return bytes.Contains(last, headEnd) || bytes.Contains(last, bareHeadEnd)
}

// asksForTunnel reports whether head begins like CONNECT, as far as it goes.
func asksForTunnel(head []byte) bool {
	n := min(len(head), len(connectMethod))
	return bytes.EqualFold(head[:n], connectMethod[:n])
}

// keep adds to the client's bytes that wait.
func (c *conn) keep(b []byte) {
	c.in = c.worker.keep(c.in, b)
}

// connectRequest is a CONNECT as parsed. Its slices alias the head.
type connectRequest struct {
	authority     []byte
	authorization []byte // of Proxy-Authorization; nil if there is none
}

var errHead = errors.New("malformed request head")

// parseConnect reads the head of a CONNECT, up to and with its empty line. It is strict where another reading of the
// same bytes could ask for another tunnel: lines end in CRLF, none is folded, nothing is repeated that decides.
func parseConnect(head []byte) (r connectRequest, err error) {
	line, rest, _ := bytes.Cut(head, headEnd[:2])
	fields := bytes.Split(line, []byte(" "))
	if len(fields) != 3 || !bytes.EqualFold(fields[0], connectMethod[:len(connectMethod)-1]) || !isHTTP1(fields[2]) {
		return r, errHead
	}
	r.authority = fields[1]
	hosts := 0
	for {
		line, rest, _ = bytes.Cut(rest, headEnd[:2])
		if len(line) == 0 {
			return r, nil
		}
		name, value, found := bytes.Cut(line, []byte(":"))
		if !found || !isToken(name) || bytes.ContainsAny(value, "\r\n\x00") {
			return r, errHead
		}
		value = bytes.Trim(value, " \t")
		switch {
		case bytes.EqualFold(name, []byte("Proxy-Authorization")):
			if r.authorization != nil {
				return r, errHead
			}
			r.authorization = value
		case bytes.EqualFold(name, []byte("Host")):
			if hosts++; hosts > 1 {
				return r, errHead
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")),
			bytes.EqualFold(name, []byte("Content-Length")) && !bytes.Equal(value, []byte("0")):
			return r, errHead // a CONNECT has no content: these bytes are the tunnel's, or they are not
		}
	}
}

func isHTTP1(version []byte) bool {
	return bytes.Equal(version, []byte("HTTP/1.1")) || bytes.Equal(version, []byte("HTTP/1.0"))
}

// isToken reports whether b is a token of RFC 9110 section 5.6.2.
func isToken(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f || bytes.IndexByte([]byte(`"(),/:;<=>?@[\]{}`), c) >= 0 {
			return false
		}
	}
	return len(b) > 0
}

// connect acts on a complete CONNECT head; what follows it is the tunnel's first data.
func (c *conn) connect(head []byte) {
	c.protocol = protocolConnect
	end := bytes.Index(head, headEnd)
	length := end + len(headEnd)
	if length > c.session.server.config.HeaderLimit {
		c.refuse(c.session.server.config.LargeHeadStatus, reasonHeaderSize)
		return
	}
	request, err := parseConnect(head[:length])
	if err != nil || end < 0 {
		c.refuse(statusBad, reasonMalformed)
		return
	}
	if !c.session.auth.Load().allows(request.authorization) {
		c.refuse(statusAuth, reasonAuth)
		return
	}
	lower(request.authority)
	if c.target, err = parseAuthority(string(request.authority)); err != nil {
		c.refuse(statusBad, reasonMalformed)
		return
	}
	// The head has been read: only what comes behind it stays.
	if early := head[length:]; len(early) == 0 {
		c.worker.release(c.in)
		c.in = nil
	} else if len(c.in) > 0 {
		c.in = c.in[:copy(c.in, early)]
	} else {
		c.keep(early)
	}
	c.begin()
}

func lowerString(b []byte) string { return strings.ToLower(string(b)) }

func lower(b []byte) {
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
}

// headLate ends a client that does not say what it wants, or who it wants inside its tunnel.
func (c *conn) headLate() {
	switch c.state {
	case reading:
		if len(c.in) == 0 {
			c.close() // it said nothing: nobody waits for an answer
			return
		}
		c.refuse(statusSlow, reasonSlowHead)
	case sniffing:
		c.refuseTunnel(reasonSlowHello)
	}
}

// basicAuth checks Proxy-Authorization against one user and password (RFC 7617). A nil one lets everybody in.
type basicAuth struct {
	credentials []byte // base64 of user:password
}

func (a *basicAuth) allows(header []byte) bool {
	if a == nil {
		return true
	}
	scheme, given, _ := bytes.Cut(header, []byte(" "))
	given = bytes.TrimLeft(given, " ")
	// Both are always compared, the secret one in a time that depends on its length only.
	right := subtle.ConstantTimeCompare(given, a.credentials) == 1
	return bytes.EqualFold(scheme, []byte("Basic")) && right
}
