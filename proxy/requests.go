package proxy

import (
	"slices"
	"strings"

	"sluice/matcher"
	"sluice/policy"
)

// watchedStreams judges the requests of an HTTP/2 client, and reports whether the tunnel is past watching. A request
// that is refused ends the tunnel: its bytes cannot be left out, for the compression of later heads builds on them.
func (c *conn) watchedStreams() bool {
	for {
		pass, authority, err := c.streams.next(c.in)
		if c.forward(c.in[:pass]); c.answerOnly() {
			return true
		}
		c.in = c.in[:copy(c.in, c.in[pass:])]
		if err != nil {
			c.refuseTunnel(reasonMalformed)
			return true
		}
		if authority == "" {
			break
		}
		if reason := c.judgeStream(authority); reason != "" {
			c.refuseTunnel(reason)
			return true
		}
		c.streams.accept()
	}
	if !c.client.ended {
		if len(c.in) == 0 { // nothing is kept while the client is quiet
			c.worker.release(c.in)
			c.in = nil
		}
		return false
	}
	c.dropStreams()
	c.open(nil) // what is left is half a frame
	return true
}

// readStreams reads HTTP/2 from the preface on, or ends the tunnel for want of memory.
func (c *conn) readStreams() bool {
	if c.worker.full() {
		c.refuseTunnel(reasonCapacity)
		return false
	}
	c.worker.kept += streamsBytes
	c.streams = newStreams(c.passed)
	return true
}

// dropStreams reads HTTP/2 no more, if it did.
func (c *conn) dropStreams() {
	if c.streams != nil {
		c.worker.kept -= streamsBytes
		c.streams = nil
	}
}

// judgeStream judges the authority of a request in a tunnel, and returns why it is refused, or "". In an allowlist a
// tunnel is for one name; elsewhere one that shows several cannot be judged by name at a later switch.
func (c *conn) judgeStream(authority string) matcher.Reason {
	e, err := streamEndpoint(strings.ToLower(authority), c.target.port)
	if err != nil {
		return reasonMalformed
	}
	byName := c.rules.policy.Mode == policy.Allowlist && c.decision.Reason == matcher.NameRule
	switch {
	case byName && (e.port != c.target.port || c.shown != "" && c.shown != e.host):
		return reasonOtherName
	case e.host == c.shown, !c.direct && e.host == c.target.host:
		return ""
	}
	s := c.subject()
	s.shown = e.host
	var d matcher.Decision
	switch {
	case c.direct:
		d = c.session.direct(c.rules, s)
	default:
		// A name that has not been looked up is refused: its client can look it up, or ask for a tunnel to it.
		answer, known := c.resolver().Cached(e.host)
		s.proven = slices.Contains(answer.Addrs, c.address)
		d, _ = c.rules.inner(s, c.decision, e.host, answer.Addrs, known)
	}
	switch {
	case d.Verdict != matcher.Allow:
		return d.Reason
	case c.shown == "":
		c.shown, c.proven, c.decision = e.host, s.proven, d
	default:
		c.opaque = true
	}
	return ""
}

// streamEndpoint reads an authority, which names a port or means the tunnel's.
func streamEndpoint(authority string, port uint16) (endpoint, error) {
	if e, err := parseAuthority(authority); err == nil {
		return e, nil
	}
	return makeEndpoint(authority, port)
}
