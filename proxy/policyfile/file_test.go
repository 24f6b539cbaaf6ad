package policyfile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// document is a policy for these tests: {"version": 7} with as much padding as wanted, or "version: 7" as YAML.
type document struct {
	Version int    `json:"version"`
	Padding string `json:"padding,omitempty"`
}

func decodeDocument(data []byte) (int, error) {
	text := string(data)
	if number, ok := strings.CutPrefix(text, "version: "); ok {
		var d document
		_, err := fmt.Sscanf(number, "%d", &d.Version)
		return d.Version, err
	}
	var d document
	dec := json.NewDecoder(strings.NewReader(text))
	if err := dec.Decode(&d); err != nil {
		return 0, err
	}
	if dec.More() {
		return 0, errors.New("bytes after the document")
	}
	if d.Version == 0 {
		return 0, errors.New("no version")
	}
	return d.Version, nil
}

func version(n, size int) string {
	text, err := json.Marshal(document{Version: n, Padding: strings.Repeat("x", size)})
	if err != nil {
		panic(err)
	}
	return string(text)
}

// follow follows a file that holds version 1, and records what OnChange is told.
func follow(t *testing.T, path string, change ...func(*Options[int])) (*File[int], *record) {
	t.Helper()
	r := &record{}
	o := Options[int]{Path: path, Decode: decodeDocument, OnChange: r.add}
	for _, c := range change {
		c(&o)
	}
	f, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if s := f.State(); s.Status != Current || s.Value != 1 {
		t.Fatalf("at start %v %v", s.Status, s.Value)
	}
	return f, r
}

type record struct {
	mu     sync.Mutex
	states []string
}

func (r *record) add(s State[int]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.states = append(r.states, fmt.Sprintf("%v %d", s.Status, s.Value))
}

func (r *record) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.states, ", ")
}

func start(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.json")
	write(t, path, version(1, 0))
	return path
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// run keeps f.Run going until the test ends.
func run(t *testing.T, f *File[int]) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
}

// until waits for what another goroutine will make true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// writers are the ways in which a policy file gets a new content. Each returns when its last system call has.
var writers = []struct {
	name string
	make func(t *testing.T, dir string) (path string, write func(text string) error)
}{
	{"truncate-and-write", func(t *testing.T, dir string) (string, func(string) error) {
		path := filepath.Join(dir, "policy.json")
		return path, func(text string) error { return os.WriteFile(path, []byte(text), 0o644) }
	}},
	{"in-pieces", func(t *testing.T, dir string) (string, func(string) error) {
		path := filepath.Join(dir, "policy.json")
		return path, func(text string) error {
			file, err := os.Create(path)
			if err != nil {
				return err
			}
			defer file.Close()
			for len(text) > 0 {
				n := max(1, len(text)/3)
				if _, err := io.WriteString(file, text[:n]); err != nil {
					return err
				}
				text = text[n:]
			}
			return nil
		}
	}},
	{"overwrite-same-size", func(t *testing.T, dir string) (string, func(string) error) {
		path := filepath.Join(dir, "policy.json")
		return path, func(text string) error {
			file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			defer file.Close()
			_, err = file.WriteString(text + strings.Repeat(" ", 64-len(text)))
			return err
		}
	}},
	{"rename", func(t *testing.T, dir string) (string, func(string) error) {
		path := filepath.Join(dir, "policy.json")
		return path, func(text string) error {
			if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}
	}},
	{"old-times", func(t *testing.T, dir string) (string, func(string) error) { // cp -p, rsync, tar
		path := filepath.Join(dir, "policy.json")
		return path, func(text string) error {
			if err := os.WriteFile(path+".new", []byte(text), 0o644); err != nil {
				return err
			}
			if err := os.Chtimes(path+".new", time.Unix(1, 0), time.Unix(1, 0)); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		}
	}},
	{"link-swap", func(t *testing.T, dir string) (string, func(string) error) { // as Kubernetes mounts a ConfigMap
		n := 0
		if err := os.Symlink("..data/policy.json", filepath.Join(dir, "policy.json")); err != nil {
			t.Fatal(err)
		}
		return filepath.Join(dir, "policy.json"), func(text string) error {
			n++
			version := fmt.Sprintf("..v%d", n)
			if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, version, "policy.json"), []byte(text), 0o644); err != nil {
				return err
			}
			if err := os.Symlink(version, filepath.Join(dir, "..tmp")); err != nil {
				return err
			}
			if err := os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")); err != nil {
				return err
			}
			return os.RemoveAll(filepath.Join(dir, fmt.Sprintf("..v%d", n-1)))
		}
	}},
	{"remove-and-create", func(t *testing.T, dir string) (string, func(string) error) {
		path := filepath.Join(dir, "policy.json")
		return path, func(text string) error {
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
			return os.WriteFile(path, []byte(text), 0o644)
		}
	}},
}

