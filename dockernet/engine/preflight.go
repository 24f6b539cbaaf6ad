package engine

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Problem is something about this machine or its engine that stands in the way.
type Problem struct {
	Check  string // what was looked at: "nftables", "engine"
	What   string
	Repair string
	// Warning is set if most of it works all the same.
	Warning bool
}

// String is the problem in one line.
func (p Problem) String() string { return fmt.Sprintf("%s: %s: %s", p.Check, p.What, p.Repair) }

// Preflight looks for everything that would fail later, on the machine and at the engine, and changes nothing. The
// kernel is asked to do what will be asked of it, in a network namespace that is gone afterwards.
func (c *Client) Preflight(ctx context.Context) []Problem {
	return append(HostProblems(), c.check(ctx)...)
}

// check looks at the engine.
func (c *Client) check(ctx context.Context) []Problem {
	info, err := c.Info(ctx)
	if err != nil {
		return []Problem{{Check: "engine", What: err.Error(),
			Repair: "start it, name its socket in DOCKER_HOST, and run this as root or in its group"}}
	}
	servers, err := hostServers(hostResolvConf)
	list := info.problems(kernelRelease(), servers, hasVsock(miscDevices))
	if err != nil {
		list = append(list, Problem{Check: "dns", What: err.Error(), Repair: "repair " + hostResolvConf, Warning: true})
	}
	return list
}

// problems finds what is wrong with an engine for a host with this kernel and these DNS servers, and with sockets of
// AF_VSOCK or without.
func (i Info) problems(kernel string, servers []netip.Addr, hasVsock bool) []Problem {
	var list []Problem
	add := func(what, repair string) {
		list = append(list, Problem{Check: "engine", What: what, Repair: repair})
	}
	if i.Product != "Docker" {
		add("it is "+i.Product, "use Docker's engine")
	}
	if !versionAtLeast(i.APIVersion, oldestAPI...) {
		add(fmt.Sprintf("version %s speaks version %s of its API", i.Version, i.APIVersion), "upgrade it to 20.10 or newer, whose API is 1.41")
	}
	if kernel != "" && i.Kernel != kernel {
		add(fmt.Sprintf("it runs on kernel %s (%s), this is %s: its containers' networks are elsewhere", i.Kernel, i.System, kernel),
			"run this where the engine runs, inside its virtual machine if it has one")
	}
	if i.Rootless {
		add("it is rootless: its networks are not the host's", "use an engine that runs as root")
	}
	if i.Unconfined {
		list = append(list, Problem{Check: "engine", What: "containers have no seccomp filter by default, and none of those is attached",
			Repair: "take seccomp-profile out of its configuration, and use a kernel with CONFIG_SECCOMP_FILTER", Warning: true})
	}
	if program, known := i.Runtimes[i.DefaultRuntime]; known && !isRuntime(program) || !known && !isRuntime(i.DefaultRuntime) {
		list = append(list, Problem{Check: "engine", What: fmt.Sprintf("its default runtime %q is none that the host's rules hold for", i.DefaultRuntime),
			Repair: "give containers --runtime runc", Warning: true})
	}
	if !i.keepsDNSInside() {
		what := fmt.Sprintf("version %s carries names out of internal networks where a DNS server of the host is a loopback address (CVE-2024-29018)", i.Version)
		if anyLoopback(servers) {
			what += ", and one is"
		}
		list = append(list, Problem{Check: "dns", What: what, Warning: true,
			Repair: "upgrade it to 23.0.11, 25.0.5, 26.0 or newer, or give containers on managed networks --dns with a server that is not a loopback address"})
	}
	if hasVsock && !i.Unconfined && vsock(nil, i) {
		list = append(list, Problem{Check: "vsock", Warning: true,
			What: "containers can open sockets of AF_VSOCK, which belong to no network, and reach what listens to those on the host, " +
				"its virtual machines or its hypervisor",
			Repair: "start them by sluice run, or with the seccomp profile that sluice check --seccomp prints; the engine can have it as " +
				"seccomp-profile for all"})
	}
	return list
}

// conntrackProblem looks at how full the table is (nf_conntrack-sysctl in the kernel's documentation).
func conntrackProblem(count, most int) (Problem, bool) {
	const percent = 80
	if most == 0 || count*100 < most*percent { // 0 is no limit
		return Problem{}, false
	}
	return Problem{Check: "conntrack", What: fmt.Sprintf("%d of %d connections are in use; when all are, new ones fail", count, most),
		Repair: fmt.Sprintf("sysctl net.netfilter.nf_conntrack_max=%d", 4*most), Warning: true}, true
}

// neighbourProblem looks at how often the table of neighbours had no room. The gateway, the container and its loopback
// device are one each.
func neighbourProblem(family string, full uint64, most int) (Problem, bool) {
	if full == 0 {
		return Problem{}, false
	}
	return Problem{Check: "neighbours", Warning: true,
		What:   fmt.Sprintf("the table of %s neighbours had no room %d times since the host started; connections fail then", family, full),
		Repair: fmt.Sprintf("sysctl net.%s.neigh.default.gc_thresh3=%d, and gc_thresh2 to half of it: some four for each container", family, 8*most)}, true
}

// tableFulls adds up a column of the kernel's counters: a line of names and one of hexadecimal numbers for each processor.
func tableFulls(stats string) (full uint64) {
	header, rows, _ := strings.Cut(stats, "\n")
	column := slices.Index(strings.Fields(header), "table_fulls")
	for row := range strings.Lines(rows) {
		if cells := strings.Fields(row); column >= 0 && column < len(cells) {
			n, _ := strconv.ParseUint(cells[column], 16, 64)
			full += n
		}
	}
	return full
}

// kernelProblem compares a release as uname(2) gives it with the oldest one that has what the rules need: sets of
// addresses with ports (5.6), and conntrack's filters for lists (5.8).
func kernelProblem(release string) (Problem, bool) {
	if versionAtLeast(release, 5, 10) {
		return Problem{}, false
	}
	return Problem{Check: "kernel", What: fmt.Sprintf("release %s is older than 5.10", strings.TrimSpace(release)),
		Repair: "use a newer kernel"}, true
}
