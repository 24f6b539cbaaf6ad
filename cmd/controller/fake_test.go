package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sluice/control"
	"sluice/controller/api"
	"sluice/controller/tally"
	"sluice/policy"
)

// fake is a controller for two containers, "web" and "db", without an engine. Container "db" can only be attached
// with allow-weak, and its switches to the phase evaluation fail.
type fake struct {
	hub control.Hub

	mu       sync.Mutex
	attached map[string]*member
	networks []api.Network
}

type member struct {
	status   api.Status
	policies policy.Phases
}

var ids = map[string]string{
	"web": "e9583bd9e1237ab0e9fe5b808bf15ef2c2bc8fc2882a0b4287c81e45b2561a21",
	"db":  "0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8f9",
}

func (m *member) put(phase policy.Phase) {
	p := m.policies[phase]
	m.status.Phase, m.status.Mode, m.status.Targets, m.status.Digest = phase.String(), p.Mode.String(), len(p.Targets), p.Digest().String()
	m.status.Generation++
	m.status.Since = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
}

func (f *fake) find(ref string) (*member, error) {
	for name, m := range f.attached {
		if ref == name || ref == m.status.ID {
			return m, nil
		}
	}
	return nil, &control.Error{Code: control.CodeNotFound, Message: fmt.Sprintf("container %q is not attached", ref)}
}

func (f *fake) List(context.Context) (all []api.Status, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.attached {
		all = append(all, m.status)
	}
	slices.SortFunc(all, func(a, b api.Status) int { return strings.Compare(a.Name, b.Name) })
	return all, nil
}

func (f *fake) Attach(_ context.Context, ref string, p policy.Phases, phase policy.Phase, o api.Options) (api.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id, ok := ids[ref]
	switch {
	case !ok:
		return api.Status{}, &control.Error{Code: control.CodeNotFound, Message: fmt.Sprintf("there is no container %q", ref)}
	case ref == "db" && !o.AllowWeak:
		return api.Status{}, &control.Error{Code: control.CodeRefused, Message: "container db cannot be attached: it restarts: use --allow-weak"}
	}
	m := &member{status: api.Status{ID: id, Name: ref, State: api.Attached, Proxy: []string{"http://127.0.0.12:3128"}}, policies: p}
	if ref == "db" {
		m.status.Weak = []string{"it restarts"}
		m.status.UncoveredMilliseconds = 12.4
	}
	m.put(phase)
	f.attached[ref] = m
	s := m.status
	s.Milliseconds = 12.34
	return s, nil
}

