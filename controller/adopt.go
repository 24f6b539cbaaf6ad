package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/policy"
	"sluice/proxy/agentcompass"
	"sluice/proxy/policyfile"
)

// Provider is what a harness has put beside a container, which is under the policy of the harness's own file then
// ([Config.Adopt]). It is a plain value.
type Provider struct {
	// PolicyFile is the host's file with the policy that is in force; empty if Problem says why it is not known.
	PolicyFile string
	Problem    string
	// Name and Addresses are those of the harness's own proxy, which the container may reach under every policy. There
	// are no addresses while it does not run.
	Name      string
	Addresses []netip.AddrPort
	// Sandbox is the proxy's network namespace if it does not judge its connections again when the policy changes, so
	// that they have to be ended; empty if it does, or does not run.
	Sandbox string
}

// nothing is what is in force while nobody knows the policy.
var nothing = func() *policySet {
	none := policy.Policy{Mode: policy.NoNetwork}
	return newPolicySet(policy.Phases{none, none, none})
}()

// openNames are the names that the container may look up under every policy.
func (p *Provider) openNames() map[string][]string {
	names := map[string][]string{}
	if p != nil {
		for _, a := range p.Addresses {
			names[p.Name] = append(names[p.Name], a.Addr().String())
		}
	}
	return names
}

// open are the TCP ports that it may reach under every policy.
func (p *Provider) open() []netip.AddrPort {
	if p == nil {
		return nil
	}
	return p.Addresses
}

// adopter follows the policy files of adopted containers.
type adopter struct {
	*Controller
	ctx   context.Context // of [Controller.Run]
	tasks sync.WaitGroup

	mu        sync.Mutex // guards all below
	followers map[string]*follower
}

// follower brings in force what a file says for one container.
type follower struct {
	*adopter
	id     string
	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}
	seen   bool // whether the container was seen to run since the last attempt began; guarded by the adopter's mu
	// provider is as it was seen last.
	provider atomic.Pointer[Provider]
	// next is what the file said last, and told has a token then.
	next atomic.Pointer[policyfile.State[agentcompass.Payload]]
	told chan struct{}
}

// adopt follows the policy file that a container's harness writes, if it does not yet.
func (a *adopter) adopt(c *Container) {
	if c.Provider == nil || !c.Running || a.ctx == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	former := a.followers[c.ID]
	if former != nil && former.ctx.Err() == nil {
		former.seen = true
		was := former.provider.Load()
		if was.PolicyFile == c.Provider.PolicyFile || c.Provider.PolicyFile == "" && was.PolicyFile != "" {
			now := *c.Provider
			now.PolicyFile = was.PolicyFile // the proxy that named it may have ended
			former.provider.Store(&now)
			return
		}
		former.cancel()
	}
	ctx, cancel := context.WithCancel(a.ctx)
	f := &follower{adopter: a, id: c.ID, ctx: ctx, cancel: cancel, done: make(chan struct{}), told: make(chan struct{}, 1)}
	f.provider.Store(c.Provider)
	a.followers[c.ID] = f
	a.tasks.Go(func() {
		defer close(f.done)
		defer a.ended(f)
		if former != nil {
			<-former.done // or its last policy might come after the first of this one
		}
		f.run(ctx)
	})
}

// attempt notes that one begins.
func (f *follower) attempt() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = false
}

// leave lets another follower take this one's place, unless the container was seen to run since the last attempt began:
// whoever saw it has counted on this one.
func (f *follower) leave() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.seen && f.followers[f.id] == f {
		delete(f.followers, f.id)
	}
	return !f.seen
}

// ended forgets a follower.
func (a *adopter) ended(f *follower) {
	f.cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.followers[f.id] == f {
		delete(a.followers, f.id)
	}
}

// abandonFile ends what follows a container's file, if there is something. It does not wait for that.
func (a *adopter) abandonFile(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.followers[id]; f != nil {
		f.cancel()
	}
}

// run brings in force what the file says until ctx is done or the container is gone.
func (f *follower) run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() { f.watch(ctx) })
	var again <-chan time.Time
	for pause := retryTime; ; {
		select {
		case <-ctx.Done():
			return
		case <-f.told:
		case <-again:
		}
		again = nil
		f.attempt()
		err := f.enforce(ctx, f.next.Load())
		switch {
		case err == nil:
			pause = retryTime
		case ctx.Err() != nil, errors.Is(err, errOver) && f.leave():
			return
		case errors.Is(err, errOver):
			again = time.After(0) // it has started again
		default:
			f.metrics.failed("adopt")
			f.log.Error("the policy of an adopted container is not in force: it is tried again", "id", f.id, "in", pause, "error", err)
			again = time.After(pause)
			pause = min(2*pause, maxRetryTime)
		}
	}
}

// maxRetryTime is how long after failures in a row a policy file's content is brought in force once more.
const maxRetryTime = time.Minute

// firstPause is between two attempts to read a file that has not been good yet.
const firstPause = 50 * time.Millisecond

// watch tells what the file says until ctx is done.
func (f *follower) watch(ctx context.Context) {
	p := f.provider.Load()
	if p.PolicyFile == "" {
		f.tell(policyfile.State[agentcompass.Payload]{Err: errors.New(p.Problem)})
		return
	}
	for said := ""; ctx.Err() == nil; {
		file, err := policyfile.New(ctx, policyfile.Options[agentcompass.Payload]{
			Path: p.PolicyFile, Decode: agentcompass.Decode, OnChange: f.tell, Logger: f.log.With("id", f.id)})
		if err == nil {
			f.tell(file.State())
			_ = file.Run(ctx) // it returns nil
			return
		}
		if ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			f.tell(policyfile.State[agentcompass.Payload]{Err: err})
		}
		select {
		case <-ctx.Done():
		case <-time.After(firstPause):
		}
	}
}

