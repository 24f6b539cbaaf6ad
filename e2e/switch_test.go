package e2e

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/dockernet/netns"
	"sluice/e2e/lab/client"
	"sluice/e2e/lab/internet"
)

const (
	// switches is how often the phase changes under load.
	switches = 100
	// settled is how long after the answer to a switch a packet may arrive that was sent before it.
	settled = 5 * time.Millisecond
	// hurried is how long of a switch the probers make no pause, at most.
	hurried = time.Second
	// proberFlows is how many connections of the probers may be open at a moment, sockets and tunnels.
	proberFlows = 3
	// lateEchoes is how many UDP flows over IPv6 an earlier switch may have cut while an echo was on its way: no
	// translation keeps it from the container, where phase run lets it in as a new inbound flow.
	lateEchoes = perKind / 2
	// watched is how long after the answer nothing may arrive.
	watched = 2 * time.Second
)

// TestSwitchUnderLoad switches a container back and forth with more than 200 flows open that send all the time, half of
// them allowed by the phase that comes, and looks at what arrives on the internet's side: of a flow that was refused not
// a byte more, of those that stay every byte, and at no instant anything that neither phase allows.
//
// The flows are opened by this process inside the container's network namespace: to gate, guard, proxy and cut they
// are the container's.
func TestSwitchUnderLoad(t *testing.T) {
	s := startSwitched(t)
	for i := range switches {
		to := inEvaluation
		if i%2 == 1 {
			to = inRun
		}
		s.turn(to)
	}
	time.Sleep(watched)
	s.finish(false)
}

// TestSwitchHungSidecar stops the sidecar's process and switches: another one is started within the switch.
func TestSwitchHungSidecar(t *testing.T) {
	s := startSwitched(t)
	s.stopSidecar()
	receipt, err := s.phase("evaluation")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("switched in %.0f ms, %d flows cut", receipt.Milliseconds, receipt.FlowsCut)
	s.endRefused()
	s.checkAlive(func(f *flow) bool { return f.kind >= byTCP }) // the others had their end in the sidecar that was killed
	time.Sleep(watched)
	s.close()
	s.openAll(always)
	s.finish(true)
}

// TestSwitchQuarantine switches while the sidecar hangs and the engine cannot start another one.
func TestSwitchQuarantine(t *testing.T) {
	s := startSwitched(t)
	s.stopSidecar()
	wake := s.stopEngine()
	if _, err := s.phase("evaluation"); !errors.Is(err, control.ErrQuarantined) {
		t.Errorf("the switch returned %v, want a quarantine", err)
	}
	s.checkQuarantine()
	wake()
	s.leaveQuarantine("run")
	s.finish(true)
}

// checkQuarantine checks that nothing comes back to the container. That nothing leaves it is checked in the end.
func (s *switched) checkQuarantine() {
	s.t.Helper()
	time.Sleep(100 * time.Millisecond) // what had come to the container before may still be read
	before := s.echoed()
	time.Sleep(watched)
	if after := s.echoed(); after != before {
		s.t.Errorf("%d frames came back to the container in quarantine", after-before)
	}
}

// leaveQuarantine switches until that succeeds, and checks that new flows work.
func (s *switched) leaveQuarantine(to string) {
	s.t.Helper()
	for deadline := time.Now().Add(waitLimit); ; time.Sleep(100 * time.Millisecond) {
		_, err := s.phase(to)
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("no switch succeeds after the quarantine: %v", err)
		}
	}
	s.close()
	s.openAll(always)
}

// switched is a container that is switched, with its load and its probers.
type switched struct {
	t         *testing.T
	container string
	api       api.Client
	load      *workload
	flows     []*flow
	probers   []*prober
	hurry     atomic.Bool
	stop      chan struct{}
	probing   sync.WaitGroup
	capture   *internet.Capture
	stopLoad  func() error // ends probers, flows and capture; it may be called again
	arrivals  []arrival
	changes   []change
	now       string // the phase
}

// change is one switch.
type change struct {
	to              string
	began, answered time.Time
	spans           []span // for each prober
}

