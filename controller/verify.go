package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/controller/tally"
	"sluice/dockernet/guard"
	"sluice/dockernet/probe"
	"sluice/matcher"
	"sluice/policy"
)

// Prober sends packets from inside of a container, and says what the rules have counted.
type Prober interface {
	// Probe sends one, and waits for what comes of it.
	Probe(ctx context.Context, p probe.Probe) probe.Answer
	Counted() (Counted, error)
}

// Counted are numbers of packets and frames, ever since the rules were made. Rules that are gone count nothing.
type Counted struct {
	Packets
	// Frames are those that the rules inside have refused because the workload had made them, and Guard those that the
	// rules outside have refused for what they are. Links is on how many links that was looked for.
	Frames, Guard uint64
	Links         int
}

// countLimit and recordLimit are how long is waited for a counter to move, and then for records: both are as good as
// immediate. Tests wait less.
var countLimit, recordLimit = 500 * time.Millisecond, 500 * time.Millisecond

const askAgain = 5 * time.Millisecond

// Verify sends probes from inside of a container. Those that the policy in force refuses must be refused by the rules of
// gate and guard or by the proxy, whose counters must have moved; some must work. A switch waits until it is done.
//
// Nothing that a probe sends leaves the host as long as the policy holds, but what is to be reached. If it does not hold,
// it goes to addresses of nobody, see package probe, or to the cloud's metadata.
func (c *Controller) Verify(ctx context.Context, ref string, v api.Verify) (api.Verification, error) {
	m, err := c.locked(ctx, ref)
	if err != nil {
		return api.Verification{}, err
	}
	defer m.leave()
	if v.Quarantine {
		ctx = context.WithoutCancel(ctx)
	}
	switch {
	case m.record.State == api.Quarantined:
		return api.Verification{}, &control.Error{Code: control.CodeQuarantined, Message: fmt.Sprintf(
			"container %s is quarantined, so there is no policy to verify: %s", m.name(), m.record.Problem)}
	case m.net == nil || m.plan == nil:
		return api.Verification{}, &control.Error{Code: control.CodeConflict, Message: fmt.Sprintf(
			"container %s has no policy in force: start it, or ask again in a few seconds", m.name())}
	}
	checks, err := m.plan.checks(m.record.Phase, v.Reach)
	if err != nil {
		return api.Verification{}, control.InvalidError(err)
	}
	done, err := c.verify(ctx, m, checks)
	problem := done.Problem()
	if err != nil {
		problem = err.Error()
	}
	if v.Quarantine && problem != "" {
		_ = c.quarantine(ctx, m, "verifying", errors.New(problem)) // says the same
	}
	if err != nil {
		return done, fmt.Errorf("verify container %s: %w", m.name(), err)
	}
	c.log.Info("verified", "container", done.Container, "phase", done.Phase, "ok", done.OK, "problem", problem)
	return done, nil
}

func (c *Controller) verify(ctx context.Context, m *member, checks []check) (api.Verification, error) {
	s := m.shown.Load().status
	v := api.Verification{Container: s.Name, ContainerID: s.ID, Phase: s.Phase, Mode: s.Mode, Generation: s.Generation,
		Digest: s.Digest, Began: time.Now(), OK: true}
	records := c.recordsAbout(s.ID)
	defer records.end()
	before, err := m.net.Counted()
	if err != nil {
		return v, err
	}
	for i := range checks {
		one := &checks[i]
		if one.skip == "" {
			if before, err = one.run(ctx, m, before); err != nil {
				return v, err
			}
		}
		v.Probes = append(v.Probes, one.result())
	}
	limit := time.Now().Add(recordLimit)
	for i := range v.Probes {
		for checks[i].recorded && v.Probes[i].Decision == "" && time.Now().Before(limit) && ctx.Err() == nil {
			if v.Probes[i].Decision = records.about(&checks[i]); v.Probes[i].Decision == "" {
				time.Sleep(askAgain)
			}
		}
		if reason, through := records.letThrough(&checks[i]); through && v.Probes[i].Verdict == api.Passed {
			v.Probes[i].Verdict, v.Probes[i].Detail = api.Leaked, "the proxy let it through and failed then: "+reason
		}
		verdict := v.Probes[i].Verdict
		c.metrics.probes.WithLabelValues(string(verdict)).Inc()
		v.OK = v.OK && (verdict == api.Passed || verdict == api.Skipped)
	}
	v.Milliseconds = milliseconds(time.Since(v.Began))
	return v, ctx.Err()
}

// want is what has to become of a probe, and what shows it.
type want uint8

