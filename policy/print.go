package policy

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// MarshalJSON prints the policy's normal form: the bytes that AgentCompass writes for the same policy, and behind
// them the options that differ from their defaults. [ParsePolicy] reads it back.
func (p Policy) MarshalJSON() ([]byte, error) {
	b := append([]byte(nil), `{"network_mode":"`...)
	b = append(b, p.Mode.String()...)
	b = append(b, `","allowed_hosts":[`...)
	if p.Mode == Allowlist {
		b = appendTargets(b, p.Targets)
	}
	b = append(b, `],"denied_hosts":[`...)
	if p.Mode == Denylist {
		b = appendTargets(b, p.Targets)
	}
	b = append(b, ']')
	if o := p.Options; o != (Options{}) {
		if o.Inbound != InboundAll {
			b = append(b, `,"inbound":"`+o.Inbound.String()+`"`...)
		}
		if o.KeepECH {
			b = append(b, `,"ech":"`+echWords[echKeep]+`"`...)
		}
		if o.DNSUniqueNames != 0 {
			b = append(b, `,"dns_unique_names":`...)
			b = strconv.AppendInt(b, int64(o.DNSUniqueNames), 10)
		}
		if o.DNSQuestionBytes != 0 {
			b = append(b, `,"dns_question_bytes":`...)
			b = strconv.AppendInt(b, int64(o.DNSQuestionBytes), 10)
		}
		if o.Observe {
			b = append(b, `,"observe":true`...)
		}
	}
	return append(b, '}'), nil
}

// MarshalJSON prints the normal form of all three policies under their present field names. [ParsePhases] reads it
// back.
func (p Phases) MarshalJSON() ([]byte, error) {
	b := []byte{'{'}
	for phase, policy := range p {
		if phase > 0 {
			b = append(b, ',')
		}
		b = append(b, `"`+phaseFields[phase]+`":`...)
		text, err := policy.MarshalJSON()
		if err != nil {
			return nil, err
		}
		b = append(b, text...)
	}
	return append(b, '}'), nil
}

// MarshalJSON prints the target as it stands in a policy: a string without a port, an object with one.
func (t Target) MarshalJSON() ([]byte, error) { return appendTarget(nil, t.Host, t.Port), nil }

func appendTargets(b []byte, targets []Target) []byte {
	for i, t := range targets {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendTarget(b, t.Host, t.Port)
	}
	return b
}

func appendTarget(b []byte, host string, port uint16) []byte {
	if port == 0 {
		return appendString(b, host)
	}
	b = append(b, `{"host":`...)
	b = appendString(b, host)
	b = append(b, `,"port":`...)
	return append(strconv.AppendUint(b, uint64(port), 10), '}')
}

// appendString quotes s. Its error only says that invalid UTF-8 was replaced, which no parsed target holds.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}
