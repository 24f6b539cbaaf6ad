package host

import (
	"log/slog"
	"testing"
)

// What is late is done when its container goes, when all ends, or at once if there is too much of it: once each time.
func TestLate(t *testing.T) {
	s := newSweeper(slog.New(slog.DiscardHandler))
	one, other := new(containerNet), new(containerNet)
	var first, second, third int
	s.later(one, func() { first++ })
	s.later(other, func() { second++ })
	s.forget(one)
	if first != 1 || second != 0 {
		t.Errorf("after one container has gone: done %d and %d times, want 1 and 0", first, second)
	}
	for range maxLate - 1 {
		s.later(other, func() { second++ })
	}
	s.later(other, func() { third++ })
	other.ending.Wait()
	if second != 0 || third != 1 {
		t.Errorf("with too much late: done %d and %d times, want 0 and 1", second, third)
	}
	s.close()
	if second != maxLate {
		t.Errorf("in the end: done %d times, want %d", second, maxLate)
	}
	s.later(one, func() { first++ })
	one.ending.Wait()
	if first != 2 {
		t.Error("what comes after the end is not done")
	}
}
