package proxy

import (
	"golang.org/x/sys/unix"

	"sluice/proxy/sniff"
)

// helloWatch waits for a second ClientHello, which must name the server that the first one named: some servers go by
// the second (RFC 8446 section 4.1.4, [sniff.Second]).
type helloWatch struct {
	sniff.Second
	size int    // of the first hello, in bytes of the stream
	name string // that it named; "" is none
}

// watchHello makes the tunnel look for a second ClientHello, if the server may ask for one.
func (c *conn) watchHello(first sniff.Result) {
	if first.Retry {
		c.watch = &helloWatch{Second: sniff.Second{EarlyData: first.EarlyData}, size: first.Size, name: lowerString(first.ServerName)}
	}
}

// openWatched passes the first ClientHello on, and what follows it as far as it can be told to be no second one. Of
// HTTP/2, nothing passes here.
func (c *conn) openWatched(first []byte) {
	c.state = watching
	size := c.passed
	c.passed = 0
	if c.watch != nil {
		size = c.watch.size
		if c.forward(first[:size]); c.answerOnly() {
			return
		}
	}
	if rest := first[size:]; len(c.in) > 0 {
		c.in = c.in[:copy(c.in, rest)]
	} else if len(rest) > 0 {
		c.keep(rest)
	}
	if len(c.in) > 0 && c.watched() {
		return
	}
	c.watchOn()
}

// watchOn lets the upstream speak, and reads what the client says: until there can be no second hello, or, in HTTP/2,
// to the end.
func (c *conn) watchOn() {
	if again, ok := c.pump(&c.up, &c.client); !ok {
		return
	} else if again {
		c.worker.Again(c.client.token)
	}
	if !c.flushClient() {
		return
	}
	w := c.worker
	for c.client.readable && !c.client.ended && !c.client.holds() {
		n, err := readSocket(c.client.fd, w.scratch)
		switch {
		case err == unix.EAGAIN:
			c.client.readable = false
			return
		case err != nil:
			c.broken()
			return
		case n == 0:
			c.client.ended = true
		case n < len(w.scratch) && !c.client.doubt:
			c.client.readable = false
		}
		c.keep(w.scratch[:n])
		if c.watched() {
			return
		}
	}
}

// watched judges the bytes behind the first hello, and reports whether the tunnel is past watching.
func (c *conn) watched() bool {
	if c.streams != nil {
		return c.watchedStreams()
	}
	pass, result := c.watch.Next(c.in, c.client.ended)
	other := result.Kind == sniff.TLS && (result.Malformed || lowerString(result.ServerName) != c.watch.name)
	if c.forward(c.in[:pass]); c.answerOnly() {
		return true
	}
	c.in = c.in[:copy(c.in, c.in[pass:])] // which overwrites what result points to
	switch {
	case result.Kind == sniff.Incomplete:
		return false
	case other:
		c.refuseTunnel(reasonOtherName)
	default:
		c.watch = nil
		c.open(c.in)
	}
	return true
}
