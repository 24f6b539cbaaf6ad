package e2e

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	dockerclient "github.com/docker/docker/client"
	"github.com/vishvananda/netlink"

	"sluice/dockernet/netns"
	"sluice/e2e/lab/attack"
	"sluice/e2e/lab/attempts"
	"sluice/e2e/lab/closed"
	"sluice/e2e/lab/tap"
)

// TestIsolation lets a container with Docker's default capabilities, as root, try everything of package attempts
// under every kind of policy, on every kind of network, by IPv4 and IPv6, and looks at what arrives: on the internet,
// at the host, at the containers of all networks.
//
// Each attempt is first made without a policy, and has to arrive then: otherwise the test would prove nothing. What a
// policy allows has to arrive too. And everything is tried a second time when somebody has taken the rules inside of
// the container's namespace away, so that only those outside are left.
func TestIsolation(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	w := newIsolation(t)
	for _, shape := range []struct {
		name     string
		networks []string
	}{
		{"default-bridge", []string{"bridge"}},
		{"user-bridge", []string{w.prefix + "user"}},
		{"internal-bridge", []string{w.prefix + "internal"}},
		{"two-bridges", []string{w.prefix + "user", w.prefix + "second"}},
	} {
		t.Run(shape.name, func(t *testing.T) {
			a := w.newAttacker(t, shape.name, shape.networks)
			if !t.Run("without", func(t *testing.T) { a.tryWithout(t) }) {
				return
			}
			for _, p := range attempts.Policies {
				t.Run(p.Name, func(t *testing.T) { a.tryUnder(t, p) })
			}
		})
	}
}

// isolation is what the attackers find around them.
type isolation struct {
	prefix string
	engine *dockerclient.Client
	taps   []*tap.Tap
	// peers are containers without a policy, one on each network.
	peers map[string]*inhabitant
	marks int
}

// inhabitant is a container and its network namespace.
type inhabitant struct {
	container.InspectResponse
	ns *netns.Namespace
}

// The ports on which the controller serves metrics, on all addresses of the host.
const (
	controllerMetrics = 9465
	proxyMetrics      = 9464
)

func newIsolation(t *testing.T) *isolation {
	t.Helper()
	w := &isolation{prefix: "isolation-", peers: map[string]*inhabitant{}}
	var err error
	if w.engine, err = lab.Engine(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.engine.Close() })
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	networks := []string{"bridge"}
	for i, name := range []string{"user", "second", "foreign", "internal"} {
		args := []string{"network", "create", "--ipv6", "--subnet", fmt.Sprintf("fd66:%d::/64", i+1)}
		if name == "internal" {
			args = append(args, "--internal")
		}
		w.docker(t, append(args, w.prefix+name)...)
		t.Cleanup(func() { w.docker(t, "network", "rm", w.prefix+name) })
		networks = append(networks, w.prefix+name)
	}
	if err := lab.LeaveBridgesAlone(); err != nil {
		t.Fatal(err)
	}
	w.tap(t, func() (*tap.Tap, error) {
		return tap.Interface("the internet", lab.InInternetNamespace, closed.LinkName)
	})
	w.tap(t, func() (*tap.Tap, error) { return tap.Delivered("the host", lab.InEngineNamespace, closed.LinkName) })
	for _, network := range networks {
		peer := w.start(t, "peer-of-"+network, network)
		w.peers[network] = peer
		w.tap(t, func() (*tap.Tap, error) { return tap.Interface(strings.TrimPrefix(peer.Name, "/"), peer.ns.Do, "eth0") })
	}
	return w
}

