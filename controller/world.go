package controller

import (
	"context"
	"iter"
	"net/netip"
	"time"

	"sluice/control"
	"sluice/controller/api"
	"sluice/dockernet/direct"
	"sluice/dockernet/netns"
	"sluice/policy"
)

// Engine is what is asked of the container engine. Its methods may be called by any number of goroutines.
type Engine interface {
	// Inspect looks a container up by its name, its id or the beginning of that. "No such container" is an error for
	// which errors.Is(err, [control.ErrNotFound]) holds.
	Inspect(ctx context.Context, container string) (Container, error)
	// Runs reports whether a container still runs as it did when it was inspected, by a single question.
	Runs(ctx context.Context, c *Container) (bool, error)
	// Events yields what happened since a moment (the zero time is now), and goes on until ctx is done. After an
	// interruption, where events may be missing, it yields [Resync].
	Events(ctx context.Context, since time.Time) iter.Seq[Event]
	// Managed lists the ids of the containers that run on managed networks, are to be adopted, or have a policy in their
	// labels.
	Managed(ctx context.Context) ([]string, error)
	// Networks lists the managed networks, CreateNetwork makes one, and RemoveNetwork removes one, with force also while
	// containers are on it. One that is gone already is no error.
	Networks(ctx context.Context) ([]api.Network, error)
	CreateNetwork(ctx context.Context, n api.NewNetwork) (api.Network, error)
	RemoveNetwork(ctx context.Context, name string, force bool) error
	// Start starts a container, and Remove kills and removes one; one that runs already, or is gone, is no error.
	Start(ctx context.Context, id string) error
	Remove(ctx context.Context, id string) error
	// Pause freezes a container's processes, Unpause lets them go on.
	Pause(ctx context.Context, id string) error
	Unpause(ctx context.Context, id string) error
}

// Container is what the engine says of a container, as far as it matters here.
type Container struct {
	ID   string
	Name string // without the slash
	// Joined is the container, by its id, whose network it shares, and Restarts is set if the engine starts it again.
	Joined   string
	Restarts bool
	// Holder is set if it does nothing but hold the network of others.
	Holder bool
	// Running is set while it has processes, also paused ones. What follows is meaningful only then, but for Refusals.
	Running bool
	// Started and Sandbox tell one run of the container from the next: when it began, in the engine's words, and the
	// path of its network namespace.
	Started, Sandbox string
	Networks         []Network
	// Hosts are the names that the container knows without DNS, each with its addresses: siblings, their aliases,
	// extra hosts.
	Hosts map[string][]netip.Addr
	// Upstreams are the name servers that the container was given; none if the host's are meant.
	Upstreams []netip.AddrPort
	// Policy is the policy document that it is to be admitted with to its managed networks, from its labels or from one
	// of the networks, and Phase the first phase from its labels. Policy is empty if it is on other networks too.
	Policy, Phase string
	// Unheeded is set if its own labels name a policy and it runs on other networks than managed ones, or on none.
	Unheeded bool
	// Provider is what a harness has put beside the container, if it is to be adopted.
	Provider *Provider
	// Refusals are the reasons why no policy can hold the container.
	Refusals []Refusal
	// Warnings are what may get round its policy and is accepted all the same.
	Warnings []string
}

// same reports whether c and d are the same run of the same container.
func (c *Container) same(d *Container) bool {
	return c.ID == d.ID && c.Running == d.Running && c.Started == d.Started && c.Sandbox == d.Sandbox
}

// Network is a container's place on one network of the engine.
type Network struct {
	ID, Name string
	Bridge   string // the host's interface
	// Addresses are the container's own, each with the length of the network's prefix.
	Addresses []netip.Prefix
	Gateways  []netip.Addr
	MAC       string
	Internal  bool // no way out
	Managed   bool // silent until a container is admitted
}

// Refusal is a reason not to attach a container.
type Refusal struct {
	Reason string // "the container is privileged: it can change every rule"
	Repair string // "start it without --privileged"
	// Weak is set if --allow-weak accepts it.
	Weak bool
	// Joins is set if the reason is that it shares the network of a container which is under no policy.
	Joins bool
}

// Event is something that happened to the engine.
type Event struct {
	Time time.Time
	Kind EventKind
	// Container is the id of whose event it is, Network that of the network; empty where it does not apply.
	Container, Network string
}

// EventKind says what happened.
type EventKind uint8

const (
	// Resync: anything may have happened.
	Resync EventKind = iota
	// ContainerChanged: it started, stopped, was removed or renamed.
	ContainerChanged
	// NetworkJoined: a container was connected to a network or disconnected from it.
	NetworkJoined
	// NetworksChanged: a network was made or removed.
	NetworksChanged
)

// Host is what is asked of the kernel. Its methods may be called by any number of goroutines.
type Host interface {
	// Facts are true for all containers until a network is made or removed.
	Facts(ctx context.Context) (Facts, error)
	// Open opens a container's namespace. When it is open, check is called, which asks the engine whether it is still
	// the same run of the same container; its error closes the namespace and is returned. It may be nil.
	Open(c *Container, check func() error) (Net, error)
	// NetworksChanged says that a network was made or removed. What comes from the bridges of managed networks is dropped
	// from then on, but for containers that have rules there.
	NetworksChanged(managed []api.Network) error
	// EndFlows ends all TCP connections from and into a network namespace, and says how many those were.
	EndFlows(sandbox string) (int, error)
	// Clean removes what earlier controllers left on the host for networks of containers that are gone.
	Clean() error
}