// startSwitched starts a container under phase run, with its flows open and its probers at work. Without an engine the test
// is skipped.
func startSwitched(t *testing.T) *switched {
	t.Helper()
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	s := &switched{t: t, stop: make(chan struct{}), container: "switch-app", now: inRun.String()}
	s.stopLoad = sync.OnceValue(func() error {
		close(s.stop)
		s.probing.Wait()
		s.close()
		return s.capture.Close()
	})
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(theController.start())
	s.api.Socket = theController.socket()
	_, err := docker("run", "--detach", "--name", s.container, "--publish", "100.64.0.1::9000", client.Tag, "sleep", "infinity")
	check(err)
	t.Cleanup(func() {
		if _, err := docker("rm", "--force", s.container); err != nil {
			t.Error(err)
		}
	})
	shown, err := docker("inspect", "--format",
		"{{.State.Pid}} {{.NetworkSettings.IPAddress}} {{(index (index .NetworkSettings.Ports \"9000/tcp\") 0).HostPort}}", s.container)
	check(err)
	var pid, port int
	var own string
	_, err = fmt.Sscan(shown, &pid, &own, &port)
	check(err)

	s.load = &workload{roots: x509.NewCertPool(), arrived: map[string]chan net.Conn{},
		published: netip.AddrPortFrom(netip.MustParseAddr("100.64.0.1"), uint16(port)),
		direct:    netip.AddrPortFrom(netip.MustParseAddr(own), 9000)}
	s.load.ports.Store(20_000)
	s.load.roots.AppendCertsFromPEM(lab.Internet.CA())
	for _, a := range []allowed{always, inRun} {
		for i := range perKind {
			s.load.arrived[fmt.Sprintf("%v %d", a, i)] = make(chan net.Conn, 1)
		}
	}
	s.load.ns, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid), nil)
	check(err)
	t.Cleanup(func() { s.load.ns.Close() })
	check(s.load.ns.Do(func() error {
		s.load.listener, err = net.Listen("tcp", ":9000")
		return err
	}))
	t.Cleanup(func() { s.load.listener.Close() })
	go s.load.accept()

	_, err = s.api.Attach(t.Context(), api.Attach{Container: s.container, Policy: s.policies(), Phase: s.now})
	check(err)
	t.Cleanup(func() {
		if err := s.api.Detach(context.Background(), s.container); err != nil {
			t.Error(err)
		}
	})
	s.capture, err = lab.Internet.Capture(s.see)
	check(err)
	t.Cleanup(func() { check(s.stopLoad()) })
	s.startProbers(netip.MustParseAddr(own))
	s.openAll(always)
	s.openAll(inRun)
	return s
}

