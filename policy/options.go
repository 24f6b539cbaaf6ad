package policy

// Inbound says which connections into the container work.
type Inbound uint8

const (
	InboundAll  Inbound = iota // every connection, as the engine allows it (the default)
	InboundHost                // from the host's own addresses only
	InboundNone                // none
)

// Options stand beside the targets of a policy object. Their zero value is the default and changes nothing of
// what the targets mean.
type Options struct {
	// Inbound ("inbound": "all", "host" or "none") is enforced by the controller; a proxy alone has no say in it.
	Inbound Inbound
	// KeepECH ("ech": "keep", default "strip") leaves Encrypted Client Hello keys in HTTPS answers, so that
	// clients may hide the name they ask for; the outer name is judged.
	KeepECH bool
	// DNSUniqueNames ("dns_unique_names") is the number of different names under wildcard targets that a phase
	// may look up; 0 is no limit. Further names are refused.
	DNSUniqueNames int
	// DNSQuestionBytes ("dns_question_bytes") is how many bytes of questions for such names a phase may have asked of
	// name servers, repeated ones included; 0 is no limit. Further questions are refused.
	DNSQuestionBytes int
	// Observe ("observe": true) refuses nothing but what no policy opens, and records what would have been refused.
	Observe bool
}

// InForce is what p lets through: p itself, or public where it only observes.
func (p Policy) InForce() Policy {
	if !p.Options.Observe {
		return p
	}
	return Policy{Mode: Public, Options: p.Options}
}