// Whoever asks after a write has returned is told of that write or of a later one, however the file is written,
// whether or not the clock of the file system tells the writes apart, and whatever others do.
func TestFreshAfterWrite(t *testing.T) {
	for _, w := range writers {
		for _, round := range []time.Duration{0, 10 * time.Millisecond} {
			t.Run(fmt.Sprintf("%s/clock-%v", w.name, max(round, 1)), func(t *testing.T) {
				path, write := w.make(t, t.TempDir())
				if err := write(version(1, 0)); err != nil {
					t.Fatal(err)
				}
				var applied atomic.Int64
				applied.Store(1)
				f, _ := follow(t, path, func(o *Options[int]) {
					o.Wait = time.Hour
					o.OnChange = func(s State[int]) {
						if s.Status == Current {
							applied.Store(int64(s.Value))
						}
					}
				})
				f.round = round
				run(t, f)
				var written atomic.Int64
				written.Store(1)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				var askers sync.WaitGroup
				for range 3 {
					askers.Go(func() {
						for ctx.Err() == nil {
							before := written.Load()
							s := f.Fresh(t.Context())
							// Only a file that is gone for a moment may be refused, never one that is being written.
							if s.Status == Refused && errors.Is(s.Err, os.ErrNotExist) && w.name == "remove-and-create" {
								continue
							}
							if s.Status != Current || int64(s.Value) < before {
								t.Errorf("%d was written, got %v %d, %v", before, s.Status, s.Value, s.Err)
								return
							}
							if got := applied.Load(); got < before {
								t.Errorf("%d was written, but %d is in force", before, got)
								return
							}
						}
					})
				}
				// Versions of equal length, so that the size tells nothing.
				for n := 1000; n < 1200; n++ {
					if err := write(version(n, 0)); err != nil {
						t.Fatal(err)
					}
					written.Store(int64(n))
					if n%10 == 0 {
						if s := f.Fresh(t.Context()); s.Status != Current || s.Value != n {
							t.Errorf("%d was written, got %v %d, %v", n, s.Status, s.Value, s.Err)
						}
					}
				}
				cancel()
				askers.Wait()
			})
		}
	}
}

// Open flows hear of a change although nobody asks.
func TestRunNoticesEveryWriter(t *testing.T) {
	for _, w := range writers {
		t.Run(w.name, func(t *testing.T) {
			path, write := w.make(t, t.TempDir())
			if err := write(version(1, 0)); err != nil {
				t.Fatal(err)
			}
			f, r := follow(t, path)
			run(t, f)
			for n := 2; n < 6; n++ {
				if err := write(version(n, 0)); err != nil {
					t.Fatal(err)
				}
				until(t, fmt.Sprintf("version %d", n), func() bool { return strings.HasSuffix(r.String(), fmt.Sprintf("current %d", n)) })
			}
		})
	}
}

func TestSameContentChangesNothing(t *testing.T) {
	path := start(t)
	f, r := follow(t, path)
	for range 3 {
		write(t, path, version(1, 0))
		if s := f.Fresh(t.Context()); s.Status != Current || s.Value != 1 {
			t.Errorf("got %v %v", s.Status, s.Value)
		}
	}
	if r.String() != "" {
		t.Errorf("OnChange was told %v", r)
	}
}

