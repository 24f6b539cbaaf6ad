package engine

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sluice/dockernet/resolver"
	"sluice/images"
)

// fine is a container that nothing is wrong with.
func fine() Container {
	return Container{
		ID: "c1", NetworkMode: "net", Restart: "no", Runtime: "runc", Capabilities: capabilities(false, nil, nil),
		Endpoints: []Endpoint{{Network: Network{ID: "n1", Name: "net", Driver: "bridge"}}},
	}
}

func conditions() Conditions {
	return Conditions{
		Info: Info{Version: "28.5.2", APIVersion: "1.51", DefaultRuntime: "runc", Runtimes: map[string]string{
			"runc": "runc", "gvisor": "runsc", "nvidia": "nvidia-container-runtime"}},
		Attached: func(container string) bool { return container == "attached" },
		Sockets:  []string{"/srv/sluice/sluice.sock", "/srv/sluice/state"},
	}
}

// The list of design's "Refused, each with the reason and the repair".
func TestRefusals(t *testing.T) {
	has := func(capability ...string) func(*Container, *Conditions) {
		return func(c *Container, _ *Conditions) { c.Capabilities = capabilities(false, capability, nil) }
	}
	mode := func(m string) func(*Container, *Conditions) {
		return func(c *Container, _ *Conditions) { c.NetworkMode, c.Endpoints = m, nil }
	}
	driver := func(d string) func(*Container, *Conditions) {
		return func(c *Container, _ *Conditions) { c.Endpoints[0].Driver = d }
	}
	runtime := func(r string) func(*Container, *Conditions) {
		return func(c *Container, _ *Conditions) { c.Runtime = r }
	}
	mounted := func(source string) func(*Container, *Conditions) {
		return func(c *Container, _ *Conditions) { c.Mounts = []Mount{{Source: source, Destination: "/mnt"}} }
	}
	restart := func(policy string, managed ...string) func(*Container, *Conditions) {
		return func(c *Container, o *Conditions) {
			c.Restart = policy
			c.DNS.Servers = []netip.Addr{netip.MustParseAddr("192.0.2.53")}
			c.Endpoints = nil
			for _, m := range managed {
				c.Endpoints = append(c.Endpoints, Endpoint{Network: Network{Driver: "bridge", Labels: map[string]string{LabelManaged: m}}})
			}
		}
	}
	for _, tt := range []struct {
		name   string
		change func(*Container, *Conditions)
		want   []Kind
		weak   bool   // all of them are accepted by --allow-weak
		repair string // in the first one's
	}{
		{"default", nil, nil, false, ""},
		{"privileged", func(c *Container, _ *Conditions) {
			c.Privileged, c.Capabilities = true, capabilities(true, nil, nil)
		}, []Kind{Privileged}, false, "without --privileged"},
		{"net_admin", has("NET_ADMIN"), []Kind{CapNetAdmin}, true, "without --cap-add NET_ADMIN"},
		{"sys_admin", has("SYS_ADMIN"), []Kind{CapSysAdmin}, true, "without --cap-add SYS_ADMIN"},
		{"sys_module", has("SYS_MODULE"), []Kind{CapSysModule}, true, "without --cap-add SYS_MODULE"},
		{"bpf", has("BPF"), []Kind{CapBPF}, true, "without --cap-add BPF"},
		{"other_capability", has("SYS_NICE"), nil, false, ""},
		{"all", has("ALL"), []Kind{CapNetAdmin, CapSysAdmin, CapSysModule, CapBPF}, true, "--cap-drop NET_ADMIN"},
		{"ptrace", has("SYS_PTRACE"), nil, false, ""},
		{"ptrace_host_pids", func(c *Container, o *Conditions) { has("SYS_PTRACE")(c, o); c.PIDMode = "host" },
			[]Kind{CapSysPtrace}, true, "without --pid host"},
		{"host_pids", func(c *Container, _ *Conditions) { c.PIDMode = "host" }, []Kind{Pids}, true, "without --pid host"},
		{"others_pids", func(c *Container, _ *Conditions) { c.PIDMode = "container:other" }, []Kind{Pids}, true, "without --pid"},
		{"attached_pids", func(c *Container, _ *Conditions) { c.PIDMode = "container:attached" }, nil, false, ""},
		{"seccomp", func(c *Container, _ *Conditions) { c.Unconfined = true }, []Kind{Seccomp}, false, "without --security-opt seccomp=unconfined"},
		{"systempaths", func(c *Container, _ *Conditions) { c.OpenPaths = true }, []Kind{OpenPaths}, false, "systempaths"},

		{"network_host", mode("host"), []Kind{NetworkHost}, false, "bridge network"},
		{"network_none", mode("none"), []Kind{NetworkNone}, false, "no-network"},
		{"network_container", mode("container:other"), []Kind{NetworkContainer}, false, "attach that one"},
		{"network_attached", mode("container:attached"), nil, false, ""},
		{"macvlan", driver("macvlan"), []Kind{NetworkDriver}, false, "bridge networks only"},
		{"ipvlan", driver("ipvlan"), []Kind{NetworkDriver}, false, "bridge networks only"},
		{"overlay", driver("overlay"), []Kind{NetworkDriver}, false, "bridge networks only"},

		{"runsc", runtime("runsc"), []Kind{Runtime}, false, "--runtime runc"},
		{"runsc_renamed", runtime("gvisor"), []Kind{Runtime}, false, "--runtime runc"},
		{"kata", runtime("io.containerd.kata.v2"), []Kind{Runtime}, false, "--runtime runc"},
		{"shim", runtime("io.containerd.runc.v2"), nil, false, ""},
		{"nvidia", runtime("nvidia"), nil, false, ""},
		{"rootless", func(_ *Container, o *Conditions) { o.Info.Rootless = true }, []Kind{Rootless}, false, "runs as root"},

		{"docker_socket", mounted("/var/run/docker.sock"), []Kind{SocketMount}, false, "without that mount"},
		{"containerd_socket", mounted("/run/containerd/containerd.sock"), []Kind{SocketMount}, false, "without that mount"},
		{"run", mounted("/run"), []Kind{SocketMount}, false, "without that mount"},
		{"var_run", mounted("/var/run/"), []Kind{SocketMount}, false, "without that mount"},
		{"root", mounted("/"), []Kind{SocketMount}, false, "without that mount"},
		{"control_socket", mounted("/srv/sluice/sluice.sock"), []Kind{SocketMount}, false, "without that mount"},
		{"control_socket_parent", mounted("/srv"), []Kind{SocketMount}, false, "without that mount"},
		{"state", mounted("/srv/sluice/state"), []Kind{SocketMount}, false, "without that mount"},
		{"beside", mounted("/srv/sluice/data"), nil, false, ""},
		{"same_beginning", mounted("/run/docker.sock.d"), nil, false, ""},
		{"home", mounted("/home/somebody"), nil, false, ""},

		{"image_label", func(c *Container, _ *Conditions) { c.ImageLabels = map[string]string{"sluice.policy": "{}"} },
			[]Kind{ImageLabel}, false, "build the image without it"},
		{"image_gone", func(c *Container, _ *Conditions) { c.ImageGone = true }, []Kind{ImageLabel}, false, "image that is there"},
		{"restart_always", restart("always", "false"), []Kind{RestartPolicy}, true, "managed networks"},
		{"restart_stopped", restart("unless-stopped", "false"), []Kind{RestartPolicy}, true, "managed networks"},
		{"restart_failure", restart("on-failure", "false"), []Kind{RestartPolicy}, true, "managed networks"},
		{"restart_managed", restart("always", "true"), []Kind{RestartPolicy}, true, "before the engine with --keep-bridges"},
		{"restart_early", func(c *Container, o *Conditions) {
			restart("always", "true")(c, o)
			o.EarlyRules = true
		}, nil, false, ""},
		{"restart_both", restart("always", "true", "false"), []Kind{RestartPolicy}, true, "managed networks"},
		{"restart_joined", func(c *Container, _ *Conditions) {
			c.Restart, c.NetworkMode, c.Endpoints = "always", "container:attached", nil
		}, nil, false, ""},
		{"engine_dns", func(c *Container, _ *Conditions) {
			c.Endpoints[0].Labels = map[string]string{LabelManaged: "true"}
		}, []Kind{EngineDNS}, false, "--dns"},

		{"everything", func(c *Container, o *Conditions) {
			has("NET_ADMIN")(c, o)
			driver("macvlan")(c, o)
			runtime("runsc")(c, o)
			mounted("/run")(c, o)
			c.Restart = "always"
		}, []Kind{CapNetAdmin, NetworkDriver, Runtime, SocketMount, RestartPolicy}, false, "NET_ADMIN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, o := fine(), conditions()
			if tt.change != nil {
				tt.change(&c, &o)
			}
			var got []Kind
			weak := true
			list := c.Refusals(o)
			for _, r := range list {
				got = append(got, r.Kind)
				weak = weak && r.Weak
				if r.What == "" || r.Repair == "" || r.Error() != r.What+": "+r.Repair {
					t.Errorf("%v lacks a reason or a repair: %q", r.Kind, r.Error())
				}
			}
			if !slices.Equal(got, tt.want) {
				t.Fatalf("refused for %v, want %v", got, tt.want)
			}
			if len(list) == 0 {
				return
			}
			if weak != tt.weak {
				t.Errorf("--allow-weak accepts it: %v, want %v", weak, tt.weak)
			}
			if !strings.Contains(list[0].Repair, tt.repair) {
				t.Errorf("repair %q, want %q in it", list[0].Repair, tt.repair)
			}
		})
	}
}

