package sidecar

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"sluice/control"
)

// instance is one sidecar. It is killed once, for whatever reason, and never comes back.
type instance struct {
	sidecar   *Sidecar
	number    int
	id        string // of its container
	image     string
	recipe    string
	addresses []netip.Addr
	client    control.Client
	started   time.Time
	adopted   bool

	process   *process
	listeners *net.UnixListener // listeners.sock
	peers     chan *net.UnixConn

	settled  chan struct{} // closed when it has all sessions, or has failed
	killed   chan struct{} // closed when it is not to be used any more
	finished chan struct{} // closed after that, when all was tried to end its process
	ended    chan struct{} // closed when its process has ended

	sending sync.Mutex // one exchange at a time; guards what follows
	conn    *net.UnixConn

	killing  sync.Once
	why      error // it was killed; read when killed is closed
	draining bool  // a newer one has taken its place; guarded by Sidecar.mu
}

// isSettled reports whether it has all sessions, or has failed.
func (i *instance) isSettled() bool { return isClosed(i.settled) }

// dead reports whether it is not to be used any more.
func (i *instance) dead() bool { return isClosed(i.killed) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// dir holds its sockets.
func (i *instance) dir() string { return i.sidecar.o.dir(i.number) }

// newInstance prepares sidecar n: its directory with listeners.sock.
func (s *Sidecar) newInstance(n int) (*instance, error) {
	i := &instance{
		sidecar: s, number: n, peers: make(chan *net.UnixConn),
		settled: make(chan struct{}), killed: make(chan struct{}), finished: make(chan struct{}), ended: make(chan struct{}), started: time.Now(),
	}
	i.client.Dir = i.dir()
	var err error
	if i.listeners, err = i.bind("unixpacket", control.ListenersName); err != nil {
		return nil, err
	}
	return i, nil
}

// bind makes a socket that the sidecar's user, and nobody else but root, can connect to.
func (i *instance) bind(network, name string) (*net.UnixListener, error) {
	path := filepath.Join(i.dir(), name)
	l, err := control.Listen(network, path)
	if err != nil {
		return nil, err
	}
	if os.Geteuid() == 0 { // without privilege nothing but tests runs
		for _, p := range []string{i.dir(), path} {
			if err := os.Chown(p, 0, sidecarGID); err != nil {
				l.Close()
				return nil, fmt.Errorf("socket for the sidecar: %w", err)
			}
		}
	}
	return l, nil
}

// accept takes connections on listeners.sock until it is closed. Only the sidecar's own process is let in.
func (i *instance) accept(pid int) {
	for {
		c, err := i.listeners.AcceptUnix()
		if err != nil {
			return
		}
		peer, uid, err := control.PeerProcess(c)
		switch {
		case err != nil:
		case peer != pid:
			err = fmt.Errorf("peer is process %d, the sidecar is %d: if Sluice runs in a container, give it the host's process ids (--pid host)", peer, pid)
		case uid != i.sidecar.uid:
			err = fmt.Errorf("peer has user id %d, the sidecar has %d", uid, i.sidecar.uid)
		}
		if err != nil {
			i.sidecar.o.Logger.Warn("a connection to the sidecar's socket is refused", "path", i.listeners.Addr(), "error", err)
			c.Close()
			continue
		}
		select {
		case i.peers <- c:
		case <-i.killed:
			c.Close()
			return
		case <-i.sidecar.background.Done():
			c.Close()
			return
		}
	}
}

// meet waits for the sidecar to connect, for the first time or again.
func (i *instance) meet(ctx context.Context) error {
	select {
	case c := <-i.peers:
		i.connected(c)
		return nil
	case <-i.killed:
		return i.why
	case <-i.ended:
		return errEnded
	case <-ctx.Done():
		return fmt.Errorf("wait for it to connect to %s: %w", i.listeners.Addr(), context.Cause(ctx))
	}
}

// send passes descriptors, and waits until the sidecar has all of them in service.
func (i *instance) send(all ...control.Descriptor) error {
	i.sending.Lock()
	defer i.sending.Unlock()
	if i.conn == nil {
		return errors.New("not connected")
	}
	if err := i.conn.SetDeadline(time.Now().Add(i.sidecar.o.Timing.Call)); err != nil {
		return err
	}
	for _, d := range all {
		if err := control.SendListener(i.conn, d); err != nil {
			return err
		}
	}
	var refused error
	for range all {
		err := control.ReadAcknowledgement(i.conn)
		if err != nil && !errors.Is(err, control.ErrNotTaken) {
			return err
		}
		refused = errors.Join(refused, err)
	}
	return refused
}

// hand passes a session's sockets.
func (i *instance) hand(id string, set uint64, sockets []socket) error {
	var all []control.Descriptor
	for _, one := range sockets {
		all = append(all, control.Descriptor{Session: id, Kind: one.kind, Set: set, Explicit: one.explicit, File: one.file})
	}
	if err := i.send(all...); err != nil {
		return fmt.Errorf("hand over the sockets of session %s: %w", id, err)
	}
	return nil
}

// offer binds control.sock and passes its listener, and that for metrics.
func (i *instance) offer() error {
	l, err := i.bind("unix", control.SocketName)
	if err != nil {
		return err
	}
	defer l.Close() // a copy of our own would let clients connect to a sidecar that has ended
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	return i.send(control.Descriptor{Kind: control.KindControl, File: f})
}

// offerMetrics passes a listener for metrics, in place of the one that the sidecar has.
func (i *instance) offerMetrics(l *net.TCPListener) error {
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	return i.send(control.Descriptor{Kind: control.KindMetrics, File: f})
}

// call makes a context for one call to the sidecar. It is not the caller's: a sidecar must not count as hung because
// somebody else was in a hurry, and what becomes of a change must be known.
func (i *instance) call() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), i.sidecar.o.Timing.Call)
	stop := context.AfterFunc(i.sidecar.background, cancel)
	return ctx, func() { stop(); cancel() }
}

