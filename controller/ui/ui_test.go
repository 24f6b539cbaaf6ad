package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sluice/control"
	"sluice/controller/api"
)

// fixed is a source that changes only by a test's hand.
type fixed struct {
	mu    sync.Mutex // guards all fields but hub
	all   []api.Status
	err   error
	asked int
	count uint64 // of packets of every container
	read  int
	hub   control.Hub
}

func (f *fixed) List(context.Context) ([]api.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.all, f.err
}

func (f *fixed) Events() *control.Hub { return &f.hub }

func (f *fixed) Packets(id string) (allowed, refused uint64, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.read++
	return f.count, 0, id != ""
}

func id(n int) string { return fmt.Sprintf("%064x", n) }

func many(n int) (all []api.Status) {
	for i := range n {
		all = append(all, api.Status{ID: id(i), Name: fmt.Sprintf("task-%04d", i), State: api.Attached, Phase: "run", Mode: "allowlist"})
	}
	return all
}

func get(t *testing.T, h http.Handler, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://127.0.0.1:9465"+path, nil))
	return w
}

func data(t *testing.T, h http.Handler, query string) (v View) {
	t.Helper()
	w := get(t, h, "/data?"+query)
	if w.Code != http.StatusOK {
		t.Fatalf("%s: %d %s", query, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func names(v View) string {
	var all []string
	for _, r := range v.Rows {
		all = append(all, r.Name)
	}
	return strings.Join(all, " ")
}

func TestLoopback(t *testing.T) {
	for _, row := range []struct {
		addr string
		ok   bool
	}{
		{"127.0.0.1:9465", true},
		{"127.9.9.9:1", true},
		{"[::1]:9465", true},
		{"localhost:9465", true},
		{"[::ffff:127.0.0.1]:9465", true},
		{":9465", false},
		{"0.0.0.0:9465", false},
		{"[::]:9465", false},
		{"192.0.2.1:9465", false},
		{"[fe80::1%lo]:9465", false},
		{"localhost.example:9465", false},
		{"127.0.0.1", false},
		{"", false},
	} {
		if err := Loopback(row.addr); (err == nil) != row.ok {
			t.Errorf("%q: %v", row.addr, err)
		}
	}
}

func TestWhoIsAnswered(t *testing.T) {
	p := New(&fixed{}, "v1")
	for _, row := range []struct {
		name, method, host, site, path string
		want                           int
	}{
		{"page", "GET", "127.0.0.1:9465", "none", "/", 200},
		{"head", "HEAD", "127.0.0.1:9465", "", "/", 200},
		{"through-ssh", "GET", "localhost:8000", "none", "/", 200},
		{"ipv6", "GET", "[::1]:9465", "", "/data", 200},
		{"ipv6-without-port", "GET", "[::1]", "", "/data", 200},
		{"own-script", "GET", "127.0.0.1:9465", "same-origin", "/data", 200},
		{"link-from-elsewhere", "GET", "127.0.0.1:9465", "cross-site", "/", 200},
		{"data-from-elsewhere", "GET", "127.0.0.1:9465", "cross-site", "/data", 403},
		{"data-from-another-port", "GET", "127.0.0.1:9465", "same-site", "/data", 403},
		{"script-from-elsewhere", "GET", "127.0.0.1:9465", "cross-site", "/page.js", 403},
		{"rebinding", "GET", "evil.example:9465", "same-origin", "/data", 403},
		{"rebinding-page", "GET", "evil.example", "none", "/", 403},
		{"localhost-of-somebody", "GET", "localhost.evil.example:9465", "", "/", 403},
		{"address-of-the-host", "GET", "192.0.2.1:9465", "", "/data", 403},
		{"no-host", "GET", "", "", "/", 403},
		{"post", "POST", "127.0.0.1:9465", "", "/data", 405},
		{"delete", "DELETE", "127.0.0.1:9465", "", "/", 405},
		{"other-path", "GET", "127.0.0.1:9465", "", "/page/index.html", 404},
		{"upwards", "GET", "127.0.0.1:9465", "", "/../ui.go", 404},
	} {
		t.Run(row.name, func(t *testing.T) {
			req := httptest.NewRequest(row.method, "http://127.0.0.1"+row.path, nil)
			req.Host = row.host
			if row.site != "" {
				req.Header.Set("Sec-Fetch-Site", row.site)
			}
			w := httptest.NewRecorder()
			p.ServeHTTP(w, req)
			if w.Code != row.want {
				t.Errorf("%d %s, want %d", w.Code, w.Body, row.want)
			}
			if w.Header().Get("Content-Security-Policy") != contentPolicy || w.Header().Get("X-Content-Type-Options") != "nosniff" {
				t.Errorf("headers: %v", w.Header())
			}
		})
	}
}

// Every file of the page is served, and names no other place than this one.
func TestFiles(t *testing.T) {
	p := New(&fixed{}, "v1")
	inPage := map[string]bool{}
	for path, f := range served {
		inPage[f.file] = true
		w := get(t, p, path)
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != f.kind || w.Body.Len() == 0 {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
		text := strings.ReplaceAll(w.Body.String(), `xmlns="http://www.w3.org/2000/svg"`, "")
		for _, never := range []string{"//", "@import", "innerHTML", "insertAdjacentHTML", "document.write", "eval(", " style=", "onclick"} {
			text := text
			if strings.HasSuffix(path, ".js") && never == "//" {
				text, never = strings.ReplaceAll(text, "// ", ""), "://"
			}
			if strings.Contains(text, never) {
				t.Errorf("%s contains %q", path, never)
			}
		}
	}
	err := fs.WalkDir(files, ".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !inPage[path] {
			t.Errorf("%s is embedded but not served", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestView(t *testing.T) {
	f := &fixed{all: []api.Status{
		{ID: id(0xabc) + "x", Name: "web", State: api.Attached, Phase: "run", Mode: "allowlist", Since: time.Unix(10, 0)},
		{ID: id(2), Name: "judge", State: api.Attached, Phase: "evaluation", Mode: "public", Since: time.Unix(30, 0)},
		{ID: "fe" + id(3), Name: "worker", State: api.Quarantined, Phase: "run", Mode: "no-network", Problem: "a step failed"},
		{ID: id(4), Name: "old", State: api.Stopped, Phase: "baseline", Mode: "denylist", Since: time.Unix(20, 0)},
	}}
	p := New(f, "v1")
	for _, row := range []struct{ query, want string }{
		{"", "worker judge old web"},
		{"sort=change", "worker judge old web"},
		{"q=w", "worker web"},
		{"q=WEB", "web"},
		{"q=stopped", "old"},
		{"q=run", "worker web"},
		{"q=run+allowlist", "web"},
		{"q=fe00", "worker"},
		{"q=stop", ""},
		{"q=%3Cb%3E", ""},
		{"from=3", "worker judge old web"}, // the page has all
		{"from=100", "worker judge old web"},
	} {
		if got := names(data(t, p, row.query)); got != row.want {
			t.Errorf("%s: %q, want %q", row.query, got, row.want)
		}
	}
	v := data(t, p, "q=w")
	if v.Total != 4 || v.Matched != 2 || v.States[api.Attached] != 2 || v.States[api.Quarantined] != 1 || v.States[api.Stopped] != 1 ||
		v.Version != "v1" || v.Rows[0].Problem != "a step failed" {
		t.Errorf("%+v", v)
	}
	for _, wrong := range []string{"from=-1", "from=x", "sort=id", "q=" + strings.Repeat("x", maxAsk+1), "from=99999999999999999999"} {
		if w := get(t, p, "/data?"+wrong); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d", wrong, w.Code)
		}
	}
}

func TestViewOfNobody(t *testing.T) {
	w := get(t, New(&fixed{}, "v1"), "/data")
	if !strings.Contains(w.Body.String(), `"rows":[],"refusals":[]`) {
		t.Errorf("%s", w.Body)
	}
}

func TestListFails(t *testing.T) {
	f := &fixed{err: errors.New("no state")}
	p := New(f, "v1")
	if w := get(t, p, "/data"); w.Code != http.StatusInternalServerError || !strings.Contains(w.Body.String(), "no state") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	f.err = nil
	if w := get(t, p, "/data"); w.Code != http.StatusOK {
		t.Errorf("afterwards: %d %s", w.Code, w.Body)
	}
}

// An answer is small, however many containers there are, and all of them can be reached.
func TestManyContainers(t *testing.T) {
	f := &fixed{all: many(2000)}
	p := New(f, "v1")
	now := time.Now()
	for i := range 2000 {
		for n := range 2 * keptOfOne {
			p.watch.add(&control.Event{Container: f.all[i].Name, ContainerID: f.all[i].ID, Verdict: "refuse", Time: now.Add(time.Duration(n)),
				Target: strings.Repeat("x", 10_000), Reason: "not-listed", Decision: "0123456789abcdef"}, now)
		}
	}
	w := get(t, p, "/data")
	if w.Body.Len() > 64<<10 {
		t.Errorf("an answer of %d bytes", w.Body.Len())
	}
	seen := map[string]bool{}
	for from := 0; from < 2000; from += maxRows {
		for _, r := range data(t, p, fmt.Sprint("from=", from)).Rows {
			seen[r.Name] = true
		}
	}
	if len(seen) != 2000 {
		t.Errorf("%d containers were shown", len(seen))
	}
	if v := data(t, p, "q=task-1234"); len(v.Refusals) != keptOfOne || v.Refusals[0].Container != "task-1234" || v.Rows[0].Minute.Refused != 2*keptOfOne {
		t.Errorf("%+v", v)
	}
	if v := data(t, p, "q=task"); len(v.Refusals) != maxRefusals {
		t.Errorf("%d refusals", len(v.Refusals))
	}
}

func TestMinute(t *testing.T) {
	w := newWatch()
	start := time.Unix(1_000_000_000, 0)
	for i := range 120 { // one a second
		w.add(&control.Event{ContainerID: "a", Verdict: "allow", BytesIn: 10, BytesOut: 1}, start.Add(time.Duration(i)*time.Second))
	}
	end := start.Add(119 * time.Second)
	for _, row := range []struct {
		after time.Duration
		want  uint64
	}{{0, 60}, {5 * time.Second, 55}, {30 * time.Second, 30}, {time.Minute, 0}, {time.Hour, 0}} {
		if got := w.of["a"].minute(end.Add(row.after)); got != (counts{Allowed: row.want, BytesIn: 10 * row.want, BytesOut: row.want}) {
			t.Errorf("%v later: %+v, want %d", row.after, got, row.want)
		}
	}
}

// Records arrive by the hub; the newest refusal is first, and others are only counted.
func TestRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fixed{all: many(2)}
		p := New(f, "v1")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- p.Run(ctx) }()
		synctest.Wait()
		for i, verdict := range []string{"refuse", "allow", "error", "cut", "refuse"} {
			f.hub.Publish(control.Event{Container: "task-0001", ContainerID: id(1), Verdict: verdict, Time: time.Now().Add(time.Duration(i)),
				Target: "<img src=x>", Decision: fmt.Sprint("d", i)})
		}
		synctest.Wait()
		v := data(t, p, "")
		if len(v.Refusals) != 2 || v.Refusals[0].Decision != "d4" || v.Refusals[1].Decision != "d0" {
			t.Errorf("%+v", v.Refusals)
		}
		if got := v.Rows[1].Minute; got.Allowed != 1 || got.Refused != 2 {
			t.Errorf("%+v", got)
		}
		if v := data(t, p, "q=task-0000"); len(v.Refusals) != 0 {
			t.Errorf("another container's: %+v", v.Refusals)
		}
		if text := get(t, p, "/data").Body.String(); strings.Contains(text, "<img") {
			t.Errorf("markup in the data: %s", text)
		}

		// A container that is gone is forgotten; its refusals are still among the last ones.
		f.mu.Lock()
		f.all = f.all[:1]
		f.mu.Unlock()
		time.Sleep(2 * pruneEvery)
		synctest.Wait()
		p.watch.mu.Lock()
		left := len(p.watch.of)
		p.watch.mu.Unlock()
		if v := data(t, p, ""); left != 0 || len(v.Refusals) != 2 || v.Total != 1 {
			t.Errorf("%d left, %+v", left, v)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A page that cannot keep up says so, and goes on.
func TestTooManyRecords(t *testing.T) {
	f := &fixed{all: many(1)}
	p := New(f, "v1")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- p.Run(ctx) }()
	for !f.hub.Active() {
		time.Sleep(time.Millisecond)
	}
	p.watch.mu.Lock() // as if it were slow
	for f.hub.Active() {
		f.hub.Publish(control.Event{ContainerID: id(0), Verdict: "refuse"})
	}
	p.watch.mu.Unlock()
	for data(t, p, "").Missed == 0 || !f.hub.Active() {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestOldListIsUsedForASecond(t *testing.T) {
	f := &fixed{all: many(1)}
	p := New(f, "v1")
	now := time.Now()
	p.now = func() time.Time { return now }
	for range 10 {
		data(t, p, url.Values{"q": {"task"}}.Encode())
	}
	if f.asked != 1 {
		t.Errorf("asked %d times", f.asked)
	}
	now = now.Add(snapshotAge)
	if data(t, p, ""); f.asked != 2 {
		t.Errorf("asked %d times", f.asked)
	}
}

// Rates are those between two questions; only what is seen is asked for, and not more than once a second.
func TestDirect(t *testing.T) {
	f := &fixed{all: many(2000)}
	p := New(f, "v1")
	now := time.Unix(1_000_000_000, 0)
	p.now = func() time.Time { return now }
	for _, row := range []struct {
		name  string
		after time.Duration
		count uint64
		want  string
	}{
		{"first", 0, 100, "unknown"},
		{"at-once", 10 * time.Millisecond, 5000, "unknown"},
		{"later", 1990 * time.Millisecond, 300, "100"},
		{"as-before", 500 * time.Millisecond, 9000, "100"},
		{"nothing", 1500 * time.Millisecond, 300, "0"},
		{"rules-made-anew", 2 * time.Second, 4, "unknown"},
		{"goes-on", 2 * time.Second, 8, "2"},
		{"nobody-looked", time.Minute, 600, "unknown"},
	} {
		now = now.Add(row.after)
		f.count = row.count
		got := "unknown"
		if rate := data(t, p, "").Rows[0].Direct; rate != nil {
			got = fmt.Sprint(*rate)
		}
		if got != row.want {
			t.Errorf("%s: %s, want %s", row.name, got, row.want)
		}
	}
	if f.read != 6*maxRows {
		t.Errorf("the kernel was asked %d times", f.read)
	}
}

func BenchmarkView(b *testing.B) {
	f := &fixed{all: many(2000)}
	p := New(f, "v1")
	a := ask{terms: []string{"task"}, sort: byRefused}
	for i := range f.all {
		for range keptOfOne {
			p.watch.add(&control.Event{ContainerID: f.all[i].ID, Verdict: "refuse"}, time.Now())
		}
	}
	for b.Loop() {
		p.view(f.all, a)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
