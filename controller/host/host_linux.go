package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sync/errgroup"

	"sluice/controller"
	"sluice/controller/api"
	"sluice/dockernet/engine"
	"sluice/dockernet/gate"
	"sluice/dockernet/guard"
	"sluice/dockernet/netns"
	"sluice/dockernet/nflog"
)

// LogGroup is the NFLOG group that gets the first packets of what is refused, inside of containers and on the host.
const LogGroup = 5303

// Options of a [Host]. They are read once.
type Options struct {
	Client *engine.Client
	// Closed are TCP ports of the host that no container may reach, on one of its addresses or on all.
	Closed []netip.AddrPort
	// Upstreams are the name servers of containers that were given none.
	Upstreams []netip.AddrPort
	// IPv6 is set if the sidecar has a route for that family.
	IPv6   bool
	Logger *slog.Logger
	// Uncovered, if set, is told when rules on the host were not in force for some time because others have changed
	// them: of the container whose namespace has that [controller.Net] ID, or of all if it is "". It is set before Run.
	Uncovered func(namespace string, gap time.Duration)
	// Kept is a file, if any, that names the bridges of managed networks, so that they are mute before the engine tells
	// of them: it may start containers when the host has started.
	Kept string
}

// Host is the kernel of the host, as the controller wants it.
type Host struct {
	options Options
	facts   facts
	guard   *guard.Host
	sweeper *sweeper
	logs    *nflog.Logs

	mu      sync.Mutex      // guards all below
	bridges map[string]bool // whether they are managed
	links   map[uint32]link // by the indexes of containers' interfaces on the host
	closed  func() error    // closes the host to the sidecar; nil before the first time
}

// link is an interface of a container's on the host.
type link struct {
	name string
	of   *rim
}

var _ controller.Host = (*Host)(nil)

// Open puts the rules for the whole host in force.
func Open(o Options) (*Host, error) {
	g, err := guard.Open(guard.Config{LogGroup: LogGroup})
	if err != nil {
		return nil, err
	}
	l, err := nflog.New()
	if err != nil {
		return nil, errors.Join(err, g.Close())
	}
	h := &Host{options: o, guard: g, sweeper: newSweeper(o.Logger), logs: l, bridges: map[string]bool{}, links: map[uint32]link{}}
	if err := h.guardKept(); err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.facts.client = o.Client
	h.facts.constant = controller.Facts{Closed: o.Closed, Upstreams: o.Upstreams, NoRoute6: !o.IPv6}
	return h, nil
}

// Run puts rules in force again that others have changed, and reads what the guard refuses, until ctx is done.
func (h *Host) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return h.guard.Watch(ctx, func(gap guard.Gap) {
			h.options.Logger.Warn("rules on the host were changed by somebody else and are in force again",
				"port", gap.Port, "uncovered_ms", gap.Uncovered.Milliseconds(), "error", gap.Err)
			h.uncovered(gap)
		})
	})
	group.Go(func() error {
		stop, err := h.logs.Open(func(f func() error) error { return f() }, LogGroup, h.tell)
		if err != nil {
			h.options.Logger.Warn("refusals of the guard are counted, but not told", "error", err)
			return nil
		}
		<-ctx.Done()
		stop()
		return nil
	})
	return group.Wait()
}

// uncovered tells whose rules were not in force. Who has flushed those of the whole host may have flushed those that
// close it to the sidecar too.
func (h *Host) uncovered(gap guard.Gap) {
	h.mu.Lock()
	again := h.closed
	namespace, known := "", gap.Port == ""
	for _, l := range h.links {
		if l.name == gap.Port {
			namespace, known = l.of.ns.ID().String(), true
		}
	}
	h.mu.Unlock()
	if gap.Port == "" && again != nil {
		if err := again(); err != nil {
			h.options.Logger.Error("the host is not closed to the sidecar", "error", err)
		}
	}
	if known && h.options.Uncovered != nil {
		h.options.Uncovered(namespace, gap.Uncovered)
	}
}

// tell hands a packet on to the container that has sent it.
func (h *Host) tell(m nflog.Message) {
	h.mu.Lock()
	from := h.links[m.In].of
	h.mu.Unlock()
	if from != nil && from.tell != nil {
		from.tell(refused(&m))
	}
}

// refused is a packet as the controller wants it. What is no IP packet has no destination.
func refused(m *nflog.Message) controller.Refused {
	protocol, to := m.Packet()
	by, observed := strings.CutSuffix(strings.TrimPrefix(m.Prefix, "sluice "), " "+gate.Observed)
	return controller.Refused{Time: time.Now(), By: by, Observed: observed, Protocol: protocol, Destination: to}
}

// own says whose an interface is, and disown that a container has none any more.
func (h *Host) own(index uint32, l link) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.links[index] = l
}

func (h *Host) disown(n *containerNet) {
	h.mu.Lock()
	defer h.mu.Unlock()
	maps.DeleteFunc(h.links, func(_ uint32, l link) bool { return l.of == n.rim })
}

// Close lets go of the host. All rules stay.
func (h *Host) Close() error {
	h.sweeper.close()
	h.logs.Close()
	return h.guard.Close()
}

// Clear removes all rules from the host, those that close it to the sidecars' bridge too. Nothing is refused any more.
func (h *Host) Clear(bridge string) error {
	return errors.Join(h.guard.Clear(), openToSidecar(bridge))
}

// Facts implements [controller.Host].
func (h *Host) Facts(ctx context.Context) (controller.Facts, error) { return h.facts.get(ctx) }

// NetworksChanged implements [controller.Host].
func (h *Host) NetworksChanged(managed []api.Network) error {
	h.facts.forget()
	h.mu.Lock()
	former := h.bridges
	h.bridges = map[string]bool{} // a bridge of a known name may be another one
	h.mu.Unlock()
	var errs []error
	for _, n := range managed {
		errs = append(errs, h.guardBridge(n.Bridge, true))
	}
	for bridge, was := range former {
		if was && !slices.ContainsFunc(managed, func(n api.Network) bool { return n.Bridge == bridge }) {
			errs = append(errs, h.guard.RemoveBridge(bridge))
		}
	}
	return errors.Join(append(errs, h.keep(managed))...)
}

// Open implements [controller.Host].
func (h *Host) Open(c *controller.Container, check func() error) (controller.Net, error) {
	if c.Sandbox == "" {
		return nil, errors.New("the engine names no network namespace for it: it has ended, or its runtime keeps that to itself")
	}
	ns, err := netns.Open(c.Sandbox, check)
	if err != nil {
		return nil, err
	}
	n := &containerNet{host: h, ns: ns, gate: gate.New(ns)}
	n.rim = &rim{host: h, ns: ns, rules: &n.rules, ports: map[string]*guard.Port{}}
	return n, nil
}

// Clean implements [controller.Host].
func (h *Host) Clean() error {
	var errs []error
	for _, port := range h.guard.Found() {
		// Rules of a link that is there hold a container, whether anybody remembers it or not.
		if _, err := netlink.LinkByName(port); errors.As(err, new(netlink.LinkNotFoundError)) {
			errs = append(errs, h.guard.Port(port).Remove())
		}
	}
	return errors.Join(errs...)
}

// guardBridge makes a bridge's frames come by the host's rules.
func (h *Host) guardBridge(name string, managed bool) error {
	h.mu.Lock()
	was, known := h.bridges[name]
	h.mu.Unlock()
	if known && was == managed {
		return nil
	}
	if err := h.guard.AddBridge(name, managed); err != nil {
		return fmt.Errorf("bridge %s: %w", name, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.bridges[name] = managed
	return nil
}