func (w *isolation) tap(t *testing.T, open func() (*tap.Tap, error)) {
	t.Helper()
	p, err := open()
	if err != nil {
		t.Fatal(err)
	}
	w.taps = append(w.taps, p)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (w *isolation) docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := docker(args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// start starts a container that waits, with the engine's default rights, and removes it at the end of the test.
func (w *isolation) start(t *testing.T, name string, networks ...string) *inhabitant {
	t.Helper()
	name = w.prefix + strings.TrimPrefix(name, w.prefix)
	w.docker(t, "run", "--detach", "--name", name, "--network", networks[0], attackerTag, "wait")
	t.Cleanup(func() { w.docker(t, "rm", "--force", name) })
	for _, n := range networks[1:] {
		w.docker(t, "network", "connect", n, name)
	}
	inspected, err := w.engine.ContainerInspect(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.Open(inspected.NetworkSettings.SandboxKey, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return &inhabitant{inspected, ns}
}

// hostAddresses are addresses of the host on no network of the attacker's.
var hostAddresses = [2]netip.Addr{netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fd64::1")}

// attacker is the container that attacks.
type attacker struct {
	*isolation
	*inhabitant
	around attempts.Surroundings
	// sharesNetwork: there is no other sidecar than one in the same network.
	sharesNetwork bool
	// refused are those that must not have arrived while the policy was in force.
	refused []*attempts.Attempt
}

func (w *isolation) newAttacker(t *testing.T, name string, networks []string) *attacker {
	t.Helper()
	a := &attacker{isolation: w, inhabitant: w.start(t, "attacker-"+name, networks...)}
	a.around.Closed = controllerMetrics
	a.around.Internal = true
	a.orderByRoute(t, networks)
	for i, n := range networks {
		a.around.Internal = a.around.Internal && strings.HasSuffix(n, "internal")
		a.around.Links = append(a.around.Links, a.link(t, n, byte(i)))
	}
	a.around.Unrouted, a.around.Ringless = !a.routed(t), labEngine.Dir != ""
	a.around.Host = hostAddresses
	a.around.Foreign = addressesOn(w.peers[w.prefix+"foreign"], w.prefix+"foreign")
	return a
}

// removeRules takes those away that are inside.
func (i *inhabitant) removeRules(t *testing.T) {
	t.Helper()
	err := i.ns.Do(func() error {
		out, err := exec.Command("nft", "delete table inet sluice; add table netdev sluice; delete table netdev sluice").CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// routed reports whether a gateway leads further than to the container's own networks.
func (i *inhabitant) routed(t *testing.T) (found bool) {
	t.Helper()
	err := i.ns.Do(func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		found = slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Gw != nil })
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// orderByRoute puts the network first that the default route leads by, if there is one.
func (a *attacker) orderByRoute(t *testing.T, networks []string) {
	t.Helper()
	err := a.ns.Do(func() error {
		routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
		for _, r := range routes {
			via, _ := netip.AddrFromSlice(r.Gw)
			for i, n := range networks {
				if e := a.NetworkSettings.Networks[n]; via.IsValid() && e.Gateway == via.Unmap().String() {
					networks[0], networks[i] = networks[i], networks[0]
					return nil
				}
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// link finds out what there is on a network of the attacker's.
func (a *attacker) link(t *testing.T, network string, n byte) attempts.Link {
	t.Helper()
	peer := a.peers[network]
	l := attempts.Link{Own: addressesOn(a.inhabitant, network), Peer: addressesOn(peer, network)}
	for f := range 2 {
		// Far from what the engine gives away first.
		if !l.Own[f].IsValid() {
			continue
		}
		b := l.Own[f].AsSlice()
		b[len(b)-1] = 200 + n
		l.Free[f], _ = netip.AddrFromSlice(b)
	}
	l.Device, l.Hardware = interfaceWith(t, a.ns.Do, func(p netip.Prefix) bool { return p.Addr() == l.Own[0] })
	_, l.PeerHardware = interfaceWith(t, peer.ns.Do, func(p netip.Prefix) bool { return p.Addr() == l.Peer[0] })
	bridge, hardware := interfaceWith(t, lab.InEngineNamespace, func(p netip.Prefix) bool {
		if p.Contains(l.Own[0]) {
			l.Gateway[0], l.Broadcast = p.Addr(), lastOf(p)
		}
		return p.Contains(l.Own[0])
	})
	l.GatewayHardware = hardware
	for _, p := range prefixesOf(t, lab.InEngineNamespace, bridge) {
		switch {
		case p.Contains(l.Own[1]):
			l.Gateway[1] = p.Addr()
		case p.Addr().IsLinkLocalUnicast() && p.Addr() != netip.MustParseAddr("fe80::1"): // which the engine gives to all
			l.GatewayLinkLocal = p.Addr()
		}
	}
	for what, known := range map[string]bool{
		"hardware": l.Hardware != nil, "peer": l.PeerHardware != nil, "IPv4": l.Own[0].IsValid() && l.Gateway[0].IsValid() && l.Peer[0].IsValid(),
		"IPv6": a.around.IPv4Only || l.Own[1].IsValid() && l.Gateway[1].IsValid() && l.Peer[1].IsValid() && l.GatewayLinkLocal.IsValid(),
	} {
		if !known {
			t.Fatalf("%s on %s is not known: %+v", what, network, l)
		}
	}
	return l
}

// lastOf is the last address of a network of IPv4.
func lastOf(p netip.Prefix) netip.Addr {
	a := p.Addr().As4()
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(a[:])|^uint32(0)>>p.Bits())
	return netip.AddrFrom4(a)
}

func addressesOn(c *inhabitant, network string) (both [2]netip.Addr) {
	if e := c.NetworkSettings.Networks[network]; e != nil {
		both[0], _ = netip.ParseAddr(e.IPAddress)
		both[1], _ = netip.ParseAddr(e.GlobalIPv6Address)
	}
	return both
}

// interfaceWith finds the interface that has an address.
func interfaceWith(t *testing.T, enter func(func() error) error, is func(netip.Prefix) bool) (name string, hardware net.HardwareAddr) {
	t.Helper()
	err := enter(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			all, err := netlink.AddrList(l, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, one := range all {
				if is(prefixOf(one.IPNet)) {
					name, hardware = l.Attrs().Name, l.Attrs().HardwareAddr
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return name, hardware
}

func prefixOf(n *net.IPNet) netip.Prefix {
	a, _ := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits)
}

func prefixesOf(t *testing.T, enter func(func() error) error, device string) (all []netip.Prefix) {
	t.Helper()
	err := enter(func() error {
		l, err := netlink.LinkByName(device)
		if err != nil {
			return err
		}
		list, err := netlink.AddrList(l, netlink.FAMILY_ALL)
		for _, one := range list {
			all = append(all, prefixOf(one.IPNet))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// listening lists where something listens on the loopback addresses of the attacker's namespace, proc_pid_net(5).
func (a *attacker) listening(t *testing.T, protocol string) []netip.AddrPort {
	t.Helper()
	return listening(t, a.State.Pid, protocol)
}

func listening(t *testing.T, pid int, protocol string) (all []netip.AddrPort) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, protocol))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) < 4 || protocol == "tcp" && fields[3] != "0A" {
			continue
		}
		host, port, _ := strings.Cut(fields[1], ":")
		b, err1 := hex.DecodeString(host)
		p, err2 := hex.DecodeString(port)
		if err1 != nil || err2 != nil || len(b) != 4 {
			continue
		}
		slices.Reverse(b) // in the order of this machine
		address, _ := netip.AddrFromSlice(b)
		all = append(all, netip.AddrPortFrom(address, binary.BigEndian.Uint16(p)))
	}
	return all
}

// look brings the surroundings up to date.
func (a *attacker) look(t *testing.T) {
	t.Helper()
	a.around.Resolver, a.around.Listeners = [2]netip.AddrPort{}, nil
	for i, protocol := range []string{"udp", "tcp"} {
		for _, at := range a.listening(t, protocol) {
			if at.Addr() == netip.MustParseAddr("127.0.0.11") {
				a.around.Resolver[i] = at
			} else if protocol == "tcp" {
				a.around.Listeners = append(a.around.Listeners, at)
			}
		}
	}
	a.around.Sidecar = [2]netip.Addr{}
	if a.sharesNetwork {
		return
	}
	running, err := a.engine.ContainerList(t.Context(), container.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range running {
		if strings.HasPrefix(c.Names[0], "/sluice-proxy-") {
			for _, e := range c.NetworkSettings.Networks {
				a.around.Sidecar[0], _ = netip.ParseAddr(e.IPAddress)
				a.around.Sidecar[1], _ = netip.ParseAddr(e.GlobalIPv6Address)
			}
		}
	}
	if !a.around.Sidecar[0].IsValid() {
		t.Fatal("there is no sidecar")
	}
}

// fire makes all attempts, then calls then, and returns where each has arrived, and its result.
func (a *attacker) fire(t *testing.T, then func(*testing.T)) (all []*attempts.Attempt, where [][]string, results []attack.Result) {
	t.Helper()
	a.look(t)
	all = a.around.All()
	plain := make([]attack.Attempt, len(all))
	before := make([][]int, len(all))
	for i, one := range all {
		plain[i] = one.Attempt
		for _, p := range a.taps {
			before[i] = append(before[i], p.Count(one.Flow))
		}
	}
	text, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	out, err := a.exec(t, text, "fire")
	if err == nil {
		err = json.Unmarshal(out, &results)
	}
	if err != nil || len(results) != len(all) {
		t.Fatalf("%d results of %d attempts: %v: %s", len(results), len(all), err, out)
	}
	then(t)
	a.mark(t)
	where = make([][]string, len(all))
	for i, one := range all {
		for j, p := range a.taps {
			if p.Count(one.Token) > 0 || one.Flow != "" && p.Count(one.Flow) > before[i][j] {
				where[i] = append(where[i], p.Name)
			}
		}
	}
	return all, where, results
}

// exec runs the attacker's program in its container.
func (a *attacker) exec(t *testing.T, stdin []byte, verb string) ([]byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "docker", "exec", "--interactive", a.ID, "/attacker", verb)
	command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost())
	command.Stdin = bytes.NewReader(stdin)
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, problems.Bytes())
	}
	return out, err
}

// mark returns when every tap has read what came before.
func (w *isolation) mark(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	w.marks++
	token := tap.Token(99_000_000 + w.marks)
	send := func(enter func(func() error) error, to string) {
		err := enter(func() error {
			c, err := net.Dial("udp", to)
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([]byte(token))
			return err
		})
		if err != nil {
			t.Fatalf("mark to %s: %v", to, err)
		}
	}
	send(lab.InEngineNamespace, "192.0.2.254:9")
	for network, peer := range w.peers {
		send(lab.InEngineNamespace, net.JoinHostPort(peer.NetworkSettings.Networks[network].IPAddress, "9"))
		if network == "bridge" {
			send(peer.ns.Do, net.JoinHostPort(peer.NetworkSettings.Networks[network].Gateway, "9"))
		}
	}
	for _, p := range w.taps {
		if err := p.Await(ctx, token); err != nil {
			t.Fatal(err)
		}
	}
}

// arrivalTries is how often what has to arrive is tried, as hundreds of packets are sent while nobody knows the gateway's
// hardware address, and the kernel keeps few of them.
const arrivalTries = 3

// retry makes attempts until all have arrived that have to. Each time judge looks at them all, and returns those that have
// not, by name and with what came of them. What has arrived once need not again.
func retry(t *testing.T, judge func() (lost map[string]string), report func(name, result string)) {
	t.Helper()
	lost := judge()
	for range arrivalTries - 1 {
		if len(lost) == 0 || t.Failed() {
			break
		}
		again := judge()
		maps.DeleteFunc(lost, func(name, _ string) bool { return again[name] == "" })
	}
	for name, result := range lost {
		report(name, result)
	}
}

// tryWithout makes the attempts without a policy: they must arrive.
func (a *attacker) tryWithout(t *testing.T) {
	retry(t, func() map[string]string {
		lost := map[string]string{}
		all, where, results := a.fire(t, a.forgetNeighbours)
		seen := 0
		for i, one := range all {
			if len(where[i]) > 0 {
				seen++
			} else if one.Arrives(a.around.Internal) {
				lost[one.Name] = fmt.Sprintf("%+v", results[i])
			}
		}
		t.Logf("%d of %d attempts arrive", seen, len(all))
		return lost
	}, func(name, result string) {
		t.Errorf("%s: does not arrive anywhere without a policy: nothing is tested: %s", name, result)
	})
}

// tryUnder makes the attempts under a policy, with the rules inside of the container and without.
func (a *attacker) tryUnder(t *testing.T, p *attempts.Policy) {
	file := filepath.Join(t.TempDir(), "policy.json")
	if err := os.WriteFile(file, []byte(p.Document), 0o600); err != nil {
		t.Fatal(err)
	}
	flows := a.hold(t)
	a.sluice(t, "attach", a.ID, "--policy", file)
	defer a.sluice(t, "detach", a.ID)
	passing := flows.check(t, p)
	a.check(t, p, true)
	passing(t)
	if p.Next != nil {
		a.sluice(t, "phase", a.ID, "run")
		passing = flows.check(t, p.Next)
		a.check(t, p.Next, true)
		passing(t)
		a.sluice(t, "phase", a.ID, "baseline")
	}
	if t.Failed() {
		return
	}
	a.removeRules(t)
	a.check(t, p, false)
	a.checkLate(t)
}

// heldFlows are connections that were opened before there was a policy, and that the attacker keeps sending into.
type heldFlows struct {
	*attacker
	all []*attempts.Attempt
}

// hold opens connections and sends into them until the test ends. Where a policy is given, it is in force already.
func (a *attacker) hold(t *testing.T, under ...*attempts.Policy) *heldFlows {
	t.Helper()
	f := &heldFlows{a, a.around.Held()}
	var plain []attack.Attempt
	for _, one := range f.all {
		plain = append(plain, one.Attempt)
	}
	text, err := json.Marshal(plain)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.Command("docker", "exec", "--interactive", a.ID, "/attacker", "hold")
	command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost())
	var output bytes.Buffer
	command.Stderr = &output
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		if err := command.Wait(); err != nil {
			t.Errorf("hold: %v: %s", err, &output)
		}
	})
	if _, err := stdin.Write(text); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	for _, one := range f.all {
		if one.Blind || a.around.Internal && !one.Near() || !passesAll(under, one, a.around.Internal) {
			continue
		}
		if err := a.await(ctx, one, 0); err != nil {
			t.Fatalf("hold: %v: %s", err, &output)
		}
	}
	return f
}

func passesAll(policies []*attempts.Policy, one *attempts.Attempt, internal bool) bool {
	return !slices.ContainsFunc(policies, func(p *attempts.Policy) bool {
		must, _ := p.Passes(one, internal, true)
		return !must
	})
}

// await waits until more than n messages of an attempt have come to any place.
func (w *isolation) await(ctx context.Context, one *attempts.Attempt, n int) error {
	for w.count(one) <= n {
		select {
		case <-ctx.Done():
			return fmt.Errorf("no more than %d messages of %s have come: %w", n, one.Name, ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
	return nil
}

// count returns how many messages of an attempt have come to any place.
func (w *isolation) count(one *attempts.Attempt) (n int) {
	for _, p := range w.taps {
		n += p.Count(one.Token)
	}
	return n
}

// check is called when a policy has just come into force. The function that it returns checks that of what the policy
// refuses nothing has come since, and that what it lets pass by addresses alone goes on.
func (f *heldFlows) check(t *testing.T, p *attempts.Policy) func(*testing.T) {
	t.Helper()
	f.mark(t)
	counts := make([]int, len(f.all))
	for i, one := range f.all {
		counts[i] = f.count(one)
	}
	return func(t *testing.T) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
		defer cancel()
		for i, one := range f.all {
			must, may := p.Passes(one, f.around.Internal, true)
			switch now := f.count(one); {
			case !may && now > counts[i]:
				t.Errorf("LEAK: %d messages of %s have come since the policy is in force", now-counts[i], one.Name)
			case must && one.Network == "udp":
				if err := f.await(ctx, one, counts[i]); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

func (a *attacker) check(t *testing.T, p *attempts.Policy, gate bool) {
	t.Helper()
	only := ""
	if !gate {
		only = ", by the guard alone"
	}
	retry(t, func() map[string]string { return a.judge(t, p, gate, only) }, func(name, result string) {
		t.Errorf("%s is allowed and does not arrive%s: %s", name, only, result)
	})
}

// judge makes the attempts once, and returns what has to arrive and does not.
func (a *attacker) judge(t *testing.T, p *attempts.Policy, gate bool, only string) (lost map[string]string) {
	t.Helper()
	lost = map[string]string{}
	a.forgetNeighbours(t)
	all, where, results := a.fire(t, a.checkNeighbours)
	passed, kept := 0, 0
	for i, one := range all {
		must, may := p.Passes(one, a.around.Internal, gate)
		arrived := len(where[i]) > 0
		switch {
		case arrived && !may:
			t.Errorf("LEAK%s: %s arrives at %s: %+v", only, one.Name, strings.Join(where[i], " and "), results[i])
		case !arrived && must:
			lost[one.Name] = fmt.Sprintf("%+v", results[i])
		case !may && gate && results[i].TimedOut && p.Answered(one):
			t.Errorf("%s is refused, but left to time out: %+v", one.Name, results[i])
		}
		if may {
			passed++
			continue
		}
		kept++
		a.refused = append(a.refused, one)
	}
	t.Logf("%d refused, %d allowed%s", kept, passed, only)
	return lost
}

// checkLate looks once more for what was refused, before the policy is taken away.
func (a *attacker) checkLate(t *testing.T) {
	t.Helper()
	for _, one := range a.refused {
		for _, p := range a.taps {
			if p.Count(one.Token) > 0 || one.Unmistakable() && p.Count(one.Flow) > 0 {
				t.Errorf("LEAK, late: %s arrives at %s", one.Name, p.Name)
			}
		}
	}
	a.refused = nil
}

// checkNeighbours checks that nobody takes the attacker for somebody else (I-41).
func (a *attacker) checkNeighbours(t *testing.T) {
	t.Helper()
	a.neighbours(t, func(who string, n netlink.Neigh) error {
		for _, l := range a.around.Links {
			ip, _ := netip.AddrFromSlice(n.IP)
			if ip = ip.Unmap(); bytes.Equal(n.HardwareAddr, l.Hardware) && ip != l.Own[0] && ip != l.Own[1] && ip != linkLocal(l.Hardware) {
				t.Errorf("LEAK: %s takes the attacker for %s", who, ip)
			}
		}
		return nil
	})
}

// linkLocal is the address that an interface gives itself, RFC 4291 appendix A.
func linkLocal(h net.HardwareAddr) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: h[0] ^ 2, 9: h[1], 10: h[2], 11: 0xff, 12: 0xfe, 13: h[3], 14: h[4], 15: h[5]})
}

// forgetNeighbours makes everybody ask again who has which address.
func (a *attacker) forgetNeighbours(t *testing.T) {
	t.Helper()
	a.neighbours(t, func(_ string, n netlink.Neigh) error {
		if n.State&(netlink.NUD_PERMANENT|netlink.NUD_NOARP) != 0 {
			return nil
		}
		return netlink.NeighDel(&n)
	})
}

// neighbours calls do for what the host and the other containers know of their neighbours, in their namespaces.
func (a *attacker) neighbours(t *testing.T, do func(who string, n netlink.Neigh) error) {
	t.Helper()
	look := func(who string, enter func(func() error) error) {
		err := enter(func() error {
			all, err := netlink.NeighList(0, netlink.FAMILY_ALL)
			for _, n := range all {
				err = errors.Join(err, do(who, n))
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	look("the host", lab.InEngineNamespace)
	for name, peer := range a.peers {
		look("the container on "+name, peer.ns.Do)
	}
}

// sluice runs the command line.
func (w *isolation) sluice(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	command := exec.CommandContext(ctx, filepath.Join(lab.bin, "sluice"), append(args, "--socket", theController.socket())...)
	out, err := command.CombinedOutput()
	if err != nil {
		t.Fatalf("sluice %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