const (
	wantRefused want = iota // by the kernel, or by the proxy without a word
	wantWords               // a refusal in words, from the DNS filter or the proxy
	wantDropped             // by rules that say nothing
	wantFrames              // by those for frames, inside or outside
	wantGuard               // by those outside
	wantWorks               // through the rules
	wantSelf                // past them
)

// check is a probe, and what is expected of it.
type check struct {
	name, target string
	probe.Probe
	want     want
	skip     string // why it does not apply
	recorded bool   // there should be a record about it

	phase  policy.Phase
	answer probe.Answer
	proof  []string
}

// run sends the probe and waits until it was counted. It returns what is counted now.
func (k *check) run(ctx context.Context, m *member, before Counted) (now Counted, err error) {
	k.answer = m.net.Probe(ctx, k.Probe)
	end := time.Now().Add(countLimit)
	for {
		if now, err = m.net.Counted(); err != nil {
			return now, err
		}
		k.proof = k.proven(&before, &now)
		if len(k.proof) > 0 || k.want == wantSelf || k.answer.Outcome == probe.Unreachable || time.Now().After(end) || ctx.Err() != nil {
			break
		}
		time.Sleep(askAgain)
	}
	if k.answer.Outcome == probe.Unreachable { // so nothing was sent, whatever was counted meanwhile
		k.skip, k.recorded, k.proof = "no route there in the container", false, nil
	}
	return now, ctx.Err()
}

// proven are the counters that show what has become of it.
func (k *check) proven(before, now *Counted) (proof []string) {
	moved := func(name string, before, now uint64) {
		if now > before {
			proof = append(proof, name)
		}
	}
	refused := func() {
		moved("gate "+k.phase.String()+" refused", before.Refused[k.phase], now.Refused[k.phase])
		moved("gate refused", before.Never, now.Never)
	}
	proxied := func() {
		moved("gate to proxy", before.Proxied, now.Proxied)
		moved("gate to DNS filter", before.DNS, now.DNS)
	}
	switch k.want {
	case wantRefused:
		refused()
		if k.Kind == probe.TCP && k.answer.Outcome == probe.Closed {
			proxied()
		}
	case wantWords:
		proxied()
	case wantDropped, wantFrames, wantGuard:
		// The workload's own refused frames move the same counters. What has become of this very one on each link is
		// known apart from these: it was stopped at once, or arrived before the guard and was not seen behind it.
		a := &k.answer
		if a.Outcome != probe.Refused && (now.Links == 0 || a.Stopped+a.Arrived < cmp.Or(a.Sent, 1)) || a.Sent > 0 && a.Sent < now.Links {
			return nil
		}
		if a.Outcome == probe.Refused {
			refused()
		}
		if a.Stopped > 0 {
			moved("gate frames", before.Frames, now.Frames)
		}
		if a.Arrived > 0 {
			moved("guard", before.Guard, now.Guard)
		}
	case wantWorks:
		moved("gate "+k.phase.String()+" direct", before.Direct[k.phase], now.Direct[k.phase])
		proxied()
	}
	return proof
}

// result says what it has shown.
func (k *check) result() api.Probe {
	r := api.Probe{Name: k.name, Target: k.target, Want: "refused", Proof: k.proof, Decision: k.answer.Decision}
	if k.want >= wantWorks {
		r.Want = "works"
	}
	if k.skip != "" {
		r.Verdict, r.Detail = api.Skipped, k.skip
		return r
	}
	r.Got, r.Detail = k.answer.Outcome.String(), k.answer.Detail
	if k.want < wantWorks && (k.answer.Passed > 0 || k.answer.Arrived > 0 && k.Kind < probe.RawSource) {
		r.Verdict, r.Detail, r.Proof = api.Leaked, "it was seen outside of the container", nil
		return r
	}
	var fits bool
	switch o := k.answer.Outcome; k.want {
	case wantRefused:
		fits = o == probe.Refused || o == probe.Closed && k.Kind == probe.TCP
	case wantWords:
		fits = o == probe.Blocked
	case wantDropped, wantFrames, wantGuard:
		fits = o == probe.Silent || o == probe.Refused
	default:
		fits = o == probe.Answered
	}
	switch {
	case !fits && r.Want == "works":
		r.Verdict = api.Broken
	case !fits:
		r.Verdict = api.Leaked
	case len(k.proof) == 0 && k.want != wantSelf:
		r.Verdict = api.Unproven
	default:
		r.Verdict = api.Passed
	}
	return r
}

var (
	metadata   = netip.MustParseAddr("169.254.169.254")
	ownDNS     = netip.MustParseAddrPort("127.0.0.11:53")
	nobodies   = []netip.Addr{probe.Nobody4, netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("240.0.0.1")}
	nobodies6  = []netip.Addr{probe.Nobody6, netip.MustParseAddr("3fff::1")} // RFC 9637
	nobodyName = "sluice-verify.invalid"                                     // RFC 6761 §6.4
)

