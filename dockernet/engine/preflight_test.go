package engine

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
)

func TestInfoProblems(t *testing.T) {
	stub := []netip.Addr{netip.MustParseAddr("127.0.0.53")}
	for _, tt := range []struct {
		name   string
		change func(*Info)
		want   []string // parts of the lines, in order
	}{
		{"newest", nil, nil},
		{"podman", func(i *Info) { i.Product = "Podman Engine" }, []string{"use Docker's engine"}},
		{"too_old", func(i *Info) { i.Version, i.APIVersion = "19.03.15", "1.40" }, []string{"upgrade it to 20.10", "CVE-2024-29018"}},
		{"elsewhere", func(i *Info) { i.Kernel, i.System = "6.6.0-linuxkit", "Docker Desktop" }, []string{"Docker Desktop"}},
		{"rootless", func(i *Info) { i.Rootless = true }, []string{"runs as root"}},
		{"unconfined", func(i *Info) { i.Unconfined = true }, []string{"seccomp-profile"}},
		{"runtime", func(i *Info) { i.DefaultRuntime, i.Runtimes = "gvisor", map[string]string{"gvisor": "runsc"} }, []string{"--runtime runc"}},
		// Case I-01: 23.0.11, 25.0.5 and 26.0 keep names inside.
		{"leak_20", func(i *Info) { i.Version, i.APIVersion = "20.10.24+dfsg1", "1.41" }, []string{"and one is: upgrade it to 23.0.11"}},
		{"leak_23", func(i *Info) { i.Version, i.APIVersion = "23.0.10", "1.42" }, []string{"--dns"}},
		{"fixed_23", func(i *Info) { i.Version, i.APIVersion = "23.0.11", "1.42" }, nil},
		{"leak_24", func(i *Info) { i.Version, i.APIVersion = "24.0.9", "1.43" }, []string{"--dns"}},
		{"leak_25", func(i *Info) { i.Version, i.APIVersion = "25.0.4", "1.44" }, []string{"--dns"}},
		{"fixed_25", func(i *Info) { i.Version, i.APIVersion = "25.0.5", "1.44" }, nil},
		{"fixed_26", func(i *Info) { i.Version, i.APIVersion = "26.0.0-rc1", "1.45" }, nil},
		{"built_from_source", func(i *Info) { i.Version, i.APIVersion = "dev", "1.56" }, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			i := Info{Version: "28.5.2", APIVersion: "1.51", Product: "Docker", Kernel: "6.1.0", DefaultRuntime: "runc",
				Runtimes: map[string]string{"runc": "runc"}}
			if tt.change != nil {
				tt.change(&i)
			}
			list := i.problems("6.1.0", stub, false)
			if len(list) != len(tt.want) {
				t.Fatalf("got %v, want %d", list, len(tt.want))
			}
			for n, p := range list {
				if p.Check == "" || p.What == "" || p.Repair == "" || !strings.Contains(p.String(), tt.want[n]) {
					t.Errorf("got %q, want %q in it", p, tt.want[n])
				}
			}
		})
	}
}

// Where there are such sockets, and containers have a filter that lets them through.
func TestVsockProblem(t *testing.T) {
	old := Info{Version: "20.10.24", APIVersion: "1.41", Product: "Docker", Kernel: "6.1.0", DefaultRuntime: "runc"}
	none := old
	none.Unconfined = true
	found := func(i Info, has bool) bool {
		return slices.ContainsFunc(i.problems("6.1.0", nil, has), func(p Problem) bool {
			return p.Check == "vsock" && p.Warning && strings.Contains(p.Repair, "check --seccomp")
		})
	}
	if !found(old, true) || found(old, false) || found(none, true) {
		t.Error("the wrong engines")
	}
}

func TestPreflightWithoutAnEngine(t *testing.T) {
	f, c := newFake(t)
	f.stop()
	list := c.check(t.Context())
	if len(list) != 1 || !strings.Contains(list[0].Repair, "DOCKER_HOST") {
		t.Errorf("got %v", list)
	}
}

