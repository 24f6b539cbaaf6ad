// Package poll runs handlers for socket events on one goroutine, so that a parked connection costs its two sockets
// and no goroutine, stack or buffer.
//
// A [Loop] owns an epoll instance (epoll(7)) whose own descriptor is watched by Go's run-time poller: the loop's
// goroutine parks like any other, and everything that a Loop calls runs on that one goroutine, one at a time. State
// that only handlers touch therefore needs no lock; [Loop.Post] is the way in from outside.
package poll

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Events of a descriptor, as epoll reports them. Errors and hang-ups come whether asked for or not.
const (
	Readable = unix.EPOLLIN
	Writable = unix.EPOLLOUT
	PeerShut = unix.EPOLLRDHUP
	Urgent   = unix.EPOLLPRI
	Failed   = unix.EPOLLERR | unix.EPOLLHUP

	edge = unix.EPOLLET
)

// Both is what a connection asks for: every change of readability and writability, reported once (edge-triggered).
const Both = Readable | Writable | PeerShut | Urgent | edge

const (
	batchEvents = 128
	// yieldAfter bounds how long a busy loop keeps other goroutines of its processor waiting.
	yieldAfter = time.Millisecond
)

// Handler is told of the events of the descriptors it was added with. tag is the value given to [Loop.Add]; events
// is zero for a call that [Loop.Again] asked for.
type Handler interface {
	Ready(tag uint8, events uint32)
}

// Token names one registration of a descriptor. The zero Token is none.
type Token struct {
	index, generation uint32
}

type slot struct {
	handler    Handler
	generation uint32
	tag        uint8
}

type again struct {
	handler Handler
	token   Token
	tag     uint8
}

// Loop dispatches events. Make one with [New]; only Post, Run and Wake may be called from other goroutines.
type Loop struct {
	epoll  int
	file   *os.File // the epoll descriptor, known to Go's poller
	wakeFD int
	slots  []slot
	free   []uint32
	events [batchEvents]unix.EpollEvent
	repeat []again
	spare  []again
	queues []*Queue
	now    time.Time
	armed  time.Time // read deadline of file; zero if none
	stop   bool

	mu     sync.Mutex // guards the two below
	posted []func()
	closed bool
}

// ErrClosed is returned by [Loop.Do] once the loop has ended.
var ErrClosed = errors.New("event loop has ended")

// New makes a loop. It holds two descriptors until [Loop.Run] has returned.
func New() (*Loop, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("making an epoll instance: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(epoll)
		return nil, fmt.Errorf("making an eventfd: %w", err)
	}
	l := &Loop{epoll: epoll, wakeFD: wake, now: time.Now(), slots: make([]slot, 1)}
	fail := func(doing string, err error) (*Loop, error) {
		unix.Close(wake)
		unix.Close(epoll)
		return nil, fmt.Errorf("%s: %w", doing, err)
	}
	// Slot 0 is the loop's own.
	event := unix.EpollEvent{Events: Readable}
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wake, &event); err != nil {
		return fail("watching the eventfd", err)
	}
	// Go's poller takes only descriptors that do not block.
	if err := unix.SetNonblock(epoll, true); err != nil {
		return fail("setting the epoll descriptor non-blocking", err)
	}
	l.file = os.NewFile(uintptr(epoll), "epoll")
	return l, nil
}

// Now returns the time at which the present batch of events was read; it is good to about a millisecond.
func (l *Loop) Now() time.Time { return l.now }

// Add registers fd, which must be non-blocking. The caller keeps fd and closes it after [Loop.Remove].
func (l *Loop) Add(fd int, h Handler, tag uint8, events uint32) (Token, error) {
	var index uint32
	if n := len(l.free); n > 0 {
		index, l.free = l.free[n-1], l.free[:n-1]
	} else {
		index = uint32(len(l.slots))
		l.slots = append(l.slots, slot{})
	}
	s := &l.slots[index]
	s.handler, s.tag = h, tag
	s.generation++
	event := unix.EpollEvent{Events: events, Fd: int32(index), Pad: int32(s.generation)}
	if err := unix.EpollCtl(l.epoll, unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		s.handler = nil
		l.free = append(l.free, index)
		return Token{}, fmt.Errorf("watching a socket: %w", err)
	}
	return Token{index, s.generation}, nil
}

// Remove forgets a registration: its handler hears nothing more, not even of events already read. Closing the
// descriptor then takes it out of the kernel's set; a descriptor that lives on needs [Loop.Detach].
func (l *Loop) Remove(t Token) {
	if !l.valid(t) {
		return
	}
	l.slots[t.index].handler = nil
	l.slots[t.index].generation++
	l.free = append(l.free, t.index)
}

// Detach is Remove for a descriptor that stays open.
func (l *Loop) Detach(t Token, fd int) {
	l.Remove(t)
	_ = unix.EpollCtl(l.epoll, unix.EPOLL_CTL_DEL, fd, nil) // fails only if it is not there
}

// Rebind gives the events of a registration to another handler from now on.
func (l *Loop) Rebind(t Token, h Handler, tag uint8) {
	if l.valid(t) {
		l.slots[t.index].handler, l.slots[t.index].tag = h, tag
	}
}

