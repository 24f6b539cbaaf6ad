package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/images"
)

func TestStart(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	origin := echo(t)
	r := c.apply("s1", spec(origin))
	if r.Generation != 1 || r.Phase != "baseline" || r.Digest == "" {
		t.Errorf("receipt %+v", r)
	}
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	flows, err := c.Flows(t.Context(), "s1")
	if err != nil || len(flows) != 1 || flows[0].Target != origin {
		t.Errorf("flows %+v, %v", flows, err)
	}
	if x, err := c.Explain(t.Context(), "s1", origin); err != nil || x.Verdict != "allow" {
		t.Errorf("explanation %+v, %v", x, err)
	}

	r = c.apply("s1", control.SessionSpec{Phase: "run"})
	if r.Generation != 2 || r.FlowsCut != 1 {
		t.Errorf("receipt %+v: want generation 2 and a flow cut", r)
	}
	c.cut(flow)
	r = c.apply("s1", control.SessionSpec{Phase: "run"})
	if r.Generation != 2 || !r.Unchanged {
		t.Errorf("receipt %+v: want generation 2, unchanged", r)
	}
	if _, err := c.Apply(t.Context(), "s1", control.SessionSpec{Phase: "run", Generation: 1}); !errors.Is(err, control.ErrStale) {
		t.Errorf("an older generation: %v", err)
	}
	if refused, err := connect(proxy, origin); err != nil || refused.status != http.StatusForbidden {
		t.Errorf("a refused target: %v, %v", refused, err)
	}
	if err := c.Delete(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(proxy, origin); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a socket is left: %v", err)
	}
	if err := c.Delete(t.Context(), "s1"); err != nil {
		t.Errorf("delete again: %v", err)
	}
	if _, err := c.Flows(t.Context(), "s1"); !errors.Is(err, control.ErrNotFound) {
		t.Errorf("flows of a session that is gone: %v", err)
	}
}

// What the caller got wrong changes nothing.
func TestBadSpec(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	origin := echo(t)
	for _, bad := range []control.SessionSpec{spec(""), {Phase: "run"}, {Phase: "party"}} {
		if _, err := c.Apply(t.Context(), "s1", bad); !callersFault(err) {
			t.Errorf("got %v, want the caller's fault", err)
		}
	}
	if ids, err := c.Sessions(t.Context()); err != nil || len(ids) != 0 {
		t.Errorf("sessions %v, %v", ids, err)
	}
	c.apply("s1", spec(origin))
	flow := c.open(c.give("s1"), origin)
	for _, bad := range []control.SessionSpec{spec("*"), {Phase: "party"}} {
		if _, err := c.Apply(t.Context(), "s1", bad); !errors.Is(err, control.ErrInvalid) {
			t.Errorf("got %v, want an invalid request", err)
		}
	}
	c.alive(flow)
	if _, err := c.Apply(t.Context(), "../s1", spec(origin)); !errors.Is(err, control.ErrInvalid) {
		t.Errorf("a bad id: %v", err)
	}
	if n := c.Status().Restarts; n != 0 {
		t.Errorf("%d restarts", n)
	}
}

// A sidecar that is killed is replaced. Who connects meanwhile waits.
func TestKilled(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	origin, other := echo(t), echo(t)
	c.apply("s1", spec(origin))
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	c.apply("s1", control.SessionSpec{Generation: 7, Policies: spec(origin, other).Policies})
	ruleless := c.give("s2") // a session without rules

	w.engine.newest().Kill()
	c.cut(flow)
	waiting, err := connect(proxy, other)
	if err != nil || waiting.status != http.StatusOK || waiting.ping() != nil {
		t.Errorf("a client that came while there was no sidecar: %v, %v", waiting, err)
	}
	status, err := c.Session(t.Context(), "s1")
	if err != nil || status.Generation != 7 || status.Container != "web" || status.Phase != "baseline" {
		t.Errorf("session %+v, %v: want it as it was", status, err)
	}
	if refused, err := connect(ruleless, origin); err != nil || refused.status != http.StatusForbidden {
		t.Errorf("a session without rules: %v, %v", refused, err)
	}
	if n := c.restarts("died"); n != 1 {
		t.Errorf("%v restarts of one that died, want 1", n)
	}
	if n := c.Status().Restarts; n != 1 {
		t.Errorf("%d restarts, want 1", n)
	}
}

// A sidecar that hangs is killed and replaced.
func TestHung(t *testing.T) {
	w := newWorld(t)
	w.options.Timing.Healthy = time.Second
	c := w.start()
	origin := echo(t)
	c.apply("s1", spec(origin))
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	c.freeze(w.engine.newest())
	c.cut(flow)
	c.open(proxy, origin)
	c.until("a restart of one that hung", func() bool { return c.restarts("hung") >= 1 })
}