// What is whole but wrong, or not there, is refused at once, and stays so until it is good.
func TestRefusedAtOnce(t *testing.T) {
	for _, row := range []struct {
		name string
		make func(t *testing.T, path string)
		want string
	}{
		{"invalid", func(t *testing.T, path string) { write(t, path, `{"version":0}`) }, "no version"},
		{"not-json", func(t *testing.T, path string) { write(t, path, `{]`) }, "invalid character"},
		{"trailing", func(t *testing.T, path string) { write(t, path, `{"version":1}{`) }, "bytes after"},
		{"gone", func(t *testing.T, path string) { remove(t, path) }, "no such file"},
		{"directory-gone", func(t *testing.T, path string) { remove(t, filepath.Dir(path)) }, "no such file"},
		{"directory", func(t *testing.T, path string) { remove(t, path); os.Mkdir(path, 0o755) }, "not a regular file"},
		{"pipe", func(t *testing.T, path string) { remove(t, path); syscall.Mkfifo(path, 0o644) }, "not a regular file"},
		{"link-loop", func(t *testing.T, path string) { remove(t, path); os.Symlink(path, path) }, "too many levels"},
		{"dangling-link", func(t *testing.T, path string) { remove(t, path); os.Symlink("nowhere", path) }, "no such file"},
		{"too-large", func(t *testing.T, path string) { write(t, path, version(2, 1<<20)) }, "more than 65536"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := start(t)
			f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour; o.MaxBytes = 64 << 10 })
			row.make(t, path)
			for range 2 {
				s := f.Fresh(t.Context())
				if s.Status != Refused || s.Value != 0 || s.Err == nil || !strings.Contains(s.Err.Error(), row.want) || !strings.Contains(s.Err.Error(), path) {
					t.Errorf("got %v %v %v, want refused, the path and %q", s.Status, s.Value, s.Err, row.want)
				}
			}
			remove(t, path)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			write(t, path, version(1, 0))
			if s := f.Fresh(t.Context()); s.Status != Current || s.Value != 1 {
				t.Errorf("got %v %v %v after the repair", s.Status, s.Value, s.Err)
			}
			if got := r.String(); got != "refused 0, current 1" {
				t.Errorf("OnChange was told %v", got)
			}
		})
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

// unfinished are contents that may become whole.
var unfinished = map[string]string{
	"empty":        "",
	"white-space":  " \n",
	"cut-off":      `{"version":`,
	"cut-off-text": `{"version":2,"padding":"xx`,
	"not-filled":   "\x00\x00\x00\x00",
}

func TestPendingBecomesWhole(t *testing.T) {
	for name, text := range unfinished {
		t.Run(name, func(t *testing.T) {
			path := start(t)
			f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour })
			write(t, path, text)
			answers := make(chan State[int])
			for range 10 {
				go func() { answers <- f.Fresh(context.Background()) }()
			}
			until(t, "pending", func() bool { return f.State().Status == Pending })
			if s := f.State(); s.Value != 1 || s.Err == nil {
				t.Errorf("while pending: %v %v, want the value before and a reason", s.Value, s.Err)
			}
			write(t, path, version(2, 0))
			for range 10 {
				if s := <-answers; s.Status != Current || s.Value != 2 {
					t.Errorf("got %v %v %v", s.Status, s.Value, s.Err)
				}
			}
			if got := r.String(); got != "current 2" {
				t.Errorf("OnChange was told %v: what is open must stay", got)
			}
		})
	}
}

func TestPendingBecomesWhatItWas(t *testing.T) {
	path := start(t)
	f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour })
	run(t, f)
	write(t, path, "")
	until(t, "pending", func() bool { return f.State().Status == Pending })
	write(t, path, version(1, 0))
	if s := f.Fresh(t.Context()); s.Status != Current || s.Value != 1 {
		t.Errorf("got %v %v", s.Status, s.Value)
	}
	if r.String() != "" {
		t.Errorf("OnChange was told %v", r)
	}
}

