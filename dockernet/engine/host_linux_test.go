package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/network"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
	"sluice/dockernet/netns/netnstest"
)

// Case L-47: what the kernel lacks has a name and a repair. A kernel with everything has no problem.
func TestKernelFeatures(t *testing.T) {
	netnstest.Require(t)
	if list := tryKernel(slices.Concat(features, helpful)); list != nil {
		t.Errorf("this kernel: %v", list)
	}
	hidden := []feature{
		{"nftables", "has no nftables", "NF_TABLES_INET", func() error { return unix.EOPNOTSUPP }},
		{"nftables", "cannot redirect", "NFT_REDIR, NFT_NAT", func() error { return unix.ENOENT }},
	}
	list := tryKernel(hidden)
	if len(list) != 2 || !strings.Contains(list[1].String(), "nftables: the kernel cannot redirect (no such file or directory)") ||
		!strings.Contains(list[1].Repair, "CONFIG_NFT_REDIR, CONFIG_NFT_NAT") {
		t.Errorf("got %v", list)
	}
	// A rule that no kernel takes shows that rules are tried at all.
	if err := netnstest.New(t).Do(rules("netdev", "output")); err == nil {
		t.Error("a chain that cannot be was made")
	}
}

// Trials leave nothing behind, and are not made in this namespace.
func TestKernelFeaturesAreTriedElsewhere(t *testing.T) {
	netnstest.Require(t)
	here, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	var there os.FileInfo
	tryKernel([]feature{{try: func() (err error) { there, err = os.Stat("/proc/thread-self/ns/net"); return err }}})
	if os.SameFile(here, there) {
		t.Error("the trial was made in this process's namespace")
	}
}

func TestBridgeProblem(t *testing.T) {
	modules := filepath.Join("lib/modules", kernelRelease())
	for name, tt := range map[string]struct {
		file, text string
		want       bool
	}{
		"loaded":   {"proc/sys/net/bridge/bridge-nf-call-iptables", "1\n", false},
		"module":   {filepath.Join(modules, "modules.dep"), "kernel/net/bridge/br_netfilter.ko.xz: kernel/net/bridge/bridge.ko.xz\n", false},
		"built_in": {filepath.Join(modules, "modules.builtin"), "kernel/net/bridge/br_netfilter.ko\n", false},
		"none":     {filepath.Join(modules, "modules.dep"), "kernel/net/bridge/bridge.ko:\n", true},
		"nothing":  {"etc/hosts", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			file := filepath.Join(root, tt.file)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(tt.text), 0o600); err != nil {
				t.Fatal(err)
			}
			if p, got := bridgeProblem(root); got != tt.want || got && !strings.Contains(p.Repair, "br_netfilter") {
				t.Errorf("got %v, want a problem: %v", p, tt.want)
			}
		})
	}
}