const (
	discardPort, httpPort, quicPort, dnsPort = 9, 80, 443, 53
	maxClosed                                = 4
	maxReach                                 = 16
)

// checks are the probes for a phase.
func (p *Plan) checks(phase policy.Phase, reach []string) ([]check, error) {
	rules := p.Direct.Phases[phase].Rules
	mode := rules.Mode().String()
	var all []check
	add := func(name, target, skip string, w want, one probe.Probe) {
		all = append(all, check{name: name, target: target, Probe: one, want: w, skip: skip, phase: phase,
			recorded: w <= wantWords && skip == ""})
	}
	all = append(all, check{name: "loopback", target: "127.0.0.1", Probe: probe.Probe{Kind: probe.Loopback}, want: wantSelf, phase: phase})

	name, skip := p.refusedName(phase)
	add("dns-udp", name, skip, wantWords, probe.Probe{Kind: probe.DNS, Name: name, To: netip.AddrPortFrom(probe.Nobody4, dnsPort)})
	add("dns-tcp", name, skip, wantWords, probe.Probe{Kind: probe.DNSTCP, Name: name, To: netip.AddrPortFrom(probe.Nobody4, dnsPort)})
	add("engine-resolver", name, skip, wantWords, probe.Probe{Kind: probe.DNS, Name: name, To: ownDNS})

	to := func(list []netip.Addr, port uint16) (netip.AddrPort, string) {
		for _, a := range list {
			if p.refuses(phase, a, port) {
				return netip.AddrPortFrom(a, port), ""
			}
		}
		return netip.AddrPortFrom(list[0], port), mode + " allows all addresses"
	}
	floor := func(port uint16) (netip.AddrPort, string) {
		a, skip := to([]netip.Addr{metadata}, port)
		if skip != "" {
			skip = mode + " allows it"
		}
		return a, skip
	}
	send := func(name string, kind probe.Kind, mark uint32) func(netip.AddrPort, string) {
		return func(to netip.AddrPort, skip string) {
			target := to.String()
			if to.Port() == 0 {
				target = to.Addr().String()
			}
			add(name, target, skip, wantRefused, probe.Probe{Kind: kind, To: to, Mark: mark})
		}
	}
	send("tcp4", probe.TCP, 0)(to(nobodies, discardPort))
	send("tcp6", probe.TCP, 0)(to(nobodies6, discardPort))
	send("udp4", probe.UDP, 0)(to(nobodies, discardPort))
	send("udp6", probe.UDP, 0)(to(nobodies6, discardPort))
	quic, skip := to(nobodies, quicPort)
	if rules.Mode() == policy.Denylist && rules.HasNameRules() {
		skip = ""
	}
	send("quic", probe.UDP, 0)(quic, skip)
	send("icmp4", probe.Echo, 0)(to(nobodies, 0))
	send("icmp6", probe.Echo, 0)(to(nobodies6, 0))
	send("metadata", probe.TCP, 0)(floor(httpPort))
	send("metadata-udp", probe.UDP, 0)(floor(httpPort))
	marked, skip := to(nobodies, discardPort)
	if skip != "" {
		marked, skip = floor(discardPort)
	}
	send("forged-mark", probe.UDP, uint32(guard.DefaultMark))(marked, skip)

	target := netip.AddrPortFrom(metadata, httpPort)
	_, skip = floor(httpPort)
	for _, explicit := range p.Explicit {
		add("proxy-floor", target.String(), skip, wantWords, probe.Probe{Kind: probe.Connect, To: explicit, Name: target.String()})
	}
	closed := slices.DeleteFunc(slices.Clone(p.Direct.Closed), func(a netip.AddrPort) bool { return slices.Contains(p.Direct.Open, a) })
	if len(closed) == 0 {
		add("control-port", "-", "no port of sidecar or controller is on a host address", wantRefused, probe.Probe{})
	}
	for _, a := range closed[:min(len(closed), maxClosed)] {
		send("control-port", probe.TCP, 0)(a, "")
	}
	nobody := netip.AddrPortFrom(probe.Nobody4, 0)
	add("raw-source", probe.Nobody4.String(), "", wantDropped, probe.Probe{Kind: probe.RawSource, To: nobody})
	add("raw-frame", probe.Nobody4.String(), "", wantFrames, probe.Probe{Kind: probe.Frame, To: nobody})
	add("forged-arp", probe.Stranger4.String(), "", wantGuard, probe.Probe{Kind: probe.ARP})

	if len(reach) > maxReach {
		return nil, fmt.Errorf("%d destinations to reach: give %d at most", len(reach), maxReach)
	}
	for _, r := range reach {
		one, err := p.reach(r)
		if err != nil {
			return nil, err
		}
		add("reach", r, "", wantWorks, one)
	}
	return all, nil
}

