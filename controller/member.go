package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/dockernet/netns"
	"sluice/policy"
)

// member is one container under policies. All but shown belongs to whoever has the turn.
type member struct {
	turn chan struct{}

	gone      bool // detached: the value is of no use any more
	record    record
	container Container
	net       Net                // nil while it does not run
	sockets   *netns.Sockets     // nil without net
	auditing  func()             // lets nobody be told of the kernel's refusals any more; nil without net
	plan      *Plan              // what the layers have in force; nil if they must be installed anew
	restage   bool               // the layers hold something else staged than plan
	intruders map[string]Refusal // containers that share its network and could change its rules, by their ids
	unknown   string             // why an adopted container's policy is not known; empty if it is
	late      time.Time          // since when the rules do not follow the container's networks; zero if they do
	since     time.Time
	uncovered time.Duration

	// gaps is how long rules of the present run were gone from the host, in nanoseconds, until gapEnd at last.
	gaps   atomic.Int64
	gapEnd atomic.Int64

	history history
	cut     atomic.Uint64         // flows, ever
	shown   atomic.Pointer[shown] // for readers, who do not wait for their turn
}

// shown is a member as readers see it.
type shown struct {
	container string     // the id of the attached one
	status    api.Status // without policies
	set       *policySet
	phase     policy.Phase
	plan      *Plan // nil if nothing is in force
	net       Net   // for [Net.Packets] only; nil without one
	session   string
	namespace string // the container's [Net.ID]
}

func newMember(r record) *member {
	m := &member{turn: make(chan struct{}, 1), record: r, intruders: map[string]Refusal{}}
	m.history.since = time.Now()
	name, id := r.about()
	m.shown.Store(&shown{container: r.ID, status: api.Status{ID: id, Name: name}})
	return m
}

// about is the name and the id of the container that all is about.
func (r *record) about() (name, id string) {
	if r.Workload.ID != "" {
		return r.Workload.Name, r.Workload.ID
	}
	return r.Name, r.ID
}

// name is what users know the member by.
func (m *member) name() string {
	name, _ := m.record.about()
	return name
}

// take waits for the turn.
func (m *member) take(ctx context.Context) error {
	select {
	case m.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (m *member) leave() { <-m.turn }

// session is the id by which the sidecar knows this run of the container (see [control.CheckID]).
func (m *member) session() string {
	return m.record.ID + "." + strings.ReplaceAll(m.record.Namespace, ":", "-")
}

// stages calls do for the layers in the kernel one after another, the gate first: a guard that lets frames out counts on
// a gate that refuses those that would change behind it.
func (m *member) stages(do func(Layer) error) error {
	if err := do(m.net.Gate()); err != nil {
		return err
	}
	return do(m.net.Guard())
}

// layers calls do for the layers in the kernel, all at once, where none of them needs another.
func (m *member) layers(do func(Layer) error) error {
	both := [...]Layer{m.net.Gate(), m.net.Guard()}
	errs := make([]error, len(both))
	var tasks sync.WaitGroup
	for i, l := range both {
		tasks.Go(func() { errs[i] = do(l) })
	}
	tasks.Wait()
	return errors.Join(errs...)
}

// letGo closes what this process holds open of the container's network.
func (m *member) letGo() error {
	var errs []error
	if m.auditing != nil {
		m.auditing()
	}
	if m.sockets != nil {
		errs = append(errs, m.sockets.Close())
	}
	if m.net != nil {
		errs = append(errs, m.net.Close())
	}
	m.auditing, m.sockets, m.net, m.plan, m.restage, m.late = nil, nil, nil, nil, false, time.Time{}
	return errors.Join(errs...)
}

// publish shows readers what holds now.
func (m *member) publish() {
	r := &m.record
	p := r.set.phases[r.Phase]
	name, id := r.about()
	s := &shown{container: r.ID, set: r.set, phase: r.Phase, plan: m.plan, session: m.session(),
		namespace: r.Namespace, net: m.net, status: api.Status{
			ID: id, Name: name, State: r.State, Problem: r.Problem,
			Phase: r.Phase.String(), Mode: p.Mode.String(), Targets: len(p.Targets),
			Generation: r.Generation, Digest: r.set.digests[r.Phase].String(), Since: m.since,
			UncoveredMilliseconds: milliseconds(m.uncovered),
		}}
	if s.status.Problem == "" {
		s.status.Problem = m.unknown
	}
	if id != r.ID {
		s.status.Holder = r.ID
	}
	for _, why := range m.container.Refusals {
		s.status.Weak = append(s.status.Weak, why.Reason)
	}
	s.status.Weak = append(s.status.Weak, m.container.Warnings...)
	if m.plan != nil {
		s.status.Notes = notes(m.plan)
		for _, a := range m.plan.Explicit {
			s.status.Proxy = append(s.status.Proxy, "http://"+a.String())
		}
	}
	m.shown.Store(s)
}

// covered forgets what is known of gaps in an earlier run.
func (m *member) covered() {
	m.uncovered = 0
	m.gaps.Store(0)
}

// receipt says what holds now, without what was cut.
func (m *member) receipt(began time.Time) api.Receipt {
	s := m.shown.Load().status
	return api.Receipt{Container: s.Name, ContainerID: s.ID, Generation: s.Generation, Phase: s.Phase, Digest: s.Digest,
		Milliseconds: milliseconds(time.Since(began))}
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// stale is the error of a caller who named a generation that is not newer.
func (m *member) stale(asked uint64) error {
	return &control.Error{Code: control.CodeStale, Have: m.record.Generation, Got: asked, Message: fmt.Sprintf(
		"container %s has generation %d, and %d is not newer: read its status and send a greater one, or none",
		m.name(), m.record.Generation, asked)}
}