// A switch does not wait for the health check: a sidecar that does not answer is killed, and the next one has the new
// rules when the receipt comes.
func TestHungInASwitch(t *testing.T) {
	w := newWorld(t)
	w.options.Timing.Health = time.Hour
	w.options.Timing.Call = 500 * time.Millisecond
	c := w.start()
	origin := echo(t)
	c.apply("s1", spec(origin))
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	c.freeze(w.engine.newest())
	r := c.apply("s1", control.SessionSpec{Phase: "run"})
	if r.Generation != 2 || r.Phase != "run" {
		t.Errorf("receipt %+v", r)
	}
	c.cut(flow)
	if refused, err := connect(proxy, origin); err != nil || refused.status != http.StatusForbidden {
		t.Errorf("after the switch: %v, %v", refused, err)
	}
	if n := c.restarts("switch"); n != 1 {
		t.Errorf("%v restarts for a switch, want 1", n)
	}
}

// While no sidecar can be started, a switch fails, and what comes later refuses.
func TestSwitchWithoutSidecar(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	origin := echo(t)
	c.apply("s1", spec(origin))
	proxy := c.give("s1")
	w.engine.set(errors.New("the engine is away"))
	w.engine.newest().Kill()
	c.until("no sidecar", func() bool { return len(c.Status().Sidecars) == 0 })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := c.Apply(ctx, "s1", control.SessionSpec{Phase: "run"}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want the end of the time", err)
	}
	if p := c.Status().Problem; !strings.Contains(p, "the engine is away") {
		t.Errorf("problem %q", p)
	}
	w.engine.set(nil)
	if refused, err := connect(proxy, origin); err != nil || refused.status != http.StatusForbidden {
		t.Errorf("after a switch that failed: %v, %v", refused, err)
	}
	c.apply("s1", spec(origin))
	c.open(proxy, origin)
}

// An upgrade under load refuses nobody. Flows stay with the old sidecar, under every later switch, and it ends with the
// last of them.
func TestUpgrade(t *testing.T) {
	w := newWorld(t)
	w.options.Timing.Drain = 8 * time.Second
	c := w.start()
	kept, refusedLater := echo(t), echo(t)
	sp := spec(kept, refusedLater)
	sp.Policies["run"] = spec(kept).Policies["baseline"]
	c.apply("s1", sp)
	proxy := c.give("s1")
	stays, goes := c.open(proxy, kept), c.open(proxy, refusedLater)

	var load sync.WaitGroup
	var served atomic.Int64
	stop := make(chan struct{})
	for range 4 {
		load.Go(func() {
			for !isClosed(stop) {
				tunnel, err := connect(proxy, kept)
				if err == nil && tunnel.status != http.StatusOK {
					err = errors.New(http.StatusText(tunnel.status))
				}
				if err == nil {
					err = tunnel.ping()
				}
				if err != nil {
					t.Errorf("refused during an upgrade: %v", err)
					return
				}
				tunnel.Close()
				served.Add(1)
			}
		})
	}
	c.until("load", func() bool { return served.Load() > 100 })
	w.install("newer")
	if err := c.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.until("the old one is draining", func() bool {
		s := c.Status().Sidecars
		return len(s) == 2 && s[0].State == "draining" && s[1].State == "serving"
	})
	former := served.Load()
	c.until("load on the new one", func() bool { return served.Load() > former+100 })
	close(stop)
	load.Wait()

	c.alive(stays)
	c.alive(goes)
	old := c.all()[0]
	if one, err := old.client.Session(t.Context(), "s1"); err != nil || len(one.Listeners) != 0 || one.Flows != 2 {
		t.Errorf("the old sidecar has %+v, %v: want 2 flows and no listener", one, err)
	}
	c.until("the load's flows have ended, and those of the old sidecar are told", func() bool {
		flows, err := c.Flows(t.Context(), "s1")
		return err == nil && len(flows) == 2
	})
	r := c.apply("s1", control.SessionSpec{Phase: "run"})
	if r.FlowsCut != 1 || r.FlowsKept != 1 {
		t.Errorf("receipt %+v: want one flow cut and one kept", r)
	}
	c.cut(goes)
	c.alive(stays)
	stays.Close()
	c.until("the old one is gone", func() bool { return len(c.Status().Sidecars) == 1 && len(w.engine.processes()) == 1 })
	if n := c.Status().Restarts; n != 0 {
		t.Errorf("%d restarts", n)
	}
	c.until("the old image is gone", func() bool {
		w.engine.mu.Lock()
		defer w.engine.mu.Unlock()
		return len(w.engine.images) == 1
	})
}