func (i *instance) apply(id string, spec control.SessionSpec) (control.Receipt, error) {
	ctx, cancel := i.call()
	defer cancel()
	return i.client.SetSession(ctx, id, spec)
}

func (i *instance) drop(id string, keep uint64) error {
	ctx, cancel := i.call()
	defer cancel()
	return i.client.DropListeners(ctx, id, keep)
}

func (i *instance) delete(id string) error {
	ctx, cancel := i.call()
	defer cancel()
	_, err := i.client.DeleteSession(ctx, id)
	return err
}

// works waits until the sidecar answers and bytes pass through it.
func (i *instance) works(ctx context.Context) error {
	for {
		health, err := i.client.Health(ctx)
		if err == nil && health.OK {
			return nil
		}
		if err == nil {
			err = errors.New(strings.Join(health.Problems, "; "))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not work: %w", err)
		case <-i.killed:
			return i.why
		case <-i.ended:
			return errEnded
		case <-time.After(20 * time.Millisecond):
		}
	}
}

var errEnded = errors.New("it has ended")

// watch follows a sidecar's process and looks after it, until it is dead or the controller stops.
func (s *Sidecar) watch(i *instance, f found) error {
	i.id, i.image, i.recipe, i.addresses = f.id, f.image, f.recipe, f.addresses
	var err error
	if i.process, err = openProcess(f.pid); err != nil {
		return fmt.Errorf("watch process %d: %w", f.pid, err)
	}
	s.running.Go(func() {
		stop := context.AfterFunc(s.background, i.process.abandon)
		defer stop()
		if i.process.wait() == nil {
			close(i.ended)
		}
	})
	s.running.Go(func() { i.accept(f.pid) })
	s.running.Go(i.monitor)
	return nil
}

// monitor looks after a sidecar: its process, its health, its connection and, after an upgrade, its last flows.
func (i *instance) monitor() {
	s := i.sidecar
	defer i.close()
	tick := time.NewTicker(s.o.Timing.Health)
	defer tick.Stop()
	failures, drains := 0, new(drain)
	for {
		var peers chan *net.UnixConn
		if i.isSettled() { // before that, the connection is waited for elsewhere
			peers = i.peers
		}
		select {
		case <-s.background.Done():
			return
		case <-i.killed:
			<-i.finished
			if errors.Is(i.why, errEnded) {
				s.o.Logger.Error("a sidecar has ended by itself", "number", i.number, "how", s.o.obituary(i.id))
			}
			s.o.removeContainer(i.id)
			_ = os.RemoveAll(i.dir())
			if i.outdated() {
				s.o.removeImage(i.image)
			}
			return
		case <-i.ended:
			s.kill(i, reasonDied, errEnded)
		case c := <-peers:
			i.connected(c)
		case <-tick.C:
			if !i.isSettled() {
				continue
			}
			ctx, cancel := context.WithTimeout(s.background, s.o.Timing.Healthy)
			health, err := i.client.Health(ctx)
			cancel()
			if err == nil && !health.OK {
				err = errors.New(strings.Join(health.Problems, "; "))
			}
			if err == nil {
				failures = 0
				if why := drains.over(i); why != "" {
					s.kill(i, reasonDrained, errors.New(why))
				}
				continue
			}
			select {
			case <-i.ended: // that is the reason
				continue
			case <-time.After(endTime):
			}
			if failures++; failures == 2 {
				s.kill(i, reasonHung, fmt.Errorf("its health check failed twice: %w", err))
			}
		}
	}
}

