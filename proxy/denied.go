package proxy

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/resolve"
)

// maxDeniedHosts bounds how many exactly denied hosts are looked up; those beyond are refused by name only.
const maxDeniedHosts = 1000

// deniedHosts knows the addresses of exactly denied hosts, so that a client that shows an address and no name does
// not reach them. It is a hedge and no containment: a host may have addresses that no look-up of ours shows.
type deniedHosts struct {
	hosts    []policy.Target
	known    atomic.Pointer[map[netip.Addr][]uint16] // denied ports of an address; 0 is every port
	unfollow context.CancelFunc
}

// newDeniedHosts returns those that p denies, nil if there are none.
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
	if len(d.hosts) == 0 {
		return nil
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

// follow keeps the addresses of d up to date until it is told to unfollow, and judges open flows again when there are
// others.
func (s *Session) follow(d *deniedHosts) {
	var ctx context.Context
	ctx, d.unfollow = context.WithCancel(s.server.context)
	s.server.running.Go(func() { d.follow(ctx, s.resolveName, func() { s.judgeAgain(d) }) })
}

// judgeAgain judges every flow again, if d belongs to the rules in force: an address may have become that of a denied
// host while a flow to it is open.
func (s *Session) judgeAgain(d *deniedHosts) {
	s.switching.Lock()
	defer s.switching.Unlock()
	r := s.rules()
	if r.denied != d {
		return
	}
	for _, w := range s.server.workers {
		w.Post(func() {
			if r == s.rules() {
				w.rejudge(s, r)
			}
		})
	}
	s.web.rejudge(s, r)
}

// follow looks the hosts up now and again when their answers expire, until ctx is done, and calls changed when there are
// other addresses.
func (d *deniedHosts) follow(ctx context.Context, lookup func(context.Context, string) (resolve.Answer, error), changed func()) {
	const least, most = 5 * time.Second, time.Hour
	for {
		known, next := make(map[netip.Addr][]uint16), time.Now().Add(most)
		for _, t := range d.hosts {
			answer, err := lookup(ctx, t.Host)
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
		if former := d.known.Swap(&known); former == nil || !maps.EqualFunc(*former, known, slices.Equal) {
			changed()
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
