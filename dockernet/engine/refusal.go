package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Kind names a reason why a container cannot be put under a policy. Kinds are label values of metrics.
type Kind string

// The kinds of refusals.
const (
	Privileged       Kind = "privileged"
	CapNetAdmin      Kind = "cap-net-admin"
	CapSysAdmin      Kind = "cap-sys-admin"
	CapSysModule     Kind = "cap-sys-module"
	CapBPF           Kind = "cap-bpf"
	CapSysPtrace     Kind = "cap-sys-ptrace" // with the host's process ids
	Pids             Kind = "shared-pids"    // of the host or of a container that is not under a policy
	Seccomp          Kind = "seccomp-unconfined"
	OpenPaths        Kind = "systempaths-unconfined"
	NetworkHost      Kind = "network-host"
	NetworkNone      Kind = "network-none"
	NetworkContainer Kind = "network-container"
	NetworkDriver    Kind = "network-driver"
	Runtime          Kind = "runtime"
	Rootless         Kind = "rootless"
	SocketMount      Kind = "socket-mount"
	ImageLabel       Kind = "image-label"
	RestartPolicy    Kind = "restart-policy"
	EngineDNS        Kind = "engine-dns"
	Vsock            Kind = "vsock"
)

// Refusal is one reason, and what to do about it.
type Refusal struct {
	Kind   Kind
	What   string // in a sentence about the container
	Repair string
	// Weak is set if --allow-weak accepts it.
	Weak bool
}

// Error returns both sentences.
func (r Refusal) Error() string { return r.What + ": " + r.Repair }

// Conditions are what a container is judged by beside itself.
type Conditions struct {
	Info Info
	// Attached reports whether a container, by id or name, is under a policy. Nil is for none.
	Attached func(container string) bool
	// Sockets are paths on the host that give power over the engine or over policies, beside those in
	// [EngineSockets], and directories of such paths. Whoever has one of them, or a directory with one, could have anything.
	Sockets []string
	// HostServers are the DNS servers in the host's resolv.conf.
	HostServers []netip.Addr
	// Vsock is set if the machine has sockets of AF_VSOCK.
	Vsock bool
	// EarlyRules is set if the rules of managed networks are there before the engine is, when the host has started.
	EarlyRules bool
}

// Refusals returns every reason why the container cannot be put under a policy, in the order of the kinds; none if it
// can be.
func (c *Container) Refusals(o Conditions) []Refusal {
	var list []Refusal
	list = append(list, c.rights(&o)...)
	list = append(list, c.networks(&o)...)
	list = append(list, c.runtime(&o)...)
	list = append(list, c.sockets(&o)...)
	return append(list, c.life(&o)...)
}

// Warnings returns what is accepted without being asked for, since most of those whom it concerns have nothing to lose by
// it. It is to be shown all the same.
func (c *Container) Warnings(o Conditions) []Refusal {
	if !c.Vsock || !o.Vsock {
		return nil
	}
	return []Refusal{{Vsock, "the container can open sockets of AF_VSOCK, which belong to no network, and reach what listens to those " +
		"on the host, its virtual machines or its hypervisor", vsockRepair, true}}
}

const vsockRepair = "create it by sluice run, or with the seccomp profile that sluice check --seccomp prints"

func (o *Conditions) attached(container string) bool {
	return o.Attached != nil && o.Attached(container)
}

// rights are those that take rules away or get round them.
func (c *Container) rights(o *Conditions) []Refusal {
	if c.Privileged {
		return []Refusal{{Privileged, "the container is privileged, so it can change every rule",
			"create it without --privileged", false}}
	}
	var list []Refusal
	has := func(name string) bool { return slices.Contains(c.Capabilities, name) }
	for _, r := range []struct {
		kind      Kind
		name, can string
	}{
		{CapNetAdmin, capNetAdmin, "change the rules in its namespace"},
		{CapSysAdmin, capSysAdmin, "enter other namespaces"},
		{CapSysModule, capSysModule, "load code into the kernel"},
		{CapBPF, capBPF, "load programs into the kernel"},
	} {
		if has(r.name) {
			list = append(list, Refusal{r.kind, fmt.Sprintf("the container has the capability %s and can %s", r.name, r.can),
				"create it without --cap-add " + r.name + keeping(c, r.name), true})
		}
	}
	switch other, joined := strings.CutPrefix(c.PIDMode, "container:"); {
	case c.PIDMode == "host" && has(capSysPtrace):
		list = append(list, Refusal{CapSysPtrace, "the container has the capability SYS_PTRACE and the host's process ids, " +
			"and can send through any process of the host", "create it without --pid host", true})
	case c.PIDMode == "host":
		list = append(list, Refusal{Pids, "the container has the host's process ids, and can trace processes of other containers " +
			"and send through them", "create it without --pid host", true})
	case joined && !o.attached(other):
		list = append(list, Refusal{Pids, "the container shares the process ids of container " + other +
			", which is under no policy, and can send through its processes", "attach that one first, or create it without --pid", true})
	}
	if c.Unconfined {
		list = append(list, Refusal{Seccomp, "no seccomp filter holds for the container, so it can make namespaces and reach all of the kernel",
			"create it without --security-opt seccomp=unconfined, on an engine with a seccomp profile", false})
	}
	if c.OpenPaths {
		list = append(list, Refusal{OpenPaths, "/proc/sys is writable in the container, so it can run programs on the host",
			"create it without --security-opt systempaths=unconfined", false})
	}
	return list
}

