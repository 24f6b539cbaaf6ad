package engine

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/docker/client"
	"github.com/docker/go-connections/nat"
	docker "github.com/moby/docker-image-spec/specs-go/v1"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/vishvananda/netlink"

	"sluice/dockernet/netns"
	"sluice/e2e/lab/closed"
	"sluice/images"
)

var (
	runDocker = flag.Bool("run-docker", false, "ask a real engine, in a lab of its own; needs root and what scripts/setup installs")
	labEngine = closed.EngineFlags()
)

const (
	plainImage    = "pause:plain"
	labelledImage = "pause:labelled" // chooses its phase, which it must not
)

// real is a lab's engine.
type real struct {
	*closed.Lab
	docker *client.Client
	c      *Client
}

func start(t *testing.T) *real {
	l, err := closed.StartWith(t.Context(), closed.Options{Engine: *labEngine})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	e := &real{Lab: l}
	if e.docker, err = l.Engine(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.docker.Close() })
	if e.c, err = Dial(l.DockerHost()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.c.Close() })

	pause := filepath.Join(t.TempDir(), "pause")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", pause, "sluice/e2e/lab/closed/testdata/pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // the image has no libraries
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the containers' program: %v\n%s", err, out)
	}
	program, err := os.ReadFile(pause)
	if err != nil {
		t.Fatal(err)
	}
	layer, err := images.NewLayer(images.File{Path: "/pause", Mode: 0o755, Body: program})
	if err != nil {
		t.Fatal(err)
	}
	err = images.Load(t.Context(), e.docker, images.Image{Tag: plainImage, Layers: []images.Layer{layer},
		Config: docker.DockerOCIImageConfig{ImageConfig: oci.ImageConfig{Entrypoint: []string{"/pause"}}}})
	if err != nil {
		t.Fatal(err)
	}
	// Our own builder would refuse.
	_, err = e.docker.ContainerCommit(t.Context(), e.create(t, "image", container.Config{}, container.HostConfig{}),
		container.CommitOptions{Reference: labelledImage, Changes: []string{"LABEL " + LabelPhase + "=run"}})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func (e *real) create(t *testing.T, name string, config container.Config, host container.HostConfig, networks ...string) string {
	t.Helper()
	if config.Image == "" {
		config.Image = plainImage
	}
	settings := &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{}}
	for _, n := range networks[:min(1, len(networks))] {
		host.NetworkMode = container.NetworkMode(n)
		settings.EndpointsConfig[n] = &network.EndpointSettings{Aliases: []string{"first-" + name}}
	}
	created, err := e.docker.ContainerCreate(t.Context(), &config, &host, settings, nil, name)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	for _, n := range networks[min(1, len(networks)):] {
		if err := e.docker.NetworkConnect(t.Context(), n, created.ID, &network.EndpointSettings{}); err != nil {
			t.Fatal(err)
		}
	}
	return created.ID
}

func (e *real) run(t *testing.T, id string) Container {
	t.Helper()
	if err := e.docker.ContainerStart(t.Context(), id, container.StartOptions{}); err != nil {
		t.Fatal(err)
	}
	return e.inspect(t, id)
}

