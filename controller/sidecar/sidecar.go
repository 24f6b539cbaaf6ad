package sidecar

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice/control"
)

// Sidecar keeps one sluice-proxy running; after an upgrade, former ones too until their flows are gone. Make one with
// [New] and run it with [Sidecar.Run]; all methods are safe for concurrent use. Those that need a live sidecar wait for it
// until their context ends.
type Sidecar struct {
	o          Options
	uid        uint32 // of sidecars
	hub        control.Hub
	first      atomic.Pointer[control.Subscription] // of the first who calls Events; nil after that
	metrics    *metrics
	background context.Context // ends when Run returns
	cancel     context.CancelFunc
	running    sync.WaitGroup
	adopted    chan struct{} // closed when what an earlier controller left is known

	mu        sync.Mutex // guards what follows
	sessions  map[string]*session
	instances []*instance // those with sessions, or being given them; by age, without dead ones
	changed   chan struct{}
	recipe    *recipe // what the newest one shall be
	network   Network
	next      int // number of the next one
	problem   error
}

// New checks o and reads the binary. Nothing is started before [Sidecar.Run].
func New(o Options) (*Sidecar, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	r, err := o.readRecipe()
	if err != nil {
		return nil, err
	}
	s := &Sidecar{o: o, uid: sidecarUID, metrics: newMetrics(), adopted: make(chan struct{}), sessions: map[string]*session{},
		changed: make(chan struct{}), recipe: r, next: 1}
	s.background, s.cancel = context.WithCancel(context.Background())
	s.first.Store(s.hub.Subscribe())
	return s, nil
}

