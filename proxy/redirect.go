package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dns"
	"sluice/proxy/resolve"
	"sluice/proxy/sniff"
)

// silentTime is how long a redirected client may say nothing while no name of its destination is known that would
// allow it. Clients that speak first need a moment, those that wait for the server would wait for ever.
const silentTime = time.Second

// ServeRedirected serves connections that the kernel redirected to l, which it takes over, judging them by their
// original destination. A client that asked for explicit, or for l itself, is served as an HTTP proxy's client.
func (s *Session) ServeRedirected(l *net.TCPListener, explicit netip.AddrPort) error {
	defer l.Close()
	fd, err := duplicate(l)
	if err != nil {
		return fmt.Errorf("taking over the listener on %s: %w", l.Addr(), err)
	}
	if err := prepareListener(fd); err != nil {
		unix.Close(fd)
		return fmt.Errorf("setting up the listener on %s: %w", l.Addr(), err)
	}
	own, err := netip.ParseAddrPort(l.Addr().String())
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("the listener on %s has no address: %w", l.Addr(), err)
	}
	s.redirects.Store(true)
	return s.listen(fd, l.Addr(), &redirection{own: own, explicit: explicit, original: originalDestination})
}

// redirection tells what redirected connections were meant for.
type redirection struct {
	own, explicit netip.AddrPort
	original      func(fd int) (netip.AddrPort, error)
}

// originalDestination asks the kernel where a redirected connection was going (SO_ORIGINAL_DST, netfilter_ipv4.h and
// netfilter_ipv6/ip6_tables.h). It needs no capability.
func originalDestination(fd int) (netip.AddrPort, error) {
	var raw [unix.SizeofSockaddrInet6]byte
	for _, level := range []uintptr{unix.SOL_IP, unix.SOL_IPV6} {
		size := uint32(len(raw))
		_, _, errno := unix.RawSyscall6(unix.SYS_GETSOCKOPT, uintptr(fd), level, unix.SO_ORIGINAL_DST,
			uintptr(unsafe.Pointer(&raw)), uintptr(unsafe.Pointer(&size)), 0)
		if errno != 0 {
			continue
		}
		port := binary.BigEndian.Uint16(raw[2:])
		if level == unix.SOL_IP {
			return netip.AddrPortFrom(netip.AddrFrom4([4]byte(raw[4:8])), port), nil
		}
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(raw[8:24])).Unmap(), port), nil
	}
	return netip.AddrPort{}, os.NewSyscallError("getsockopt SO_ORIGINAL_DST", unix.ENOENT)
}

// redirected starts on a connection that came by redirection.
func (c *conn) redirected(how *redirection) {
	to, err := how.original(c.client.fd)
	switch {
	case err != nil:
		// Not redirected, or conntrack has forgotten it: where it was going cannot be known.
		c.refuseTunnel(reasonNoDestination)
		return
	case to == how.own, to == how.explicit:
		c.worker.heads.Start(&c.timer, c)
		c.readHead()
		return
	case to.Port() == 53:
		c.handToDNS()
		return
	}
	c.direct, c.protocol = true, protocolTCP
	c.target = endpoint{host: to.Addr().String(), addr: to.Addr(), port: to.Port()}
	c.begin()
}

// handToDNS gives a DNS client over TCP to the filter.
func (c *conn) handToDNS() {
	s, fd := c.session, c.client.fd
	c.worker.Detach(c.client.token, fd)
	c.client.fd = -1
	c.close()
	s.server.running.Go(func() {
		client, err := socketConn(fd)
		if err != nil {
			return
		}
		if server := s.names(); server != nil {
			server.ServeConn(s.server.context, client)
		} else {
			client.Close()
		}
	})
}

// judgeDirect judges a redirected connection before it has said anything, and dials if it may be whatever it says.
func (c *conn) judgeDirect() {
	s := c.session
	c.decision = s.direct(c.rules, c.subject())
	if c.decision.Verdict == matcher.Allow {
		c.single[0] = c.target.addr
		c.dialTo(c.single[:])
		return
	}
	if !c.rules.opensByName(c.decision) {
		c.refuseTunnel(c.decision.Reason)
		return
	}
	c.state = sniffing
	c.worker.silences.Start(&c.timer, c)
	if c.rules.policy.Mode == policy.Allowlist {
		c.lookUpExact()
	}
	c.sniff()
}