// A controller that comes back finds the sidecar as it is, cuts nothing, and gives it other sockets.
func TestAdopt(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	origin := echo(t)
	first := spec(origin)
	first.Generation = 41
	c.apply("s1", first)
	c.apply("s2", spec(origin))
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	process := w.engine.newest().Pid
	c.stop()
	c.alive(flow)

	c = w.start()
	ids, err := c.Sessions(t.Context())
	if err != nil || strings.Join(ids, " ") != "s1 s2" {
		t.Errorf("sessions %v, %v: want s1 and s2", ids, err)
	}
	if r := c.apply("s1", first); !r.Unchanged || r.Generation != 41 {
		t.Errorf("receipt %+v: want generation 41 unchanged", r)
	}
	again := c.give("s1")
	c.open(proxy, origin) // both are served until the redirect is turned
	c.open(again, origin)
	if err := c.Settle(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	if _, err := connect(proxy, origin); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a socket of the earlier controller: %v", err)
	}
	c.open(again, origin)
	c.alive(flow)
	if now := w.engine.newest().Pid; now != process || c.Status().Restarts != 0 {
		t.Errorf("the sidecar was replaced: process %d, before %d", now, process)
	}
	// What was learned is enough to start another one.
	w.engine.newest().Kill()
	c.open(again, origin)
	if s, err := c.Session(t.Context(), "s1"); err != nil || s.Generation != 41 {
		t.Errorf("session %+v, %v", s, err)
	}
	if s, err := c.Session(t.Context(), "s2"); err != nil || s.Generation != 1 {
		t.Errorf("session %+v, %v", s, err)
	}
}

// A controller with a newer binary starts it beside the sidecar that it finds. That one serves on until the sockets are
// handed over.
func TestAdoptAndUpgrade(t *testing.T) {
	w := newWorld(t)
	w.options.Timing.Drain = time.Millisecond // after the last listener
	c := w.start()
	origin := echo(t)
	c.apply("s1", spec(origin))
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	c.stop()
	w.install("newer")
	c = w.start()
	c.until("two sidecars", func() bool {
		s := c.Status().Sidecars
		return len(s) == 2 && s[1].State == "serving"
	})
	c.open(proxy, origin)
	again := c.give("s1")
	c.open(again, origin)
	c.alive(flow)
	if err := c.Settle(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	c.cut(flow) // its time is over
	c.until("the old one is gone", func() bool { return len(c.Status().Sidecars) == 1 })
	c.open(again, origin)
}

// A sidecar that is found but does not work is replaced.
func TestAdoptHung(t *testing.T) {
	w := newWorld(t)
	w.options.Timing.Adopt = 200 * time.Millisecond
	c := w.start()
	origin := echo(t)
	c.apply("s1", spec(origin))
	flow := c.open(c.give("s1"), origin)
	c.stop()
	c.freeze(w.engine.newest())
	c = w.start()
	c.cut(flow)
	c.apply("s1", spec(origin))
	c.open(c.give("s1"), origin)
}

// Nobody but the sidecar gets descriptors, and there is one controller for a directory.
func TestStrangers(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	c.apply("s1", spec("ok.test"))
	conn, err := net.Dial("unixpacket", filepath.Join(w.options.Dir, "1", control.ListenersName))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || err != nil && !errors.Is(err, net.ErrClosed) && err.Error() != "EOF" {
		t.Errorf("read %d bytes, %v: want the end", n, err)
	}
	second, err := New(w.options)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "another controller") {
		t.Errorf("a second controller: %v", err)
	}
}

