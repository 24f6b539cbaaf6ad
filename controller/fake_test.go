package controller

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"sluice/control"
	"sluice/controller/api"
	"sluice/dockernet/netns"
	"sluice/dockernet/probe"
	"sluice/policy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world stands for the engine, the kernel and the sidecar. It outlives controllers.
type world struct {
	mu         sync.Mutex
	journal    []string         // what was done, in order
	fail       map[string]error // what to answer instead of doing a step of the journal
	hang       map[string]bool  // steps that do not end before their context
	containers map[string]*Container
	nets       map[string]*fakeNet // by sandbox
	sessions   map[string]*fakeSession
	facts      Facts
	paused     map[string]bool
	events     chan Event
	audit      chan control.Event
	namespaces int
	ports      uint16
	networks   []api.Network     // managed
	guarded    map[string]bool   // bridges
	staging    func(*Plan) error // what becomes of staged rules; it is called with mu held
}

func newWorld() *world {
	return &world{
		fail: map[string]error{}, hang: map[string]bool{}, containers: map[string]*Container{}, nets: map[string]*fakeNet{},
		sessions: map[string]*fakeSession{}, paused: map[string]bool{}, guarded: map[string]bool{}, events: make(chan Event), audit: make(chan control.Event),
		facts: Facts{
			Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Subnets:   []netip.Prefix{netip.MustParsePrefix("172.17.0.0/16"), netip.MustParsePrefix("172.18.0.0/16")},
			Upstreams: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.53:53")},
			NoRoute6:  true,
		},
	}
}

// do writes a step down and says how it ends. The caller has locked w.
func (w *world) do(step string) error {
	w.journal = append(w.journal, step)
	return w.fail[step]
}

// steps returns what was done since the last call.
func (w *world) steps() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	steps := w.journal
	w.journal = nil
	// Gate and guard do at once what they both do, but for what a guard counts on.
	for i := 1; i < len(steps); i++ {
		what, ok := strings.CutPrefix(steps[i-1], "guard ")
		inTurn := strings.HasPrefix(what, "install") || strings.HasPrefix(what, "stage")
		if ok && !inTurn && steps[i] == "gate "+what {
			steps[i-1], steps[i] = steps[i], steps[i-1]
		}
	}
	return steps
}

func (w *world) failing(step string, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.fail)
	if err != nil {
		w.fail[step] = err
	}
}

// start makes a container run, as a new one or once more.
func (w *world) start(name, id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.namespaces++
	sandbox := fmt.Sprint("/run/netns/", w.namespaces)
	c := &Container{ID: id, Name: name, Running: true, Sandbox: sandbox,
		Started: time.Date(2026, 1, 1, 0, 0, w.namespaces, 0, time.UTC).Format(time.RFC3339Nano),
		Networks: []Network{{ID: "net1", Name: "bridge", Bridge: "docker0", MAC: "02:42:ac:11:00:02",
			Addresses: []netip.Prefix{netip.MustParsePrefix("172.17.0.2/16")}, Gateways: []netip.Addr{netip.MustParseAddr("172.17.0.1")}}},
		Hosts: map[string][]netip.Addr{"db": {netip.MustParseAddr("172.17.0.3")}},
	}
	w.containers[id] = c
	n := &fakeNet{world: w, id: fmt.Sprint("4:", w.namespaces), refused: make(chan Refused)}
	n.gate, n.guard = &fakeLayer{world: w, name: "gate"}, &fakeLayer{world: w, name: "guard"}
	w.nets[sandbox] = n
}

// stop ends a container's run, and with it the namespace and the gate. The guard stays.
func (w *world) stop(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := *w.containers[id]
	w.nets[c.Sandbox].gate.clear()
	c.Running, c.Sandbox, c.Networks, c.Hosts = false, "", nil, nil
	w.containers[id] = &c
}

func (w *world) remove(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.containers, id)
}

// change replaces what the engine says of a container.
func (w *world) change(id string, f func(*Container)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c := *w.containers[id]
	c.Networks = slices.Clone(c.Networks)
	f(&c)
	w.containers[id] = &c
}

func (w *world) net(id string) *fakeNet {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nets[w.containers[id].Sandbox]
}

