package proxy

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sluice/control"
	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dns"
)

// Session is one container as the proxy knows it: rule sets, listeners and flows. A new session refuses everything.
// Its methods are safe for concurrent use.
type Session struct {
	server *Server
	id     string
	hidden bool // the proxy's own, for its health check: no metrics, no audit, in no list

	container atomic.Pointer[containerName]
	auth      atomic.Pointer[basicAuth]
	source    atomic.Pointer[Source]
	fresh     atomic.Int64                 // when the DNS filter looked at source, since the server began
	around    atomic.Pointer[Surroundings] // never nil
	lookups   atomic.Pointer[lookups]      // the session's own; nil if it uses the server's
	dns       atomic.Pointer[dns.Server]

	current atomic.Pointer[rules]
	places  places
	flows   atomic.Int64 // open tunnels and requests
	tally   tally

	asked     askedNames
	learned   learned
	exact     exactNames
	redirects atomic.Bool // there are redirected connections

	tunnels []*conn // heads of lists, one a worker, each touched by that worker only
	web     webFlows

	switching sync.Mutex // one switch at a time; guards what follows
	ended     bool       // it takes neither policies nor listeners any more
	staged    [policy.PhaseCount]staged
	set       uint64 // the number of the newest
	listeners []listening
	condition control.SessionState
	problem   string
	closing   []func()
}

// staged is a phase's policy, ready to be put in force.
type staged struct {
	policy policy.Policy
	set    *matcher.Ruleset
	digest policy.Digest
	denied *deniedHosts
}

// Source is a policy file that a session follows.
type Source interface {
	// Unchanged reports, quickly and without blocking, whether the session has what the file says now.
	Unchanged() bool
	// Fresh brings the session up to date with the file, and waits, not for long, for one that is being written.
	Fresh()
	// Status describes the file for the control socket.
	Status() control.Source
}

// Change is what a switch does to a session.
type Change struct {
	// Policies are staged for all phases; nil keeps those that are.
	Policies *policy.Phases
	// Phase is the one whose policy comes into force; nil keeps the session's.
	Phase *policy.Phase
	// Around are the session's surroundings; nil ones, and their nil fields, keep what it has.
	Around *Surroundings
	// Generation must be greater than the session's; 0 takes the next one.
	Generation uint64
}

// cutTimeout is how long a switch waits for the event loops to have judged every flow. They need microseconds a
// flow; one that does not answer hangs. The controller waits longer, or it would kill the sidecar for it.
const cutTimeout = 2 * time.Second

func (s *Server) newSession(id string) (*Session, error) {
	session := &Session{server: s, id: id, condition: control.Empty, tunnels: make([]*conn, len(s.workers))}
	session.around.Store(new(Surroundings))
	set, err := matcher.Compile(policy.Policy{}, s.config.Matcher)
	if err != nil {
		return nil, err
	}
	session.current.Store(session.makeRules(staged{set: set}, policy.Baseline, 0, reasonNoRules))
	return session, nil
}

func (s *Session) rules() *rules { return s.current.Load() }

// containerName is what the container of a session is called.
type containerName struct{ name, id string }

// about returns which container the session is of; both are empty where nobody said.
func (s *Session) about() containerName {
	if c := s.container.Load(); c != nil {
		return *c
	}
	return containerName{}
}

// label is the name of the session in metrics and logs.
func (s *Session) label() string { return cmp.Or(s.about().name, s.id) }

func (s *Session) makeRules(from staged, phase policy.Phase, generation uint64, blocked matcher.Reason) *rules {
	r := &rules{
		set: from.set, policy: from.policy.InForce(), digest: from.digest, phase: phase, generation: generation, blocked: blocked,
		sent:     s.tally.bytes.at(bytesKey{phase, false}),
		received: s.tally.bytes.at(bytesKey{phase, true}),
	}
	if blocked == "" {
		r.denied, r.budget = from.denied, dns.NewBudget(r.set, r.policy.Options)
	}
	return r
}

