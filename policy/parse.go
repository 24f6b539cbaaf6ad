package policy

import "strings"

// Document is what a policy file holds: one policy, or the policies of the phases. Which phases a single policy is
// for is the caller's decision.
type Document struct {
	// Policy is the policy of a file that holds one, else nil.
	Policy *Policy
	// Phases are the policies of a file that names phases.
	Phases Layer

	places places
}

// All returns the policies of all phases: those that the document names, or its one policy for each of them.
func (d Document) All() Phases {
	if p := d.Policy; p != nil {
		return Phases{*p, *p, *p}
	}
	return d.Phases.Phases()
}

// Layer is what one source says about the phases, indexed by [Phase]; nil where it says nothing.
type Layer [PhaseCount]*Policy

// Phases returns the policies with public for every phase that the layer says nothing about.
func (l Layer) Phases() Phases {
	phases, _ := Resolve(l, Layer{}, Layer{})
	return phases
}

// Parse reads a policy file in JSON (where it begins with { or [) or YAML. It holds
//
//   - one policy: the string "public" or "no-network", or an object with network_mode, allowed_hosts in the mode
//     allowlist and denied_hosts in the mode denylist, and the fields of [Options];
//   - or the policies of phases: an object with baseline_network_policy, run_network_policy and
//     evaluation_network_policy, at least one of them;
//   - or the same in older names: network_policy, run_network_policy and verifier_network_policy. There a phase that
//     is left out takes network_policy if that is given, targets have no ports, and there is no denylist.
//
// Reading is strict. Whatever is wrong, the error is an *[Errors] with everything that is, and the document is zero.
// See [MaxDocumentBytes], [MaxYAMLBytes] and [MaxTargets] for the limits.
func Parse(data []byte) (Document, error) {
	return parseNode(readDocument(data))
}

// ParsePolicy is [Parse] for a file that must hold one policy.
func ParsePolicy(data []byte) (Policy, error) {
	doc, err := Parse(data)
	return doc.single(err)
}

// ParsePhases is [Parse] for a file that must hold the policies of phases. Phases that it leaves out are public.
func ParsePhases(data []byte) (Phases, error) {
	doc, err := Parse(data)
	return doc.phases(err)
}

// UnmarshalJSON is [ParsePolicy] for JSON.
func (p *Policy) UnmarshalJSON(data []byte) error {
	doc, err := parseNode(readJSON(data))
	v, err := doc.single(err)
	if err == nil {
		*p = v
	}
	return err
}

// UnmarshalJSON is [ParsePhases] for JSON.
func (p *Phases) UnmarshalJSON(data []byte) error {
	doc, err := parseNode(readJSON(data))
	v, err := doc.phases(err)
	if err == nil {
		*p = v
	}
	return err
}

// UnmarshalJSON reads a target's short form or object form.
func (t *Target) UnmarshalJSON(data []byte) error {
	n, err := readJSON(data)
	if err != nil {
		return err
	}
	v, err := parseEntry(&n)
	if err != nil {
		return err
	}
	*t = v
	return nil
}

func (d Document) single(err error) (Policy, error) {
	switch {
	case err != nil:
		return Policy{}, err
	case d.Policy == nil:
		return Policy{}, &Errors{All: []*Error{{Problem: "holds the policies of phases", Repair: "write one policy"}}}
	}
	return *d.Policy, nil
}

func (d Document) phases(err error) (Phases, error) {
	switch {
	case err != nil:
		return Phases{}, err
	case d.Policy != nil:
		return Phases{}, &Errors{All: []*Error{{Problem: "holds one policy", Repair: "name the phases: " + strings.Join(phaseFields, ", ")}}}
	}
	return d.Phases.Phases(), nil
}

// Fields of a document.
var (
	policyFields = []string{"network_mode", "allowed_hosts", "denied_hosts", "inbound", "ech", "dns_unique_names", "dns_question_bytes", "observe"}
	phaseFields  = []string{Baseline: "baseline_network_policy", Run: "run_network_policy", Evaluation: "evaluation_network_policy"}
	olderFields  = []string{Baseline: "network_policy", Run: "run_network_policy", Evaluation: "verifier_network_policy"}
	targetFields = []string{"host", "port"}
)

// The largest dns_unique_names and dns_question_bytes; above that they limit nothing.
const (
	maxDNSUniqueNames   = 1_000_000
	maxDNSQuestionBytes = 1_000_000_000
)

func parseNode(n node, err *Error) (Document, error) {
	w := walker{}
	var doc Document
	if err != nil {
		w.errs.add("", err)
	} else {
		doc = w.document(&n)
	}
	if err := w.errs.err(); err != nil {
		return Document{}, err
	}
	return doc, nil
}
