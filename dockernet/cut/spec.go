package cut

import (
	"net/netip"

	"sluice/dockernet/netns"
)

// Spec says which connections end. Its functions must agree with the rules that are in force already, or what was cut
// could be opened again; they are called from one goroutine at a time.
type Spec struct {
	// Refused reports whether the rules refuse what the container sends straight to a destination, which is never
	// one of its own addresses. The protocol is IP's number (unix.IPPROTO_TCP); the port is 0 where it has none.
	// IPv4 addresses are in their own form.
	Refused func(destination netip.AddrPort, protocol uint8) bool
	// RefusedInbound reports whether the rules refuse connections that were opened from an address outside of the
	// container. If it is nil they all go on.
	RefusedInbound func(source netip.Addr) bool
	// Addresses are those of the container. On the host, nothing that has another address is touched.
	Addresses []netip.Addr
	// First is set when the container has just come under rules: what was open before, the host alone knows. Where it could
	// send frames of its own before, it may have let the host believe that somebody has dialled it, whom it could answer
	// now, so entries of connections into it from where the rules let nothing go are deleted too. Real ones go on with
	// the next packet that comes in.
	First bool
	// Doubtful, if it is set, keeps in mind which of these entries stay with First, since the container may send there: they
	// end with the first call that is given the same value and refuses it.
	Doubtful *Doubts
	// Muted is set beside First if the container could not send anything before.
	Muted bool
	// Later, if it is set, is given what can be done after the answer: closing sockets, for which the kernel waits for
	// others, some 15 ms.
	Later func(func())
	// Spared, if it is set, are the connections of a sidecar that lives in the container's namespace: it has judged them.
	// This process is in that namespace too then, and there is none of a host to be cut in.
	Spared *Spared
	// Joined is conntrack's mark of TCP connections that it has not seen the beginning of, so that nobody knows who opened
	// them. 0 is for none.
	Joined uint32
	// Host is the namespace of the container's bridges, nil for the one that this process runs in.
	Host *netns.Namespace
}

// Spared tells connections by marks, which must be none that the workload could have set.
type Spared struct {
	// Socket is that of sockets (SO_MARK of socket(7)), and Entry that of conntrack's entries.
	Socket, Entry uint32
}

func (s *Spared) socket(mark uint32) bool { return s != nil && mark == s.Socket }

func (s *Spared) entry(mark uint32) bool { return s != nil && mark == s.Entry }

func (s *Spec) refusedInbound(source netip.Addr) bool {
	return s.RefusedInbound != nil && s.RefusedInbound(source)
}

// Report is what was done and what is left.
type Report struct {
	// Ended are the connections that are over: those whose sockets were destroyed, and of datagrams those that only
	// conntrack knew.
	Ended int
	// Sockets were destroyed, of TCP and of UDP.
	Sockets int
	// Entries of conntrack were deleted in the namespace, and HostEntries on the host.
	Entries, HostEntries int
	// Kept and Inbound are what goes on: TCP connections and connected UDP sockets of the direct plane, from the
	// container and into it.
	Kept, Inbound int
	// Swept is set if the host has no entry of a refused connection any more, see [Sweep].
	Swept bool
}

// Place is a container, for [Sweep].
type Place struct {
	// Enter runs a function on a thread inside the container's network namespace ([netns.Namespace.Do]).
	Enter func(func() error) error
	// Hold calls its argument with what the rules in force refuse, and they stay in force until that returns, which takes
	// less than a millisecond. It does nothing while it is not known what is in force.
	Hold func(func(*Spec))
}
