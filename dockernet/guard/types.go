package guard

import (
	"errors"
	"time"

	"sluice/dockernet/nft"
)

// Config is what a [Host] has to know.
type Config struct {
	// Mark is [DefaultMark] if it is 0.
	Mark Mark
	// LogGroup is the NFLOG group that gets the first packets of what is refused, in the host's namespace. Messages
	// begin with "sluice guard".
	LogGroup uint16
	// In runs a function on a thread inside the host's network namespace. nil is for those who are there anyway.
	In func(func() error) error
}

// Gap is a time in which rules were not in force, because somebody else has changed or deleted them.
type Gap struct {
	// Port is whose rules they were, or "" for those of the whole host.
	Port string
	// Uncovered is the time from when the kernel has told of the change until the rules were in force again.
	Uncovered time.Duration
	// Err is set if they are not in force again. It will be tried once more in a second.
	Err error
}

// Counters are what the host's tables have counted since they were made, and tables that are still there.
type Counters struct {
	// Refused are packets of all containers that were dropped by what the phase in force allows, or because nobody may
	// reach that port. Replies are those that it does not allow but that may be replies, and were marked so. What of them
	// is none, is in NotReply.
	Refused, Replies nft.Counter
	// NotReply and NotOpen are packets of containers that were marked as replies, or as parts of a connection that is
	// open, but were none.
	NotReply, NotOpen nft.Counter
	// Unmarked is what ports without rules have sent on managed networks.
	Unmarked nft.Counter
	// Unjudged are bridged packets that the rules have not seen, because the bridge does not call them.
	Unjudged nft.Counter
}

// PortCounters are what was counted of one veth since its rules were made.
type PortCounters struct {
	// Allowed are packets on the direct plane of the phase in force. Some may be for connections that are open only, see
	// [Counters.NotOpen]. Others are in [Counters.Refused] or [Counters.Replies].
	Allowed nft.Counter
	// Resets end connections, whatever the phase.
	Resets nft.Counter

	// FalseSource are addresses that are not the container's. Malformed are other protocols, fragments, options and
	// extension headers. Misdirected are packets to elsewhere that were not sent to a router. Neighbour are ARP and
	// neighbour discovery that say something else than they may, or too often. Quarantine is all that came in one.
	FalseSource, Malformed, Misdirected, Neighbour, Quarantine nft.Counter
}

// ErrGone is in the error for a veth that is not there any more, or is another one.
var ErrGone = errors.New("the interface is gone: look the container up again")

// ErrNoBridge is in the error for a bridge that is not there, or is none.
var ErrNoBridge = errors.New("no such bridge: ask again when the network is there")
