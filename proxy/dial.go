package proxy

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"sluice/matcher"
	"sluice/proxy/outgoing"
	"sluice/proxy/poll"
)

// maxAttempts bounds the connects that are under way for one client at a time.
const maxAttempts = 4

// race is one between the judged addresses of a target (RFC 8305, "Happy Eyeballs"): one after another gets
// a head start of attemptDelay, a failure starts the next at once, and the first to connect wins.
type race struct {
	conn     *conn
	addrs    []netip.Addr
	next     int
	place    int // in the worker's list
	attempts [maxAttempts]attempt
	live     int
	stagger  poll.Timer
	started  time.Time
	failure  error
}

// attempt is one connect under way. Its fd is -1 while it is free.
type attempt struct {
	race  *race
	fd    int
	addr  netip.Addr
	token poll.Token
}

// dialTo connects to one of addrs, all of them judged, in order of preference.
func (c *conn) dialTo(addrs []netip.Addr) {
	w := c.worker
	var d *race
	if n := len(w.dials); n > 0 {
		d = w.dials[n-1]
		w.dials = w.dials[:n-1]
	} else {
		d = new(race)
		for i := range d.attempts {
			d.attempts[i] = attempt{race: d, fd: -1}
		}
	}
	d.conn, d.addrs, d.started, d.place = c, interleave(addrs), w.Now(), len(w.racing)
	w.racing = append(w.racing, d)
	c.dial, c.state = d, dialling
	w.limits.Start(&c.timer, c)
	c.nextAttempt()
}

// interleave makes the families take turns (RFC 8305 section 4), beginning with the first address's. It may return
// addrs itself.
func interleave(addrs []netip.Addr) []netip.Addr {
	mixed := false
	for _, a := range addrs {
		mixed = mixed || a.Is4() != addrs[0].Is4()
	}
	if !mixed || len(addrs) == 2 {
		return addrs
	}
	var families [2][]netip.Addr
	for _, a := range addrs {
		i := 0
		if a.Is4() != addrs[0].Is4() {
			i = 1
		}
		families[i] = append(families[i], a)
	}
	out := make([]netip.Addr, 0, len(addrs))
	for i := 0; len(out) < len(addrs); i++ {
		for _, f := range families {
			if i < len(f) {
				out = append(out, f[i])
			}
		}
	}
	return out
}

// nextAttempt starts a connect to the next address that takes one, or gives up if there is none and none under way.
func (c *conn) nextAttempt() {
	d := c.dial
	if d == nil {
		return
	}
	d.stagger.Stop()
	now, refusal := c.session.rules(), matcher.Decision{}
	for d.next < len(d.addrs) && d.live < maxAttempts {
		addr := d.addrs[d.next]
		d.next++
		if now != c.rules { // a switch came
			s := c.subject()
			s.address = addr
			if refusal = c.session.flow(now, s); refusal.Verdict != matcher.Allow {
				continue
			}
		}
		if err := d.start(addr, c.target.port); err != nil {
			d.failure = err
			continue
		}
		if d.next < len(d.addrs) {
			c.worker.staggers.Start(&d.stagger, c)
		}
		return
	}
	switch {
	case d.live > 0:
	case d.failure == nil && refusal.Reason != "":
		c.rules, c.decision = now, refusal
		c.refuse(statusForbidden, refusal.Reason)
	default:
		c.dialFailed(d.failure)
	}
}

// rejudge ends the attempts that r refuses: the kernel would go on to send them.
func (d *race) rejudge(r *rules) {
	c, refusal := d.conn, matcher.Decision{}
	for i := range d.attempts {
		a := &d.attempts[i]
		if a.fd < 0 {
			continue
		}
		s := c.subject()
		s.address = a.addr
		if one := c.session.flow(r, s); one.Verdict != matcher.Allow {
			refusal = one
			a.stop()
		}
	}
	switch {
	case refusal.Reason == "" || d.live > 0:
	case d.next < len(d.addrs):
		c.nextAttempt()
	default:
		c.rules, c.decision = r, refusal
		c.refuse(statusForbidden, refusal.Reason)
	}
}

func (d *race) start(addr netip.Addr, port uint16) error {
	fd, err := connectSocket(d.conn.worker.server.config.Outgoing, netip.AddrPortFrom(addr, port))
	if err != nil {
		return err
	}
	for i := range d.attempts {
		a := &d.attempts[i]
		if a.fd >= 0 {
			continue
		}
		if a.token, err = d.conn.worker.Add(fd, a, 0, poll.Both); err != nil {
			unix.Close(fd)
			return err
		}
		a.fd, a.addr = fd, addr
		d.live++
		return nil
	}
	panic("proxy: more connects under way than counted")
}

// connectSocket begins a connect without waiting for it.
func connectSocket(own *outgoing.Sockets, to netip.AddrPort) (int, error) {
	family := unix.AF_INET6
	if to.Addr().Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err = option(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1); err == nil {
		if err = own.Connect(fd, to); errors.Is(err, unix.EINPROGRESS) {
			err = nil
		}
	}
	if err != nil {
		closeSocket(fd)
		return -1, err
	}
	return fd, nil
}

// Ready implements [poll.Handler].
func (a *attempt) Ready(_ uint8, events uint32) {
	c := a.race.conn
	if events&poll.Failed != 0 {
		errno, err := unix.GetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil {
			err = unix.Errno(errno)
		}
		a.race.failure = err
		a.stop()
		c.nextAttempt()
		return
	}
	if events&poll.Writable == 0 {
		return
	}
	c.up = side{fd: a.fd, token: a.token, writable: true}
	c.up.note(events)
	c.worker.Rebind(a.token, c, upTag)
	c.address = a.addr
	a.fd = -1
	a.race.live--
	c.worker.server.dialSeconds.Observe(c.worker.Now().Sub(a.race.started).Seconds())
	c.stopDialling()
	c.connected()
}

func (a *attempt) stop() {
	a.race.conn.worker.Remove(a.token)
	closeSocket(a.fd)
	a.fd = -1
	a.race.live--
}

// stopDialling ends what is left of the race.
func (c *conn) stopDialling() {
	d := c.dial
	if d == nil {
		return
	}
	c.dial = nil
	d.stagger.Stop()
	for i := range d.attempts {
		if a := &d.attempts[i]; a.fd >= 0 {
			a.stop()
		}
	}
	d.conn, d.addrs, d.next, d.failure = nil, nil, 0, nil
	w := c.worker
	last := len(w.racing) - 1
	w.racing[d.place] = w.racing[last]
	w.racing[d.place].place = d.place
	w.racing[last] = nil
	w.racing = w.racing[:last]
	w.dials = append(w.dials, d)
}

// dialLate gives up on a target that took too long, look-up included.
func (c *conn) dialLate() {
	switch c.state {
	case looking, dialling:
		c.fail(statusTimeout, reasonDialTimeout)
	case asking:
		c.refuseTunnel(reasonOtherName)
	}
}

func (c *conn) dialFailed(err error) { c.fail(dialFailure(err)) }

// dialFailure gives the status and reason for a failed connect.
func dialFailure(err error) (int, matcher.Reason) {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return statusGateway, reasonDialRefused
	case errors.Is(err, unix.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, context.DeadlineExceeded):
		return statusTimeout, reasonDialTimeout
	case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM),
		errors.Is(err, unix.EADDRNOTAVAIL), errors.Is(err, unix.EADDRINUSE): // no port left (connect(2), bind(2))
		return statusBusy, reasonCapacity
	default:
		return statusGateway, reasonUnreachable
	}
}
