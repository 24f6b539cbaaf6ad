package engine

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/mount"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/volume"
	"github.com/docker/go-connections/nat"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"sluice/dockernet/resolver"
)

var compare = []cmp.Option{cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{}), cmpopts.EquateEmpty()}

func TestInspect(t *testing.T) {
	f, c := newFake(t)
	f.bridge("0123456789abcdef", "net", func(n *network.Inspect) {
		n.EnableIPv6, n.Internal = true, true
		n.Labels = map[string]string{LabelManaged: "true"}
		// Old engines write gateways that they have chosen with the length of the subnet.
		n.IPAM.Config = []network.IPAMConfig{
			{Subnet: "172.18.0.0/16", Gateway: "172.18.0.1/16"}, {Subnet: "fd00:1::/64", Gateway: "fd00:1::1"}}
	})
	resolv := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver 127.0.0.11\n\n# ExtServers: [host(127.0.0.53) 192.0.2.53 nonsense]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.images["sha256:1"] = map[string]string{"maintainer": "somebody", "sluice.phase": "run"}
	f.volumes["run"] = volume.Volume{Name: "run", Driver: "local", Options: map[string]string{"type": "none", "o": "bind", "device": "/run"}}
	f.run("c1", "web", func(r *container.InspectResponse) {
		r.Config.Labels = map[string]string{"sluice.phase": "run", "other": "1"}
		r.ResolvConfPath = resolv
		h := r.HostConfig
		h.RestartPolicy.Name = "always"
		h.CapAdd = []string{"cap_net_admin"}
		h.DNS, h.DNSSearch, h.DNSOptions = []string{"192.0.2.53"}, []string{"lan"}, []string{"ndots:2"}
		h.ExtraHosts = []string{"db:192.0.2.1", "host.docker.internal:host-gateway", "six:2001:db8::1", "new=[2001:db8::2]"}
		h.PidMode = "host"
		r.Mounts = []container.MountPoint{
			{Type: mount.TypeBind, Source: "/srv", Destination: "/data", RW: true},
			{Type: mount.TypeVolume, Name: "run", Driver: "local", Source: "/var/lib/docker/volumes/run/_data", Destination: "/r"},
			{Type: mount.TypeTmpfs, Destination: "/tmp"},
		}
		r.NetworkSettings.Ports = nat.PortMap{
			"80/tcp":   {{HostIP: "0.0.0.0", HostPort: "8080"}, {HostIP: "::", HostPort: "8080"}},
			"53/udp":   {{HostIP: "127.0.0.1", HostPort: "5353"}},
			"9000/tcp": nil, // exposed only
		}
		r.NetworkSettings.Networks = map[string]*network.EndpointSettings{"net": {
			NetworkID: "0123456789abcdef", IPAddress: "172.18.0.2", IPPrefixLen: 16, GlobalIPv6Address: "fd00:1::2", GlobalIPv6PrefixLen: 64,
			MacAddress: "02:42:ac:12:00:02", Gateway: "172.18.0.1", IPv6Gateway: "fd00:1::ffff", Aliases: []string{"www", "c1"}, Links: []string{"database:db"}}}
	})
	got, err := c.Inspect(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	want := Container{
		ID: "c1", Name: "web", Labels: map[string]string{"sluice.phase": "run", "other": "1"},
		Image: "sha256:1", ImageLabels: map[string]string{"sluice.phase": "run"},
		State: StateRunning, Started: time.Date(2024, 5, 6, 7, 8, 9, 123456789, time.UTC), PID: 4711,
		SandboxKey: "/run/docker/netns/c1", SandboxID: "s-c1", NetworkMode: "net",
		Endpoints: []Endpoint{{
			Network: Network{ID: "0123456789abcdef", Name: "net", Driver: "bridge", Internal: true, IPv6: true,
				Labels: map[string]string{LabelManaged: "true"}, Bridge: "br-0123456789ab",
				Subnets:  []netip.Prefix{netip.MustParsePrefix("172.18.0.0/16"), netip.MustParsePrefix("fd00:1::/64")},
				Gateways: []netip.Addr{netip.MustParseAddr("172.18.0.1"), netip.MustParseAddr("fd00:1::1"), netip.MustParseAddr("fd00:1::ffff")}},
			Addresses: []netip.Prefix{netip.MustParsePrefix("172.18.0.2/16"), netip.MustParsePrefix("fd00:1::2/64")},
			MAC:       "02:42:ac:12:00:02", Names: []string{"c1", "web", "www"}, Links: map[string]string{"db": "database"},
		}},
		Hostname: "c1",
		DNS: DNS{Servers: []netip.Addr{netip.MustParseAddr("192.0.2.53")}, Search: []string{"lan"}, Options: []string{"ndots:2"},
			Forwarders: []resolver.Forwarder{{Addr: netip.MustParseAddr("127.0.0.53"), FromHost: true}, {Addr: netip.MustParseAddr("192.0.2.53")}}},
		ExtraHosts: []ExtraHost{{"db", netip.MustParseAddr("192.0.2.1")}, {Name: "host.docker.internal"},
			{"six", netip.MustParseAddr("2001:db8::1")}, {"new", netip.MustParseAddr("2001:db8::2")}},
		Ports: []Port{{"tcp", 80, netip.MustParseAddrPort("0.0.0.0:8080")}, {"tcp", 80, netip.MustParseAddrPort("[::]:8080")},
			{"udp", 53, netip.MustParseAddrPort("127.0.0.1:5353")}},
		Restart:      "always",
		Capabilities: []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_ADMIN", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"},
		Vsock:        true, // the engine is an old one
		PIDMode:      "host",
		Runtime:      "runc",
		Mounts:       []Mount{{"/srv", "/data", false}, {"/run", "/r", true}},
	}
	if diff := cmp.Diff(want, got, compare...); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if !got.Managed() || !got.Running() {
		t.Error("not managed or not running")
	}
	if other, joined := got.Joined(); joined || other != "" {
		t.Errorf("joined %q", other)
	}
}