func (f *follower) tell(s policyfile.State[agentcompass.Payload]) {
	f.next.Store(&s)
	select {
	case f.told <- struct{}{}:
	default:
	}
}

// errOver is the error of a container that has ended, or that somebody has detached.
var errOver = errors.New("the container is not looked after any more")

// enforce brings a state of the file in force. On an error other than errOver nothing passes.
func (f *follower) enforce(ctx context.Context, s *policyfile.State[agentcompass.Payload]) error {
	set, problem := nothing, s.Err
	if s.Status == policyfile.Current {
		set, problem = readPayload(s.Value)
	}
	for _, r := range s.Value.Rejected {
		f.log.Warn("an entry of a policy file is no target", "id", f.id, "entry", r.String())
	}
	receipt, err := f.bring(ctx, set)
	if err != nil {
		return f.seal(ctx, set, err)
	}
	if problem != nil {
		f.metrics.failed("adopt")
		f.log.Error("everything is refused to an adopted container, for its policy is not known", "id", f.id, "error", problem)
	}
	if err := f.mention(ctx, problem); err != nil {
		return err
	}
	sandbox := f.provider.Load().Sandbox
	if receipt.Unchanged || sandbox == "" {
		return nil
	}
	n, err := f.config.Host.EndFlows(sandbox)
	if err != nil {
		err = fmt.Errorf("connections of the harness's own proxy, which does not judge them again, may be open: %w", err)
		return f.seal(ctx, set, err)
	}
	f.log.Info("what went through the harness's own proxy has ended", "container", receipt.Container, "generation", receipt.Generation, "ended", n)
	return nil
}

// readPayload returns the policies that a file stands for, and nothing with an error if there are none.
func readPayload(p agentcompass.Payload) (*policySet, error) {
	one := p.Policy
	if len(one.Targets) == 0 {
		switch one.Mode { // as this project writes it, where lists have entries
		case policy.Allowlist:
			one.Mode = policy.NoNetwork
		case policy.Denylist:
			one.Mode = policy.Public
		}
	}
	text, err := json.Marshal(one)
	if err != nil {
		return nothing, err
	}
	document, err := policy.Parse(text)
	if err != nil {
		return nothing, fmt.Errorf("an entry that stands for more than a target can say: %w", err)
	}
	return newPolicySet(document.All()), nil
}

// bring attaches the container, or puts other policies in force.
func (f *follower) bring(ctx context.Context, set *policySet) (api.Receipt, error) {
	receipt, err := f.settled(ctx, set)
	if !errors.Is(err, control.ErrNotFound) {
		return receipt, err
	}
	if f.isDismissed(f.id) {
		return receipt, errOver
	}
	s, err := f.Attach(ctx, f.id, set.phases, policy.Baseline, api.Options{})
	if errors.Is(err, control.ErrConflict) { // somebody was faster
		return f.settled(ctx, set)
	}
	if err != nil {
		return receipt, err
	}
	f.log.Info("adopted", "container", s.Name, "file", f.provider.Load().PolicyFile)
	m, err := f.locked(ctx, f.id)
	if err != nil {
		return receipt, err
	}
	defer m.leave()
	m.uncovered = uncovered(&m.container)
	m.publish()
	return m.receipt(time.Now()), nil
}

// settled puts other policies in force. With the policy a harness may change the container's networks, so every failure
// that may be due to that is tried again before the container is closed.
func (f *follower) settled(ctx context.Context, set *policySet) (api.Receipt, error) {
	return f.set(ctx, f.id, set, 0, func(err error) bool {
		return !errors.Is(err, control.ErrNotFound) && !errors.Is(err, control.ErrQuarantined)
	})
}

// mention shows in the container's status why its policy is not known, or that it is.
func (f *follower) mention(ctx context.Context, problem error) error {
	m, err := f.locked(ctx, f.id)
	if err != nil {
		return err
	}
	defer m.leave()
	now := ""
	if problem != nil {
		now = "everything is refused until its policy is known: " + problem.Error()
	}
	if m.unknown != now {
		m.unknown = now
		m.publish()
	}
	return nil
}

// seal quarantines the container after a failure, also if it is not attached, and also if the engine does not answer. set
// is what a switch brings in force later. It returns the cause, or errOver.
func (f *follower) seal(ctx context.Context, set *policySet, cause error) error {
	if errors.Is(cause, errOver) || ctx.Err() != nil {
		return cause
	}
	container, unknown := f.config.Engine.Inspect(ctx, f.id)
	if errors.Is(unknown, control.ErrNotFound) || unknown == nil && !container.Running || f.isDismissed(f.id) {
		return errOver
	}
	m, err := f.locked(ctx, f.id)
	if errors.Is(err, control.ErrNotFound) && unknown == nil {
		m, err = f.claim(ctx, record{ID: container.ID, Name: container.Name, State: api.Attached, Generation: 1, set: set})
	}
	if err != nil {
		return errors.Join(cause, unknown, err)
	}
	defer m.leave()
	if m.record.State == api.Quarantined && m.record.set.digest == set.digest {
		return cause
	}
	m.record.set = set
	if m.record.State == api.Stopped {
		return cause // what it starts with
	}
	if m.net == nil {
		m.container = container
		_ = f.open(ctx, m) // else the container is paused
	}
	return f.quarantine(context.WithoutCancel(ctx), m, "following the policy file of its harness", cause)
}
