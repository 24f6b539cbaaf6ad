package giveback

import (
	"runtime"
	"testing"
	"testing/synctest"
	"time"
)

// What is garbage a second after the last call is given back, and not before.
func TestSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		state.timer, state.last = nil, time.Time{} // of another bubble
		collections := func() uint32 {
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.NumGC
		}
		time.Sleep(pause) // whatever was before
		before := collections()
		for range 5 {
			Soon()
			time.Sleep(calm / 2)
			synctest.Wait()
		}
		if n := collections() - before; n != 0 {
			t.Errorf("%d collections while there is work", n)
		}
		time.Sleep(calm)
		synctest.Wait()
		if n := collections() - before; n != 1 {
			t.Errorf("%d collections after it, want 1", n)
		}
		Soon()
		time.Sleep(2 * calm)
		synctest.Wait()
		if n := collections() - before; n != 1 {
			t.Errorf("%d collections within the pause, want 1", n)
		}
		time.Sleep(pause)
		synctest.Wait()
		if n := collections() - before; n != 2 {
			t.Errorf("%d collections after the pause, want 2", n)
		}
	})
}