// Run adopts what an earlier controller left, and keeps a sidecar alive until ctx is done. Sidecars outlive it, with all
// that is in force; [Sidecar.Remove] ends them. It returns when everything that it started has ended, and can be called
// once.
func (s *Sidecar) Run(ctx context.Context) error {
	defer s.release()
	if err := os.MkdirAll(s.o.Dir, 0o750); err != nil {
		return fmt.Errorf("directory of the sidecar's sockets: %w", err)
	}
	lock, err := os.Open(s.o.Dir)
	if err != nil {
		return fmt.Errorf("directory of the sidecar's sockets: %w", err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("lock %s: %w: another controller uses it; give this one another directory", s.o.Dir, err)
	}
	retry := backoff{most: s.o.Timing.Backoff}
	for {
		err := s.adopt(ctx)
		if err == nil {
			break
		}
		s.setProblem(err)
		if !retry.wait(ctx) {
			return nil
		}
	}
	close(s.adopted)
	for ctx.Err() == nil {
		s.mu.Lock()
		changed := s.changed
		want := s.recipe
		newest := last(s.instances)
		s.mu.Unlock()
		if newest == nil || newest.recipe != want.digest || newest.isDraining() {
			if !retry.wait(ctx) {
				break
			}
			if err := s.start(ctx, want); err != nil && ctx.Err() == nil {
				s.setProblem(err)
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-changed:
		case <-time.After(steadyTime):
			retry.reset()
		}
	}
	return nil
}

// steadyTime is after how long without an event the next failure counts as the first one.
const steadyTime = 10 * time.Second

// release ends what Run started, but not the sidecars.
func (s *Sidecar) release() {
	s.cancel()
	s.running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.sessions {
		closeAll(x.sockets)
		x.sockets = nil
	}
	if s.o.Metrics != nil {
		s.o.Metrics.Close()
	}
}

// backoff is a pause that doubles. The first attempt of a row has none.
type backoff struct {
	most, next time.Duration
}

func (b *backoff) reset() { b.next = 0 }

// wait reports whether there is another attempt.
func (b *backoff) wait(ctx context.Context) bool {
	pause := b.next
	b.next = min(max(2*pause, 50*time.Millisecond), b.most)
	if pause == 0 {
		return ctx.Err() == nil
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(pause):
		return true
	}
}

func (s *Sidecar) setProblem(err error) {
	s.mu.Lock()
	repeated := s.problem != nil && err != nil && s.problem.Error() == err.Error()
	s.problem = err
	s.mu.Unlock()
	if err != nil && !repeated {
		s.o.Logger.Error("no sidecar could be started: it is tried again, clients wait", "error", err)
	}
}

// adopt finds the sidecars that an earlier controller started, and learns their sessions.
func (s *Sidecar) adopt(ctx context.Context) error {
	network, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	all, err := s.o.find(ctx)
	if err != nil {
		return err
	}
	used := map[int]bool{}
	for _, f := range all {
		s.next = max(s.next, f.number+1)
		if f.pid == 0 || f.number == 0 {
			s.o.removeContainer(f.id)
			continue
		}
		used[f.number] = true
		i, err := s.newInstance(f.number)
		if err == nil {
			i.adopted = true
			if err = s.watch(i, f); err != nil {
				i.listeners.Close()
			}
		}
		if err != nil {
			s.o.Logger.Error("a sidecar that was there cannot be adopted: it is removed", "number", f.number, "error", err)
			s.o.removeContainer(f.id)
			continue
		}
		within, cancel := context.WithTimeout(ctx, s.o.Timing.Adopt)
		if err = i.meet(within); err == nil {
			err = i.works(within)
		}
		if err == nil {
			err = i.pump(within)
		}
		cancel()
		if err == nil {
			err = s.learn(i)
		}
		if ctx.Err() != nil {
			return ctx.Err() // it is left to the next controller
		}
		if err != nil {
			s.fail(i, reasonHung, err)
			continue
		}
		s.add(i)
		s.settle(i)
		s.o.Logger.Info("a sidecar that was there is adopted", "number", i.number, "sessions", len(s.ids()), "network", network.Name)
	}
	s.removeDirs(used)
	if ready := s.ready(); len(ready) > 1 {
		// The earlier controller may have ended half-way through an upgrade.
		if err := s.replay(last(ready)); err != nil {
			s.kill(last(ready), reasonHung, err)
		}
		s.markDraining()
	}
	s.moveMetrics()
	return nil
}

// removeDirs removes the directories of sidecars that are not there any more.
func (s *Sidecar) removeDirs(used map[int]bool) {
	entries, err := os.ReadDir(s.o.Dir)
	if err != nil {
		return // what cannot be read cannot be used either, and binding will say so
	}
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && n > 0 && e.IsDir() && !used[n] {
			_ = os.RemoveAll(s.o.dir(n))
		}
	}
}

// prepare makes the network, and calls Options.Prepare when it is another one.
func (s *Sidecar) prepare(ctx context.Context) (Network, error) {
	n, err := s.o.ensureNetwork(ctx)
	if err != nil {
		return Network{}, err
	}
	s.mu.Lock()
	same := s.network.ID == n.ID
	s.mu.Unlock()
	if !same && s.o.Prepare != nil {
		if err := s.o.Prepare(ctx, n); err != nil {
			return Network{}, fmt.Errorf("prepare network %s of the sidecar: %w", n.Name, err)
		}
	}
	s.mu.Lock()
	s.network = n
	s.mu.Unlock()
	return n, nil
}

// start starts a sidecar, gives it all sessions, and ends the service of those before it.
func (s *Sidecar) start(ctx context.Context, r *recipe) error {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, s.o.Timing.Start)
	defer cancel()
	on, err := s.prepare(ctx)
	if err != nil {
		return err
	}
	if err := s.o.ensureImage(ctx, r); err != nil {
		return err
	}
	n := s.next
	s.next++
	i, err := s.newInstance(n)
	if err != nil {
		return err
	}
	id, err := s.o.createContainer(ctx, r, on, n, i.dir())
	if err != nil {
		i.listeners.Close()
		return err
	}
	f, err := s.o.inspect(ctx, id)
	if err == nil && f.pid == 0 {
		err = errEnded
	}
	if err == nil {
		err = s.watch(i, f)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, s.o.obituary(id))
		i.listeners.Close()
		s.o.removeContainer(id)
		return fmt.Errorf("sidecar %d: %w", n, err)
	}
	if err := s.setUp(ctx, i); err != nil {
		if errors.Is(err, errEnded) {
			err = fmt.Errorf("%w: %s", err, s.o.obituary(id))
		}
		s.fail(i, reasonStart, err)
		return fmt.Errorf("sidecar %d: %w", n, err)
	}
	s.settle(i)
	s.setProblem(nil)
	s.metrics.startSeconds.Observe(time.Since(began).Seconds())
	s.o.Logger.Info("a sidecar is in service", "number", n, "container", fmt.Sprintf("%.12s", id), "ms", time.Since(began).Milliseconds())
	s.succeed(i)
	return nil
}

