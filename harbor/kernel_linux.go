package harbor

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/cut"
	"sluice/dockernet/direct"
	"sluice/dockernet/gate"
	"sluice/dockernet/netns"
	"sluice/dockernet/xdp"
	"sluice/matcher"
	"sluice/policy"
)

// always is the phase that is in force in the gate: all three are the same here, for Harbor knows of none.
const always = policy.Run

// kernel is the namespace's [Kernel]. Its methods run one after another.
type kernel struct {
	ns        *netns.Namespace
	gate      *gate.Gate
	queues    xdp.Queues // which nobody can send by, past the gate
	listeners gate.Listeners
	// By which rules know the sidecar's own sockets, see [gate.Shared].
	mark, group uint32
	judging     matcher.Options

	inForce, staged *rules
	cutBefore       bool
	installed       bool // whether there may be rules
	closing         sync.WaitGroup
}

// rules are a policy as the gate has it.
type rules struct {
	policy policy.Policy
	spec   *gate.Spec
}

// compile makes the rules of a policy, for the addresses that the namespace has now.
func (k *kernel) compile(p policy.Policy) (*rules, error) {
	compiled, err := matcher.Compile(p, k.judging)
	if err != nil {
		return nil, err
	}
	four, six, err := k.families()
	if err != nil {
		return nil, err
	}
	phase := direct.Phase{Rules: compiled, Inbound: policy.InboundNone}
	if p.Mode == policy.Public {
		phase.Inbound = policy.InboundAll
	}
	r := &rules{policy: p, spec: &gate.Spec{
		Listeners: k.listeners, Explicit: []netip.AddrPort{direct.ExplicitProxy}, NoRoute4: !four, NoRoute6: !six, LogGroup: logGroup, Shared: &gate.Shared{Mark: k.mark, Group: k.group},
	}}
	for i := range r.spec.Phases {
		r.spec.Phases[i] = phase
	}
	return r, r.spec.Check()
}

// Install implements [Kernel].
func (k *kernel) Install(p policy.Policy) error {
	r, err := k.compile(p)
	if err != nil {
		return err
	}
	held := k.queues.Keep(k.ns)
	if errors.Is(held, xdp.ErrTaken) {
		// Where there are rules too it is most likely another sidecar, whose policy must not be replaced.
		if there, err := k.gate.Installed(); err != nil || there {
			return errors.Join(fmt.Errorf("this network has the rules of a sidecar already, and nothing of them has changed: "+
				"a network can have one alone: %w", held), err)
		}
	}
	k.installed = true
	if err := k.gate.Install(r.spec, always); err != nil {
		return err
	}
	k.inForce, k.staged = r, nil
	return held
}

// Stage implements [Kernel].
func (k *kernel) Stage(p policy.Policy) error {
	r, err := k.compile(p)
	if err != nil {
		return err
	}
	if err := k.gate.Stage(r.spec); err != nil {
		return err
	}
	k.staged = r
	return k.queues.Add(k.ns) // there may be other links
}

// Both implements [Kernel].
func (k *kernel) Both() error { return k.gate.Both(always) }

// Switch implements [Kernel].
func (k *kernel) Switch() error {
	if err := k.gate.Switch(always); err != nil {
		return err
	}
	k.inForce, k.staged = k.staged, nil
	return nil
}

// Quarantine implements [Kernel].
func (k *kernel) Quarantine() error {
	k.installed = true
	return k.gate.Quarantine()
}

// Cut implements [Kernel].
func (k *kernel) Cut() (Cut, error) {
	addresses, err := k.addresses()
	if err != nil {
		return Cut{}, err
	}
	spec := k.inForce.cut()
	spec.Addresses, spec.First = addresses, !k.cutBefore
	spec.Spared = &cut.Spared{Socket: k.mark, Entry: gate.OwnMark}
	spec.Later = func(do func()) { k.closing.Go(do) }
	report, err := cut.Cut(k.ns, spec)
	k.cutBefore = err == nil
	return Cut{Ended: report.Ended, Kept: report.Kept}, err
}

// cut says what the rules refuse, as [gate.Shared] has it.
func (r *rules) cut() cut.Spec {
	judge := direct.Judge{Spec: &r.spec.Spec, Phase: &r.spec.Phases[always], Policy: r.policy}
	if r.policy.Mode == policy.Public {
		return cut.Spec{Refused: judge.Refused}
	}
	return cut.Spec{
		Refused: func(to netip.AddrPort, protocol uint8) bool {
			return protocol != unix.IPPROTO_TCP || judge.Refused(to, protocol)
		},
		RefusedInbound: func(netip.Addr) bool { return true },
	}
}

// Listing implements [Kernel]. The numbers by which the rules know the sidecar's own connections are not shown.
func (k *kernel) Listing() (string, error) {
	if k.inForce == nil {
		return "", errors.New("no rules are in force")
	}
	text, err := gate.Listing(k.inForce.spec, always)
	mark, group := fmt.Sprintf("mark %#x ", k.mark), fmt.Sprintf("%d ", k.group)
	return strings.NewReplacer(mark, "mark <secret> ", "skgid "+group, "skgid <secret> ", "skgid != "+group, "skgid != <secret> ").Replace(text), err
}

// Refused implements [Kernel].
func (k *kernel) Refused() (packets uint64, err error) {
	c, err := k.gate.Counters()
	if err != nil {
		return 0, err
	}
	frames, err := k.gate.FramesRefused()
	packets = c.RefusedAlways.Packets + frames.Packets
	for _, one := range c.Refused {
		packets += one.Packets
	}
	return packets, err
}

// close lets go of what was opened. The rules stay.
func (k *kernel) close() {
	k.closing.Wait()
	k.gate.Close()
	k.queues.Close()
}

// addresses are those of the namespace, but for the loopback's.
func (k *kernel) addresses() (all []netip.Addr, err error) {
	err = k.ns.Do(func() error {
		list, err := netns.Whole(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
		for _, a := range list {
			if ip, ok := netip.AddrFromSlice(a.IP); ok && !ip.IsLoopback() {
				all = append(all, ip.Unmap())
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("addresses of the network: %w", err)
	}
	return all, nil
}

// families reports which families there are addresses of that lead anywhere.
func (k *kernel) families() (four, six bool, err error) {
	all, err := k.addresses()
	four = slices.ContainsFunc(all, netip.Addr.Is4)
	six = slices.ContainsFunc(all, func(a netip.Addr) bool { return a.Is6() && a.IsGlobalUnicast() })
	return four, six, err
}

// hostOnly are kinds of interfaces that no engine gives a container.
var hostOnly = []string{"device", "bridge", "bond", "team", "openvswitch"}

// ofContainer makes sure that the namespace is a container's own: rules in the host's would cut the host off.
func ofContainer(ns *netns.Namespace) error {
	return ns.Do(func() error {
		links, err := netns.Whole(netlink.LinkList)
		if err != nil {
			return fmt.Errorf("interfaces of the network: %w", err)
		}
		for _, l := range links {
			if l.Attrs().Name != "lo" && slices.Contains(hostOnly, l.Type()) {
				return fmt.Errorf("%w: it has the interface %s (%s)", netns.ErrHost, l.Attrs().Name, l.Type())
			}
		}
		return nil
	})
}