type fakeEngine struct{ *world }

func (e fakeEngine) Inspect(_ context.Context, ref string) (Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.fail["inspect"]; err != nil {
		return Container{}, err
	}
	for id, c := range e.containers {
		if id == ref || c.Name == ref {
			return *c, nil
		}
	}
	return Container{}, &control.Error{Code: control.CodeNotFound, Message: "no such container: " + ref}
}

func (e fakeEngine) Runs(ctx context.Context, c *Container) (bool, error) {
	now, err := e.Inspect(ctx, c.ID)
	return err == nil && now.Running && now.same(c), err
}

func (e fakeEngine) Events(ctx context.Context, _ time.Time) iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-e.events:
				if !yield(event) {
					return
				}
			}
		}
	}
}

func (e fakeEngine) Managed(context.Context) (ids []string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, c := range e.containers {
		if c.Running && c.Policy != "" {
			ids = append(ids, id)
		}
	}
	return ids, e.fail["managed"]
}

func (e fakeEngine) Networks(context.Context) ([]api.Network, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.networks), nil
}

func (e fakeEngine) CreateNetwork(_ context.Context, n api.NewNetwork) (api.Network, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	made := api.Network{Name: n.Name, ID: "id-" + n.Name, Bridge: "sluice-" + n.Name}
	e.networks = append(e.networks, made)
	return made, nil
}

func (e fakeEngine) RemoveNetwork(_ context.Context, name string, _ bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.networks = slices.DeleteFunc(e.networks, func(n api.Network) bool { return n.Name == name || n.ID == name })
	return nil
}

func (e fakeEngine) Start(_ context.Context, id string) error {
	e.mu.Lock()
	c := *e.containers[id]
	err := e.do("start " + c.Name)
	e.mu.Unlock()
	if err == nil && !c.Running {
		e.start(c.Name, id)
		e.change(id, func(n *Container) { n.Joined, n.Restarts, n.Refusals = c.Joined, c.Restarts, c.Refusals })
	}
	return err
}

func (e fakeEngine) Remove(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.do("remove"); err != nil {
		return err
	}
	delete(e.containers, id)
	return nil
}

func (e fakeEngine) Pause(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.do("pause"); err != nil {
		return err
	}
	e.paused[id] = true
	return nil
}

func (e fakeEngine) Unpause(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.do("unpause"); err != nil {
		return err
	}
	delete(e.paused, id)
	return nil
}

type fakeHost struct{ *world }

func (h fakeHost) Facts(context.Context) (Facts, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.facts, h.fail["facts"]
}

func (h fakeHost) Open(c *Container, check func() error) (Net, error) {
	h.mu.Lock()
	err := h.do("open")
	n := h.nets[c.Sandbox]
	h.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if check != nil {
		if err := check(); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n.open++
	return n, nil
}

func (h fakeHost) NetworksChanged(managed []api.Network) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.fail["networks changed"]; err != nil {
		return err
	}
	clear(h.guarded)
	for _, n := range managed {
		h.guarded[n.Bridge] = true
	}
	return nil
}

// Clean removes the guards of networks that are gone.
func (h fakeHost) EndFlows(sandbox string) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return 1, h.do("end flows " + sandbox)
}

func (h fakeHost) Clean() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for sandbox, n := range h.nets {
		gone := true
		for _, c := range h.containers {
			gone = gone && c.Sandbox != sandbox
		}
		if gone {
			n.guard.clear()
		}
	}
	return h.fail["clean"]
}

// fakeNet is a namespace with its two layers.
type fakeNet struct {
	*world
	id          string
	gate, guard *fakeLayer
	holds       bool // nothing gets past the gate
	open        int
	direct      []string // open connections of the direct plane, each the name of a phase that allows it
	refused     chan Refused
	counted     Counted
	broken      map[probe.Kind]probe.Outcome // what becomes of probes that no rule sees
	flooded     bool                         // packets are refused all the time
	passing     map[probe.Kind]probe.Answer  // what becomes of probes then
}

func (n *fakeNet) ID() string   { return n.id }
func (n *fakeNet) Gate() Layer  { return n.gate }
func (n *fakeNet) Guard() Layer { return n.guard }

