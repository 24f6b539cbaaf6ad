package cut

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Sweep deletes the conntrack entries of refused connections that [Cut] would, also those that no socket stands for: of processes that
// have ended, of raw frames. Nothing can be sent by them, since the rules refuse every packet; but until they time out
// the host translates what the far end sends, for whoever comes to read it, and inside they keep their ports from being
// redirected anew. Where [Spec.First] is set it deletes those too that lead to ports inside that nobody has any more: of
// listeners before the present ones, where a client that takes the same port again would be refused.
//
// It is for after the answer to whoever has asked for a switch, and for many containers together: it walks through the
// kernel's one table once for each, for its namespace, and then for the host's entries of all. A walk takes 10 ms and more,
// unless there are few entries. host is the namespace of the containers' bridges, nil for the one that this process runs
// in. A container whose namespace has been closed ([os.ErrClosed]) is left out.
func Sweep(host *netns.Namespace, places []Place) (r Report, err error) {
	h := &cutter{on: onHost(host)}
	defer h.close()
	if err := h.on(h.enterHost); err != nil {
		return r, fmt.Errorf("sweep connections on the host: %w", err)
	}
	var errs []error
	of := make(map[netip.Addr]*place)
	for _, p := range places {
		at := &place{Place: p, report: &r}
		spec := at.now()
		if spec == nil {
			continue
		}
		at.addresses = spec.Addresses
		for _, a := range spec.Addresses {
			of[a] = at
		}
		if err := p.Enter(func() error { return at.sweepInside(spec, h.host) }); err != nil && !errors.Is(err, os.ErrClosed) {
			errs = append(errs, fmt.Errorf("sweep connections of %v: %w", spec.Addresses, err))
		}
	}
	if err := h.sweepAll(of); err != nil {
		errs = append(errs, fmt.Errorf("sweep connections on the host: %w", err))
	}
	r.Swept = len(errs) == 0
	return r, errors.Join(errs...)
}

// handful is how many entries are deleted at once. A switch waits for no more.
const handful = 16

// place is one that is being swept.
type place struct {
	Place
	report    *Report
	addresses []netip.Addr // for which entries are looked for; nil before that
	victims   []victim     // on the host
}

// hold is Hold while the container has these addresses. Others may have them afterwards.
func (p *place) hold(do func(*Spec)) {
	p.Hold(func(s *Spec) {
		if p.addresses == nil || slices.Equal(p.addresses, s.Addresses) {
			do(s)
		}
	})
}

// now is what is refused at present, nil if that is not known.
func (p *place) now() (spec *Spec) {
	p.hold(func(s *Spec) { spec = s })
	return spec
}

// sweepInside does so in the namespace of the calling thread, and on the host with the same connections.
func (p *place) sweepInside(spec *Spec, host *conn) error {
	here := func(f func() error) error { return f() }
	c := &cutter{Spec: spec, own: make(map[netip.Addr]bool), host: host, in: here}
	defer func() {
		c.host = nil // is needed further on
		c.close()
	}()
	if err := c.enterConntrack(); err != nil {
		return err
	}
	var stale stale
	if spec.First {
		var err error
		if c.diag, err = dial(unix.NETLINK_SOCK_DIAG); err != nil {
			return err
		}
		if stale.sockets, err = c.diag.ends(); err != nil {
			return err
		}
	}
	victims, err := c.victimsInside(stale.look)
	if err != nil {
		return err
	}
	n, err := c.inside.remove(stale.requests)
	p.report.Entries += n
	return errors.Join(err, p.end(c, victims))
}

// end deletes entries that are still refused when it does.
func (p *place) end(c *cutter, victims []victim) (err error) {
	for len(victims) > 0 && err == nil {
		some := victims[:min(handful, len(victims))]
		victims = victims[len(some):]
		p.hold(func(now *Spec) {
			var refused []victim
			for _, v := range some {
				if v.refusedBy(now) {
					refused = append(refused, v)
				}
			}
			err = c.end(refused)
		})
	}
	r := &c.report
	p.report.Ended, p.report.Entries, p.report.HostEntries = p.report.Ended+r.Ended, p.report.Entries+r.Entries, p.report.HostEntries+r.HostEntries
	*r = Report{}
	return err
}

// fewWalks is up to how many walks for an address each are better than to be told every entry of the host's.
const fewWalks = 2

// sweepAll deletes the host's entries that began with a packet from a container's address.
func (c *cutter) sweepAll(of map[netip.Addr]*place) error {
	var addresses []netip.Addr
	specs := make(map[*place]*Spec)
	for a, p := range of {
		if specs[p] == nil {
			specs[p] = p.now()
		}
		if specs[p] != nil {
			addresses = append(addresses, a)
		}
	}
	each := func(e *entry) {
		p := of[e.original.source.Addr()]
		if p == nil || specs[p] == nil || !e.masked() {
			return
		}
		v := victim{far: e.original.destination, protocol: e.protocol}
		if v.refusedBy(specs[p]) {
			v.host = e.exact()
			p.victims = append(p.victims, v)
		}
	}
	list := c.host.from
	if walks(addresses) > fewWalks {
		list = func(_ []netip.Addr, each func(entry)) error { return c.host.all(each) }
	}
	if len(addresses) == 0 {
		return nil
	}
	if err := c.everyHostEntry(addresses, each, list); err != nil {
		return err
	}
	var errs []error
	for p := range specs {
		errs = append(errs, p.end(c, p.victims))
	}
	return errors.Join(errs...)
}

// walks is how often [conn.from] goes through the table.
func walks(addresses []netip.Addr) (n int) {
	ipv6 := 0
	for _, a := range addresses {
		if a.Is4() {
			n++
		} else {
			ipv6 = 1
		}
	}
	return n + ipv6
}