// keeping adds, where everything was asked for, how to drop one.
func keeping(c *Container, name string) string {
	for _, d := range dangerous {
		if !slices.Contains(c.Capabilities, d) {
			return ""
		}
	}
	return ", or with --cap-drop " + name + " beside --cap-add ALL"
}

// networks are those that Sluice has no rules for.
func (c *Container) networks(o *Conditions) []Refusal {
	if other, joined := c.Joined(); joined {
		if o.attached(other) {
			return nil
		}
		return []Refusal{{NetworkContainer, "the container shares the network of container " + other + ", which is under no policy",
			"attach that one", false}}
	}
	switch c.NetworkMode {
	case "host":
		return []Refusal{{NetworkHost, "the container uses the host's own network", "create it on a bridge network", false}}
	case "none":
		return []Refusal{{NetworkNone, "the container has no network, so there is nothing to decide",
			"create it on a bridge network, with the policy no-network", false}}
	}
	var list []Refusal
	for _, e := range c.Endpoints {
		if e.Driver != driverBridge {
			list = append(list, Refusal{NetworkDriver,
				fmt.Sprintf("network %s has the driver %s, whose packets pass no bridge of the host", e.Name, e.Driver),
				"create the container on bridge networks only", false})
		}
	}
	return list
}

// runtimes are the programs and shims that make containers of processes of this kernel, in namespaces that the host
// can enter.
var runtimes = []string{
	"runc", "crun", "youki", "io.containerd.runc.v1", "io.containerd.runc.v2", "io.containerd.runtime.v1.linux",
	"nvidia-container-runtime", "nvidia-container-runtime.cdi", "nvidia-container-runtime.legacy",
}

func isRuntime(program string) bool { return slices.Contains(runtimes, program) }

func (c *Container) runtime(o *Conditions) []Refusal {
	var list []Refusal
	if o.Info.Rootless {
		list = append(list, Refusal{Rootless, "the engine is rootless: its networks are not the host's",
			"use an engine that runs as root", false})
	}
	program, known := o.Info.Runtimes[c.Runtime]
	if !known {
		program = c.Runtime // a shim's name
	}
	if !isRuntime(program) {
		what := c.Runtime
		if program != what {
			what += " (" + program + ")"
		}
		list = append(list, Refusal{Runtime, fmt.Sprintf("the runtime %q may have a network stack of its own, which the host's rules do not see", what),
			"create the container with --runtime runc", false})
	}
	return list
}

// life are reasons that lie in how the container came to be and comes back.
func (c *Container) life(o *Conditions) []Refusal {
	var list []Refusal
	switch {
	case c.ImageGone:
		list = append(list, Refusal{ImageLabel, "the image is gone, so nobody can tell whether the labels " + LabelPrefix + "… are its own",
			"create the container from an image that is there", false})
	case len(c.ImageLabels) > 0:
		names := make([]string, 0, len(c.ImageLabels))
		for name := range c.ImageLabels {
			names = append(names, name)
		}
		slices.Sort(names)
		list = append(list, Refusal{ImageLabel, fmt.Sprintf("the image has the label %s, and an image must not choose its policy", strings.Join(names, ", ")),
			"build the image without it; give the label to the container", false})
	}
	_, joined := c.Joined()
	if c.Restart != "no" && !joined && !c.Managed() {
		list = append(list, Refusal{RestartPolicy, fmt.Sprintf("the restart policy %q gives the container a new network before anybody can act", c.Restart),
			"use --restart no, or managed networks only", true})
	}
	if c.Restart != "no" && !joined && c.Managed() && !o.EarlyRules {
		list = append(list, Refusal{RestartPolicy, fmt.Sprintf("with the restart policy %q the engine starts the container before the rules are there, when the host has started", c.Restart),
			"start sluice serve before the engine with --keep-bridges, as examples/systemd does, or use --restart no", true})
	}
	if c.Managed() && c.resolvesOnHost(o.Info, o.HostServers) {
		list = append(list, Refusal{EngineDNS, "until the container is admitted, the engine asks DNS servers for it from the host's network",
			engineDNSRepair("it"), false})
	}
	return list
}