// setUp gives a new sidecar all that there is.
func (s *Sidecar) setUp(ctx context.Context, i *instance) error {
	if err := i.meet(ctx); err != nil {
		return err
	}
	if err := i.offer(); err != nil {
		return err
	}
	if err := i.works(ctx); err != nil {
		return err
	}
	if err := i.pump(ctx); err != nil {
		return err
	}
	s.add(i)
	return s.replay(i)
}

// replay gives a sidecar all sessions: first the rules of all, so that nobody is refused for want of them.
func (s *Sidecar) replay(i *instance) error {
	var group errgroup.Group
	group.SetLimit(8)
	ids := s.ids()
	for _, id := range ids {
		group.Go(func() error {
			s.mu.Lock()
			x := s.sessions[id]
			if x == nil || x.spec.Policies == nil {
				s.mu.Unlock()
				return nil
			}
			spec := x.spec
			s.mu.Unlock()
			_, err := i.apply(id, spec)
			if errors.Is(err, control.ErrStale) {
				return nil // a switch was faster
			}
			if callersFault(err) {
				s.o.Logger.Error("a sidecar does not take the rules that another took: the session is refused everything",
					"session", id, "sidecar", i.number, "error", err)
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for _, id := range ids {
		s.mu.Lock()
		var sockets []socket
		var set uint64
		if x := s.sessions[id]; x != nil {
			sockets, set = x.sockets, x.set
		}
		s.mu.Unlock()
		if set == 0 {
			continue
		}
		if err := i.hand(id, set, sockets); err != nil {
			return err
		}
	}
	return nil
}

// succeed puts a new sidecar in the place of those before it: from now on these serve only who is connected to them.
func (s *Sidecar) succeed(i *instance) {
	s.moveMetrics()
	s.link(i)
	s.markDraining()
	if len(s.ready()) == 1 {
		return
	}
	for _, id := range s.ids() {
		x, unlock, err := s.locked(s.background, id, false)
		if err != nil {
			continue // it is gone
		}
		s.settleSession(id, x)
		unlock()
	}
}

// moveMetrics makes the newest sidecar, and no other one, serve its metrics.
func (s *Sidecar) moveMetrics() {
	if s.o.Metrics == nil {
		return
	}
	ready := s.ready()
	for n, i := range ready {
		if n == len(ready)-1 {
			if err := i.offerMetrics(s.o.Metrics); err != nil {
				s.o.Logger.Error("the sidecar does not serve its metrics", "number", i.number, "error", err)
			}
			continue
		}
		// What takes the place of the listener is one that nobody knows.
		nowhere, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err == nil {
			err = i.offerMetrics(nowhere)
			nowhere.Close()
		}
		if err != nil {
			s.o.Logger.Warn("a former sidecar still serves its metrics", "number", i.number, "error", err)
		}
	}
}

// markDraining says of all sidecars but the newest that it has taken their place.
func (s *Sidecar) markDraining() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range s.instances[:max(0, len(s.instances)-1)] {
		i.draining = true
	}
}

// link lets the operator find the newest sidecar at DIR/control.sock.
func (s *Sidecar) link(i *instance) {
	path := filepath.Join(s.o.Dir, control.SocketName)
	_ = os.Remove(path + ".new")
	err := os.Symlink(filepath.Join(strconv.Itoa(i.number), control.SocketName), path+".new")
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		s.o.Logger.Warn("no link to the newest sidecar's control socket", "error", err)
	}
}

// learn takes over the sessions of a sidecar that is adopted.
func (s *Sidecar) learn(i *instance) error {
	ctx, cancel := i.call()
	defer cancel()
	all, err := i.client.Sessions(ctx)
	if err != nil {
		return err
	}
	for _, short := range all {
		one, err := i.client.Session(ctx, short.ID)
		if err != nil {
			return err
		}
		spec := control.SessionSpec{Container: one.Container, ContainerID: one.ContainerID, Generation: one.Generation,
			Phase: one.Phase, Policies: one.Policies, Upstreams: one.Upstreams, Never: one.Never, Hosts: one.Hosts,
			NoRoute: one.NoRoute}
		if one.State != control.Serving {
			spec.Policies = nil // it refuses, and shall go on so
		}
		s.mu.Lock()
		if x := s.sessions[one.ID]; x == nil || x.spec.Generation < spec.Generation {
			s.sessions[one.ID] = &session{lock: make(chan struct{}, 1), spec: spec}
		}
		s.mu.Unlock()
	}
	return nil
}

// live returns the sidecars that are in service, the newest last and at least one. None of those that are not among them
// has a session.
func (s *Sidecar) live(ctx context.Context) ([]*instance, error) {
	for {
		s.mu.Lock()
		all, changed, problem := slices.Clone(s.instances), s.changed, s.problem
		s.mu.Unlock()
		if s.background.Err() != nil {
			return nil, errStopping
		}
		if ready := slices.DeleteFunc(slices.Clone(all), func(i *instance) bool { return !i.isSettled() || i.dead() }); len(ready) > 0 && len(ready) == len(all) {
			return ready, nil
		}
		if err := s.wait(ctx, changed, problem); err != nil {
			return nil, err
		}
	}
}

// present returns all sidecars that may have sessions, at least one: those in service, the newest first, then those
// that are being given their sessions.
func (s *Sidecar) present(ctx context.Context) ([]*instance, error) {
	for {
		s.mu.Lock()
		changed, problem := s.changed, s.problem
		var settled, others []*instance
		for _, i := range slices.Backward(s.instances) {
			if i.isSettled() {
				settled = append(settled, i)
			} else {
				others = append(others, i)
			}
		}
		s.mu.Unlock()
		if s.background.Err() != nil {
			return nil, errStopping
		}
		if all := append(settled, others...); len(all) > 0 {
			return all, nil
		}
		if err := s.wait(ctx, changed, problem); err != nil {
			return nil, err
		}
	}
}

// wait waits for other sidecars than there are.
func (s *Sidecar) wait(ctx context.Context, changed <-chan struct{}, problem error) error {
	select {
	case <-changed:
		return nil
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("no sidecar is in service: %w", context.Cause(ctx)), problem)
	case <-s.background.Done():
		return errStopping
	}
}

var errStopping = errors.New("no sidecar is looked after any more: the controller is stopping")

// ready returns the sidecars that are in service, the newest last, or none.
func (s *Sidecar) ready() []*instance {
	return slices.DeleteFunc(s.all(), func(i *instance) bool { return !i.isSettled() || i.dead() })
}

func (s *Sidecar) all() []*instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.instances)
}

