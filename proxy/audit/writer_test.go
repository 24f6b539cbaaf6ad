package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a sink that can be slow, fail, or take only part of what it is given.
type memory struct {
	mu    sync.Mutex
	b     bytes.Buffer
	calls int
	fail  error         // if not nil, returned after having taken limit bytes
	limit int           // if not 0, the most bytes taken in a call
	hang  chan struct{} // if not nil, calls wait until it is closed
}

func (m *memory) Write(b []byte) (int, error) {
	m.mu.Lock()
	hang := m.hang
	m.calls++
	m.mu.Unlock()
	if hang != nil {
		<-hang
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.limit > 0 {
		b = b[:min(len(b), m.limit)]
	} else if m.fail != nil {
		b = nil
	}
	m.b.Write(b)
	return len(b), m.fail
}

func (m *memory) set(change func(*memory)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func (m *memory) text() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.b.String()
}

// count reads lines of JSON: how many records there are and how many more are said to be lost.
func count(t *testing.T, text string) (records int, lost uint64) {
	t.Helper()
	if text != "" && !strings.HasSuffix(text, "\n") {
		t.Fatalf("torn: %q", text[max(0, len(text)-100):])
	}
	for s := bufio.NewScanner(strings.NewReader(text)); s.Scan(); {
		var line struct {
			Time time.Time
			Lost uint64
		}
		if err := json.Unmarshal(s.Bytes(), &line); err != nil {
			t.Fatalf("%q: %v", s.Text(), err)
		}
		if line.Time.IsZero() {
			t.Fatalf("%q has no time", s.Text())
		}
		lost += line.Lost
		if line.Lost == 0 {
			records++
		}
	}
	return records, lost
}

func want(t *testing.T, text string, wantRecords int, wantLost uint64) {
	t.Helper()
	if records, lost := count(t, text); records != wantRecords || lost != wantLost {
		t.Fatalf("%d records and %d lost, want %d and %d", records, lost, wantRecords, wantLost)
	}
}

func writeN(w *Writer, n int) {
	for range n {
		w.Write(&Record{Target: "ok.test", Port: 443})
	}
}

func TestBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{}
		w := New(m)
		time.Sleep(time.Hour)
		synctest.Wait()
		if m.calls != 0 {
			t.Fatalf("%d writes without a record", m.calls)
		}

		writeN(w, 10)
		time.Sleep(delay - 1)
		synctest.Wait()
		want(t, m.text(), 0, 0)
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		want(t, m.text(), 10, 0)
		if m.calls != 1 {
			t.Errorf("%d writes for one batch", m.calls)
		}

		writeN(w, maxRecords/2) // does not wait for the timer
		synctest.Wait()
		want(t, m.text(), 10+maxRecords/2, 0)

		writeN(w, 3) // nor does Close
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want(t, m.text(), 13+maxRecords/2, 0)
	})
}

func TestTimeIsSet(t *testing.T) {
	m := &memory{}
	w := New(m)
	r := Record{}
	w.Write(&r)
	if err := w.Close(); err != nil || r.Time.IsZero() {
		t.Fatal(err, r.Time)
	}
	want(t, m.text(), 1, 0)
}

func TestHangingSinkLosesAndTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{hang: make(chan struct{})}
		w := New(m)
		writeN(w, 5)
		time.Sleep(delay)
		synctest.Wait() // 5 hang
		writeN(w, maxRecords+7)
		if w.Lost() != 7 {
			t.Fatalf("lost %d", w.Lost())
		}
		close(m.hang)
		m.set(func(m *memory) { m.hang = nil })
		time.Sleep(delay)
		synctest.Wait()
		text := m.text()
		want(t, text, 5+maxRecords, 7)
		if last := text[strings.LastIndex(text[:len(text)-1], "\n")+1:]; !strings.Contains(last, `"lost":7}`) {
			t.Errorf("last line %s", last)
		}
		writeN(w, 1)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		want(t, m.text(), 6+maxRecords, 7) // told once
	})
}

func TestFailingSinkIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{fail: syscall.ENOSPC}
		w := New(m)
		writeN(w, 2)
		time.Sleep(delay)
		synctest.Wait()
		if !errors.Is(w.Err(), syscall.ENOSPC) || m.calls != 1 {
			t.Fatalf("%v after %d writes", w.Err(), m.calls)
		}
		writeN(w, maxRecords+1) // one kick, at half
		synctest.Wait()
		m.set(func(m *memory) { m.fail = nil })
		time.Sleep(retryDelay)
		synctest.Wait()
		want(t, m.text(), 2+maxRecords, 1)
		if w.Err() != nil || w.Lost() != 1 {
			t.Errorf("%v, lost %d", w.Err(), w.Lost())
		}
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestFailingSinkIsNotHammered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{fail: syscall.ENOSPC}
		w := New(m)
		for range 100 { // in 10 s
			writeN(w, 1)
			time.Sleep(100 * time.Millisecond)
		}
		synctest.Wait()
		if m.calls < 9 || m.calls > 12 {
			t.Errorf("%d attempts in 10 s", m.calls)
		}
		m.set(func(m *memory) { m.fail = nil })
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		want(t, m.text(), 100, 0)
	})
}

