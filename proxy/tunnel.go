package proxy

import (
	"context"
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/matcher"
	"sluice/proxy/dns"
	"sluice/proxy/resolve"
	"sluice/proxy/sniff"
)

var established = []byte("HTTP/1.1 200 Connection established\r\n\r\n")

// connected answers the client and opens the tunnel, if the rules in force still allow it.
func (c *conn) connected() {
	c.timer.Stop()
	if now := c.session.rules(); now != c.rules {
		c.rules, c.decision = now, c.session.flow(now, c.subject())
		if c.decision.Verdict != matcher.Allow {
			c.refuse(statusForbidden, c.decision.Reason)
			return
		}
	}
	c.list()
	if c.direct {
		c.state = sniffing
		c.client.writable = true
		c.worker.settles.Start(&c.timer, c)
		c.resume()
		return
	}
	n, err := writeSocket(c.client.fd, established)
	if err != nil && err != unix.EAGAIN {
		c.broken()
		return
	}
	if n < len(established) {
		c.up.held = c.worker.keep(nil, established[n:])
	}
	c.client.writable = n == len(established)
	c.state = sniffing
	c.worker.settles.Start(&c.timer, c)
	c.sniff()
}

func (c *conn) subject() subject {
	address := c.address
	if !address.IsValid() {
		address = c.target.addr
	}
	return subject{target: c.target, chain: c.chain, address: address, shown: c.shown, proven: c.proven,
		nameless: c.nameless, opaque: c.opaque,
		direct: c.direct, classified: c.classified}
}

// resume goes on with a redirected client whose upstream is there now.
func (c *conn) resume() {
	switch {
	case c.judged:
		c.open(c.in)
	case c.sniffer != nil:
		if c.classify(c.in, c.client.ended) {
			return
		}
		c.sniff()
	default:
		c.sniff()
	}
}

// waits reports whether the upstream must not be heard before the client is understood: what is said on the ports of
// the web must be TLS, HTTP or SSH where only a name allows it.
func (c *conn) waits() bool {
	return c.direct && webPort(c.target.port) && c.rules.needsDirectName(c.decision)
}

// sniff lets the upstream speak, and reads what the client says first until it is known what that is.
func (c *conn) sniff() {
	if c.up.fd >= 0 {
		if !c.waits() {
			if again, ok := c.pump(&c.up, &c.client); !ok {
				return
			} else if again {
				c.worker.Again(c.client.token)
			}
		}
		if !c.flushClient() {
			return
		}
	}
	w := c.worker
	if len(c.in) > 0 && c.sniffer == nil { // came right behind the CONNECT
		if c.classify(c.in, false) {
			return
		}
	}
	for c.client.readable && !c.client.ended {
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
			c.classify(c.in, true)
			return
		case n < len(w.scratch) && !c.client.doubt:
			c.client.readable = false
		}
		first := w.scratch[:n]
		if len(c.in) > 0 {
			c.keep(first)
			first = c.in
		}
		if c.classify(first, false) {
			return
		}
	}
}

// classify acts on the client's first bytes, all of them, and reports whether they have told what they are.
//
// While they have not, what may still become a ClientHello waits. Text is passed on as it comes, for a client that
// says one word and waits for the answer; what ends its first line also tells what it is, and no server acts on a
// request before that.
func (c *conn) classify(first []byte, eof bool) bool {
	var result sniff.Result
	if c.sniffer == nil {
		result = sniff.Classify(first, eof)
	} else {
		result = c.sniffer.Classify(first, eof)
	}
	if result.Kind != sniff.Incomplete {
		c.show(result, first)
		return true
	}
	b := first[0]
	mayBeTLS := b >= 0x80 || b >= 0x14 && b <= 0x18
	if c.sniffer == nil {
		c.sniffer = new(sniff.Sniffer)
		c.sniffer.Classify(first, eof)
		if len(c.in) == 0 {
			c.keep(first)
		}
		if mayBeTLS || c.up.fd < 0 { // else it may be quiet for as long as it likes
			c.worker.heads.Start(&c.timer, c) // for all of it
		}
	}
	if c.worker.full() {
		c.refuseTunnel(reasonCapacity)
		return true
	}
	if mayBeTLS {
		return false
	}
	if c.up.fd >= 0 && !c.waits() {
		text := len(first)
		if result.Hold {
			text--
		}
		c.forward(first[c.passed:text])
		c.passed = text
		return c.answerOnly()
	}
	return false
}