func (e *real) inspect(t *testing.T, id string) Container {
	t.Helper()
	c, err := e.c.Inspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// conditions are the engine's, with a DNS server of the host that is none of the test machine's.
func (e *real) conditions(t *testing.T) Conditions {
	t.Helper()
	o, err := e.c.Conditions(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o.HostServers = []netip.Addr{netip.MustParseAddr("127.0.0.53")}
	return o
}

// Everything that is asked of an engine, against a real one.
func TestRealEngine(t *testing.T) {
	if !*runDocker {
		t.Skip("DID NOT RUN: needs root and Docker: go test ./dockernet/engine -run-docker")
	}
	e := start(t)
	t.Run("preflight", e.testPreflight)
	t.Run("inspect", e.testInspect)
	t.Run("refusals", e.testRefusals)
	t.Run("events", e.testEvents)
	t.Run("networks", e.testNetworks)
}

func (e *real) testPreflight(t *testing.T) {
	i, err := e.c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !versionAtLeast(i.APIVersion, oldestAPI...) || i.Runtimes["runc"] != "runc" || i.Unconfined || i.Rootless || i.Product != "Docker" ||
		i.Firewall != cmp.Or(labEngine.Firewall, "iptables") {
		t.Errorf("the engine says %#v", i)
	}
	for _, p := range e.c.Preflight(t.Context()) {
		if !p.Warning {
			t.Errorf("unfit for the tests that are running: %v", p)
		}
	}
}

func (e *real) testInspect(t *testing.T) {
	managed, err := e.c.CreateNetwork(t.Context(), NetworkSpec{Name: "inspected", IPv6: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.docker.NetworkCreate(t.Context(), "second", network.CreateOptions{Internal: true}); err != nil {
		t.Fatal(err)
	}
	sibling := e.run(t, e.create(t, "Database", container.Config{}, container.HostConfig{}, managed.Name))
	id := e.create(t, "web", container.Config{Hostname: "www", Labels: map[string]string{LabelPhase: "baseline"}, ExposedPorts: nat.PortSet{"80/tcp": {}}},
		container.HostConfig{
			DNS: []string{"198.51.100.53"}, CapAdd: []string{"SYS_NICE"}, Mounts: nil,
			ExtraHosts:   []string{"host.docker.internal:host-gateway", "extra:192.0.2.7"},
			PortBindings: nat.PortMap{"80/tcp": {{HostIP: "127.0.0.1", HostPort: "18080"}}},
		}, managed.Name, "second")
	created := e.inspect(t, id)
	if created.Running() || len(created.Endpoints) != 2 || created.SandboxKey != "" || created.Addresses() != nil {
		t.Errorf("before its start: %+v", created)
	}
	c := e.run(t, id)
	first, second := c.Endpoints[0], c.Endpoints[1]
	if c.ID != id || c.Name != "web" || c.State != StateRunning || c.PID == 0 || c.Hostname != "www" || c.Restart != "no" || c.Runtime != "runc" ||
		c.Unconfined || c.OpenPaths || c.Privileged || c.ImageGone || len(c.ImageLabels) != 0 || c.Labels[LabelPhase] != "baseline" ||
		!slices.Contains(c.Capabilities, "SYS_NICE") || time.Since(c.Started).Abs() > time.Hour {
		t.Errorf("got %+v", c)
	}
	if !slices.Equal(c.Ports, []Port{{"tcp", 80, netip.MustParseAddrPort("127.0.0.1:18080")}}) {
		t.Errorf("ports %v", c.Ports)
	}
	if first.Name != managed.Name || first.Bridge != managed.Bridge || !first.Managed() || len(first.Addresses) != 2 || first.MAC == "" ||
		!first.Addresses[0].Overlaps(managed.Subnets[0]) || !slices.Contains(first.Names, "first-web") || !slices.Contains(first.Names, "web") {
		t.Errorf("first endpoint %+v", first)
	}
	if second.Name != "second" || !second.Internal || second.Managed() || len(second.Subnets) != 1 || len(second.Gateways) != 1 {
		t.Errorf("second endpoint %+v", second)
	}
	if c.Managed() {
		t.Error("a container with another network counts as managed")
	}

	hosts, err := e.c.Hosts(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"database", "first-database", sibling.ID[:12]} {
		if !slices.Equal(hosts[name], sibling.Addresses()) {
			t.Errorf("%s is %v, want %v", name, hosts[name], sibling.Addresses())
		}
	}
	gateway, err := e.c.HostGateway(t.Context())
	if err != nil || len(gateway) == 0 || !slices.Equal(hosts["host.docker.internal"], gateway) {
		t.Errorf("host.docker.internal is %v, the gateway %v (%v)", hosts["host.docker.internal"], gateway, err)
	}

	ns, err := e.c.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var links []Link
	if err := e.InEngineNamespace(func() error { links, err = Links(ns, c); return err }); err != nil {
		t.Fatal(err)
	}
	for i, l := range links {
		// The names inside are the engine's to choose; that each has its network's address was what they were found by.
		if l.Network != c.Endpoints[i].ID || !strings.HasPrefix(l.Host, "veth") || !strings.HasPrefix(l.Inside, "eth") {
			t.Errorf("link %+v", l)
		}
	}
	if len(links) != 2 {
		t.Errorf("%d links", len(links))
	}

	begin := time.Now()
	const times = 20
	for range times {
		e.inspect(t, id)
	}
	t.Logf("inspect: %v", time.Since(begin)/times)

	// What was opened is not what comes after a restart.
	zero := 0
	if err := e.docker.ContainerRestart(t.Context(), id, container.StopOptions{Timeout: &zero}); err != nil {
		t.Fatal(err)
	}
	if again, err := e.c.Open(t.Context(), c); !errors.Is(err, netns.ErrChanged) {
		if err == nil {
			again.Close()
		}
		t.Errorf("after a restart: error %v", err)
	}
}

// What users write becomes what the engine says, and that becomes a refusal.
func (e *real) testRefusals(t *testing.T) {
	if _, err := e.docker.VolumeCreate(t.Context(), volume.CreateOptions{Name: "run",
		DriverOpts: map[string]string{"type": "none", "o": "bind", "device": "/run"}}); err != nil {
		t.Fatal(err)
	}
	managed, err := e.c.CreateNetwork(t.Context(), NetworkSpec{Name: "refusing"})
	if err != nil {
		t.Fatal(err)
	}
	base := e.create(t, "base", container.Config{}, container.HostConfig{})
	socket := strings.TrimPrefix(e.DockerHost(), "unix://")
	for _, tt := range []struct {
		name  string
		image string
		host  container.HostConfig
		want  []Kind
	}{
		{"nothing", "", container.HostConfig{}, nil},
		{"labelled", labelledImage, container.HostConfig{}, []Kind{ImageLabel}},
		{"privileged", "", container.HostConfig{Privileged: true}, []Kind{Privileged}},
		{"net_admin", "", container.HostConfig{CapAdd: []string{"NET_ADMIN"}}, []Kind{CapNetAdmin}},
		{"all", "", container.HostConfig{CapAdd: []string{"ALL"}, CapDrop: []string{"SYS_MODULE"}}, []Kind{CapNetAdmin, CapSysAdmin, CapBPF}},
		{"seccomp", "", container.HostConfig{SecurityOpt: []string{"seccomp=unconfined"}}, []Kind{Seccomp}},
		{"systempaths", "", container.HostConfig{MaskedPaths: []string{}, ReadonlyPaths: []string{}}, []Kind{OpenPaths}},
		{"ptrace", "", container.HostConfig{CapAdd: []string{"SYS_PTRACE"}, PidMode: "host"}, []Kind{CapSysPtrace}},
		{"pids", "", container.HostConfig{PidMode: container.PidMode("container:" + base)}, []Kind{Pids}},
		{"host", "", container.HostConfig{NetworkMode: "host"}, []Kind{NetworkHost}},
		{"none", "", container.HostConfig{NetworkMode: "none"}, []Kind{NetworkNone}},
		{"container", "", container.HostConfig{NetworkMode: container.NetworkMode("container:" + base)}, []Kind{NetworkContainer}},
		{"socket", "", container.HostConfig{Binds: []string{socket + ":/var/run/docker.sock:ro"}}, []Kind{SocketMount}},
		{"parent", "", container.HostConfig{Binds: []string{filepath.Dir(socket) + ":/lab"}}, []Kind{SocketMount}},
		{"volume", "", container.HostConfig{Binds: []string{"run:/r"}}, []Kind{SocketMount}},
		{"other_volume", "", container.HostConfig{Binds: []string{"data:/data"}}, nil},
		{"restart", "", container.HostConfig{RestartPolicy: container.RestartPolicy{Name: "always"}}, []Kind{RestartPolicy}},
		{"managed", "", container.HostConfig{NetworkMode: container.NetworkMode(managed.Name), DNS: []string{"198.51.100.53"}}, nil},
		{"managed_restart", "", container.HostConfig{NetworkMode: container.NetworkMode(managed.Name), DNS: []string{"198.51.100.53"},
			RestartPolicy: container.RestartPolicy{Name: "always"}}, []Kind{RestartPolicy}}, // no rules before the engine
		{"managed_dns", "", container.HostConfig{NetworkMode: container.NetworkMode(managed.Name)}, []Kind{EngineDNS}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := e.inspect(t, e.create(t, "refused-"+tt.name, container.Config{Image: tt.image}, tt.host))
			var got []Kind
			for _, r := range c.Refusals(e.conditions(t)) {
				got = append(got, r.Kind)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("refused for %v, want %v: %+v", got, tt.want, c)
			}
		})
	}
}

func (e *real) testEvents(t *testing.T) {
	since := time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	id := e.create(t, "eventful", container.Config{}, container.HostConfig{})
	e.run(t, id)
	if err := e.docker.ContainerPause(ctx, id); err != nil {
		t.Fatal(err)
	}
	if err := e.docker.ContainerRemove(ctx, id, container.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	// All of it is over, and told to one who comes late.
	var got []EventKind
	for event := range e.c.Events(ctx, since) {
		if event.Kind == Lost {
			t.Fatal(event.Err)
		}
		if event.Container == id || event.Kind == Reconcile {
			got = append(got, event.Kind)
		}
		if event.Container == id && event.Kind == Destroyed {
			break
		}
	}
	for _, kind := range []EventKind{Reconcile, Created, Connected, Started, Paused, Died, Disconnected, Destroyed} {
		if !slices.Contains(got, kind) {
			t.Errorf("no %s among %v", kind, got)
		}
	}
}

// Cases L-41 and L-43: more networks than the engine's own pools have, and removal while containers go.
func (e *real) testNetworks(t *testing.T) {
	const many = 40
	var routes []netip.Prefix
	if err := e.InEngineNamespace(func() (err error) { routes, err = Routes(); return err }); err != nil {
		t.Fatal(err)
	}
	for i := range many {
		spec := NetworkSpec{Name: fmt.Sprint("many-", i), Internal: i%2 == 0, IPv6: i%4 == 0, Taken: routes}
		n, err := e.c.CreateNetwork(t.Context(), spec)
		if err != nil {
			t.Fatal(err)
		}
		if n.Internal != spec.Internal || n.IPv6 != spec.IPv6 || n.Driver != "bridge" {
			t.Errorf("got %+v, want %+v", n, spec)
		}
		err = e.InEngineNamespace(func() error { _, err := netlink.LinkByName(n.Bridge); return err })
		if err != nil {
			t.Errorf("bridge %s: %v", n.Bridge, err)
		}
	}
	for i := range many {
		name := fmt.Sprint("many-", i)
		var gone chan error
		if i%10 == 0 {
			id := e.create(t, "in-"+name, container.Config{}, container.HostConfig{}, name)
			e.run(t, id)
			gone = make(chan error, 1)
			go func() {
				gone <- e.docker.ContainerRemove(context.Background(), id, container.RemoveOptions{Force: true})
			}()
		}
		if err := e.c.RemoveNetwork(t.Context(), name, false); err != nil {
			t.Error(err)
		}
		if gone != nil {
			if err := <-gone; err != nil {
				t.Error(err)
			}
		}
	}
	left, err := e.c.ManagedNetworks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range left {
		if strings.HasPrefix(n.Name, "many-") {
			t.Errorf("network %s is left", n.Name)
		}
	}
}