// stage replaces what is staged. The denied hosts of all phases are followed, so that their addresses are known when
// a phase comes into force.
func (s *Session) stage(next [policy.PhaseCount]staged) {
	former := s.staged
	s.staged = next
	for phase := range next {
		if d := next[phase].denied; d != nil && d != former[phase].denied {
			s.follow(d)
		}
		if d := former[phase].denied; d != nil && d != next[phase].denied {
			d.unfollow()
		}
	}
}

// Apply puts a phase's policy in force. It returns when every flow that the policy refuses is cut. On an error
// nothing has changed, unless the error is [control.ErrQuarantined]. A switch that has begun goes on when ctx ends.
func (s *Session) Apply(ctx context.Context, change Change) (control.Receipt, error) {
	began := time.Now()
	s.switching.Lock()
	defer s.switching.Unlock()
	if err := ctx.Err(); err != nil {
		return control.Receipt{}, err
	}
	if s.ended {
		return control.Receipt{}, control.NotFoundError(s.id)
	}
	if err := control.CheckGeneration(change.Generation); err != nil {
		return control.Receipt{}, err
	}
	now := s.rules()
	if change.Generation != 0 && change.Generation < now.generation {
		return control.Receipt{}, control.StaleError(s.id, now.generation, change.Generation)
	}
	around := s.around.Load().with(change.Around)
	moved := !slices.Equal(around.Never, s.around.Load().Never) // equal policies mean something else then
	next := s.staged
	for phase, known := range next {
		p, digest := known.policy, known.digest
		if change.Policies != nil {
			p = change.Policies[phase]
			digest = p.Digest() // takes long for many targets, so a mere switch does without
		}
		if known.set == nil && change.Policies == nil || known.set != nil && known.digest == digest && !moved {
			continue
		}
		// Phases that say the same have one rule set.
		ready := next[:phase]
		if !moved {
			ready = next[:] // those to come also mean what they do with these surroundings
		}
		var set *matcher.Ruleset
		if same := slices.IndexFunc(ready, func(n staged) bool { return n.set != nil && n.digest == digest }); same >= 0 {
			p, set = next[same].policy, next[same].set
		} else {
			var err error
			if set, err = matcher.Compile(p, s.matcher(around)); err != nil {
				return control.Receipt{}, control.InvalidError(err)
			}
		}
		next[phase] = staged{p, set, digest, newDeniedHosts(p.InForce())}
	}
	phase := now.phase
	if change.Phase != nil {
		phase = *change.Phase
	}
	chosen := next[phase]
	if chosen.set == nil {
		return control.Receipt{}, control.InvalidError(fmt.Errorf(
			"session %s has no policy for phase %s: send policies with the phase", s.id, phase))
	}
	if s.condition == control.Serving && now.phase == phase && now.digest == chosen.digest && !moved {
		s.surround(around)
		s.stage(next)
		if change.Generation > now.generation { // what comes later with a lower one is late
			renumbered := *now
			renumbered.generation = change.Generation
			s.current.Store(&renumbered)
		}
		receipt := s.receipt(began)
		receipt.Unchanged, receipt.FlowsKept = true, int(s.flows.Load())
		return receipt, nil
	}
	generation := max(change.Generation, now.generation+1)
	if change.Generation != 0 && change.Generation == now.generation {
		return control.Receipt{}, control.StaleError(s.id, now.generation, change.Generation)
	}
	s.surround(around)
	r := s.makeRules(chosen, phase, generation, "")
	if now.blocked == "" && now.phase == phase && now.digest == chosen.digest {
		r.budget.Carry(now.budget) // only the surroundings are others
	}
	cut, kept, err := s.enforce(r)
	if err != nil {
		return control.Receipt{}, s.quarantine(err)
	}
	s.stage(next)
	s.condition, s.problem = control.Serving, ""
	receipt := s.receipt(began)
	receipt.FlowsCut, receipt.FlowsKept = cut, kept
	s.server.switchSeconds.Observe(time.Since(began).Seconds())
	return receipt, nil
}