// Facts are what has to be known of the host.
type Facts struct {
	Addresses []netip.Addr   // the host's own
	Subnets   []netip.Prefix // those of the engine's networks, the sidecar's included
	// Upstreams are the name servers that containers use which were given none.
	Upstreams []netip.AddrPort
	// Closed are TCP ports of the host that no container may reach: the controller's and the sidecar's.
	Closed []netip.AddrPort
	// NoRoute4 and NoRoute6 are set if the sidecar has no route for the family.
	NoRoute4, NoRoute6 bool
}

// Net is a container's network from inside and outside. Its methods may be called by any number of goroutines.
type Net interface {
	// ID tells the namespace from all others that exist.
	ID() string
	// Listen opens the session's sockets in the namespace; they are the caller's to close.
	Listen() (*netns.Sockets, error)
	// Gate are the rules inside, Guard those outside.
	Gate() Layer
	Guard() Layer
	// GateHolds reports whether nothing that the container sends gets past the gate, not even frames that it makes itself.
	GateHolds() bool
	// Cut ends what is open on the direct plane and refused in a phase: it destroys sockets in the namespace and
	// deletes connection tracking. Redirected connections are the sidecar's and stay. before says what there may be.
	Cut(plan *Plan, phase policy.Phase, before Before) (Cut, error)
	// Refusals calls do with packets that gate and guard have refused, the first ones of many, one at a time, until stop
	// has returned. do must not block.
	Refusals(do func(Refused)) (stop func())
	// Packets are what the rules inside have counted since they were made. It asks the kernel.
	Packets() (Packets, error)
	Prober
	// Close lets go of the namespace. Rules stay.
	Close() error
}

// Packets are numbers of packets.
type Packets struct {
	// Direct were let through by the rules of a phase and Refused refused; while a switch is under way, a packet may be
	// in two phases' numbers.
	Direct, Refused [policy.PhaseCount]uint64
	// DirectBytes are those of Direct, from the IP header on.
	DirectBytes [policy.PhaseCount]uint64
	// Never are those that no phase allows.
	Never uint64
	// Proxied are connections that were redirected to the proxy, and DNS those to the DNS filter, a packet each.
	Proxied, DNS uint64
	// Forged are frames that the rules outside have refused for what they are, whatever their destination.
	Forged uint64
}

// Refused is a packet that was refused in the kernel.
type Refused struct {
	Time time.Time
	// By says who has refused it: the word of a phase, or what about it no phase allows, "guard false_source" for
	// instance. Observed is set if it was let through, by a phase that only watches.
	By          string
	Observed    bool
	Protocol    string         // "tcp", "udp", "icmp" or a number
	Destination netip.AddrPort // without a port where the protocol has none
}

// Layer is one set of rules in the kernel. Each method is one change that packets see whole or not at all; an error
// means that nothing has happened, as far as is known.
type Layer interface {
	// Install puts the rules of all phases there, and one phase in force, whatever was there.
	Install(plan *Plan, phase policy.Phase) error
	// Stage puts the rules of another plan beside those in force.
	Stage(plan *Plan) error
	// Both lets only through what the phase in force and the given one allow.
	Both(phase policy.Phase) error
	// Switch puts a phase of the plan that came last in force.
	Switch(phase policy.Phase) error
	// Quarantine refuses everything, on all networks that the container has now. It needs nothing to be there.
	Quarantine(c *Container) error
	// Remove takes everything away.
	Remove() error
}

// Before is what a container could do until now.
type Before uint8

const (
	Anything Before = iota
	Nothing         // it could send nothing, unless under rules
	Ruled           // what rules of the plan that is in force, or the one before, let through
)

// Cut is what a cut has found on the direct plane, in flows.
type Cut struct {
	Ended   int // refused, so destroyed
	Kept    int // allowed, so not touched
	Inbound int // open connections into the container
}

// Sidecar is what is asked of the proxy's keeper, for a session by its id. Its methods may be called by any number of
// goroutines.
type Sidecar interface {
	// Apply makes or changes a session, in every sidecar that has it, and returns when that is in force.
	Apply(ctx context.Context, session string, spec control.SessionSpec) (control.Receipt, error)
	// Hand gives the session its sockets, which stay the caller's, beside those that it had. Settle ends the service of
	// the latter, when no redirect leads to them any more.
	Hand(ctx context.Context, session string, sockets *netns.Sockets) error
	Settle(ctx context.Context, session string) error
	// Delete ends a session; one that is not there is no error.
	Delete(ctx context.Context, session string) error
	Explain(ctx context.Context, session, target string) (control.Explanation, error)
	Flows(ctx context.Context, session string) ([]control.Flow, error)
	// Sessions are the ids of all there are.
	Sessions(ctx context.Context) ([]string, error)
	// Events yields the audit records of all sessions until ctx is done.
	Events(ctx context.Context) iter.Seq[control.Event]
}

// Plan is everything that the layers of one container have to know.
type Plan struct {
	Container *Container
	Direct    direct.Spec
	Policies  *policySet
	Session   control.SessionSpec // without phase and generation
	// Sockets are where the gate redirects to. They are not to be closed or changed.
	Sockets *netns.Sockets
	// Explicit are loopback addresses on which proxy clients inside find the proxy.
	Explicit           []netip.AddrPort
	NoRoute4, NoRoute6 bool
}

// Policy is what a phase lets through, see [policy.Policy.InForce].
func (p *Plan) Policy(phase policy.Phase) policy.Policy { return p.Policies.phases[phase].InForce() }