func TestPendingTooLong(t *testing.T) {
	for name, text := range unfinished {
		t.Run(name, func(t *testing.T) {
			path := start(t)
			f, r := follow(t, path, func(o *Options[int]) { o.Wait = 50 * time.Millisecond })
			write(t, path, text)
			if s := f.Fresh(t.Context()); s.Status != Refused || !strings.Contains(s.Err.Error(), "not whole after 50ms") {
				t.Errorf("got %v %v", s.Status, s.Err)
			}
			// The wait is over for good: another unfinished content gets none of its own.
			f.o.Wait = time.Hour
			f.pending = f.pending.Add(-time.Hour)
			write(t, path, text+" ")
			if s := f.Fresh(t.Context()); s.Status != Refused {
				t.Errorf("got %v %v", s.Status, s.Err)
			}
			write(t, path, version(2, 0))
			if s := f.Fresh(t.Context()); s.Status != Current || s.Value != 2 {
				t.Errorf("got %v %v", s.Status, s.Err)
			}
			if got := r.String(); got != "refused 0, current 2" {
				t.Errorf("OnChange was told %v", got)
			}
		})
	}
}

// Open flows are cut when the wait is over although nobody asks.
func TestRunEndsTheWait(t *testing.T) {
	path := start(t)
	f, r := follow(t, path, func(o *Options[int]) { o.Wait = 50 * time.Millisecond })
	run(t, f)
	write(t, path, "")
	until(t, "refused", func() bool { return r.String() == "refused 0" })
	write(t, path, version(2, 0))
	until(t, "current", func() bool { return r.String() == "refused 0, current 2" })
}

// While a bad file is repaired, new decisions wait for it as they do for a good one, and nothing opens meanwhile.
func TestPendingAfterRefused(t *testing.T) {
	path := start(t)
	f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour })
	write(t, path, "{}")
	if s := f.Fresh(t.Context()); s.Status != Refused {
		t.Fatalf("got %v", s.Status)
	}
	write(t, path, `{"version":3`)
	answer := make(chan State[int])
	go func() { answer <- f.Fresh(context.Background()) }()
	until(t, "pending", func() bool { return f.State().Status == Pending })
	if s := f.State(); s.Value != 0 {
		t.Errorf("the value %d is in force over a refused file", s.Value)
	}
	write(t, path, `{"version":3}`)
	if s := <-answer; s.Status != Current || s.Value != 3 {
		t.Errorf("got %v %v", s.Status, s.Value)
	}
	if got := r.String(); got != "refused 0, current 3" {
		t.Errorf("OnChange was told %v", got)
	}
}

func TestFreshEndsWithItsContext(t *testing.T) {
	path := start(t)
	f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour })
	write(t, path, "")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("client gone")
	go func() {
		until(t, "pending", func() bool { return f.State().Status == Pending })
		cancel(gone)
	}()
	if s := f.Fresh(ctx); s.Status != Refused || !errors.Is(s.Err, gone) {
		t.Errorf("got %v %v", s.Status, s.Err)
	}
	if r.String() != "" {
		t.Errorf("OnChange was told %v", r)
	}
}

// YAML does not show where it ends: "version: 12" is a valid beginning of "version: 123". It counts when it is quiet.
func TestQuietDocuments(t *testing.T) {
	path := start(t)
	f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour })
	f.quiet = time.Hour
	for _, text := range []string{"version: 1", "version: 12", "versi"} {
		write(t, path, text)
		if state, _ := f.refresh(); state.Status != Pending || state.Value != 1 {
			t.Errorf("%s: got %v %v, want pending", text, state.Status, state.Value)
		}
	}
	write(t, path, "version: 123")
	f.quiet = time.Millisecond
	if s := f.Fresh(t.Context()); s.Status != Current || s.Value != 123 {
		t.Errorf("got %v %v %v", s.Status, s.Value, s.Err)
	}
	if got := r.String(); got != "current 123" {
		t.Errorf("OnChange was told %v", got)
	}
}

func TestNewFails(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"missing", "-", "no such file"},
		{"empty", "", "empty"},
		{"cut-off", `{"version":1`, "unexpected EOF"},
		{"invalid", "{}", "no version"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policy.json")
			if row.text != "-" {
				write(t, path, row.text)
			}
			_, err := New(t.Context(), Options[int]{Path: path, Decode: decodeDocument, Wait: 10 * time.Millisecond,
				OnChange: func(State[int]) { t.Error("OnChange was called") }})
			if err == nil || !strings.Contains(err.Error(), row.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, want the path and %q", err, row.want)
			}
		})
	}
}