// refuses reports whether a phase refuses an address that nobody on the container's networks has.
func (p *Plan) refuses(phase policy.Phase, a netip.Addr, port uint16) bool {
	return p.Direct.Phases[phase].Rules.Addr(a, port).Verdict == matcher.Refuse && len(p.near(a.String())) == 0 &&
		!slices.Contains(p.Direct.Open, netip.AddrPortFrom(a, port))
}

// refusedName finds a name that a phase refuses, and that is asked of nobody.
func (p *Plan) refusedName(phase policy.Phase) (name, skip string) {
	one := p.Policy(phase)
	switch one.Mode {
	case policy.NoNetwork:
		return nobodyName, ""
	case policy.Allowlist:
		if slices.ContainsFunc(one.Targets, func(t policy.Target) bool { return covers(t, nobodyName) }) {
			return nobodyName, "the policy names it"
		}
		return nobodyName, ""
	case policy.Denylist:
		for _, t := range one.Targets {
			switch {
			case t.Port != 0:
			case t.Kind == policy.Hostname:
				return t.Host, ""
			case t.Kind == policy.Wildcard:
				return "sluice-verify" + strings.TrimPrefix(t.Host, "*"), ""
			}
		}
	}
	return nobodyName, one.Mode.String() + " refuses no name"
}

// reach is a probe for what has to be reached: a name by way of the proxy, if that is not near, and an address straight.
func (p *Plan) reach(target string) (probe.Probe, error) {
	host, port, err := splitTarget(target)
	if err != nil {
		return probe.Probe{}, err
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return probe.Probe{Kind: probe.TCP, To: netip.AddrPortFrom(a.Unmap(), port)}, nil
	}
	if near := p.near(host); len(near) > 0 {
		return probe.Probe{Kind: probe.TCP, To: netip.AddrPortFrom(near[0], port)}, nil
	}
	return probe.Probe{Kind: probe.Connect, To: p.Explicit[0], Name: target}, nil
}

// records are audit records about one container, as they come.
type records struct {
	subscription *control.Subscription
	done         chan struct{}

	mu  sync.Mutex // guards all
	all []control.Event
}

// maxRecords bounds what is kept of a container that is refused very much meanwhile.
const maxRecords = 10_000

func (c *Controller) recordsAbout(id string) *records {
	r := &records{subscription: c.events.Subscribe(), done: make(chan struct{})}
	go func() {
		defer close(r.done)
		for e := range r.subscription.C {
			r.mu.Lock()
			if e.ContainerID == id && len(r.all) < maxRecords {
				r.all = append(r.all, e)
			}
			r.mu.Unlock()
		}
	}()
	return r
}

func (r *records) end() {
	r.subscription.Close()
	<-r.done
}

// about returns the decision of a record about a probe, "" if there is none.
func (r *records) about(k *check) string {
	host := k.Name
	if k.Kind != probe.DNS && k.Kind != probe.DNSTCP {
		host = k.To.Addr().String()
	}
	protocol := map[probe.Kind]string{probe.UDP: "udp", probe.Echo: "icmp"}[k.Kind]
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.all {
		e := &r.all[i]
		if strings.TrimSuffix(e.Target, ".") == host && e.Verdict == matcher.Refuse.String() && e.Decision != "" &&
			(protocol == "" || e.Protocol == protocol) && (k.Kind >= probe.DNS || e.Port == cmp.Or(k.To.Port(), e.Port)) {
			return e.Decision
		}
	}
	return ""
}

// letThrough finds a record that the proxy would have carried a connection that should have been refused. That it was
// closed shows nothing then: nobody is there.
func (r *records) letThrough(k *check) (reason string, through bool) {
	if k.want != wantRefused || k.Kind != probe.TCP || k.answer.Outcome != probe.Closed {
		return "", false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.all {
		e := &r.all[i]
		if e.Target != k.To.Addr().String() || e.Port != k.To.Port() || e.Protocol == "udp" {
			continue
		}
		switch {
		case e.Verdict == tally.Allowed, e.Verdict == tally.Observed, e.Verdict == tally.Failed && slices.Contains(dialFailures, e.Reason):
			return e.Verdict + " " + e.Reason, true
		}
	}
	return "", false
}

// dialFailures are the proxy's reasons for which what it has allowed comes to nothing.
var dialFailures = []string{"connection-refused", "dial-timeout", "unreachable"}