func (f *fake) Status(_ context.Context, ref string) (api.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.find(ref)
	if err != nil {
		return api.Status{}, err
	}
	s := m.status
	s.Policies = map[string]json.RawMessage{}
	for phase, p := range m.policies {
		if s.Policies[policy.Phase(phase).String()], err = p.MarshalJSON(); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Verify lets a packet out of db.
func (f *fake) Verify(_ context.Context, ref string, v api.Verify) (api.Verification, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.find(ref)
	if err != nil {
		return api.Verification{}, err
	}
	got := api.Verification{Container: m.status.Name, ContainerID: m.status.ID, Phase: m.status.Phase, Mode: m.status.Mode, OK: m.status.Name != "db",
		Generation: m.status.Generation, Digest: m.status.Digest, Began: m.status.Since, Milliseconds: 12.3, Probes: []api.Probe{
			{Name: "engine-resolver", Target: "sluice-verify.invalid", Want: "refused", Verdict: api.Passed, Got: "blocked", Proof: []string{"gate to DNS filter"}, Decision: "d1"},
			{Name: "tcp6", Target: "[2001:db8::1]:9", Want: "refused", Verdict: api.Skipped, Detail: "no route there in the container"},
		}}
	if m.status.Name == "db" {
		got.Probes = append(got.Probes, api.Probe{Name: "udp4", Target: "192.0.2.1:9", Want: "refused", Verdict: api.Leaked, Got: "no answer"})
	}
	for _, r := range v.Reach {
		got.Probes = append(got.Probes, api.Probe{Name: "reach", Target: r, Want: "works", Verdict: api.Passed, Got: "answered", Proof: []string{"gate to proxy"}})
	}
	return got, nil
}

func (f *fake) Detach(_ context.Context, ref string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.find(ref)
	if err == nil {
		delete(f.attached, m.status.Name)
	}
	return err
}

func (f *fake) receipt(m *member, unchanged bool) api.Receipt {
	r := api.Receipt{Container: m.status.Name, ContainerID: m.status.ID, Generation: m.status.Generation, Phase: m.status.Phase,
		Digest: m.status.Digest, Unchanged: unchanged, Milliseconds: 4.56}
	if !unchanged {
		r.FlowsCut, r.FlowsKept, r.InboundOpen = 1, 2, 3
	}
	return r
}

func (f *fake) Phase(_ context.Context, ref string, phase policy.Phase, generation uint64) (api.Receipt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.find(ref)
	switch {
	case err != nil:
		return api.Receipt{}, err
	case generation != 0 && generation <= m.status.Generation:
		return api.Receipt{}, &control.Error{Code: control.CodeStale, Message: fmt.Sprintf("generation %d is not newer", generation)}
	case m.status.Name == "db" && phase == policy.Evaluation:
		m.status.State, m.status.Problem = api.Quarantined, "switching failed: sidecar: it hangs"
		return api.Receipt{}, &control.Error{Code: control.CodeQuarantined, Message: "container db is quarantined: it hangs"}
	case m.status.Phase == phase.String():
		return f.receipt(m, true), nil
	}
	m.put(phase)
	return f.receipt(m, false), nil
}

func (f *fake) Set(_ context.Context, ref string, p policy.Phases, _ uint64) (api.Receipt, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, err := f.find(ref)
	if err != nil {
		return api.Receipt{}, err
	}
	phase, err := policy.ParsePhase(m.status.Phase)
	if err != nil {
		return api.Receipt{}, err
	}
	m.policies = p
	m.put(phase)
	return f.receipt(m, false), nil
}

func (f *fake) Explain(_ context.Context, ref, target string) (control.Explanation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.find(ref); err != nil {
		return control.Explanation{}, err
	}
	return control.Explanation{Target: target, Phase: "run", Verdict: "refuse", Reason: "not-listed", Text: target + " is not listed"}, nil
}

func (f *fake) Report(ctx context.Context, ref string) (api.Report, error) {
	s, err := f.Status(ctx, ref)
	if err != nil {
		return api.Report{}, err
	}
	began := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return api.Report{Status: s, Since: began, Now: began.Add(time.Minute), Partial: map[string]string{"db": "the controller was started again then; what was before is not known"}[s.Name],
		Switches: []api.Switch{{Began: began, Receipt: api.Receipt{Generation: 1, Phase: "baseline", Digest: "sha256:0"}},
			{Began: began.Add(20 * time.Second), Receipt: api.Receipt{Generation: 2, Phase: "run", FlowsCut: 1, FlowsKept: 2, Milliseconds: 4.56}}},
		Traffic: []tally.Phase{{Phase: "run", Refused: 3, BytesOut: 7, Attempts: []tally.Attempt{{Target: "evil.test", Port: 443, Protocol: "tls", Verdict: "refuse", Reason: "not-listed", Count: 3}}}},
		Packets: []api.Packets{{Phase: "baseline", Allowed: 12, AllowedBytes: 840}, {Phase: "run", Refused: 5}, {Phase: "evaluation"}}}, nil
}

func (f *fake) Flows(context.Context, string) ([]control.Flow, error) {
	return []control.Flow{{ID: "f1", Protocol: "tcp", Target: "web.test:443", Address: "203.0.113.10:443"}}, nil
}

func (f *fake) Networks(context.Context) ([]api.Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.networks, nil
}

func (f *fake) CreateNetwork(_ context.Context, n api.NewNetwork) (api.Network, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	made := api.Network{Name: n.Name, ID: "id-" + n.Name, Bridge: "sluice-0a1b2c3d", Internal: n.Internal, Subnets: []string{"10.207.0.0/26"}}
	f.networks = append(f.networks, made)
	return made, nil
}

func (f *fake) RemoveNetwork(_ context.Context, name string, force bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !force {
		return &control.Error{Code: control.CodeConflict, Message: "network " + name + " is in use: use --force"}
	}
	f.networks = nil
	return nil
}

func (f *fake) Events() *control.Hub  { return &f.hub }
func (f *fake) Metrics() http.Handler { return http.NotFoundHandler() }

// publish makes two records a moment for as long as ctx lasts, for whoever listens.
func (f *fake) publish(ctx context.Context) {
	for ctx.Err() == nil {
		for _, name := range []string{"web", "db"} {
			f.hub.Publish(control.Event{Time: time.Unix(0, 0), Container: name, ContainerID: ids[name], Phase: "run", Verdict: "refuse",
				Protocol: "connect", Target: "evil.test", Port: 443, Reason: "not-listed", Decision: "d-" + name})
		}
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// cmdController starts a fake controller for the rest of the script, at $SLUICE_SOCKET.
func cmdController(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: controller")
	}
	path := filepath.Join(ts.Getenv("WORK"), "c", "sluice.sock")
	ts.Setenv("SLUICE_SOCKET", path)
	stop, err := startFake(path)
	ts.Check(err)
	ts.Defer(stop)
}

// startFake serves a fake controller on a socket until stop is called.
func startFake(path string) (stop func(), err error) {
	l, err := control.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	f := &fake{attached: map[string]*member{}}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { f.publish(ctx) })
	tasks.Go(func() {
		if err := control.ServeHTTP(ctx, l, api.Handler(f), slog.New(slog.DiscardHandler)); err != nil {
			panic(err)
		}
	})
	return func() {
		cancel()
		tasks.Wait()
	}, nil
}