func (n *fakeNet) GateHolds() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.holds
}

func (n *fakeNet) Listen() (*netns.Sockets, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.do("listen"); err != nil {
		return nil, err
	}
	n.ports++
	return &netns.Sockets{TCP4: netns.Socket{Port: n.ports}, UDP4: netns.Socket{Port: n.ports}}, nil
}

func (n *fakeNet) Cut(_ *Plan, phase policy.Phase, before Before) (c Cut, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.do("cut"); err != nil {
		return c, err
	}
	kept := n.direct[:0]
	for _, f := range n.direct {
		if strings.Contains(f, phase.String()) {
			kept = append(kept, f)
		}
	}
	c = Cut{Ended: len(n.direct) - len(kept), Kept: len(kept), Inbound: 1}
	n.direct = kept
	return c, nil
}

func (n *fakeNet) Refusals(do func(Refused)) (stop func()) {
	end := make(chan struct{})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case <-end:
				return
			case r := <-n.refused:
				do(r)
			}
		}
	})
	return func() { close(end); reading.Wait() }
}

func (n *fakeNet) Packets() (p Packets, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.Direct[policy.Baseline], p.DirectBytes[policy.Baseline], p.Refused[policy.Run], p.Never, p.Proxied, p.DNS, p.Forged = 1, 60, 2, 3, 4, 5, 6
	return p, n.fail["packets"]
}

func (n *fakeNet) Close() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.open--
	return nil
}

// fakeLayer is a set of rules as the kernel has it. A step that fails has changed nothing.
type fakeLayer struct {
	*world
	name   string
	plan   *Plan // staged last
	force  []rule
	closed bool // in quarantine
}

// rule is a phase of a plan, which refuses or returns.
type rule struct {
	plan  *Plan
	phase policy.Phase
}

func (l *fakeLayer) clear() { l.plan, l.force, l.closed = nil, nil, false }

func (l *fakeLayer) Install(plan *Plan, phase policy.Phase) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.do(l.name + " install"); err != nil {
		return err
	}
	l.plan, l.force, l.closed = plan, []rule{{plan, phase}}, false
	return nil
}

func (l *fakeLayer) Stage(plan *Plan) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.do(l.name + " stage"); err != nil {
		return err
	}
	if l.staging != nil {
		if err := l.staging(plan); err != nil {
			return err
		}
	}
	l.plan = plan
	return nil
}

func (l *fakeLayer) Both(phase policy.Phase) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.do(l.name + " both"); err != nil {
		return err
	}
	if l.plan == nil {
		return errors.New("nothing is staged")
	}
	l.force = append(l.force[:1:1], rule{l.plan, phase})
	return nil
}

func (l *fakeLayer) Switch(phase policy.Phase) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.do(l.name + " switch"); err != nil {
		return err
	}
	if l.plan == nil {
		return errors.New("nothing is staged")
	}
	l.force, l.closed = []rule{{l.plan, phase}}, false
	return nil
}

func (l *fakeLayer) Quarantine(*Container) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.do(l.name + " quarantine"); err != nil {
		return err
	}
	l.closed = true
	return nil
}

func (l *fakeLayer) Remove() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.do(l.name + " remove"); err != nil {
		return err
	}
	l.clear()
	return nil
}

// holds describes what is in force.
func (l *fakeLayer) holds() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return "nothing passes"
	case l.force == nil:
		return "open"
	}
	var phases []string
	for _, r := range l.force {
		phases = append(phases, r.phase.String()+"="+r.plan.Policies.phases[r.phase].Mode.String())
	}
	return strings.Join(phases, " and ")
}

type fakeSidecar struct{ *world }

type fakeSession struct {
	spec    control.SessionSpec
	sockets *netns.Sockets
	hands   int
	flows   []string // as fakeNet.direct
}

