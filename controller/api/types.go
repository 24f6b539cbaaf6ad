// Package api is the wire between the controller and those who use it: the types, a client and a handler for
// HTTP/JSON on sluice.sock.
package api

import (
	"encoding/json"
	"time"

	"sluice/controller/tally"
)

// State says what holds for a container.
type State string

const (
	Attached    State = "attached"    // its policy is in force
	Quarantined State = "quarantined" // a step failed: nothing passes until a switch succeeds
	Stopped     State = "stopped"     // it does not run; its policy comes back before it does
)

// Attach asks for a container to be put under policies.
type Attach struct {
	// Container is a name, an id or the beginning of one.
	Container string `json:"container"`
	// Policy is a policy document: one policy for all phases, or the policies of phases.
	Policy json.RawMessage `json:"policy"`
	// Phase is the one to begin with; "baseline" if empty.
	Phase string `json:"phase,omitempty"`
	Options
}

// Options change what attaching a container means.
type Options struct {
	// AllowWeak accepts what a container might use against its policy, where that is possible at all.
	AllowWeak bool `json:"allow_weak,omitempty"`
	// Workload is the id of a container that shares the network of the attached one and is what all is about: records
	// and lists have its name and id, and the attached one is removed after it.
	Workload string `json:"workload,omitempty"`
	// Verify sends probes from inside when the policy is in force. If it does not hold, everything is refused, and the
	// answer is an error.
	Verify bool `json:"verify,omitempty"`
}

// Phase asks for a switch.
type Phase struct {
	Phase string `json:"phase"`
	// Generation, unless 0, must be greater than the container's, or equal if nothing would change.
	Generation uint64 `json:"generation,omitempty"`
}

// Policy asks for other policies in all phases. The phase stays.
type Policy struct {
	Policy     json.RawMessage `json:"policy"`
	Generation uint64          `json:"generation,omitempty"`
}

// NewNetwork asks for a managed network, on which containers are silent until their policy is in force.
type NewNetwork struct {
	Name     string `json:"name"`
	Internal bool   `json:"internal,omitempty"` // no way out but through the proxy
	IPv6     bool   `json:"ipv6,omitempty"`
	// Policy is the policy document of containers that have no label with one; without it they stay silent.
	Policy json.RawMessage `json:"policy,omitempty"`
}

// Network is a managed network.
type Network struct {
	Name     string   `json:"name"`
	ID       string   `json:"id"`
	Bridge   string   `json:"bridge"`
	Internal bool     `json:"internal"`
	Subnets  []string `json:"subnets"`
	// Warning, of one that was just made, says what its containers need to be admitted.
	Warning string `json:"warning,omitempty"`
}

// Status is a container as it is now.
type Status struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Holder is the id of the container that has the network, if that is another one.
	Holder string `json:"holder,omitempty"`
	State  State  `json:"state"`
	// Problem says why it is quarantined, and what to do.
	Problem    string `json:"problem,omitempty"`
	Phase      string `json:"phase"`
	Mode       string `json:"network_mode"`
	Targets    int    `json:"targets"`
	Generation uint64 `json:"generation"`
	Digest     string `json:"digest"`
	// Since is when what is in force came into force.
	Since time.Time `json:"since"`
	// Weak are ways round the policy that were accepted: because of allow_weak, or since few have anything to lose by
	// them, with the repair.
	Weak []string `json:"weak,omitempty"`
	// Notes are what a user might stumble over, a sentence each.
	Notes []string `json:"notes,omitempty"`
	// Proxy are the addresses of the explicit proxy, inside of the container.
	Proxy []string `json:"proxy,omitempty"`
	// UncoveredMilliseconds is how long this run of the container went without its policy, because it was restarted by
	// others, or without the rules for it on the host, because others had removed them; those inside held then.
	UncoveredMilliseconds float64 `json:"uncovered_ms,omitempty"`
	// Policies is every phase's policy by the phase's name; left out of lists.
	Policies map[string]json.RawMessage `json:"policies,omitempty"`
	// Unchanged is set in the answer to an attach that found everything in force.
	Unchanged bool `json:"unchanged,omitempty"`
	// Milliseconds is how long an attach took.
	Milliseconds float64 `json:"ms,omitempty"`
	// Verification is in the answer to an attach that was to verify.
	Verification *Verification `json:"verification,omitempty"`
}

// Report is what has happened to a container since a controller began to look after it.
type Report struct {
	// Status is the container as it is now, with its policies.
	Status Status `json:"status"`
	// Since is when the report begins, Now when it was made.
	Since time.Time `json:"since"`
	Now   time.Time `json:"now"`
	// Partial says why what was before Since is not known; empty if there was nothing.
	Partial string `json:"partial,omitempty"`
	// Switches are the last changes, the first of them the attach unless Earlier counts more before them.
	Switches []Switch `json:"switches"`
	Earlier  int      `json:"earlier,omitempty"`
	// Traffic is what was tried in each phase, as far as there are records of it: what was refused, looked up, or went
	// by way of the proxy. What goes straight is only counted, in Packets.
	Traffic []tally.Phase `json:"traffic"`
	Packets []Packets     `json:"packets"`
}

// Switch is a change of what is in force.
type Switch struct {
	Began time.Time `json:"began"`
	Receipt
	// Problem says why it has failed, after which nothing passed until a later one succeeded.
	Problem string `json:"problem,omitempty"`
}

// Packets are those that the rules inside of the container have judged by address alone, since it started.
type Packets struct {
	Phase   string `json:"phase"`
	Allowed uint64 `json:"allowed"`
	// AllowedBytes are those of Allowed, from the IP header on. What came back is not counted.
	AllowedBytes uint64 `json:"allowed_bytes"`
	Refused      uint64 `json:"refused"`
}

// Receipt is what a switch returns. When it arrives, nothing passes any more that the new policy refuses.
type Receipt struct {
	Container   string `json:"container"`
	ContainerID string `json:"container_id"`
	Generation  uint64 `json:"generation"`
	Phase       string `json:"phase"`
	Digest      string `json:"digest"`
	// FlowsCut and FlowsKept count both planes; DirectCut is what of the former was on the direct one. Connections of that
	// plane which send at the moment of the switch are reset by the rules themselves, and may not be counted.
	FlowsCut  int `json:"flows_cut"`
	DirectCut int `json:"direct_cut"`
	FlowsKept int `json:"flows_kept"`
	// InboundOpen counts connections into the container that stay open.
	InboundOpen int `json:"inbound_open"`
	// Unchanged: the same phase and digest were in force already; nothing was cut and the generation stays.
	Unchanged    bool    `json:"unchanged"`
	Milliseconds float64 `json:"ms"`
}