// A large document is written in many pieces, slower than it is read: a piece is never taken for the whole.
func TestSlowWriter(t *testing.T) {
	path := start(t)
	f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour })
	run(t, f)
	for n := 2; n < 5; n++ {
		text := version(n, 100_000)
		file, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		for len(text) > 0 {
			piece := text[:min(len(text), 5000)]
			text = text[len(piece):]
			if _, err := file.WriteString(piece); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
		file.Close()
		if s := f.Fresh(t.Context()); s.Status != Current || s.Value != n {
			t.Errorf("got %v %v %v", s.Status, s.Value, s.Err)
		}
	}
	if got := r.String(); got != "current 2, current 3, current 4" {
		t.Errorf("OnChange was told %v", got)
	}
}

// No descriptor left says nothing of the file: it is no reason to cut what is open at once.
func TestNoDescriptorsLeft(t *testing.T) {
	path := start(t)
	f, r := follow(t, path, func(o *Options[int]) { o.Wait = time.Hour })
	write(t, path, version(2, 0))
	var before syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	state, _ := f.refresh()
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if state.Status != Pending {
		t.Errorf("got %v %v, want pending", state.Status, state.Err)
	}
	if s := f.Fresh(t.Context()); s.Status != Current || s.Value != 2 {
		t.Errorf("got %v %v", s.Status, s.Value)
	}
	if got := r.String(); got != "current 2" {
		t.Errorf("OnChange was told %v", got)
	}
}

func BenchmarkFresh(b *testing.B) {
	path := filepath.Join(b.TempDir(), "policy.json")
	if err := os.WriteFile(path, []byte(version(1, 200)), 0o644); err != nil {
		b.Fatal(err)
	}
	f, err := New(b.Context(), Options[int]{Path: path, Decode: decodeDocument})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("changed-just-now", func(b *testing.B) {
		for b.Loop() {
			f.last.seen = time.Now() // as if the change were new each time
			f.known.Load().settled = false
			f.Fresh(b.Context())
		}
	})
	time.Sleep(150 * time.Millisecond)
	f.Fresh(b.Context())
	b.Run("settled", func(b *testing.B) {
		if !f.known.Load().settled {
			b.Fatal("not settled")
		}
		b.ReportAllocs()
		for b.Loop() {
			f.Fresh(b.Context())
		}
	})
}

func TestUnchanged(t *testing.T) {
	path := start(t)
	f, _ := follow(t, path)
	until(t, "unchanged", func() bool { f.Fresh(t.Context()); return f.Unchanged() })
	write(t, path, version(2, 0))
	if f.Unchanged() {
		t.Error("unchanged after a write")
	}
	until(t, "unchanged", func() bool { f.Fresh(t.Context()); return f.Unchanged() })
	if s := f.State(); s.Value != 2 {
		t.Errorf("got %v", s.Value)
	}
	remove(t, path)
	if f.Unchanged() {
		t.Error("unchanged although gone")
	}
}

func TestReads(t *testing.T) {
	long := strings.Repeat("x", 200<<10)
	for _, row := range []struct {
		name, file, data string
		want             bool
	}{
		{"same", "abc", "abc", true},
		{"empty", "", "", true},
		{"grown", "abcd", "abc", false},
		{"shrunk", "ab", "abc", false},
		{"changed", "abd", "abc", false},
		{"long", long, long, true},
		{"long-changed-at-the-end", long + "x", long + "y", false},
		{"long-grown", long + "x", long, false},
	} {
		path := filepath.Join(t.TempDir(), "f")
		write(t, path, row.file)
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if got, err := reads(file, []byte(row.data)); err != nil || got != row.want {
			t.Errorf("%s: got %v %v", row.name, got, err)
		}
	}
}

func TestConcerns(t *testing.T) {
	for _, row := range []struct {
		named, path string
		want        bool
	}{
		{"/p/policy.yaml", "/p/policy.yaml", true},
		{"./policy.yaml", "policy.yaml", true},
		{"/p", "/p/policy.yaml", true}, // the directory is gone, say
		{".", "policy.yaml", true},
		{"/p/policy.yaml.tmp", "/p/policy.yaml", false},
		{"/p/log", "/p/policy.yaml", false},
	} {
		if got := concerns(row.named, row.path); got != row.want {
			t.Errorf("%s for %s: %v, want %v", row.named, row.path, got, row.want)
		}
	}
}
