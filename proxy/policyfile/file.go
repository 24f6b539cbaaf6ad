package policyfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// quietTime is how long a document that does not show where it ends must stay as it is before it counts.
	quietTime = 20 * time.Millisecond
	// waitStep is how often a file that is not whole is looked at while somebody waits for it.
	waitStep = 2 * time.Millisecond
)

// Status says what the file is good for. Its zero value is the safe one.
type Status uint8

const (
	Refused Status = iota // everything is to be refused
	Pending               // not whole yet: new decisions wait, what is open stays
	Current               // the value is in force
)

// String returns the status as it is shown to users.
func (s Status) String() string {
	switch s {
	case Current:
		return "current"
	case Pending:
		return "pending"
	default:
		return "refused"
	}
}

// State is what is known of the file.
type State[T any] struct {
	Status Status
	// Value is the decoded content; while Pending, that of the content before; zero if Refused.
	Value T
	// Err says why the status is not Current. It names the file.
	Err error
	// Since is when the status, or the value, became what it is.
	Since time.Time
}

// Options say what to follow. Path and Decode are required.
type Options[T any] struct {
	Path string
	// Decode turns content into a value. It keeps nothing of the slice. An error that wraps [io.ErrUnexpectedEOF]
	// says that the content is cut off.
	Decode func([]byte) (T, error)
	// OnChange is called with every new state that is Current, with another content than the one before, or Refused,
	// one call at a time and in order. Fresh returns to nobody before OnChange has: so it must not wait for
	// anything that may be in Fresh.
	OnChange func(State[T])
	// Wait is how long new decisions wait for a file that is not whole; 0 is 500 ms.
	Wait time.Duration
	// MaxBytes is the largest file that is read; 0 is 16 MiB.
	MaxBytes int64
	// Logger is told why everything is refused; nil tells nobody. Content is never logged, but errors of Decode are.
	Logger *slog.Logger
}

// File follows one file. Its methods may be called from many goroutines.
type File[T any] struct {
	o     Options[T]
	quiet time.Duration // quietTime; tests change it
	// round coarsens the file's times; tests use it as a file system with a coarse clock.
	round time.Duration

	// known is what Fresh compares the file with before it takes the lock.
	known atomic.Pointer[known[T]]
	// begun counts refreshes: whoever waited for the lock while one began after his call needs none of his own.
	begun atomic.Uint64
	// looker holds a token while one of those that wait for a whole file looks at it for all.
	looker chan struct{}

	// mu is held while the file is read and while OnChange runs. It guards the fields below and every store to known.
	mu      sync.Mutex
	last    content // the last good read
	result  decoded[T]
	applied []byte    // the content that is in force; nil while everything is refused
	pending time.Time // since when the file is not whole; zero if it is
	changed chan struct{}
}

// known is the outcome of a refresh.
type known[T any] struct {
	state State[T]
	sig   signature
	// settled: as long as the file has this signature, its content is the one behind state.
	settled bool
	// local: asking for the file's status waits for nobody.
	local bool
	// look is when there may be something new to see without a change of the file; zero if never.
	look time.Time
}

// decoded is what last.data means.
type decoded[T any] struct {
	done  bool
	since time.Time // when the content was first read
	value T
	err   error
}

// New reads the file and fails unless that gives a good value, waiting as [File.Fresh] does. It does not call
// OnChange: the caller puts [File.State]'s value in force before the first call of Fresh or Run.
func New[T any](ctx context.Context, o Options[T]) (*File[T], error) {
	if o.Wait == 0 {
		o.Wait = 500 * time.Millisecond
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 16 << 20
	}
	// The working directory may change, and links are watched where they lie.
	path, err := filepath.Abs(o.Path)
	if err != nil {
		return nil, fmt.Errorf("policy file %s: %w", o.Path, err)
	}
	o.Path = path
	// The first state is the caller's to handle and to report.
	onChange, logger := o.OnChange, o.Logger
	o.OnChange, o.Logger = func(State[T]) {}, slog.New(slog.DiscardHandler)
	f := &File[T]{o: o, quiet: quietTime, looker: make(chan struct{}, 1), changed: make(chan struct{})}
	f.known.Store(&known[T]{state: State[T]{Status: Pending, Since: time.Now()}})
	state := f.Fresh(ctx)
	if state.Status != Current {
		return nil, state.Err
	}
	if onChange != nil {
		f.o.OnChange = onChange
	}
	if logger != nil {
		f.o.Logger = logger
	}
	return f, nil
}

// State returns what was last seen, without a look at the file.
func (f *File[T]) State() State[T] { return f.known.Load().state }

// Fresh returns the state that the file's content has now, after OnChange was done for it. It costs one system call
// unless the file changed in the last moments. While the file is not whole, it waits for it; if ctx ends meanwhile, it
// returns a Refused state with the context's error. It never returns Pending.
func (f *File[T]) Fresh(ctx context.Context) State[T] {
	if k, ok := f.unchanged(); ok {
		return k.state
	}
	state, changed := f.refresh()
	for state.Status == Pending {
		select {
		case <-ctx.Done():
			return State[T]{Err: context.Cause(ctx), Since: state.Since}
		case <-changed:
		case f.looker <- struct{}{}:
			step := time.NewTimer(waitStep)
			select {
			case <-ctx.Done():
			case <-step.C:
			}
			step.Stop()
			<-f.looker
		}
		state, changed = f.refresh()
	}
	return state
}