// Nothing but a label of Sluice's makes the image worth a question.
func TestInspectAsksForImagesSeldom(t *testing.T) {
	f, c := newFake(t)
	f.bridge("n1", "net", nil)
	f.run("c1", "web", nil)
	v, err := c.Inspect(t.Context(), "c1")
	if err != nil || v.ImageGone || v.ImageLabels != nil {
		t.Errorf("got %v, labels %v", err, v.ImageLabels)
	}
	if n := f.count("GET /images/sha256:1/json"); n != 0 {
		t.Errorf("the image was asked for %d times", n)
	}
	if n := f.count("GET /info"); n != 1 {
		t.Errorf("the engine was asked what it is %d times, want 1", n)
	}
	f.containers["c1"].Config.Labels["sluice.policy"] = "{}"
	if v, err = c.Inspect(t.Context(), "c1"); err != nil || !v.ImageGone {
		t.Errorf("got %v, image gone %v, want it gone", err, v.ImageGone)
	}
}

func TestInspectErrors(t *testing.T) {
	f, c := newFake(t)
	f.bridge("n1", "net", nil)
	if _, err := c.Inspect(t.Context(), "nobody"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "nobody") {
		t.Errorf("error %v, want not found with the id", err)
	}
	for name, tt := range map[string]struct {
		change func(*container.InspectResponse)
		want   string
	}{
		"no_state":     {func(r *container.InspectResponse) { r.State = nil }, "incomplete"},
		"no_network":   {func(r *container.InspectResponse) { r.NetworkSettings.Networks["net"].NetworkID = "gone" }, "network gone"},
		"start":        {func(r *container.InspectResponse) { r.State.StartedAt = "today" }, "start time"},
		"extra_host":   {func(r *container.InspectResponse) { r.HostConfig.ExtraHosts = []string{"db"} }, `"db"`},
		"host_address": {func(r *container.InspectResponse) { r.HostConfig.ExtraHosts = []string{"db:where"} }, "extra host db"},
		"dns":          {func(r *container.InspectResponse) { r.HostConfig.DNS = []string{"here"} }, "DNS server"},
		"address":      {func(r *container.InspectResponse) { r.NetworkSettings.Networks["net"].IPAddress = "1.2.3" }, "network net"},
	} {
		t.Run(name, func(t *testing.T) {
			f.run("c1", "web", tt.change)
			if _, err := c.Inspect(t.Context(), "c1"); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}

// Before its first start a container's networks have no ids yet.
func TestInspectCreated(t *testing.T) {
	f, c := newFake(t)
	f.bridge("n1", "net", nil)
	f.run("c1", "web", func(r *container.InspectResponse) {
		r.State = &container.State{Status: "created", StartedAt: "0001-01-01T00:00:00Z"}
		r.NetworkSettings.SandboxKey, r.NetworkSettings.SandboxID = "", ""
		r.NetworkSettings.Networks = map[string]*network.EndpointSettings{"net": {}}
	})
	v, err := c.Inspect(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	if v.Running() || !v.Started.IsZero() || len(v.Endpoints) != 1 || v.Endpoints[0].ID != "n1" || v.Addresses() != nil {
		t.Errorf("got %+v", v)
	}
}

func TestHosts(t *testing.T) {
	f, c := newFake(t)
	f.bridge("n1", "net", nil)
	f.bridge("n0", "bridge", func(n *network.Inspect) {
		n.IPAM.Config = []network.IPAMConfig{{Subnet: "172.17.0.0/16"}, {Subnet: "fd00:17::/64"}}
	})
	f.run("c1", "web", func(r *container.InspectResponse) {
		r.HostConfig.ExtraHosts = []string{"Host.Docker.Internal:host-gateway", "extra:192.0.2.1"}
		r.NetworkSettings.Networks["net"].Links = []string{"Database:store"}
	})
	other := func(address string) func(*container.InspectResponse) {
		return func(r *container.InspectResponse) { r.NetworkSettings.Networks["net"].IPAddress = address }
	}
	f.run("c2-4567890123456", "Database", other("172.18.0.3"))
	f.run("c3", "cache", other("172.18.0.4"))
	f.run("c4", "stopped", func(r *container.InspectResponse) { r.State.Running, r.State.Status = false, "exited" })
	f.run("c5", "elsewhere", func(r *container.InspectResponse) { r.NetworkSettings.Networks["net"].NetworkID = "n0" })
	v, err := c.Inspect(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	got, err := c.Hosts(t.Context(), v)
	if err != nil {
		t.Fatal(err)
	}
	database, cache := []netip.Addr{netip.MustParseAddr("172.18.0.3")}, []netip.Addr{netip.MustParseAddr("172.18.0.4")}
	want := map[string][]netip.Addr{
		"database": database, "alias-database": database, "c2-456789012": database, "store": database,
		"cache": cache, "alias-cache": cache, "c3": cache,
		"extra": {netip.MustParseAddr("192.0.2.1")}, "host.docker.internal": {netip.MustParseAddr("172.17.0.1"), netip.MustParseAddr("fd00:17::1")},
	}
	if diff := cmp.Diff(want, got, compare...); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestList(t *testing.T) {
	f, c := newFake(t)
	f.run("c1", "web", nil)
	f.run("c2", "old", func(r *container.InspectResponse) { r.State.Running, r.State.Status = false, "exited" })
	list, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]Summary{}
	for _, s := range list {
		got[s.ID] = s
	}
	want := map[string]Summary{
		"c1": {ID: "c1", Name: "web", State: StateRunning, Networks: []string{"n1"}},
		"c2": {ID: "c2", Name: "old", State: StateExited, Networks: []string{"n1"}},
	}
	if diff := cmp.Diff(want, got, compare...); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

func TestPause(t *testing.T) {
	f, c := newFake(t)
	for _, tt := range []struct {
		status  string
		running bool
		refused bool
	}{
		{"running", true, false},
		{"paused", true, false},
		{"exited", false, false},
		{"restarting", true, true}, // it would run again, and nobody would pause it
	} {
		f.run("c1", "web", func(r *container.InspectResponse) {
			r.State = &container.State{Status: container.ContainerState(tt.status), Running: tt.running,
				Paused: tt.status == "paused", Restarting: tt.status == "restarting"}
		})
		if err := c.Pause(t.Context(), "c1"); (err != nil) != tt.refused {
			t.Errorf("%s: error %v", tt.status, err)
		}
	}
}

// The engine's own bridge is another network after the engine was restarted. That is no container gone.
func TestInspectWithoutItsNetwork(t *testing.T) {
	f, c := newFake(t)
	f.run("c1", "web", func(r *container.InspectResponse) {
		r.NetworkSettings.Networks = map[string]*network.EndpointSettings{"bridge": {NetworkID: "gone"}}
	})
	if _, err := c.Inspect(t.Context(), "c1"); err == nil || errdefs.IsNotFound(err) {
		t.Errorf("running: error %v, want one that is not about the container", err)
	}
	f.run("c1", "web", func(r *container.InspectResponse) {
		r.State.Status = "exited"
		r.NetworkSettings.Networks = map[string]*network.EndpointSettings{"bridge": {NetworkID: "gone"}}
	})
	if v, err := c.Inspect(t.Context(), "c1"); err != nil || len(v.Endpoints) > 0 {
		t.Errorf("stopped: %v, error %v", v.Endpoints, err)
	}
}