// opensByName reports whether a destination that d refuses may still be allowed by a name.
func (r *rules) opensByName(d matcher.Decision) bool {
	switch r.policy.Mode {
	case policy.Allowlist:
		return r.set.HasNameRules() && (d.Reason == matcher.NotListed || d.Reason == matcher.PortNotListed)
	case policy.Denylist:
		return d.Reason == matcher.NameRule || d.Reason == reasonDeniedHost
	default:
		return false
	}
}

// lookUpExact looks the exact names of the policy up, for a destination of which no name is known: the container may
// have its address from before the policy, or from a file.
func (c *conn) lookUpExact() {
	later := c.later(sniffing, asking, dialling)
	c.exact = true
	c.session.learnExact(c.rules, func() { later(c.learnt) })
}

// learnt goes on with a client whose destination may be known by an exact name now.
func (c *conn) learnt() {
	c.exact = false
	waiting := c.state == asking && c.shown == "" // it has spoken, and showed no name
	if !waiting && (c.state != sniffing || c.up.fd >= 0) {
		return // its own words have decided
	}
	c.rules = c.session.rules()
	d := c.session.direct(c.rules, c.subject())
	switch {
	case d.Verdict == matcher.Allow && waiting:
		c.openDirect(d, c.in)
	case d.Verdict == matcher.Allow:
		c.decision = d
		c.single[0] = c.target.addr
		c.dialTo(c.single[:])
	case waiting:
		c.decision = d
		c.refuseTunnel(d.Reason)
	}
}

// silent ends a redirected client that says nothing, and whose destination nothing allows.
func (c *conn) silent() {
	if c.state == sniffing && c.up.fd < 0 {
		c.refuseTunnel(c.decision.Reason)
	}
}

// direct judges a redirected flow: by the address that was or will be dialled, and by the name that the client showed
// or, if it showed none, by the names under which its container has looked the address up.
func (s *Session) direct(r *rules, f subject) matcher.Decision {
	port := f.target.port
	if s.isOwn(f.address, port) {
		return refusedOwn
	}
	d := r.target(endpoint{host: f.target.host, addr: f.address, port: port})
	if shown := addressIn(f.shown); shown.IsValid() {
		if r.policy.Mode == policy.Allowlist {
			return d // what allows the address that is shown allows no other one
		}
		if asked := r.set.Addr(shown, port); asked.Verdict == matcher.Refuse && asked.Reason == matcher.AddressRule {
			return asked
		}
		f.shown = "" // it shows no name
	}
	names := s.learned.of(f.address)
	switch r.policy.Mode {
	case policy.Allowlist:
		if d.Verdict == matcher.Allow || !r.opensByName(d) {
			return d
		}
		if f.opaque || f.shown == "" && webPort(port) && f.classified {
			return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonOpaque, Rule: matcher.NoRule}
		}
		if f.shown != "" {
			named := s.named(r, f.shown, f.address, port)
			if named.Verdict == matcher.Allow && !s.standsFor(f.shown, f.address, names) {
				return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonOtherAddress, Rule: named.Rule}
			}
			return named
		}
		for _, name := range names {
			if named := s.named(r, name, f.address, port); named.Verdict == matcher.Allow {
				return named
			}
		}
		return d
	case policy.Denylist:
		if f.shown != "" {
			if d.Reason == reasonDeniedHost {
				d = r.set.Addr(f.address, port) // another name is shown
			}
			names = []string{f.shown}
		}
		if d.Verdict != matcher.Allow {
			return d
		}
		if f.opaque && r.set.HasNameRules() {
			return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonOpaque, Rule: matcher.NoRule}
		}
		for _, name := range names {
			if named := r.set.Name(name, port); named.Verdict == matcher.Refuse && named.Reason == matcher.NameRule {
				return named
			}
		}
	}
	return d
}

// addressIn returns the address that is shown in the place of a name, or the invalid one.
func addressIn(shown string) netip.Addr {
	if shown == "" || (shown[0] < '0' || shown[0] > '9') && strings.IndexByte(shown, ':') < 0 { // as for most
		return netip.Addr{}
	}
	a, _ := netip.ParseAddr(shown)
	return a.Unmap()
}

func webPort(port uint16) bool { return port == 80 || port == 443 }

// named judges one name for an address.
func (s *Session) named(r *rules, name string, a netip.Addr, port uint16) matcher.Decision {
	d := r.set.Name(name, port)
	if d.Verdict == matcher.Refuse {
		if d.Reason != matcher.NameRule {
			d.Reason = reasonOtherName
		}
		return d
	}
	return r.set.Resolved(d, a, port)
}

