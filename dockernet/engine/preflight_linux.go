package engine

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"sluice/dockernet/cut"
	"sluice/dockernet/netns"
)

// HostProblems looks at the machine only, see [Client.Preflight].
func HostProblems() []Problem {
	var list []Problem
	if p, found := kernelProblem(kernelRelease()); found {
		list = append(list, p)
	}
	if p, found := privilegeProblem(); found {
		return append(list, p) // the rest would fail for this alone
	}
	list = append(list, tryKernel(features)...)
	for _, p := range tryKernel(helpful) {
		p.Warning = true
		list = append(list, p)
	}
	if p, found := bridgeProblem("/"); found {
		list = append(list, p)
	}
	if count, most, err := Connections(); err == nil {
		if p, found := conntrackProblem(count, most); found {
			list = append(list, p)
		}
	}
	full := NeighbourOverflows()
	for _, family := range slices.Sorted(maps.Keys(full)) {
		most, err := number("/proc/sys/net/" + family + "/neigh/default/gc_thresh3")
		if err != nil {
			continue
		}
		if p, found := neighbourProblem(family, full[family], most); found {
			list = append(list, p)
		}
	}
	return list
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// privilegeProblem looks for the two capabilities without which nothing works: to enter and make namespaces, and to
// change rules.
func privilegeProblem() (Problem, bool) {
	var data [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &data[0]); err != nil {
		return Problem{Check: "privileges", What: err.Error(), Repair: "run this as root"}, true
	}
	var missing []string
	for _, c := range []struct {
		name string
		bit  uint
	}{{capNetAdmin, unix.CAP_NET_ADMIN}, {capSysAdmin, unix.CAP_SYS_ADMIN}} {
		if data[c.bit/32].Effective&(1<<(c.bit%32)) == 0 {
			missing = append(missing, c.name)
		}
	}
	if missing == nil {
		return Problem{}, false
	}
	return Problem{Check: "privileges", What: "this process lacks the capability " + strings.Join(missing, " and "),
		Repair: "run it as root, on the host or in a container with both capabilities and the host's network"}, true
}

// feature is something that the kernel may not have.
type feature struct {
	check, what, option string
	try                 func() error // in a namespace of its own
}

// features are tried one by one, so that what is missing has a name. The options are those of the kernel's
// configuration; a module that is there is loaded by the trial.
var features = []feature{
	{"nftables", "has no nftables", "NF_TABLES_INET", rules("inet", "output", &expr.Counter{})},
	{"nftables", "cannot match connections", "NFT_CT", rules("inet", "output", &expr.Ct{Key: expr.CtKeySTATE, Register: 1})},
	{"nftables", "cannot tell local addresses", "NFT_FIB_INET",
		rules("inet", "output", &expr.Fib{Register: 1, FlagDADDR: true, ResultADDRTYPE: true})},
	{"nftables", "cannot refuse with an answer", "NFT_REJECT_INET",
		rules("inet", "output", &expr.Reject{Type: unix.NFT_REJECT_ICMPX_UNREACH, Code: unix.NFT_REJECT_ICMPX_ADMIN_PROHIBITED})},
	{"nftables", "cannot redirect", "NFT_REDIR, NFT_NAT", rules("nat", "output", &expr.Redir{})},
	{"nftables", "cannot report refusals", "NFT_LOG, NETFILTER_NETLINK_LOG",
		rules("inet", "output", &expr.Log{Group: 1, Key: 1 << unix.NFTA_LOG_GROUP})},
	{"nftables", "cannot limit rates", "NFT_LIMIT", rules("inet", "output", &expr.Limit{Type: expr.LimitTypePkts, Rate: 1, Unit: expr.LimitTimeSecond})},
	{"nftables", "has no rules for an interface", "NF_TABLES_NETDEV, NETFILTER_INGRESS", rules("netdev", "ingress", &expr.Counter{})},
	{"nftables", "has no rules for bridges", "NF_TABLES_BRIDGE", rules("bridge", "forward", &expr.Counter{})},
	{"nftables", "has no rules for ARP", "NF_TABLES_ARP", rules("arp", "input", &expr.Counter{})},
	{"conntrack", "cannot end connections", "INET_DIAG_DESTROY, INET_UDP_DIAG, NF_CT_NETLINK", cut.Check},
}

// helpful are features without which containers can do a little more than their policies say.
var helpful = []feature{
	{"nftables", "cannot refuse frames that workloads make themselves, which can have it write over ports and parts of IPv6 addresses",
		"NETFILTER_EGRESS (Linux 5.16), IP_ROUTE_CLASSID", rules("netdev", "egress", &expr.Meta{Key: expr.MetaKeyRTCLASSID, Register: 1})},
}

// tryKernel tries features in one namespace that ends with it.
func tryKernel(features []feature) []Problem {
	var list []Problem
	err := netns.OnOwnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		for _, f := range features {
			if err := f.try(); err != nil {
				list = append(list, Problem{Check: f.check, What: fmt.Sprintf("the kernel %s (%v)", f.what, err),
					Repair: "use a kernel with CONFIG_" + strings.ReplaceAll(f.option, ", ", ", CONFIG_") + ", and its modules"})
			}
		}
		return nil
	})
	if err != nil {
		list = append(list, Problem{Check: "privileges", What: "cannot make a network namespace: " + err.Error(), Repair: "run this as root"})
	}
	return list
}

// rules returns a trial of a table with one chain and one rule.
func rules(kind, hook string, exprs ...expr.Any) func() error {
	return func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		table := &nftables.Table{Name: "sluice-check", Family: nftables.TableFamilyINet}
		chain := &nftables.Chain{Name: "check", Table: table, Type: nftables.ChainTypeFilter, Priority: nftables.ChainPriorityFilter}
		switch kind {
		case "nat":
			chain.Type = nftables.ChainTypeNAT
		case "netdev":
			table.Family, chain.Device = nftables.TableFamilyNetdev, "lo"
		case "bridge":
			table.Family = nftables.TableFamilyBridge
		case "arp":
			table.Family = nftables.TableFamilyARP
		}
		chain.Hooknum = map[string]*nftables.ChainHook{
			"output": nftables.ChainHookOutput, "ingress": nftables.ChainHookIngress, "egress": nftables.ChainHookEgress, "forward": nftables.ChainHookForward,
			"input": nftables.ChainHookRef(0),
		}[hook]
		c.AddTable(table)
		c.AddChain(chain)
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
		c.DelTable(table)
		return c.Flush()
	}
}

// bridgeProblem looks for br_netfilter, which takes bridged packets to the rules: loaded, built in or a module that can
// be loaded, below a root directory.
func bridgeProblem(root string) (Problem, bool) {
	if _, err := os.Stat(filepath.Join(root, "proc/sys/net/bridge/bridge-nf-call-iptables")); err == nil {
		return Problem{}, false
	}
	modules := filepath.Join(root, "lib/modules", kernelRelease())
	for _, list := range []string{"modules.dep", "modules.builtin"} {
		b, err := os.ReadFile(filepath.Join(modules, list))
		if err == nil && strings.Contains(string(b), "/br_netfilter.ko") {
			return Problem{}, false
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return Problem{Check: "br_netfilter", What: "the module br_netfilter is not loaded, and there is none in " + modules,
		Repair: "modprobe br_netfilter on the host, or use a kernel with CONFIG_BRIDGE_NETFILTER"}, true
}