// Unchanged reports whether [File.Fresh] would return [File.State] at once. It reads nothing and waits for nothing; for
// some moments after a change it is false although there may be nothing new.
func (f *File[T]) Unchanged() bool {
	_, ok := f.unchanged()
	return ok
}

func (f *File[T]) unchanged() (*known[T], bool) {
	k := f.known.Load()
	if !k.settled || k.state.Status == Pending {
		return k, false
	}
	sig, err := f.stat(k.local)
	return k, err == nil && sig == k.sig
}

// refresh looks at the file, unless somebody did since the call.
func (f *File[T]) refresh() (State[T], <-chan struct{}) {
	begun := f.begun.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.begun.Load() == begun {
		f.begun.Add(1)
		f.refreshLocked()
	}
	return f.known.Load().state, f.changed
}

func (f *File[T]) refreshLocked() {
	now := time.Now()
	k := known[T]{state: f.known.Load().state}
	defer func() { f.known.Store(&k) }()

	c, err := f.read()
	if err != nil {
		f.last, f.result = content{}, decoded[T]{}
		if passing(err) {
			f.pendLocked(&k, now, err)
		} else {
			f.pending = time.Time{}
			f.refuseLocked(&k, now, err)
		}
		return
	}
	if c.sig == f.last.sig {
		c.seen = f.last.seen
	}
	if !f.result.done || !bytes.Equal(c.data, f.last.data) {
		f.result = decoded[T]{done: true, since: now}
		f.result.value, f.result.err = f.decode(c.data)
	}
	f.last = c
	k.sig, k.local = c.sig, isLocal(f.o.Path)
	trusted := c.seen.Add(c.sig.granularity())
	if k.settled = !now.Before(trusted); !k.settled {
		k.look = trusted
	}
	if why := f.cutOff(now); why != nil {
		f.pendLocked(&k, now, why)
	} else if f.result.err != nil {
		f.pending = time.Time{}
		f.refuseLocked(&k, now, f.result.err)
	} else {
		f.pending = time.Time{}
		f.applyLocked(&k, now)
	}
}

func (f *File[T]) decode(data []byte) (value T, err error) {
	switch {
	case len(bytes.TrimSpace(data)) == 0:
		return value, errEmpty
	case bytes.IndexByte(data, 0) >= 0:
		return value, errNUL
	}
	return f.o.Decode(data)
}

// cutOff says why the last content may not be whole, nil if it is.
func (f *File[T]) cutOff(now time.Time) error {
	err := f.result.err
	if err == errEmpty || err == errNUL || errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	if !bytes.HasPrefix(bytes.TrimSpace(f.last.data), []byte("{")) && now.Sub(f.result.since) < f.quiet {
		return errFresh
	}
	return nil
}

// applyLocked puts the last content in force.
func (f *File[T]) applyLocked(k *known[T], now time.Time) {
	same := f.applied != nil && bytes.Equal(f.applied, f.last.data)
	if same && k.state.Status == Current {
		return
	}
	f.applied = f.last.data
	k.state = State[T]{Status: Current, Value: f.result.value, Since: now}
	if !same {
		f.o.OnChange(k.state)
	}
	f.wakeLocked()
}

// pendLocked notes that the file is not whole, and refuses it when that has lasted too long.
func (f *File[T]) pendLocked(k *known[T], now time.Time, why error) {
	if f.pending.IsZero() {
		f.pending = now
	}
	if now.Sub(f.pending) >= f.o.Wait {
		f.refuseLocked(k, now, fmt.Errorf("not whole after %v: %w", f.o.Wait, why))
		return
	}
	k.settled = false
	k.look = now.Add(waitStep)
	if k.state.Status != Pending {
		k.state.Status, k.state.Since = Pending, now
		f.wakeLocked()
	}
	k.state.Err = f.named(why)
}

// refuseLocked puts the refusal of everything in force.
func (f *File[T]) refuseLocked(k *known[T], now time.Time, why error) {
	why = f.named(why)
	before := k.state
	if before.Status == Refused && before.Err.Error() == why.Error() {
		return
	}
	k.state = State[T]{Status: Refused, Err: why, Since: now}
	if f.applied != nil {
		f.applied = nil
		f.o.OnChange(k.state)
	}
	f.o.Logger.Error("policy file is bad: everything is refused", "error", why)
	f.wakeLocked()
}

func (f *File[T]) named(err error) error {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		err = pathErr.Err
	}
	return fmt.Errorf("policy file %s: %w", f.o.Path, err)
}

// wakeLocked tells those that wait to look again.
func (f *File[T]) wakeLocked() {
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *File[T]) stat(local bool) (signature, error) {
	s, err := statAt(unix.AT_FDCWD, f.o.Path, f.o.Path, local)
	return f.coarsen(s), err
}

func (f *File[T]) statFile(file *os.File) (signature, error) {
	s, err := statFile(file)
	return f.coarsen(s), err
}

func (f *File[T]) coarsen(s signature) signature {
	if f.round > 0 {
		s.mtime -= s.mtime % int64(f.round)
		s.ctime -= s.ctime % int64(f.round)
	}
	return s
}