// A namespace is the container's when it was opened only if the engine says so afterwards.
func TestOpen(t *testing.T) {
	ns := netnstest.New(t)
	f, c := newFake(t)
	f.bridge("n1", "net", nil)
	run := func(change func(*container.InspectResponse)) {
		f.run("c1", "web", func(r *container.InspectResponse) {
			r.NetworkSettings.SandboxKey = ns.Path
			if change != nil {
				change(r)
			}
		})
	}
	run(nil)
	before, err := c.Inspect(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	opened, err := c.Open(t.Context(), before)
	if err != nil {
		t.Fatal(err)
	}
	if opened.ID() != ns.ID() {
		t.Errorf("opened %v, want %v", opened.ID(), ns.ID())
	}
	opened.Close()
	for name, change := range map[string]func(*container.InspectResponse){
		"restarted":       func(r *container.InspectResponse) { r.State.StartedAt = "2024-05-06T07:08:10Z" },
		"other_sandbox":   func(r *container.InspectResponse) { r.NetworkSettings.SandboxID = "s-2" },
		"other_process":   func(r *container.InspectResponse) { r.State.Pid++ },
		"other_container": func(r *container.InspectResponse) { r.ID = "c2" },
		"ended":           func(r *container.InspectResponse) { r.NetworkSettings.SandboxKey = "" },
	} {
		t.Run(name, func(t *testing.T) {
			run(change)
			if name == "other_container" { // the name leads to it, the id does not
				f.containers["c1"].Name = "/c1"
			}
			if opened, err := c.Open(t.Context(), before); !errors.Is(err, netns.ErrChanged) {
				if err == nil {
					opened.Close()
				}
				t.Errorf("error %v, want ErrChanged", err)
			}
		})
	}
	t.Run("path_gone", func(t *testing.T) {
		gone := before
		gone.SandboxKey = filepath.Join(t.TempDir(), "gone")
		run(nil)
		if _, err := c.Open(t.Context(), gone); !errors.Is(err, netns.ErrChanged) || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("error %v, want ErrChanged and the reason", err)
		}
	})
	delete(f.containers, "c1")
	if _, err := c.Open(t.Context(), before); err == nil || !strings.Contains(err.Error(), "No such container") {
		t.Errorf("gone: error %v", err)
	}
	before.SandboxKey = "/proc/self/ns/net"
	if _, err := c.Open(t.Context(), before); !errors.Is(err, netns.ErrHost) {
		t.Errorf("the host's: error %v", err)
	}
	before.SandboxKey, before.State = "", StateExited
	if _, err := c.Open(t.Context(), before); err == nil || !strings.Contains(err.Error(), "start it") {
		t.Errorf("stopped: error %v", err)
	}
}

// A container with two networks, and a host with other containers.
func TestLinks(t *testing.T) {
	host, inside, other := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	h := host.Handle(t)
	bridge := func(name string) {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			t.Fatal(err)
		}
	}
	bridge("br-a")
	bridge("br-b")
	plug := func(in *netnstest.Namespace, name, port, onBridge string, addresses ...netip.Prefix) {
		netnstest.Link(t, netnstest.End{In: in, Name: name, Addresses: addresses}, netnstest.End{In: host, Name: port})
		p, err := h.LinkByName(port)
		if err != nil {
			t.Fatal(err)
		}
		b, err := h.LinkByName(onBridge)
		if err != nil {
			t.Fatal(err)
		}
		if err := h.LinkSetMaster(p, b); err != nil {
			t.Fatal(err)
		}
	}
	plug(other, "eth0", "veth0", "br-a", prefixes("10.1.0.9/24")...)
	plug(inside, "eth0", "veth1", "br-a", prefixes("10.1.0.2/24", "fd00:1::2/64")...)
	plug(inside, "eth1", "veth2", "br-b", prefixes("10.2.0.2/24")...)

	f, c := newFake(t)
	for _, n := range []string{"a", "b"} {
		f.bridge("n-"+n, n, func(i *network.Inspect) { i.Options = map[string]string{optionBridge: "br-" + n} })
	}
	settings := map[string]*network.EndpointSettings{
		"a": {NetworkID: "n-a", IPAddress: "10.1.0.2", IPPrefixLen: 24, GlobalIPv6Address: "fd00:1::2", GlobalIPv6PrefixLen: 64},
		"b": {NetworkID: "n-b", IPAddress: "10.2.0.2", IPPrefixLen: 24},
	}
	f.run("c1", "web", func(r *container.InspectResponse) { r.NetworkSettings.Networks = settings })
	find := func() (links []Link, err error) {
		v, err := c.Inspect(context.Background(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		err = host.Do(func() error { links, err = Links(inside.Namespace, v); return err })
		return links, err
	}
	got, err := find()
	if err != nil {
		t.Fatal(err)
	}
	want := []Link{{Network: "n-a", Inside: "eth0", Host: "veth1"}, {Network: "n-b", Inside: "eth1", Host: "veth2"}}
	for i := range want {
		for _, side := range []struct {
			in    *netnstest.Namespace
			name  string
			index *int
		}{{inside, want[i].Inside, &want[i].InsideIndex}, {host, want[i].Host, &want[i].HostIndex}} {
			l, err := side.in.Handle(t).LinkByName(side.name)
			if err != nil {
				t.Fatal(err)
			}
			*side.index = l.Attrs().Index
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %+v, want %+v", got, want)
	}

	for _, tt := range []struct {
		name   string
		change func()
		want   string
	}{
		{"another_bridge", func() { f.networks["n-b"].Options[optionBridge] = "br-a" }, "not on br-a"},
		{"another_address", func() { settings["b"].IPAddress = "10.2.0.3" }, "10.2.0.3"},
		{"unplugged", func() {
			l, err := h.LinkByName("veth2")
			if err == nil {
				err = h.LinkSetNoMaster(l)
			}
			if err != nil {
				t.Fatal(err)
			}
		}, "the bridge of veth2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f.networks["n-b"].Options[optionBridge], settings["b"].IPAddress = "br-b", "10.2.0.2"
			tt.change()
			if links, err := find(); err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "network b") {
				t.Errorf("got %v, error %v, want %q in it", links, err, tt.want)
			}
		})
	}
	if err := other.Do(func() error {
		_, err := Links(inside.Namespace, Container{Endpoints: []Endpoint{{Addresses: prefixes("10.1.0.2/24")}}})
		return err
	}); err == nil {
		t.Error("links were found in a namespace that is not the engine's")
	}
}