func TestPreflightOfAnOldEngine(t *testing.T) {
	f, c := newFake(t)
	f.info.SecurityOptions = []string{"name=rootless"}
	var checks []string
	for _, p := range c.check(t.Context()) {
		checks = append(checks, p.Check)
	}
	want := []string{"engine", "engine", "dns"}
	if !slices.Equal(checks, want) { // rootless, no seccomp, I-01
		t.Errorf("got problems with %v, want %v", checks, want)
	}
}

func TestKernelProblem(t *testing.T) {
	for release, want := range map[string]bool{
		"4.19.0-26-amd64": true, "5.4.0": true, "5.9.16": true, "5.10.0-28-amd64": false, "5.15.90.1-microsoft-standard-WSL2": false,
		"6.18.44": false, "10.0": false, "": true, "unknown": true,
	} {
		if p, got := kernelProblem(release); got != want {
			t.Errorf("%q: %v, want a problem: %v", release, p, want)
		}
	}
}

func TestConntrackProblem(t *testing.T) {
	for _, tt := range []struct {
		count, most int
		want        bool
	}{{0, 256, false}, {204, 256, false}, {205, 256, true}, {256, 256, true}, {1000, 0, false}} {
		p, got := conntrackProblem(tt.count, tt.most)
		if got != tt.want || got && (!p.Warning || !strings.Contains(p.Repair, "nf_conntrack_max")) {
			t.Errorf("%d of %d: %v, want a problem: %v", tt.count, tt.most, p, tt.want)
		}
	}
}

func TestNeighbourProblem(t *testing.T) {
	const header = "entries  allocs   table_fulls\n"
	for _, tt := range []struct{ stats, what string }{
		{header + "00000fac 00024b5c 00000000\n00000fac 000176d3 00000000\n", ""},
		{header + "00000fac 00024b5c 00000ad5\n00000fac 000176d3 0000000a\n", "2783 times"},
		{"entries\n00000001\n", ""}, {header + "1\n", ""}, {"", ""},
	} {
		p, got := neighbourProblem("ipv4", tableFulls(tt.stats), 1024)
		if got != (tt.what != "") || got && (!p.Warning || !strings.Contains(p.What, tt.what) || !strings.Contains(p.Repair, "net.ipv4.neigh.default.gc_thresh3=8192")) {
			t.Errorf("%q: %v, want %q", tt.stats, p, tt.what)
		}
	}
}

func TestHostServers(t *testing.T) {
	file := filepath.Join(t.TempDir(), "resolv.conf")
	if list, err := hostServers(file); err != nil || list != nil {
		t.Errorf("no file: %v, %v", list, err)
	}
	if err := os.WriteFile(file, []byte("# by hand\nnameserver 192.0.2.53\nnameserver fe80::1%eth0\nnameserver ::1\nnameserver x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.53"), netip.MustParseAddr("fe80::1%eth0"), netip.IPv6Loopback()}
	if list, err := hostServers(file); err != nil || !slices.Equal(list, want) {
		t.Errorf("got %v, %v, want %v", list, err, want)
	}
}

func TestInfoNamesTheFirewall(t *testing.T) {
	for _, row := range []struct {
		backend *system.FirewallInfo
		want    string
	}{
		{nil, "Docker 29.0.0 with version 1.52 of its API; it makes its rules with iptables"},
		{&system.FirewallInfo{Driver: "nftables"}, "Docker 29.0.0 with version 1.52 of its API; it makes its rules with nftables"},
		{&system.FirewallInfo{Driver: "iptables+firewalld"}, "Docker 29.0.0 with version 1.52 of its API; it makes its rules with iptables+firewalld"},
	} {
		i := describe(system.Info{FirewallBackend: row.backend}, types.Version{Version: "29.0.0", APIVersion: "1.52"})
		if got := i.String(); got != row.want {
			t.Errorf("of %+v: %q, want %q", row.backend, got, row.want)
		}
	}
}