// Each calls f for every registered handler, once a descriptor. For the end, when Run has returned.
func (l *Loop) Each(f func(Handler)) {
	for i := range l.slots {
		if h := l.slots[i].handler; h != nil {
			f(h)
		}
	}
}

func (l *Loop) valid(t Token) bool {
	return t.index != 0 && l.slots[t.index].generation == t.generation
}

// Again calls the handler once more before the loop parks, after others had their turn: for work that was cut
// short for fairness, of which the kernel will not tell a second time.
func (l *Loop) Again(t Token) {
	if l.valid(t) {
		s := &l.slots[t.index]
		l.repeat = append(l.repeat, again{s.handler, t, s.tag})
	}
}

// Post runs f on the loop's goroutine, soon; it reports false, and f never runs, if the loop has ended.
func (l *Loop) Post(f func()) bool {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return false
	}
	l.posted = append(l.posted, f)
	first := len(l.posted) == 1
	l.mu.Unlock()
	if first {
		l.wake()
	}
	return true
}

// Do runs f on the loop's goroutine and waits until it has returned. It must not be called from that goroutine.
func (l *Loop) Do(ctx context.Context, f func()) error {
	done := make(chan struct{})
	if !l.Post(func() { defer close(done); f() }) {
		return ErrClosed
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *Loop) wake() {
	one := [8]byte{1} // little-endian or big, it is not zero
	// Past the scheduler's book-keeping: it returns at once. EAGAIN: the loop is awake already.
	unix.RawSyscall(unix.SYS_WRITE, uintptr(l.wakeFD), uintptr(unsafe.Pointer(&one)), unsafe.Sizeof(one))
}

// Run dispatches until ctx is done, then runs what was posted and returns. The descriptors that were added stay
// open: their handlers close them, by a Post that comes before the end of ctx.
func (l *Loop) Run(ctx context.Context) error {
	release := context.AfterFunc(ctx, func() { l.Post(func() { l.stop = true }) })
	defer release()
	defer l.close()
	conn, err := l.file.SyscallConn()
	if err != nil {
		return fmt.Errorf("event loop: %w", err)
	}
	for {
		// The whole loop runs inside Read's callback. That saves a second look at the epoll descriptor each time
		// it parks: what comes after turn has looked is remembered by Go's poller.
		err := conn.Read(func(uintptr) bool { return l.turn() })
		switch {
		case l.stop:
			return nil
		case err == nil, errors.Is(err, os.ErrDeadlineExceeded):
			l.armed = time.Time{}
			_ = l.file.SetReadDeadline(l.armed)
		default:
			return fmt.Errorf("event loop: %w", err)
		}
	}
}

func (l *Loop) close() {
	l.mu.Lock()
	l.closed = true
	posted := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range posted {
		f()
	}
	_ = l.file.Close()
	unix.Close(l.wakeFD)
}

// turn handles what is ready and reports whether Run should look up (to stop).
func (l *Loop) turn() bool {
	yielded := time.Now()
	for {
		n, err := epollWait(l.epoll, l.events[:])
		if err != nil && err != unix.EINTR {
			panic("poll: epoll_wait: " + err.Error()) // only a programming error can cause it
		}
		l.now = time.Now()
		for i := range max(n, 0) {
			e := &l.events[i]
			if e.Fd == 0 {
				l.runPosted()
				continue
			}
			if s := &l.slots[e.Fd]; s.generation == uint32(e.Pad) && s.handler != nil {
				s.handler.Ready(s.tag, e.Events)
			}
		}
		l.runRepeated()
		next := l.expire()
		if l.stop {
			return true
		}
		if n < batchEvents && len(l.repeat) == 0 {
			l.arm(next)
			return false
		}
		if l.now.Sub(yielded) > yieldAfter {
			runtime.Gosched()
			yielded = time.Now()
		}
	}
}

func (l *Loop) runPosted() {
	var counter [8]byte
	unix.RawSyscall(unix.SYS_READ, uintptr(l.wakeFD), uintptr(unsafe.Pointer(&counter)), unsafe.Sizeof(counter))
	l.mu.Lock()
	posted := l.posted
	l.posted = nil
	l.mu.Unlock()
	for _, f := range posted {
		f()
	}
}

func (l *Loop) runRepeated() {
	batch := l.repeat
	l.repeat = l.spare[:0]
	for _, a := range batch {
		if l.valid(a.token) {
			a.handler.Ready(a.tag, 0)
		}
	}
	clear(batch)
	l.spare = batch[:0]
}

// arm makes the next park end at next, if that is earlier than what was armed before.
func (l *Loop) arm(next time.Time) {
	if next.IsZero() || !l.armed.IsZero() && !next.Before(l.armed) {
		return
	}
	l.armed = next
	_ = l.file.SetReadDeadline(next)
}

// epollWait asks without waiting; it never blocks, so the scheduler need not hear of it.
func epollWait(epoll int, events []unix.EpollEvent) (int, error) {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