func TestRoutes(t *testing.T) {
	a, b := netnstest.New(t), netnstest.New(t)
	netnstest.Link(t, netnstest.End{In: a, Name: "tun0", Addresses: prefixes("10.8.0.2/24", "fd00:8::2/64")}, netnstest.End{In: b, Name: "tun0"})
	h := a.Handle(t)
	link, err := h.LinkByName("tun0")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range prefixes("0.0.0.0/0", "128.0.0.0/1", "10.0.0.0/8", "2001:db8::/32") {
		if err := h.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: netnstest.IPNet(p)}); err != nil {
			t.Fatal(err)
		}
	}
	got := map[netip.Prefix]bool{}
	a.Run(t, func() error {
		list, err := Routes()
		for _, p := range list {
			got[p] = true
		}
		return err
	})
	for p, want := range map[string]bool{"10.8.0.0/24": true, "fd00:8::/64": true, "10.0.0.0/8": true, "2001:db8::/32": true, "0.0.0.0/0": false, "128.0.0.0/1": false} {
		if got[netip.MustParsePrefix(p)] != want {
			t.Errorf("route to %s: %v, want %v", p, !want, want)
		}
	}
}

// Case L-35: the smallest MTU of what leads out, wherever its route stands.
func TestUplinkMTU(t *testing.T) {
	a, b := netnstest.New(t), netnstest.New(t)
	h := a.Handle(t)
	links := map[string]netlink.Link{}
	for i, name := range []string{"up0", "tun0", "lan0"} {
		netnstest.Link(t, netnstest.End{In: a, Name: name, Addresses: prefixes(fmt.Sprintf("10.%d.0.2/24", i), fmt.Sprintf("fd00:%d::2/64", i))}, netnstest.End{In: b, Name: name})
		link, err := h.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		links[name] = link
	}
	uplink := func(want int) {
		t.Helper()
		a.Run(t, func() error {
			if got, err := uplinkMTU(); err != nil || got != want {
				t.Errorf("got %d, %v, want %d", got, err, want)
			}
			return nil
		})
	}
	route := func(name, to string, change func(*netlink.Route)) {
		t.Helper()
		r := &netlink.Route{LinkIndex: links[name].Attrs().Index, Dst: netnstest.IPNet(netip.MustParsePrefix(to))}
		if change != nil {
			change(r)
		}
		if err := h.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.LinkSetMTU(links["lan0"], 1300); err != nil {
		t.Fatal(err)
	}
	uplink(0)
	route("up0", "0.0.0.0/0", nil)
	route("lan0", "10.0.0.0/8", nil) // leads to nowhere but there
	uplink(1500)
	if err := h.LinkSetMTU(links["tun0"], 1420); err != nil {
		t.Fatal(err)
	}
	uplink(1500)
	route("tun0", "::/0", func(r *netlink.Route) { r.Table = 51820 }) // as a VPN has it
	uplink(1420)
	route("up0", "128.0.0.0/1", func(r *netlink.Route) { r.MTU = 1400 })
	uplink(1400)
}