// Both packages mean the same labels; this one must not import that one.
func TestLabelPrefix(t *testing.T) {
	if LabelPrefix != images.PolicyLabelPrefix {
		t.Errorf("%q here, %q in package images", LabelPrefix, images.PolicyLabelPrefix)
	}
}

// Directories have many names.
func TestShowsByOtherNames(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "engine")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(sub, "docker.sock")
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	linked, hard := filepath.Join(dir, "link"), filepath.Join(dir, "hard")
	if err := os.Symlink(sub, linked); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(socket, hard); err != nil {
		t.Fatal(err)
	}
	for source, want := range map[string]bool{
		socket: true, sub: true, dir: true, linked: true, hard: true,
		filepath.Join(linked, "docker.sock"): true,
		filepath.Join(dir, "other"):          false,
		filepath.Join(sub, "other"):          false,
	} {
		if got := shows(source, socket); got != want {
			t.Errorf("a mount of %s shows %s: %v, want %v", source, socket, got, want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	for _, tt := range []struct {
		name       string
		privileged bool
		add, drop  []string
		has, lacks string
	}{
		{"default", false, nil, nil, "NET_RAW", "NET_ADMIN"},
		{"privileged", true, nil, []string{"ALL"}, "SYS_ADMIN", ""},
		{"add", false, []string{"NET_ADMIN"}, nil, "NET_ADMIN", "SYS_ADMIN"},
		{"spelling", false, []string{" cap_net_admin"}, nil, "NET_ADMIN", ""},
		{"drop", false, nil, []string{"CAP_NET_RAW"}, "CHOWN", "NET_RAW"},
		{"drop_all", false, []string{"CHOWN"}, []string{"all"}, "CHOWN", "NET_RAW"},
		{"add_all", false, []string{"ALL"}, []string{"NET_ADMIN"}, "SYS_ADMIN", "NET_ADMIN"},
		{"both", false, []string{"NET_ADMIN"}, []string{"NET_ADMIN"}, "NET_ADMIN", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := capabilities(tt.privileged, tt.add, tt.drop)
			if !slices.Contains(got, tt.has) || slices.Contains(got, tt.lacks) {
				t.Errorf("got %v, want %q in it and not %q", got, tt.has, tt.lacks)
			}
		})
	}
}

func TestUnconfined(t *testing.T) {
	for _, tt := range []struct {
		name       string
		options    []string
		privileged bool
		engine     bool
		want       bool
	}{
		{"default", nil, false, false, false},
		{"privileged", nil, true, false, true},
		{"option", []string{"seccomp=unconfined"}, false, false, true},
		{"old_option", []string{"seccomp:unconfined"}, false, false, true},
		{"other_option", []string{"apparmor=unconfined", "no-new-privileges"}, false, false, false},
		{"engine", nil, false, true, true},
		{"builtin", []string{"seccomp=builtin"}, false, true, false},
		{"profile", []string{`seccomp={"defaultAction":"SCMP_ACT_ERRNO"}`}, false, true, false},
		{"denies_some", []string{`seccomp={"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["unshare"],"action":"SCMP_ACT_ERRNO"}]}`}, false, false, false},
		{"denies_none", []string{`seccomp={"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"action":"SCMP_ACT_LOG"}]}`}, false, false, true},
		{"unreadable", []string{"seccomp=/etc/profile.json"}, false, false, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := unconfined(tt.options, tt.privileged, Info{Unconfined: tt.engine}); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// Who carries a query out before the container is admitted: nobody, or its own namespace, or the host's.
func TestResolvesOnHost(t *testing.T) {
	outside, stub := netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("127.0.0.53")
	old, fixed, tells := Info{Version: "20.10.24", APIVersion: "1.41"}, Info{Version: "25.0.5", APIVersion: "1.44"}, Info{Version: "28.5.2", APIVersion: "1.51"}
	for _, tt := range []struct {
		name       string
		info       Info
		internal   bool
		servers    []netip.Addr // of the container
		forwarders []resolver.Forwarder
		host       []netip.Addr
		want       bool
	}{
		{"given", tells, false, []netip.Addr{outside}, nil, []netip.Addr{stub}, false},
		{"given_loopback", tells, false, []netip.Addr{outside, stub}, nil, []netip.Addr{outside}, true},
		{"internal_fixed", fixed, true, nil, nil, []netip.Addr{stub}, false},
		{"internal_new", tells, true, nil, []resolver.Forwarder{{Addr: outside, FromHost: true}}, []netip.Addr{stub}, false},
		{"internal_old", old, true, nil, nil, []netip.Addr{stub}, true},
		{"old_stub", old, false, nil, nil, []netip.Addr{stub}, true},
		{"old_outside", old, false, nil, nil, []netip.Addr{outside}, false},
		{"old_unknown", old, false, nil, nil, nil, true},
		{"told_host", tells, false, nil, []resolver.Forwarder{{Addr: outside, FromHost: true}}, []netip.Addr{outside}, true},
		{"told_inside", tells, false, nil, []resolver.Forwarder{{Addr: outside}}, []netip.Addr{stub}, false},
		{"told_nothing", tells, false, nil, nil, []netip.Addr{outside}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := fine()
			c.Endpoints[0].Internal = tt.internal
			c.DNS = DNS{Servers: tt.servers, Forwarders: tt.forwarders}
			if got := c.resolvesOnHost(tt.info, tt.host); got != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
			if tt.servers != nil || tt.forwarders != nil {
				return
			}
			// Who makes the network is told so.
			o := Conditions{Info: tt.info, HostServers: tt.host}
			if got := o.DNSWarning(Network{Internal: tt.internal}); strings.Contains(got, "--dns with a server that is not a loopback address") != tt.want {
				t.Errorf("warning %q, want one: %v", got, tt.want)
			}
		})
	}
}

// A container whose policy is in a file of the host must not be able to write that.
func TestMayWrite(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "policies", "p.json"), filepath.Join(dir, "link")
	for _, err := range []error{os.Mkdir(filepath.Dir(file), 0o700), os.WriteFile(file, nil, 0o600), os.Symlink(filepath.Dir(file), link)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		name   string
		mounts []Mount
		want   bool
	}{
		{"none", nil, false},
		{"file", []Mount{{Source: file, Destination: "/p"}}, true},
		{"directory", []Mount{{Source: filepath.Dir(file), Destination: "/p"}}, true},
		{"above", []Mount{{Source: dir, Destination: "/tmp"}}, true},
		{"link", []Mount{{Source: link, Destination: "/p"}}, true},
		{"read-only", []Mount{{Source: dir, Destination: "/tmp", ReadOnly: true}}, false},
		{"both", []Mount{{Source: dir, Destination: "/a", ReadOnly: true}, {Source: dir, Destination: "/b"}}, true},
		{"beside", []Mount{{Source: filepath.Join(dir, "other"), Destination: "/p"}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, may := (&Container{Mounts: tt.mounts}).MayWrite(file)
			if may != tt.want || may && (r.Weak || !strings.Contains(r.What, file)) {
				t.Errorf("%v, %v, want %v", r, may, tt.want)
			}
		})
	}
}