// ids are those of all sessions, sorted.
func (s *Sidecar) ids() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.sessions))
}

func (s *Sidecar) add(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.instances = append(s.instances, i)
	s.wakeLocked()
}

// settle says that an instance has all sessions, or never will.
func (s *Sidecar) settle(i *instance) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !i.isSettled() {
		close(i.settled)
	}
	s.wakeLocked()
}

func (s *Sidecar) wakeLocked() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// fail ends a sidecar that is not in service yet.
func (s *Sidecar) fail(i *instance, r reason, err error) {
	s.kill(i, r, err)
	s.settle(i)
}

// kill ends a sidecar, and returns when its process has ended: then nothing passes through it any more. While the
// controller is stopping it does nothing.
func (s *Sidecar) kill(i *instance, r reason, why error) {
	if s.background.Err() != nil {
		return
	}
	i.killing.Do(func() {
		s.mu.Lock()
		i.why = why
		close(i.killed)
		s.instances = slices.DeleteFunc(s.instances, func(o *instance) bool { return o == i })
		s.wakeLocked()
		s.mu.Unlock()
		s.metrics.ended(r)
		if r == reasonDrained {
			s.o.Logger.Info("a former sidecar is stopped", "number", i.number, "why", why)
		} else {
			s.o.Logger.Error("a sidecar is replaced", "number", i.number, "reason", string(r), "error", why)
		}
		i.end()
	})
}