func TestConfinement(t *testing.T) {
	w := newWorld(t)
	prepared := 0
	w.options.MTU = func(context.Context) (int, error) { return 1420, nil } // case L-35
	w.options.Prepare = func(_ context.Context, n Network) error {
		if prepared++; prepared == 1 {
			return errors.New("no rules")
		}
		if len(n.Subnets) != 1 || n.Bridge != BridgeName(w.options.Dir) || len(n.Gateways) != 1 {
			t.Errorf("network %+v", n)
		}
		return nil
	}
	c := w.start()
	c.apply("s1", spec("ok.test"))
	if prepared != 2 {
		t.Errorf("prepared %d times, want until it worked", prepared)
	}
	w.engine.mu.Lock()
	defer w.engine.mu.Unlock()
	if o := w.engine.networks[NetworkName(w.options.Dir)].Options; o["com.docker.network.driver.mtu"] != "1420" || o["com.docker.network.bridge.enable_icc"] != "false" {
		t.Errorf("network's options %v", o)
	}
	for _, one := range w.engine.containers {
		h := one.host
		if one.config.User != "65532:65532" || !h.ReadonlyRootfs || h.Privileged || strings.Join(h.CapDrop, " ") != "ALL" || len(h.CapAdd) != 0 ||
			!slices.Equal(h.SecurityOpt, []string{"no-new-privileges", "seccomp=" + images.ProxySeccomp()}) || h.RestartPolicy.Name != "no" || *h.PidsLimit != 256 || h.Memory != 1<<30 ||
			len(h.Mounts) != 1 || !h.Mounts[0].ReadOnly || h.Mounts[0].Source != filepath.Join(w.options.Dir, "1") ||
			string(h.NetworkMode) != NetworkName(w.options.Dir) || !maps.Equal(h.Sysctls, manyPorts) || !strings.Contains(strings.Join(one.config.Cmd, " "), "--never=127.0.0.0/8 --never=::/128 --never=::1/128 --never=172.31.9.0/24") || len(h.PortBindings) != 0 {
			t.Errorf("container %+v, host %+v", one.config, h)
		}
	}
}

// A newer binary that does not work leaves the former sidecar in service, and its last words are told.
func TestBrokenUpgrade(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	origin := echo(t)
	c.apply("s1", spec(origin))
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	if err := os.Remove(w.options.Binary); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(w.options.Binary, []byte("#!/bin/sh\necho no luck >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- c.Upgrade(ctx) }()
	c.until("the problem is told", func() bool {
		p := c.Status().Problem
		return strings.Contains(p, "exit code 3") && strings.Contains(p, "no luck")
	})
	cancel()
	// What is wrong is told above; here the next try may be under way, of which nothing is known yet.
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("upgrade: %v", err)
	}
	c.alive(flow)
	c.open(proxy, origin)
	if r := c.apply("s1", control.SessionSpec{Phase: "run"}); r.FlowsCut != 2 {
		t.Errorf("receipt %+v: want two flows cut", r)
	}
	w.install("")
	if err := c.Upgrade(t.Context()); err != nil {
		t.Errorf("back to the former binary: %v", err)
	}
}

// The newest sidecar serves the metrics, and so does one that is adopted, by a listener of the new controller's own.
func TestMetrics(t *testing.T) {
	w := newWorld(t)
	listen := func(address string) string {
		t.Helper()
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		}}
		l, err := config.Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		w.options.Metrics = l.(*net.TCPListener)
		return l.Addr().String()
	}
	address := listen("127.0.0.1:0")
	scrape := func(c *controller, generation string) {
		t.Helper()
		for range 8 { // a listener that is left somewhere would get some of them
			resp, err := (&http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + address + "/metrics")
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if want := `sluice_generation{container="web"} ` + generation; err != nil || !strings.Contains(string(text), want) {
				t.Fatalf("no %s in %s, %v", want, text, err)
			}
		}
		if text, err := c.Metrics(t.Context()); err != nil || !strings.Contains(text, "sluice_generation") {
			t.Errorf("metrics %q, %v", text, err)
		}
	}
	c := w.start()
	c.apply("s1", spec("ok.test"))
	scrape(c, "1")
	w.install("newer")
	if err := c.Upgrade(t.Context()); err != nil {
		t.Fatal(err)
	}
	old := c.all()[0]
	if _, err := old.client.DeleteSession(t.Context(), "s1"); err != nil { // so that its metrics differ
		t.Fatal(err)
	}
	c.until("the former one is silent", func() bool { return c.Status().Sidecars[0].State == "draining" })
	scrape(c, "1")
	c.stop()
	if got := listen(address); got != address {
		t.Fatalf("listening on %s", got)
	}
	c = w.start()
	c.apply("s1", control.SessionSpec{Phase: "run", Policies: spec("ok.test").Policies})
	scrape(c, "2")

	registry := prometheus.NewRegistry()
	if err := registry.Register(c.Sidecar); err != nil {
		t.Fatal(err)
	}
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range all {
		names = append(names, one.GetName())
	}
	want := "sluice_sidecar_audit_gaps_total sluice_sidecar_drained_total sluice_sidecar_restarts_total sluice_sidecar_start_seconds sluice_sidecars"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("metrics %s, want %s", got, want)
	}
}