// show judges what the client showed inside its tunnel.
func (c *conn) show(result sniff.Result, first []byte) {
	if c.direct {
		c.showDirect(result, first)
		return
	}
	switch result.Kind {
	case sniff.TLS:
		c.protocol = protocolTLS
		switch {
		case result.Malformed:
			c.opaque = true
		case result.HasSNI:
			c.watchHello(result)
			c.ask(lowerString(result.ServerName), first)
			return
		default:
			c.watchHello(result)
			c.nameless = c.target.port == 443
		}
	case sniff.HTTP1:
		if !result.Malformed && !c.spokenTo() {
			c.handTunnelToWeb(first)
			return
		}
		c.opaque = true
	case sniff.HTTP2:
		c.protocol = protocolHTTP
		if !c.readStreams() {
			return
		}
	default:
		c.opaque = result.ProxyHeader
	}
	switch {
	case c.opaque && c.rules.needsName(c.decision):
		c.refuseTunnel(reasonOpaque)
	case c.nameless && c.rules.refusesNameless(c.decision):
		c.refuseTunnel(reasonNoSNI)
	default:
		c.open(first)
	}
}

// spokenTo reports whether the upstream has spoken before the client did: then it is no HTTP server, and what it says
// is no answer to a request.
func (c *conn) spokenTo() bool { return c.bytesIn > 0 || c.up.holds() }

// ask judges a name that the client showed, which may take a look-up.
func (c *conn) ask(shown string, first []byte) {
	if shown == c.target.host {
		c.open(first)
		return
	}
	c.shown = shown
	answer, known := c.resolver().Cached(shown)
	c.proven = slices.Contains(answer.Addrs, c.address)
	d, lookUp := c.rules.inner(c.subject(), c.decision, shown, answer.Addrs, known)
	if !lookUp {
		c.asked(d, first)
		return
	}
	if len(c.in) == 0 {
		c.keep(first)
	}
	c.state = asking
	c.worker.limits.Start(&c.timer, c)
	later, r, session, server := c.later(asking), c.rules, c.session, c.session.server
	e := endpoint{host: shown, port: c.target.port}
	server.running.Go(func() {
		ctx, cancel := context.WithTimeout(server.context, server.config.DialTimeout)
		defer cancel()
		answer, err := session.resolveFor(ctx, r, e)
		later(func() { c.answered(answer, err) })
	})
}

func (c *conn) answered(answer resolve.Answer, err error) {
	if errors.Is(err, resolve.ErrForbidden) {
		c.refuseTunnel(dns.ReasonNameBudget)
		return
	}
	c.rules = c.session.rules()
	c.proven = slices.Contains(answer.Addrs, c.address)
	d := c.rules.target(c.target)
	if d.Verdict != matcher.Refuse {
		d = c.rules.address(d, c.target, c.chain, c.address)
	}
	if d.Verdict == matcher.Allow {
		d, _ = c.rules.inner(c.subject(), d, c.shown, answer.Addrs, true)
	}
	c.asked(d, c.in)
}

func (c *conn) asked(d matcher.Decision, first []byte) {
	if d.Verdict != matcher.Allow {
		c.decision = d
		c.refuseTunnel(d.Reason)
		return
	}
	c.open(first)
}

// open passes the client's first bytes on and relays from now on.
func (c *conn) open(first []byte) {
	c.worker.settles.Start(&c.timer, c)
	if c.watch != nil || c.streams != nil {
		c.sniffer = nil
		c.openWatched(first)
		return
	}
	if c.forward(first[c.passed:]); c.state != closed {
		c.relayFrom()
	}
}

// forward sends b to the upstream, or lets it wait behind what waits already.
func (c *conn) forward(b []byte) {
	if len(b) == 0 {
		return
	}
	sent, err := 0, error(nil)
	if c.up.writable && !c.client.holds() {
		if sent, err = writeSocket(c.up.fd, b); err == unix.EAGAIN {
			err = nil
		}
		c.count(&c.client, sent)
	}
	if err != nil {
		c.unsent(&c.client, err)
		return
	}
	if sent == len(b) {
		return
	}
	c.up.writable = c.up.writable && c.client.holds()
	c.client.held = c.worker.keep(c.client.held, b[sent:])
}

// flushClient passes on what waits of the client while it is not relayed yet, and reports whether that is still so.
func (c *conn) flushClient() bool {
	n, err := c.client.flush(&c.up)
	c.count(&c.client, n)
	switch {
	case err != nil:
		c.unsent(&c.client, err)
	case !c.client.holds():
		c.client.rest(c.worker)
	case c.clientLeft():
		return false
	}
	return !c.answerOnly()
}

// answerOnly reports whether the tunnel is past what the client says first because the upstream reads no more, or has
// ended. In the first case what the upstream still says is relayed.
func (c *conn) answerOnly() bool {
	if c.state == closed {
		return true
	}
	if c.cutShort {
		c.watch = nil
		c.dropStreams()
		c.relayFrom()
	}
	return c.cutShort
}

// relayFrom relays from now on.
func (c *conn) relayFrom() {
	c.sniffer = nil
	c.worker.release(c.in)
	c.in = nil
	c.state = relaying
	c.relay()
}