// Block refuses everything and cuts every flow, until Apply succeeds: the policy cannot be known.
func (s *Session) Block(problem string) {
	s.switching.Lock()
	defer s.switching.Unlock()
	s.refuseAll(reasonNoRules)
	s.condition, s.problem = control.Refusing, problem
}

func (s *Session) receipt(began time.Time) control.Receipt {
	r := s.rules()
	return control.Receipt{
		Session: s.id, Generation: r.generation, Phase: r.phase.String(), Digest: r.digest.String(),
		Milliseconds: float64(time.Since(began)) / float64(time.Millisecond),
	}
}

// quarantine refuses everything after a switch that failed half-way.
func (s *Session) quarantine(cause error) error {
	s.refuseAll(reasonQuarantine)
	s.condition, s.problem = control.Quarantined, cause.Error()
	return &control.Error{Code: control.CodeQuarantined, Message: fmt.Sprintf(
		"switch of session %s failed and it refuses everything now: %v; switch again", s.id, cause)}
}

func (s *Session) refuseAll(reason matcher.Reason) {
	now := s.rules()
	if now.blocked == reason {
		return
	}
	// A failure leaves flows to be cut by their own workers, which find the new rules when they wake.
	_, _, _ = s.enforce(s.makeRules(staged{set: s.server.nothing}, now.phase, now.generation, reason))
}

// enforce puts r in force and judges every flow by it. It does not end before that is done or has taken too long: half a
// switch helps nobody, also if whoever asked for it has gone.
func (s *Session) enforce(r *rules) (cut, kept int, err error) {
	s.current.Store(r)
	if filter := s.dns.Load(); filter != nil {
		filter.Flush()
	}
	s.asked.rejudge(r)
	for _, l := range []*lookups{s.server.resolver, s.resolver()} { // it may have got its own just now
		l.Settle()
	}
	ctx, cancel := context.WithTimeout(context.Background(), cutTimeout)
	defer cancel()
	type count struct {
		cut, kept int
		err       error
	}
	counts := make(chan count, len(s.server.workers))
	for _, w := range s.server.workers {
		go func() {
			var n count
			n.err = w.Do(ctx, func() { n.cut, n.kept = w.rejudge(s, r) })
			counts <- n
		}()
	}
	cut, kept = s.web.rejudge(s, r)
	for range s.server.workers {
		n := <-counts
		cut, kept, err = cut+n.cut, kept+n.kept, errors.Join(err, n.err)
	}
	return cut, kept, err
}

// Follow makes the session keep to a policy file.
func (s *Session) Follow(source Source) { s.source.Store(&source) }

// status describes the session for the control socket.
func (s *Session) status(withPolicies bool) control.SessionStatus {
	s.switching.Lock()
	defer s.switching.Unlock()
	r := s.rules()
	about := s.about()
	status := control.SessionStatus{
		ID: s.id, Container: about.name, ContainerID: about.id, State: s.condition, Mode: r.policy.Mode.String(),
		Phase: r.phase.String(), Generation: r.generation, Digest: r.digest.String(), Flows: int(s.flows.Load()),
	}
	if source := s.source.Load(); source != nil {
		file := (*source).Status()
		status.Source = &file
	}
	for _, l := range s.listeners {
		status.Listeners = append(status.Listeners, l.about)
	}
	if withPolicies && s.staged[0].set != nil {
		status.Policies = policiesJSON(s.staged)
	}
	if withPolicies {
		s.around.Load().describe(&status)
	}
	return status
}

// close ends the session: listeners first, then flows.
func (s *Session) close() {
	s.switching.Lock()
	defer s.switching.Unlock()
	s.ended = true
	for _, l := range s.listeners {
		l.stop(false)
	}
	s.listeners = nil
	for _, f := range s.closing {
		f()
	}
	s.closing = nil
	s.refuseAll(reasonNoRules)
	s.stage([policy.PhaseCount]staged{})
}

// SetAuth makes clients give a user and password (RFC 7617) from the next request on.
func (s *Session) SetAuth(user, password string) {
	credentials := []byte(base64.StdEncoding.EncodeToString([]byte(user + ":" + password)))
	s.auth.Store(&basicAuth{credentials})
}
