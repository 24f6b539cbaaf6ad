package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"sluice/control"
)

// Verify asks for probes of what is in force.
type Verify struct {
	// Reach are destinations, "host:port", that have to be reached. Nothing else that a probe sends leaves the host.
	Reach []string `json:"reach,omitempty"`
	// Quarantine refuses everything from then on if a probe does not pass, or if it cannot be said.
	Quarantine bool `json:"quarantine,omitempty"`
}

// Verdict says what a probe has shown.
type Verdict string

const (
	Passed   Verdict = "pass"     // as the policy says, and counted by the rules that are to do it
	Leaked   Verdict = "leak"     // it was not refused as it should have been
	Unproven Verdict = "unproven" // it came to nothing, but no rule of ours has counted it
	Broken   Verdict = "broken"   // it should have worked, and did not
	Skipped  Verdict = "skip"     // it does not apply here; Detail says why
)

// Verification is what probes from inside of a container have shown.
type Verification struct {
	Container    string    `json:"container"`
	ContainerID  string    `json:"container_id"`
	Phase        string    `json:"phase"`
	Mode         string    `json:"network_mode"`
	Generation   uint64    `json:"generation"`
	Digest       string    `json:"digest"`
	OK           bool      `json:"ok"` // all probes that apply have passed
	Began        time.Time `json:"began"`
	Milliseconds float64   `json:"ms"`
	Probes       []Probe   `json:"probes"`
}

// Probe is one of them.
type Probe struct {
	Name    string  `json:"name"`
	Target  string  `json:"target"`
	Want    string  `json:"want"` // "refused" or "works"
	Verdict Verdict `json:"verdict"`
	// Got is what the one who sent it saw, Detail more of that, or why the probe does not apply.
	Got    string `json:"got,omitempty"`
	Detail string `json:"detail,omitempty"`
	// Proof are the counters that have moved, "gate run refused" for instance.
	Proof []string `json:"proof,omitempty"`
	// Decision is the id of the audit record about it, if there is one.
	Decision string `json:"decision,omitempty"`
}

// Problem says in a sentence what is wrong, "" if nothing is.
func (v *Verification) Problem() string {
	var all []string
	for _, p := range v.Probes {
		if p.Verdict != Passed && p.Verdict != Skipped {
			all = append(all, fmt.Sprintf("%s to %s: %s (%s)", p.Name, p.Target, p.Verdict, p.Got))
		}
	}
	return strings.Join(all, "; ")
}

// Verify sends probes from inside of a container and returns what they have shown.
func (c *Client) Verify(ctx context.Context, container string, v Verify) (Verification, error) {
	return perContainer[Verification](ctx, c, http.MethodPost, container, "/verify", v)
}

func verify(b Backend, w http.ResponseWriter, req *http.Request) error {
	var body Verify
	if err := control.ReadBody(req, &body); err != nil {
		return err
	}
	return control.Answer(w)(b.Verify(req.Context(), req.PathValue("id"), body))
}

// attachVerified refuses what was attached and does not hold.
func attachVerified(ctx context.Context, b Backend, s *Status) error {
	ctx = context.WithoutCancel(ctx) // not left in the middle, whoever asked
	v, err := b.Verify(ctx, s.ID, Verify{Quarantine: true})
	if err != nil {
		return err
	}
	if s.Verification = &v; v.OK {
		return nil
	}
	return &control.Error{Code: control.CodeQuarantined, Message: fmt.Sprintf(
		"container %s is quarantined: its policy does not hold: %s; look for what has changed its rules, then detach it", s.Name, v.Problem())}
}