func last[T any](list []T) (none T) {
	if len(list) == 0 {
		return none
	}
	return list[len(list)-1]
}

// Network returns the sidecars' network; it waits until there is one.
func (s *Sidecar) Network(ctx context.Context) (Network, error) {
	select {
	case <-s.adopted:
	case <-ctx.Done():
		return Network{}, fmt.Errorf("network of the sidecar: %w", context.Cause(ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.network, nil
}

// Addresses returns those of all live sidecars.
func (s *Sidecar) Addresses() []netip.Addr {
	var all []netip.Addr
	for _, i := range s.all() {
		all = append(all, i.addresses...)
	}
	return all
}

// Events yields the audit records of all sidecars until ctx is done: from the first one on to whoever calls it first, who
// may be late, and from now on to others. Records that a sidecar had not sent when it died are lost, and so are those
// that come while the reader is too far behind.
func (s *Sidecar) Events(ctx context.Context) iter.Seq[control.Event] {
	return func(yield func(control.Event) bool) {
		for ctx.Err() == nil {
			sub := s.first.Swap(nil)
			if sub == nil {
				sub = s.hub.Subscribe()
			}
			if !forward(ctx, sub, yield) {
				sub.Close()
				return
			}
			s.metrics.gaps.Inc()
		}
	}
}

// forward passes on what a subscription brings, and reports whether it has ended because its reader was too slow.
func forward(ctx context.Context, sub *control.Subscription, yield func(control.Event) bool) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case e, ok := <-sub.C:
			if !ok {
				return true
			}
			if !yield(e) {
				return false
			}
		}
	}
}

// Metrics returns the newest sidecar's metrics in Prometheus's text form.
func (s *Sidecar) Metrics(ctx context.Context) (string, error) {
	live, err := s.live(ctx)
	if err != nil {
		return "", err
	}
	return last(live).client.Metrics(ctx)
}

// Health asks the newest sidecar for a round trip through its data plane.
func (s *Sidecar) Health(ctx context.Context) (control.Health, error) {
	live, err := s.live(ctx)
	if err != nil {
		return control.Health{}, err
	}
	return last(live).client.Health(ctx)
}

// Upgrade reads the binary again and, if it is another one, returns when a sidecar of it is in service.
func (s *Sidecar) Upgrade(ctx context.Context) error {
	r, err := s.o.readRecipe()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.recipe = r
	s.wakeLocked()
	s.mu.Unlock()
	for {
		s.mu.Lock()
		newest, changed := last(s.instances), s.changed
		s.mu.Unlock()
		if newest != nil && newest.recipe == r.digest && newest.isSettled() && !newest.dead() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			s.mu.Lock()
			problem := s.problem
			s.mu.Unlock()
			return errors.Join(fmt.Errorf("upgrade of the sidecar: %w", context.Cause(ctx)), problem)
		case <-s.background.Done():
			return errors.New("upgrade of the sidecar: the controller is stopping")
		}
	}
}

// Remove ends all sidecars that belong to o.Dir and removes their network and sockets: everything that was open through
// them is cut. Call it when no [Sidecar.Run] is under way.
func Remove(ctx context.Context, o Options) error {
	if err := o.setDefaults(); err != nil {
		return err
	}
	all, err := o.find(ctx)
	if err != nil {
		return err
	}
	for _, f := range all {
		o.removeContainer(f.id)
		_ = os.RemoveAll(o.dir(f.number))
	}
	_ = os.Remove(filepath.Join(o.Dir, control.SocketName))
	return o.removeNetwork(ctx)
}
