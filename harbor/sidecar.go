package harbor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"sluice/control"
	"sluice/matcher"
	"sluice/policy"
)

// Kernel is the namespace's rules. A method's error means that nothing of it has happened, or that what is in force is not
// known.
type Kernel interface {
	// Install brings a policy in force where nothing is, or something unknown. Stage lays another one beside it.
	Install(policy.Policy) error
	Stage(policy.Policy) error
	// Both lets only through what the policy in force and the staged one allow, Switch puts the staged one in force, and
	// Cut ends what it refuses.
	Both() error
	Switch() error
	Cut() (Cut, error)
	// Quarantine refuses everything until Switch or Install succeeds.
	Quarantine() error
	// Listing are the rules in force, as nft prints them, and Refused counts the packets that rules have refused.
	Listing() (string, error)
	Refused() (packets uint64, err error)
}

// Cut says what has become of connections that the kernel had let through by itself.
type Cut struct{ Ended, Kept int }

// Proxy judges and carries what the rules redirect.
type Proxy interface {
	Apply(context.Context, policy.Policy) (control.Receipt, error)
	// Block refuses everything until Apply succeeds.
	Block(problem string)
}

// Sidecar keeps the rules and the proxy under one policy. Its methods may be called by any number of goroutines.
type Sidecar struct {
	kernel Kernel
	proxy  Proxy
	log    *slog.Logger
	// holds is called when the sidecar begins to keep to a policy, with true, and when it cannot any more, with false.
	holds func(bool) error

	// shown is what is in force, for who must not wait; nil before anything is.
	shown atomic.Pointer[inForce]

	mu         sync.Mutex // one switch at a time; guards what follows
	policy     policy.Policy
	generation uint64
	problem    string // why everything is refused; "" if the policy is in force
	ended      bool
}

// inForce is a policy with its generation.
type inForce struct {
	generation uint64
	rules      *matcher.Ruleset
}

// receipt is what a switch has done.
type receipt struct {
	generation uint64
	unchanged  bool
	cut, kept  int
	took       time.Duration
}

// errEnded answers whoever asks for a switch when the sidecar is about to end.
var errEnded = errors.New("the sidecar is ending")

// begin brings the first policy in force.
func (s *Sidecar) begin(ctx context.Context, p policy.Policy) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.proxy.Apply(ctx, p); err != nil {
		return err
	}
	if err := s.kernel.Install(p); err != nil {
		return err
	}
	if _, err := s.kernel.Cut(); err != nil {
		return s.quarantineLocked(err)
	}
	return s.inForceLocked(p)
}

// change brings another policy in force. When it returns without an error, nothing passes any more that the policy refuses.
// On an error nothing has changed, or everything is refused: the error says so.
func (s *Sidecar) change(ctx context.Context, p policy.Policy) (receipt, error) {
	began := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return receipt{}, errEnded
	}
	if s.problem == "" && s.policy.Digest() == p.Digest() {
		return receipt{generation: s.generation, unchanged: true, took: time.Since(began)}, nil
	}
	if err := s.kernel.Stage(p); err != nil {
		if s.problem == "" {
			return receipt{}, fmt.Errorf("nothing has changed: %w", err)
		}
		return receipt{}, fmt.Errorf("everything is refused as before: %w", err)
	}
	r, err := s.swapLocked(context.WithoutCancel(ctx), p)
	if err == nil {
		err = s.inForceLocked(p)
	}
	if err != nil {
		return receipt{}, s.quarantineLocked(err)
	}
	r.generation, r.took = s.generation, time.Since(began)
	return r, nil
}

// swapLocked goes to the staged policy: what is allowed meanwhile is a part of what both allow.
func (s *Sidecar) swapLocked(ctx context.Context, p policy.Policy) (r receipt, err error) {
	if err := s.kernel.Both(); err != nil {
		return r, err
	}
	proxied, err := s.proxy.Apply(ctx, p)
	if err != nil {
		return r, err
	}
	if err := s.kernel.Switch(); err != nil {
		return r, err
	}
	cut, err := s.kernel.Cut()
	r.cut, r.kept = proxied.FlowsCut+cut.Ended, proxied.FlowsKept+cut.Kept
	return r, err
}

// refresh brings the policy in force for what the network has by now, frames on interfaces that have come above all.
func (s *Sidecar) refresh(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	err := s.kernel.Stage(s.policy)
	if err == nil && s.problem != "" {
		return // everything else is refused already
	}
	if err == nil {
		_, err = s.swapLocked(context.WithoutCancel(ctx), s.policy)
	}
	if err == nil {
		err = s.inForceLocked(s.policy)
	}
	if err != nil {
		_ = s.quarantineLocked(fmt.Errorf("the network has changed: %w", err)) // which says so in the log
		return
	}
	s.log.Info("the network has changed, and the policy holds there", "generation", s.generation)
}

func (s *Sidecar) inForceLocked(p policy.Policy) error {
	rules, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		return err
	}
	s.policy, s.problem = p, ""
	s.generation++
	s.shown.Store(&inForce{s.generation, rules})
	return s.holds(true)
}

// quarantineLocked refuses everything after a step has failed, and returns what to tell whoever asked for it.
func (s *Sidecar) quarantineLocked(cause error) error {
	s.problem = cause.Error()
	s.proxy.Block(s.problem)
	err := s.kernel.Quarantine()
	if err != nil {
		s.problem += "; and the rules could not be made to refuse everything: " + err.Error()
	}
	if err := s.holds(false); err != nil {
		s.problem += "; " + err.Error()
	}
	s.log.Error("everything is refused until a switch succeeds", "problem", s.problem)
	if err != nil {
		return fmt.Errorf("WHAT IS IN FORCE IS NOT KNOWN, STOP THE TASK: %s", s.problem)
	}
	return fmt.Errorf("everything is refused until a switch succeeds: %s", s.problem)
}

// end refuses everything: nothing would judge what is redirected any more, and the rules stay. Where there may be no rules
// yet, it makes none.
func (s *Sidecar) end(ruled bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	err := s.holds(false)
	if ruled {
		err = errors.Join(err, s.kernel.Quarantine())
	}
	return err
}
