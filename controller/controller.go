package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"sluice/control"
	"sluice/matcher"
)

// Config says what a controller works with. It is read once.
type Config struct {
	Engine  Engine
	Host    Host
	Sidecar Sidecar
	// Dir keeps what is in force, with mode 0700, for a controller that comes after this one.
	Dir string
	// Matcher says how policies are read, apart from what they say. Never is of no use here.
	Matcher matcher.Options
	// Adopt takes containers on whose side the engine sees a [Provider].
	Adopt   bool
	Logger  *slog.Logger
	Version string
	// Collectors have metrics to be served beside the controller's own.
	Collectors []prometheus.Collector
}

// sidecarTimeout is how long the sidecar may take for one step of a switch, after which the container is quarantined. It
// needs milliseconds; one that does not answer hangs, and is replaced: there is room here for its time to answer
// (sidecar.Timing.Call) and for the start of the next one.
const sidecarTimeout = 10 * time.Second

// parallel is how many containers are looked after at a time where nobody waits for one of them.
const parallel = 8

// Controller keeps containers under their policies. Its methods may be called by any number of goroutines: what
// concerns one container is done one after another, and containers do not wait for each other.
type Controller struct {
	config  Config
	log     *slog.Logger
	store   *store
	events  control.Hub
	metrics *metrics
	work    *queue
	adopter *adopter
	began   time.Time // when New was called
	broken  map[string]error
	// unguarded is unguardedTime, but in tests.
	unguarded time.Duration
	// patience is how long the engine may change a container's networks while its policy changes. Tests have more.
	patience time.Duration
	// recovered is closed when all that an earlier controller left was looked at.
	recovered chan struct{}

	networks sync.Mutex // one look at the managed networks at a time

	mu        sync.Mutex // guards all below
	members   map[string]*member
	about     map[string]*member // the same by the ids that records have
	named     map[string]*member // those that were looked for by a name, which it may not have any more
	dismissed map[string]bool    // containers that are not to be admitted to managed networks
	silent    map[string]silent
	ending    bool // no container is taken any more
}

// New makes a controller that knows what an earlier one has left. [Controller.Run] takes it up.
func New(config Config) (*Controller, error) {
	s, err := openStore(config.Dir)
	if err != nil {
		return nil, err
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Controller{config: config, log: config.Logger, store: s, work: newQueue(), members: map[string]*member{}, about: map[string]*member{}, named: map[string]*member{}, dismissed: map[string]bool{},
		silent: map[string]silent{}, began: time.Now(), unguarded: unguardedTime, patience: patience, recovered: make(chan struct{})}
	c.metrics = newMetrics(c)
	c.adopter = &adopter{Controller: c, followers: map[string]*follower{}}
	records, broken, err := s.load()
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		m := newMember(r)
		m.history.partial = "the controller was started again then; what was before is not known"
		c.addLocked(m)
		m.publish()
	}
	for id, err := range broken {
		// Its rules stay in the kernel, and nothing else will touch them.
		c.log.Error("a container cannot be looked after: detach and attach it again", "id", id, "error", err)
	}
	c.broken = broken
	return c, nil
}

// Run takes up what an earlier controller has left, and follows the engine and the sidecar's records until ctx is done.
// Nothing that it started outlives it.
func (c *Controller) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	c.adopter.ctx = ctx
	defer c.adopter.tasks.Wait()
	group.Go(func() error { c.recover(ctx); return nil })
	group.Go(func() error { c.follow(ctx); return nil })
	group.Go(func() error {
		for e := range c.config.Sidecar.Events(ctx) {
			c.publish(e)
		}
		return nil
	})
	for range parallel {
		group.Go(func() error { c.reconcileQueued(ctx); return nil })
	}
	return group.Wait()
}

// idlePause is between two looks at whether there is still a member.
const idlePause = 200 * time.Millisecond

// firstLimit is how long a controller without members waits for the first.
const firstLimit = time.Minute

// Idle returns when there are no members any more, or none has come in a minute; from then on none is taken. It returns
// false when ctx is done.
func (c *Controller) Idle(ctx context.Context) bool {
	began := time.Now()
	for seen := false; ; {
		c.mu.Lock()
		if len(c.members) > 0 {
			seen = true
		} else if seen || time.Since(began) > firstLimit {
			c.ending = true
		}
		ending := c.ending
		c.mu.Unlock()
		if ending {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(idlePause):
		}
	}
}

// Close lets go of all namespaces and listeners of this process. What is in force stays in force.
func (c *Controller) Close() error {
	c.mu.Lock()
	all := slices.Collect(maps.Values(c.members))
	clear(c.members)
	clear(c.about)
	clear(c.named)
	c.mu.Unlock()
	errs := make([]error, len(all))
	var tasks errgroup.Group
	tasks.SetLimit(closing)
	for i, m := range all {
		tasks.Go(func() error {
			if m.take(context.Background()) == nil {
				errs[i] = m.letGo()
				m.gone = true
				m.leave()
			}
			return nil
		})
	}
	_ = tasks.Wait()
	return errors.Join(errs...)
}

// closing is how many members let go at once: the kernel waits for a while with each (package xdp).
const closing = 100

// addLocked makes a member known. c.mu is held, or nobody else knows c.
func (c *Controller) addLocked(m *member) {
	_, id := m.record.about()
	c.members[m.record.ID], c.about[id] = m, m
}

// all returns the members there are now.
func (c *Controller) all() []*member {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.members))
}

// member returns the container's, or an error of control.CodeNotFound. ref is a name, an id or the beginning of one.
func (c *Controller) member(ref string) (*member, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.members[ref]; m != nil {
		return m, nil
	}
	// A caller goes on with the name that it has begun with, and there may be thousands.
	if m := c.named[ref]; m != nil && m.shown.Load().status.Name == ref {
		return m, nil
	}
	var found []*member
	for id, m := range c.members {
		s := m.shown.Load().status
		if s.Name == strings.TrimPrefix(ref, "/") {
			c.named[s.Name] = m
			return m, nil
		}
		if ref != "" && (strings.HasPrefix(id, ref) || strings.HasPrefix(s.ID, ref)) {
			found = append(found, m)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, c.notThereLocked(ref)
	}
	return nil, &control.Error{Code: control.CodeInvalid, Message: fmt.Sprintf(
		"%q is the beginning of %d ids: write more of it", ref, len(found))}
}

// Attached reports whether a container, by its name or id, is under policies.
func (c *Controller) Attached(container string) bool {
	m, err := c.member(container)
	return err == nil && m.shown.Load().status.State != ""
}

// locked finds a container's member and waits for its turn, which the caller gives back by leave.
func (c *Controller) locked(ctx context.Context, ref string) (*member, error) {
	m, err := c.member(ref)
	if err != nil {
		return nil, err
	}
	if err := m.take(ctx); err != nil {
		return nil, err
	}
	if m.gone {
		m.leave()
		return c.locked(ctx, ref) // somebody detached it meanwhile; it may be there anew
	}
	return m, nil
}

// forget takes a member out of the list. The caller has its turn.
func (c *Controller) forget(m *member) error {
	c.mu.Lock()
	if c.members[m.record.ID] == m {
		delete(c.members, m.record.ID)
		_, id := m.record.about()
		delete(c.about, id)
		maps.DeleteFunc(c.named, func(_ string, named *member) bool { return named == m })
	}
	c.mu.Unlock()
	m.gone = true
	return c.store.remove(m.record.ID)
}