func (s fakeSidecar) Apply(ctx context.Context, id string, spec control.SessionSpec) (r control.Receipt, err error) {
	if err := control.CheckID(id); err != nil {
		return r, err
	}
	s.mu.Lock()
	err = s.do("sidecar apply")
	hang := s.hang["sidecar apply"]
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		err = context.Cause(ctx)
	}
	if err != nil {
		return r, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.sessions[id]
	if session == nil {
		if spec.Policies == nil {
			return r, control.NotFoundError(id)
		}
		session = &fakeSession{}
		s.sessions[id] = session
	}
	if spec.Generation < session.spec.Generation {
		return r, control.StaleError(id, session.spec.Generation, spec.Generation)
	}
	if spec.Policies == nil {
		spec.Policies = session.spec.Policies
	}
	session.spec = spec
	kept := session.flows[:0]
	for _, f := range session.flows {
		if strings.Contains(f, spec.Phase) {
			kept = append(kept, f)
		}
	}
	r = control.Receipt{FlowsCut: len(session.flows) - len(kept), FlowsKept: len(kept), Generation: spec.Generation}
	session.flows = kept
	return r, nil
}

func (s fakeSidecar) Hand(_ context.Context, id string, sockets *netns.Sockets) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.do("sidecar hand"); err != nil {
		return err
	}
	s.sessions[id].sockets = sockets
	s.sessions[id].hands++
	return nil
}

func (s fakeSidecar) Settle(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.do("sidecar settle")
}

func (s fakeSidecar) Delete(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.do("sidecar delete"); err != nil {
		return err
	}
	delete(s.sessions, id)
	return nil
}

func (s fakeSidecar) Explain(_ context.Context, id, target string) (control.Explanation, error) {
	return control.Explanation{Target: target, Text: "judged by session " + id}, nil
}

func (s fakeSidecar) Flows(_ context.Context, id string) ([]control.Flow, error) {
	return []control.Flow{{ID: id}}, nil
}

func (s fakeSidecar) Sessions(context.Context) (ids []string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.sessions {
		ids = append(ids, id)
	}
	return ids, s.fail["sessions"]
}

func (s fakeSidecar) Events(ctx context.Context) iter.Seq[control.Event] {
	return func(yield func(control.Event) bool) {
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-s.audit:
				if !yield(e) {
					return
				}
			}
		}
	}
}

// session is the only one of a container.
func (w *world) session(id string) *fakeSession {
	w.mu.Lock()
	defer w.mu.Unlock()
	var found *fakeSession
	for name, s := range w.sessions {
		if strings.HasPrefix(name, id+".") {
			if found != nil {
				panic("two sessions of " + id)
			}
			found = s
		}
	}
	return found
}

// hosts are the names that a container's session answers.
func (w *world) hosts(id string) map[string][]string {
	s := w.session(id)
	w.mu.Lock()
	defer w.mu.Unlock()
	return s.spec.Hosts
}

// control starts a controller in dir, which has recovered and runs until the test ends or stop is called.
func (w *world) control(t *testing.T, dir string) (c *Controller, stop func()) {
	t.Helper()
	c, err := New(Config{Engine: fakeEngine{w}, Host: fakeHost{w}, Sidecar: fakeSidecar{w}, Dir: dir,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Version: "v1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	<-c.recovered
	stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, c.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

// parse reads the policies of phases.
func parse(t *testing.T, text string) policy.Phases {
	t.Helper()
	p, err := policy.ParsePhases([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// task is an open network for set-up, a closed one for the agent, a judge's for grading.
const task = `{"baseline_network_policy": "public", "run_network_policy": "no-network",
	"evaluation_network_policy": {"network_mode": "allowlist", "allowed_hosts": ["db", "judge.test", "203.0.113.0/24"]}}`

// attached starts a container and attaches it in the phase baseline of task.
func (w *world) attached(t *testing.T, c *Controller, name, id string) {
	t.Helper()
	w.start(name, id)
	if _, err := c.Attach(t.Context(), name, parse(t, task), policy.Baseline, api.Options{}); err != nil {
		t.Fatal(err)
	}
	w.steps()
}

func code(err error) control.Code {
	if e, ok := errors.AsType[*control.Error](err); ok {
		return e.Code
	}
	return ""
}

func status(t *testing.T, c *Controller, ref string) api.Status {
	t.Helper()
	s, err := c.Status(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in 10 s not: %s", what)
		}
	}
}
