package poll

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs a loop until the test ends.
func start(t *testing.T) *Loop {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if l.Post(func() {}) {
			t.Error("Post succeeded after the loop ended")
		}
	})
	return l
}

func pair(t *testing.T) [2]int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds
}

type handlerFunc func(tag uint8, events uint32)

func (f handlerFunc) Ready(tag uint8, events uint32) { f(tag, events) }

// await runs f on the loop and fails the test if it does not return.
func await(t *testing.T, l *Loop, f func()) {
	t.Helper()
	if err := l.Do(t.Context(), f); err != nil {
		t.Fatal(err)
	}
}

func TestEventsReachTheirHandler(t *testing.T) {
	l, fds := start(t), pair(t)
	defer unix.Close(fds[1])
	got := make(chan byte)
	await(t, l, func() {
		var token Token
		token, err := l.Add(fds[0], handlerFunc(func(tag uint8, events uint32) {
			if tag != 7 {
				t.Errorf("tag %d, want 7", tag)
			}
			var b [1]byte
			for {
				n, err := unix.Read(fds[0], b[:])
				if err == unix.EAGAIN {
					return
				}
				if n == 0 {
					l.Remove(token)
					unix.Close(fds[0])
					close(got)
					return
				}
				got <- b[0]
			}
		}), 7, Both)
		if err != nil {
			t.Error(err)
		}
	})
	for i := range byte(100) {
		if _, err := unix.Write(fds[1], []byte{i}); err != nil {
			t.Fatal(err)
		}
		if b := <-got; b != i {
			t.Fatalf("got %d, want %d", b, i)
		}
	}
	unix.Shutdown(fds[1], unix.SHUT_WR)
	if _, open := <-got; open {
		t.Error("end of stream was not seen")
	}
}

// An event of a descriptor that an earlier event of the same batch has closed must not reach a later owner of the slot.
func TestRemovedHandlerHearsNothing(t *testing.T) {
	l := start(t)
	a, b := pair(t), pair(t)
	defer func() {
		for _, fd := range []int{a[0], a[1], b[0], b[1]} {
			unix.Close(fd)
		}
	}()
	calls := 0
	var tokens [2]Token
	var heir Token
	both := handlerFunc(func(uint8, uint32) {
		calls++
		l.Remove(tokens[0])
		l.Remove(tokens[1])
		// Takes one of the slots over; its own first event (writable) comes in a later batch.
		var err error
		if heir, err = l.Add(b[1], handlerFunc(func(_ uint8, events uint32) {
			if events&Readable != 0 {
				t.Error("the new owner of a slot got an old event")
			}
		}), 0, Both); err != nil {
			t.Error(err)
		}
	})
	await(t, l, func() { // both become ready while the loop is busy here: one batch
		tokens[0], _ = l.Add(a[0], both, 0, Readable|edge)
		tokens[1], _ = l.Add(b[0], both, 0, Readable|edge)
		unix.Write(a[1], []byte("x"))
		unix.Write(b[1], []byte("x"))
	})
	for done := false; !done; {
		await(t, l, func() { done = calls > 0 })
	}
	await(t, l, func() { l.Remove(heir) }) // before its peer is closed, which it would hear of
	if calls != 1 {
		t.Errorf("handlers were called %d times, want 1", calls)
	}
}

func TestTimersFireInOrderAndStop(t *testing.T) {
	l := start(t)
	fired := make(chan string, 4)
	await(t, l, func() {
		// In this order, so that a loop that comes late, when all are due, makes no difference.
		short := l.NewQueue(time.Millisecond, func(o any) { fired <- o.(string) })
		long := l.NewQueue(20*time.Millisecond, func(o any) { fired <- o.(string) })
		var timers [4]Timer
		long.Start(&timers[0], "long")
		short.Start(&timers[1], "short")
		short.Start(&timers[2], "stopped")
		timers[2].Stop()
		short.Start(&timers[3], "moved")
		long.Start(&timers[3], "moved") // leaves the first queue
	})
	for _, want := range []string{"short", "long", "moved"} {
		if got := <-fired; got != want {
			t.Errorf("fired %q, want %q", got, want)
		}
	}
}

func TestAgainComesWithoutAnEvent(t *testing.T) {
	l, fds := start(t), pair(t)
	defer unix.Close(fds[0])
	defer unix.Close(fds[1])
	done := make(chan struct{})
	await(t, l, func() {
		var token Token
		left := 3
		token, _ = l.Add(fds[0], handlerFunc(func(_ uint8, events uint32) {
			if left--; left == 0 {
				l.Remove(token)
				l.Again(token) // of no effect now
				close(done)
				return
			}
			l.Again(token)
		}), 0, Both)
	})
	<-done
}
