package proxy

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"

	"sluice/matcher"
	"sluice/policy"
)

// maxDeniedHosts bounds how many exactly denied hosts are looked up; those beyond are refused by name only.
const maxDeniedHosts = 1000

// deniedHosts knows the addresses of exactly denied hosts, so that a client that shows an address and no name does
// not reach them. It is a hedge and no containment: a host may have addresses that no look-up of ours shows.
type deniedHosts struct {
	hosts []policy.Target
	known atomic.Pointer[map[netip.Addr][]uint16] // denied ports of an address; 0 is every port
}

func newDeniedHosts(p policy.Policy) *deniedHosts {
	if p.Mode != policy.Denylist {
		return nil
	}
	d := new(deniedHosts)
	for _, t := range p.Targets {
		if t.Kind == policy.Hostname && len(d.hosts) < maxDeniedHosts {
			d.hosts = append(d.hosts, t)
		}
	}
	return d
}

// refine refuses an address that belongs to a denied host. A nil d refuses nothing.
func (d *deniedHosts) refine(allowed matcher.Decision, a netip.Addr, port uint16) matcher.Decision {
	if d == nil {
		return allowed
	}
	known := d.known.Load()
	if known == nil {
		return allowed
	}
	for _, p := range (*known)[a] {
		if p == 0 || p == port {
			return matcher.Decision{Verdict: matcher.Refuse, Reason: reasonDeniedHost, Rule: matcher.NoRule}
		}
	}
	return allowed
}

// follow looks the hosts up now and again when their answers expire, until ctx is done. The first round has been
// made when ready is called.
func (d *deniedHosts) follow(ctx context.Context, r *lookups, ready func()) {
	const least, most = 5 * time.Second, time.Hour
	for {
		known, next := make(map[netip.Addr][]uint16), time.Now().Add(most)
		for _, t := range d.hosts {
			answer, err := r.Lookup(ctx, t.Host)
			if err != nil {
				answer.Expires = time.Now().Add(least)
			}
			for _, a := range answer.Addrs {
				known[a] = append(known[a], t.Port)
			}
			if answer.Expires.Before(next) {
				next = answer.Expires
			}
			if ctx.Err() != nil {
				return
			}
		}
		d.known.Store(&known)
		if ready != nil {
			ready()
			ready = nil
		}
		timer := time.NewTimer(max(time.Until(next), least))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}
