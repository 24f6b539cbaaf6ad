package control

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Health is the answer to "does it work": the proxy has just sent bytes through itself and got them back.
type Health struct {
	OK       bool     `json:"ok"`
	Version  string   `json:"version"`
	Sessions int      `json:"sessions"`
	Problems []string `json:"problems,omitempty"` // what is wrong, one sentence each; empty when OK
	// Milliseconds is how long the round trip through the proxy took; 0 where none was made.
	Milliseconds float64 `json:"ms"`
}

// SessionSpec is what a session shall become. Absent fields keep what the session has.
type SessionSpec struct {
	// Container and ContainerID name the container in events and metrics.
	Container   string `json:"container,omitempty"`
	ContainerID string `json:"container_id,omitempty"`
	// Generation must be greater than the session's; an equal one is accepted if nothing would change.
	// 0 takes the session's next one. It is [MaxGeneration] at most.
	Generation uint64 `json:"generation,omitempty"`
	// Phase is "baseline", "run" or "evaluation". A new session without one starts in "baseline".
	Phase string `json:"phase,omitempty"`
	// Policies holds the policy of every phase, by the phase's name. Absent: those staged before stay.
	// Present: it replaces them whole, and a phase that is missing from it is an error.
	Policies map[string]json.RawMessage `json:"policies,omitempty"`
	// Upstreams are the DNS servers of this session, as address or address:port. Absent: the proxy's own.
	Upstreams []string `json:"upstreams,omitzero"`
	// Never are the prefixes that are not dialled for this session whatever its policy says, for instance the
	// host's addresses and the engine's subnets.
	Never []string `json:"never,omitzero"`
	// Hosts are names that the session answers itself, each with its addresses: siblings, aliases, extra hosts.
	Hosts map[string][]string `json:"hosts,omitzero"`
	// Open are names, with their addresses, that the session answers whatever its policy says: that of a proxy which
	// every phase may reach.
	Open map[string][]string `json:"open,omitzero"`
	// NoRoute are the families, "ipv4" or "ipv6", that the proxy has no route for: the session hands out no address of
	// them but those of Hosts and Open, so that clients take the other family.
	NoRoute []string `json:"no_route,omitzero"`
}

// maxIDBytes is room for a container id of 64 hexadecimal digits and a namespace's inode.
const maxIDBytes = 128

// CheckID refuses, with an *[Error], what cannot be a session's id: anything but 1 to 128 letters, digits, ".", "_"
// and "-", of which the first is no dot.
func CheckID(id string) error {
	ok := id != "" && len(id) <= maxIDBytes && id[0] != '.'
	for i := range len(id) {
		c := id[i] | 0x20 // lower case, for the letters
		ok = ok && (c >= 'a' && c <= 'z' || id[i] >= '0' && id[i] <= '9' || strings.IndexByte("._-", id[i]) >= 0)
	}
	if ok {
		return nil
	}
	return &Error{Code: CodeInvalid, Message: fmt.Sprintf("%.40q is no session id: use up to %d letters, digits, \".\", \"_\" and \"-\"", id, maxIDBytes)}
}

// SessionState says what a session does with a new connection.
type SessionState string

const (
	Empty       SessionState = "empty"       // no rule set yet: everything is refused
	Serving     SessionState = "serving"     // judged by the policy in force
	Waiting     SessionState = "waiting"     // the policy file is empty or cut off: new decisions wait for it
	Refusing    SessionState = "refusing"    // the policy file is bad or gone: everything is refused
	Quarantined SessionState = "quarantined" // a switch failed: everything is refused until one succeeds
)