// endTime is how much later than the end of its connections the end of a process may be seen.
const endTime = 50 * time.Millisecond

// drain is what is known of a former sidecar's end.
type drain struct {
	since time.Time // nobody new has come since
}

// answerTime is how long DNS queries that a former sidecar had received may take to be answered.
const answerTime = 6 * time.Second

// over says why a former sidecar is to be stopped, or nothing.
func (d *drain) over(i *instance) string {
	s := i.sidecar
	if !i.isDraining() {
		return ""
	}
	ctx, cancel := i.call()
	defer cancel()
	all, err := i.client.Sessions(ctx)
	if err != nil {
		return "" // the health check will tell
	}
	flows := 0
	for _, one := range all {
		if len(one.Listeners) > 0 {
			d.since = time.Time{} // its container's sockets have not been handed over again
			return ""
		}
		flows += one.Flows
	}
	if d.since.IsZero() {
		d.since = time.Now()
	}
	switch waited := time.Since(d.since); {
	case flows == 0 && waited > min(answerTime, s.o.Timing.Drain):
		return "no flow is left"
	case waited > s.o.Timing.Drain:
		return fmt.Sprintf("%d flows were still open after %v", flows, s.o.Timing.Drain)
	}
	return ""
}

// isDraining reports whether a newer sidecar has taken its place.
func (i *instance) isDraining() bool {
	i.sidecar.mu.Lock()
	defer i.sidecar.mu.Unlock()
	return i.draining
}

// outdated reports whether the engine needs its image no more.
func (i *instance) outdated() bool {
	s := i.sidecar
	s.mu.Lock()
	defer s.mu.Unlock()
	return i.image != s.recipe.image && !slices.ContainsFunc(s.instances, func(o *instance) bool { return o.image == i.image })
}

// pump begins to pass the sidecar's audit records on, until its process has ended and all were read. When it returns,
// the sidecar collects them, so it may be given sessions. ctx is for that only.
func (i *instance) pump(ctx context.Context) error {
	streaming, end := context.WithCancel(i.sidecar.background)
	waiting := context.AfterFunc(ctx, end)
	first, err := i.client.Subscribe(streaming)
	if !waiting() {
		err = context.Cause(ctx)
	}
	if err != nil {
		end()
		return fmt.Errorf("ask for its audit records: %w", err)
	}
	i.sidecar.running.Go(func() {
		defer end()
		i.passOn(first)
	})
	return nil
}

func (i *instance) passOn(events iter.Seq2[control.Event, error]) {
	s := i.sidecar
	for ; s.background.Err() == nil; events = i.client.Events(s.background) {
		for e, err := range events {
			if err == nil {
				s.hub.Publish(e)
			}
		}
		if s.background.Err() != nil {
			return
		}
		s.metrics.gaps.Inc()
		select {
		case <-i.ended:
			return
		case <-i.killed:
			return
		case <-s.background.Done():
			return
		case <-time.After(endTime):
		}
	}
}

// end kills the process and returns when it has ended, which takes no time but in uninterruptible sleep.
func (i *instance) end() {
	defer close(i.finished)
	if err := i.process.kill(); err != nil {
		i.sidecar.o.Logger.Error("a sidecar cannot be killed: the engine is asked to", "number", i.number, "error", err)
	}
	select {
	case <-i.ended:
	case <-time.After(killTime):
	case <-i.sidecar.background.Done():
	}
}

// killTime is how long to wait for a process that does not end.
const killTime = 5 * time.Second

// connected takes the sidecar's connection, in place of the one before.
func (i *instance) connected(c *net.UnixConn) {
	i.sending.Lock()
	defer i.sending.Unlock()
	if i.conn != nil {
		i.conn.Close()
	}
	i.conn = c
}

// close gives up what belongs to this process.
func (i *instance) close() {
	i.listeners.Close()
	i.connected(nil)
	i.process.close()
}