func TestPartialWrites(t *testing.T) {
	for _, row := range []struct {
		name  string
		fail  error
		limit int
	}{
		{"short", nil, 7},
		{"short-with-error", syscall.ENOSPC, 7},
		{"line-less-one", syscall.ENOSPC, len(`{"time":"2000-01-01T00:00:00Z","target":"ok.test","port":443}`)},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &memory{fail: row.fail, limit: row.limit}
				w := New(m)
				writeN(w, 20)
				time.Sleep(time.Hour)
				synctest.Wait()
				want(t, m.text(), 20, 0)
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

func TestCloseWithFailingSink(t *testing.T) {
	m := &memory{fail: syscall.ENOSPC}
	w := New(m)
	writeN(w, 300)
	err := w.Close()
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "300 records lost") || w.Lost() != 300 {
		t.Errorf("%v, lost %d", err, w.Lost())
	}
	writeN(w, 1)
	if w.Lost() != 301 {
		t.Errorf("lost %d after a write to a closed writer", w.Lost())
	}
	if err := w.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
}

// What is lost when closing is exact, wherever a disk that gets full leaves off: in a batch, behind it, or in the line
// that tells of earlier losses.
func TestCloseCounts(t *testing.T) {
	const total = 1 + maxRecords + 9 + 2
	for seconds := range 80 {
		synctest.Test(t, func(t *testing.T) {
			m := &memory{hang: make(chan struct{})}
			w := New(m)
			writeN(w, 1)
			time.Sleep(delay)
			synctest.Wait()
			writeN(w, maxRecords+9)
			m.set(func(m *memory) { m.fail, m.limit = syscall.ENOSPC, 4000; close(m.hang); m.hang = nil })
			time.Sleep(time.Duration(seconds) * time.Second) // 4000 bytes each
			synctest.Wait()
			m.set(func(m *memory) { m.limit = 0 })
			writeN(w, 2)
			if err := w.Close(); !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			text := m.text()
			records, _ := count(t, text[:strings.LastIndexByte(text, '\n')+1])
			if uint64(records)+w.Lost() != total {
				t.Errorf("after %d s: %d written and %d lost of %d", seconds, records, w.Lost(), total)
			}
		})
	}
}

func TestCloseWithHangingSink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := &memory{hang: make(chan struct{})}
		w := New(m)
		writeN(w, 1)
		begin := time.Now()
		if err := w.Close(); err == nil || !strings.Contains(err.Error(), "hangs") {
			t.Error(err)
		}
		if took := time.Since(begin); took > 2*closeLimit {
			t.Errorf("took %v", took)
		}
		close(m.hang)
		synctest.Wait()
	})
}

func TestConcurrentUse(t *testing.T) {
	m := &memory{}
	w := New(m)
	var wg sync.WaitGroup
	const writers, each = 4, 5000
	for range writers {
		wg.Go(func() { writeN(w, each) })
	}
	wg.Go(func() {
		for range 100 {
			w.Lost()
			if err := w.Err(); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	records, lost := count(t, m.text())
	if uint64(records)+lost != writers*each || lost != w.Lost() {
		t.Errorf("%d written, %d told lost, %d lost", records, lost, w.Lost())
	}
}

func TestWithoutSink(t *testing.T) {
	w, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	writeN(w, 1)
	if w.Lost() != 0 || len(w.waiting) != 0 {
		t.Errorf("%d lost, %d waiting", w.Lost(), len(w.waiting))
	}
	if err := errors.Join(w.Reopen(), w.Close()); err != nil {
		t.Error(err)
	}
}

// The caller's side: the sink is given time when half of the records wait, outside of the measurement.
func BenchmarkWrite(b *testing.B) {
	w := New(io.Discard)
	b.ReportAllocs()
	for i := 0; i < b.N; i++ {
		if i%(maxRecords/2) == maxRecords/2-1 {
			b.StopTimer()
			for w.waits() > 0 {
				time.Sleep(time.Millisecond)
			}
			b.StartTimer()
		}
		r := full
		w.Write(&r)
	}
	b.StopTimer()
	b.ReportMetric(float64(w.Lost()), "lost")
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

// Both sides together, from several goroutines, with whatever loss that brings.
func BenchmarkWriteParallel(b *testing.B) {
	w := New(io.Discard)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			r := full
			w.Write(&r)
		}
	})
	b.ReportMetric(float64(w.Lost())/float64(b.N), "lost/op")
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
}

func (w *Writer) waits() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting)
}