func TestEvents(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	c.apply("s1", spec("ok.test"))
	proxy := c.give("s1")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 2 { // from two sidecars
		seen := make(chan control.Event, 1)
		listening := c.Events(ctx)
		go func() {
			for e := range listening {
				seen <- e
				return
			}
		}()
		var got control.Event
		c.until("an event", func() bool {
			if refused, err := connect(proxy, "other.test:443"); err == nil {
				refused.Close()
			}
			select {
			case got = <-seen:
				return true
			default:
				return false
			}
		})
		if got.Container != "web" || got.Target != "other.test" || got.Verdict != "refuse" || got.Decision == "" {
			t.Errorf("event %+v", got)
		}
		w.engine.newest().Kill()
	}
}

// TestFirstEvents checks that the first record of a session is not missed: neither by who asks for records later, nor of a
// new sidecar, which serves what waited while there was none.
func TestFirstEvents(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	c.apply("s1", spec("ok.test"))
	proxy := c.give("s1")
	refuse := func(target string) {
		t.Helper()
		conn, err := connect(proxy, target)
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	refuse("first.test:443")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got []string
	for e := range c.Events(ctx) {
		if got = append(got, e.Target); len(got) == 2 {
			break
		}
		w.engine.newest().Kill()
		refuse("second.test:443")
	}
	if strings.Join(got, " ") != "first.test second.test" {
		t.Errorf("records of %q", got)
	}
}

func TestRemove(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	c.apply("s1", spec("ok.test"))
	c.until("the link to its control socket is there", func() bool { // it is made once all sessions are given
		_, err := os.Stat(filepath.Join(w.options.Dir, control.SocketName))
		return err == nil
	})
	c.stop()
	for range 2 { // a second time there is nothing
		if err := Remove(t.Context(), w.options); err != nil {
			t.Fatal(err)
		}
	}
	left, err := os.ReadDir(w.options.Dir)
	if err != nil || len(left) != 0 || len(w.engine.processes()) != 0 || len(w.engine.networks) != 0 || len(w.engine.containers) != 0 {
		t.Errorf("left: %v, %v, %d processes, %d networks, %d containers", left, err, len(w.engine.processes()), len(w.engine.networks), len(w.engine.containers))
	}
}

// While a sidecar is given many sessions, a switch of one does not wait for the others, and it holds.
func TestSwitchWhileOneStarts(t *testing.T) {
	w := newWorld(t)
	c := w.start()
	origin := echo(t)
	const many = 200
	for n := range many {
		c.apply(fmt.Sprintf("s%d", n), spec(origin))
	}
	proxies := map[string]string{}
	for _, id := range []string{"s0", "s100", "s199"} {
		proxies[id] = c.give(id)
	}
	w.install("newer")
	done := make(chan error, 1)
	go func() { done <- c.Upgrade(t.Context()) }()
	c.until("the new one is being given its sessions", func() bool {
		s := c.Status().Sidecars
		return len(s) == 2
	})
	for id := range proxies {
		if r := c.apply(id, control.SessionSpec{Phase: "run"}); r.Generation != 2 || r.Phase != "run" {
			t.Errorf("%s: receipt %+v", id, r)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for id, proxy := range proxies {
		if refused, err := connect(proxy, origin); err != nil || refused.status != http.StatusForbidden {
			t.Errorf("%s after the switch: %v, %v", id, refused, err)
		}
		for _, i := range c.all() {
			if one, err := i.client.Session(t.Context(), id); err != nil || one.Phase != "run" || one.Generation != 2 {
				t.Errorf("%s in sidecar %d: %+v, %v", id, i.number, one, err)
			}
		}
	}
	if n := c.Status().Restarts; n != 0 {
		t.Errorf("%d restarts", n)
	}
}

// A call that is under way when the controller stops does not end the sidecar.
func TestStopInACall(t *testing.T) {
	w := newWorld(t)
	w.options.Timing.Health = time.Hour
	c := w.start()
	origin := echo(t)
	c.apply("s1", spec(origin))
	proxy := c.give("s1")
	flow := c.open(proxy, origin)
	p := w.engine.newest()
	c.freeze(p)
	done := make(chan error, 1)
	go func() {
		_, err := c.Apply(context.Background(), "s1", control.SessionSpec{Phase: "evaluation"})
		done <- err
	}()
	c.until("the call is under way", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.sessions["s1"].lock) == 1
	})
	c.stop()
	if err := <-done; !errors.Is(err, errStopping) {
		t.Errorf("got %v, want that the controller is stopping", err)
	}
	if err := p.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err := flow.ping(); err != nil { // or the switch came through after all
		c = w.start()
		c.until("the switch", func() bool {
			s, err := c.Session(t.Context(), "s1")
			return err == nil && s.Phase == "evaluation"
		})
	}
	if w.engine.newest().Pid != p.Pid {
		t.Error("the sidecar was replaced")
	}
}