// SessionStatus is a session as it is now.
type SessionStatus struct {
	ID          string       `json:"id"`
	Container   string       `json:"container,omitempty"`
	ContainerID string       `json:"container_id,omitempty"`
	State       SessionState `json:"state"`
	Mode        string       `json:"mode"`
	Phase       string       `json:"phase"`
	Generation  uint64       `json:"generation"`
	Digest      string       `json:"digest"`
	Flows       int          `json:"flows"`
	Listeners   []string     `json:"listeners,omitempty"` // their kinds and addresses; those that were dropped are not here
	Source      *Source      `json:"source,omitempty"`    // the policy file, if one is followed
	// Policies is every phase's policy by the phase's name; left out of lists of sessions.
	Policies map[string]json.RawMessage `json:"policies,omitempty"`
	// Upstreams, Never, Hosts, Open and NoRoute are as in [SessionSpec]; left out of lists of sessions.
	Upstreams []string            `json:"upstreams,omitempty"`
	Never     []string            `json:"never,omitempty"`
	Hosts     map[string][]string `json:"hosts,omitempty"`
	Open      map[string][]string `json:"open,omitempty"`
	NoRoute   []string            `json:"no_route,omitempty"`
}

// Source is the policy file that a session follows.
type Source struct {
	Path  string    `json:"path"`
	State string    `json:"state"` // "current", "pending" or "refused"
	Since time.Time `json:"since"` // when that state began
	Error string    `json:"error,omitempty"`
	// Rejected are entries of the file that match nothing, each with the reason; only where the file's reader is
	// a lenient one.
	Rejected []string `json:"rejected,omitempty"`
}

// Receipt is what a switch returns. When it arrives, nothing passes any more that the new policy refuses.
type Receipt struct {
	Session    string `json:"session"`
	Generation uint64 `json:"generation"`
	Phase      string `json:"phase"`
	Digest     string `json:"digest"`
	FlowsCut   int    `json:"flows_cut"`
	FlowsKept  int    `json:"flows_kept"`
	// InboundOpen counts connections into the container that stay open; only the controller sees them.
	InboundOpen int `json:"inbound_open"`
	// Unchanged: the same phase and digest were in force already; nothing was cut. A greater generation is taken over.
	Unchanged    bool    `json:"unchanged"`
	Milliseconds float64 `json:"ms"`
}

// Flow is one open proxied connection.
type Flow struct {
	ID       string    `json:"id"`
	Protocol string    `json:"protocol"` // "connect", "http", "tcp", "dns"
	Target   string    `json:"target"`   // what was asked for, host:port
	Address  string    `json:"address"`  // what was dialled, address:port
	Since    time.Time `json:"since"`
	BytesIn  uint64    `json:"bytes_in"`  // towards the container
	BytesOut uint64    `json:"bytes_out"` // from the container
	Rule     string    `json:"rule,omitempty"`
}

// Explanation is what would happen to a connection, and why.
type Explanation struct {
	Target    string             `json:"target"`
	Phase     string             `json:"phase"`
	Verdict   string             `json:"verdict"` // "allow" or "refuse"
	Reason    string             `json:"reason"`
	Rule      string             `json:"rule,omitempty"` // the target that decided
	Text      string             `json:"text"`           // the same for a person, with what to change
	Addresses []ExplainedAddress `json:"addresses,omitempty"`
}

// ExplainedAddress is one address behind a name with its own verdict.
type ExplainedAddress struct {
	Address string `json:"address"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
	Rule    string `json:"rule,omitempty"`
}

// Event is an audit record: one decision, or the end of what a decision allowed.
type Event struct {
	Time         time.Time `json:"time"`
	Container    string    `json:"container"`
	ContainerID  string    `json:"container_id"`
	Phase        string    `json:"phase"`
	Generation   uint64    `json:"generation"`
	Protocol     string    `json:"protocol"`
	Target       string    `json:"target"` // the host as it was judged, never a path, a query or user info
	Port         uint16    `json:"port"`
	Address      string    `json:"address"` // what was dialled; empty if nothing was
	Verdict      string    `json:"verdict"`
	Reason       string    `json:"reason"`
	Rule         string    `json:"rule"`
	Decision     string    `json:"decision"` // the id that the client was told
	BytesIn      uint64    `json:"bytes_in"`
	BytesOut     uint64    `json:"bytes_out"`
	Milliseconds float64   `json:"ms"`
}