// policies returns the policy document, after it has made the names that stand in it.
func (s *switched) policies() json.RawMessage {
	targets := map[allowed][]string{}
	named := func(a allowed, name string, address netip.Addr) {
		if err := lab.Internet.SetName(name, "A "+address.String()); err != nil {
			s.t.Fatal(err)
		}
		targets[a] = append(targets[a], name)
	}
	s.probers = []*prober{
		{name: "datagrams", base: netip.MustParseAddr("203.0.113.200"), pause: time.Millisecond},
		{name: "frames", base: netip.MustParseAddr("203.0.113.210"), pause: time.Millisecond},
		{name: "tunnels", base: netip.MustParseAddr("203.0.113.220"), pause: 5 * time.Millisecond},
	}
	for a := always; a <= never; a++ {
		named(a, fmt.Sprintf("probe-%v.switch.test", a), s.probers[2].address(a))
		targets[a] = append(targets[a], s.probers[0].address(a).String(), s.probers[1].address(a).String())
		for i := range perKind {
			if a == never {
				break
			}
			named(a, name(byConnect, a, i), address(byConnect, a, i))
			named(a, name(byTLS, a, i), address(byTLS, a, i))
			targets[a] = append(targets[a], address(byTCP, a, i).String(), address(byUDP, a, i).String())
		}
	}
	policyOf := func(a allowed, inbound string) map[string]any {
		return map[string]any{"network_mode": "allowlist", "allowed_hosts": slices.Concat(targets[always], targets[a]), "inbound": inbound}
	}
	text, err := json.Marshal(map[string]any{
		"baseline_network_policy":   "no-network",
		"run_network_policy":        policyOf(inRun, "all"),
		"evaluation_network_policy": policyOf(inEvaluation, "host"),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return text
}

func (s *switched) startProbers(own netip.Addr) {
	var gateway net.HardwareAddr
	if err := lab.InEngineNamespace(func() error {
		docker0, err := net.InterfaceByName("docker0")
		if err == nil {
			gateway = docker0.HardwareAddr
		}
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	// The gate would refuse all of them, and the guard were not tried.
	if err := s.load.ns.Do(func() error {
		out, err := exec.Command("nft", "delete", "table", "netdev", "sluice").CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	}); err != nil {
		s.t.Fatal(err)
	}
	prepare := []func() error{s.probers[0].datagrams(), s.probers[1].frames(own, gateway), s.probers[2].tunnels(dialLimit)}
	for i, p := range s.probers {
		p.hurry = &s.hurry
		s.probing.Go(func() {
			if err := p.run(s.load.ns, s.stop, prepare[i]); err != nil {
				s.t.Error(err)
			}
		})
	}
}

func (s *switched) openAll(a allowed) {
	s.t.Helper()
	flows, err := s.load.open(a)
	s.flows = append(s.flows, flows...)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, f := range flows {
		s.await("no frame has come back to "+f.String(), func() bool { return f.echoed.Load() > 0 || f.hasEnded() })
		if f.hasEnded() {
			s.t.Fatalf("%v ended at once: %v", f, f.err)
		}
	}
}

// close ends the flows that are open.
func (s *switched) close() {
	for _, f := range s.flows {
		f.conn.Close()
	}
	for _, f := range s.flows {
		<-f.ended
	}
	s.flows = nil
}

func (s *switched) await(not string, done func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(waitLimit); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("after %v %s", waitLimit, not)
		}
	}
}

// phase switches, and notes when.
func (s *switched) phase(to string) (api.Receipt, error) {
	c := change{to: to, began: time.Now()}
	for _, p := range s.probers {
		c.spans = append(c.spans, span{from: s.now, to: to, began: p.tried.Load()})
	}
	s.hurry.Store(true)
	slow := time.AfterFunc(hurried, func() { s.hurry.Store(false) })
	receipt, err := s.api.Phase(s.t.Context(), s.container, to, 0)
	c.answered = time.Now()
	for i, p := range s.probers {
		c.spans[i].ended = p.tried.Load()
	}
	slow.Stop()
	s.hurry.Store(false)
	if err != nil {
		c.to = ""
		for i := range c.spans {
			c.spans[i].to = ""
		}
	}
	s.now = c.to
	s.changes = append(s.changes, c)
	return receipt, err
}

// turn switches to the phase that allows to and checks what becomes of the flows that are open; then it opens those
// that the phase allows and the one before did not.
func (s *switched) turn(to allowed) {
	t := s.t
	t.Helper()
	before := len(s.flows)
	receipt, err := s.phase(to.String())
	if err != nil {
		t.Fatal(err)
	}
	// Flows of the direct plane that send during the switch are reset by the gate's refusal, and nobody counts them.
	proxied := 0
	for _, f := range s.flows {
		if f.kind <= byTLS && !f.allowed.in(s.now) {
			proxied++
		}
	}
	if refused := s.endRefused(); receipt.FlowsCut < proxied || receipt.FlowsCut > refused+proberFlows+lateEchoes || before < 200 {
		t.Errorf("switch to %v: %d of %d flows cut, want %d to %d of at least 200", to, receipt.FlowsCut, before, proxied, refused+proberFlows+lateEchoes)
	}
	s.checkAlive(func(*flow) bool { return true })
	s.openAll(to)
}

// endRefused waits until all flows have ended that the phase refuses, and forgets them.
func (s *switched) endRefused() int {
	s.t.Helper()
	var kept []*flow
	for _, f := range s.flows {
		if f.allowed.in(s.now) {
			kept = append(kept, f)
			continue
		}
		s.await("the switch has not ended "+f.String(), f.hasEnded)
	}
	refused := len(s.flows) - len(kept)
	s.flows = kept
	return refused
}

// checkAlive checks that flows go on.
func (s *switched) checkAlive(which func(*flow) bool) {
	s.t.Helper()
	had := make([]int64, len(s.flows))
	for i, f := range s.flows {
		had[i] = f.echoed.Load()
	}
	for i, f := range s.flows {
		if !which(f) {
			continue
		}
		s.await("no frame has come back to "+f.String(), func() bool { return f.echoed.Load() > had[i]+1 || f.hasEnded() })
		if f.hasEnded() {
			s.t.Errorf("the switch to %s has ended %v: %v", s.now, f, f.err)
		}
	}
}

func (s *switched) echoed() (sum int64) {
	for _, f := range s.flows {
		sum += f.echoed.Load()
	}
	return sum
}

// stopSidecar stops the sidecar's process as a hang would.
func (s *switched) stopSidecar() {
	s.t.Helper()
	hangSidecar(s.t)
}

// hangSidecar stops the sidecar's process, and returns what lets it go on.
func hangSidecar(t *testing.T) (wake func() error) {
	t.Helper()
	ids, err := docker("ps", "--quiet", "--filter", "label=sluice.internal=proxy")
	if err != nil || len(strings.Fields(ids)) != 1 {
		t.Fatalf("sidecars: %q, %v; want one", ids, err)
	}
	text, err := docker("inspect", "--format", "{{.State.Pid}}", strings.TrimSpace(ids))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || pid <= 1 {
		t.Fatalf("the sidecar's process is %q: %v", text, err)
	}
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	return func() error { return syscall.Kill(pid, syscall.SIGCONT) }
}

// stopEngine stops the engine's process, and returns what lets it go on.
func (s *switched) stopEngine() (wake func()) {
	s.t.Helper()
	if err := lab.SignalEngine(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	wake = sync.OnceFunc(func() {
		if err := lab.SignalEngine(syscall.SIGCONT); err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(wake)
	return wake
}

// finish ends the load and the probers, and checks what has arrived. lenient is as for [prober.check].
func (s *switched) finish(lenient bool) {
	t := s.t
	t.Helper()
	if err := s.stopLoad(); err != nil {
		t.Error(err)
	}
	for i, p := range s.probers {
		var spans []span
		for _, c := range s.changes {
			spans = append(spans, c.spans[i])
		}
		p.check(t, spans, inRun.String(), lenient)
	}
	wrong := s.wrongArrivals()
	for _, w := range wrong[:min(len(wrong), 10)] {
		t.Error(w)
	}
	if len(wrong) > 10 {
		t.Errorf("%d packets in all", len(wrong))
	}
	took := make([]time.Duration, 0, len(s.changes))
	for _, c := range s.changes {
		took = append(took, c.answered.Sub(c.began))
	}
	slices.Sort(took)
	t.Logf("%d switches, from the caller's side: median %v, longest %v; %d packets of the load looked at", len(took),
		took[len(took)/2].Round(time.Microsecond), took[len(took)-1].Round(time.Microsecond), len(s.arrivals))
}