// standsFor reports whether name is known to stand for an address; learned are the names of that address.
func (s *Session) standsFor(name string, a netip.Addr, learned []string) bool {
	for _, n := range learned {
		if n == name {
			return true
		}
	}
	answer, _ := s.resolver().Cached(name)
	for _, known := range answer.Addrs {
		if known == a {
			return true
		}
	}
	return false
}

// showDirect judges what a redirected client said first.
func (c *conn) showDirect(result sniff.Result, first []byte) {
	c.classified = true
	if now := c.session.rules(); now != c.rules { // a switch came before there was an upstream
		c.rules = now
		c.decision = c.session.direct(now, subject{target: c.target, address: c.target.addr, direct: true})
	}
	strict := c.rules.needsDirectName(c.decision)
	switch result.Kind {
	case sniff.TLS:
		c.protocol = protocolTLS
		switch {
		case result.Malformed:
			c.opaque = true
		case result.HasSNI:
			c.shown = lowerString(result.ServerName)
			c.watchHello(result)
		case strict && c.target.port == 443:
			c.refuseTunnel(reasonNoSNI)
			return
		case strict:
			c.classified = false // counts as neither TLS nor HTTP
			c.watchHello(result)
		default:
			c.watchHello(result)
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
		c.classified = false // its requests will tell
	case sniff.SSH:
		c.classified = false // may be on any port
	default:
		c.opaque = result.ProxyHeader
	}
	d := c.session.direct(c.rules, c.subject())
	if d.Verdict == matcher.Allow {
		c.openDirect(d, first)
		return
	}
	if c.shown != "" && d.Reason == reasonOtherAddress {
		c.askDirect(first)
		return
	}
	c.decision = d
	if c.shown == "" && c.exact && !c.opaque {
		if len(c.in) == 0 {
			c.keep(first)
		}
		c.state = asking
		c.worker.limits.Start(&c.timer, c)
		return
	}
	c.refuseTunnel(d.Reason)
}

// needsDirectName reports whether a redirected flow with decision d stands or falls with a name.
func (r *rules) needsDirectName(d matcher.Decision) bool {
	return r.policy.Mode == policy.Allowlist && d.Reason != matcher.AddressRule
}

// askDirect looks up the name that a redirected client showed: it is allowed, but not known to stand for the address.
func (c *conn) askDirect(first []byte) {
	if len(c.in) == 0 {
		c.keep(first)
	}
	c.state = asking
	c.worker.limits.Start(&c.timer, c)
	later, s, r, e := c.later(asking), c.session, c.rules, endpoint{host: c.shown, port: c.target.port}
	s.server.running.Go(func() {
		answer, err := s.lookUp(s.server.context, r, e)
		later(func() { c.answeredDirect(answer, err) })
	})
}

// answeredDirect dials the original destination if it belongs to the name, else one of the name's judged addresses: the
// container's may be older.
func (c *conn) answeredDirect(answer resolve.Answer, err error) {
	s := c.session
	c.rules = s.rules()
	if d := s.direct(c.rules, c.subject()); d.Verdict == matcher.Allow {
		c.openDirect(d, c.in)
		return
	} else if errors.Is(err, resolve.ErrForbidden) {
		c.decision = d
		c.refuseTunnel(dns.ReasonNameBudget)
		return
	} else if err != nil || d.Reason != reasonOtherAddress {
		c.decision = d
		c.refuseTunnel(d.Reason)
		return
	}
	e := endpoint{host: c.shown, port: c.target.port}
	name := c.rules.target(e)
	may, d := s.reach(c.rules, name, e, answer)
	if c.decision = d; len(may) == 0 {
		c.refuseTunnel(d.Reason)
		return
	}
	c.judged = true
	c.dropUpstream()
	c.dialTo(may)
}

// openDirect dials, if that is not done or under way, and passes the first bytes on.
func (c *conn) openDirect(d matcher.Decision, first []byte) {
	c.decision = d
	if c.up.fd >= 0 {
		c.open(first)
		return
	}
	if len(c.in) == 0 {
		c.keep(first)
	}
	c.judged = true
	if c.dial == nil {
		c.single[0] = c.target.addr
		c.dialTo(c.single[:])
	}
}

// dropUpstream closes an upstream that is not needed any more, and ends the search for one.
func (c *conn) dropUpstream() {
	c.stopDialling()
	if c.up.fd >= 0 {
		c.unlist()
		c.up.drop(c.worker)
		c.worker.Remove(c.up.token)
		closeSocket(c.up.fd)
		c.up = side{fd: -1}
	}
}
