package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Digest identifies what a policy means. It is the SHA-256 of a canonical JSON text: the mode, the targets as they
// are judged, and the options that differ from their defaults.
//
// Policies have equal digests if they have the same targets, however they are spelt: an address and its /32 or /128
// are one, and so are an IPv4-mapped address and the IPv4 one. A target with a port counts for nothing beside the
// same host without one. Targets that a wider one covers do count, for they decide and are named in records.
type Digest [sha256.Size]byte

const digestPrefix = "sha256:"

// String returns "sha256:" and 64 hexadecimal digits.
func (d Digest) String() string { return digestPrefix + hex.EncodeToString(d[:]) }

// MarshalText returns [Digest.String].
func (d Digest) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads what [Digest.String] returns.
func (d *Digest) UnmarshalText(text []byte) error {
	digits, found := strings.CutPrefix(string(text), digestPrefix)
	b, err := hex.DecodeString(digits)
	if !found || err != nil || len(b) != len(d) {
		return fmt.Errorf("%s is not a digest; write %s and %d hexadecimal digits", quote(string(text)), digestPrefix, hex.EncodedLen(len(d)))
	}
	copy(d[:], b)
	return nil
}

// Digest returns the digest of what p means.
func (p Policy) Digest() Digest { return sha256.Sum256(p.appendMeaning(nil)) }

// Digest returns the digest of what all three policies mean.
func (p Phases) Digest() Digest {
	b := []byte{'{'}
	for phase, policy := range p {
		if phase > 0 {
			b = append(b, ',')
		}
		b = append(b, `"`+Phase(phase).String()+`":`...)
		b = policy.appendMeaning(b)
	}
	return sha256.Sum256(append(b, '}'))
}

// appendMeaning appends the canonical JSON text: fields in alphabetical order, nothing that is a default, no space.
// It must never change for a policy: digests are kept in records.
func (p Policy) appendMeaning(b []byte) []byte {
	b = append(b, '{')
	if p.Options.DNSQuestionBytes != 0 {
		b = append(b, `"dns_question_bytes":`+strconv.Itoa(p.Options.DNSQuestionBytes)+`,`...)
	}
	if p.Options.DNSUniqueNames != 0 {
		b = append(b, `"dns_unique_names":`+strconv.Itoa(p.Options.DNSUniqueNames)+`,`...)
	}
	if p.Options.KeepECH {
		b = append(b, `"ech":"`+echWords[echKeep]+`",`...)
	}
	if p.Options.Inbound != InboundAll {
		b = append(b, `"inbound":"`+p.Options.Inbound.String()+`",`...)
	}
	b = append(b, `"network_mode":"`+p.Mode.String()+`"`...)
	if p.Options.Observe {
		b = append(b, `,"observe":true`...)
	}
	if p.Mode.hasTargets() {
		b = append(b, `,"targets":[`...)
		b = appendTargets(b, judged(p.Targets, p.Mode))
		b = append(b, ']')
	}
	return append(b, '}')
}

// judged returns the targets in the one spelling that their meaning has, sorted, each once. Only Host, Port and Kind
// are set.
func judged(targets []Target, mode Mode) []Target {
	out := make([]Target, len(targets))
	for i, t := range targets {
		out[i] = Target{Host: t.Host, Port: t.Port, Kind: t.Kind}
		if !t.Kind.IsName() {
			out[i].Host = t.Prefix.String()
		}
	}
	slices.SortFunc(out, Target.Compare)
	kept := out[:0]
	everyPort := "" // the host last seen without a port
	for _, t := range out {
		if t.Port == 0 {
			if t.Host == everyPort {
				continue
			}
			everyPort = t.Host
		} else if t.Host == everyPort && !opensDNS(t, mode) {
			continue
		} else if len(kept) > 0 && kept[len(kept)-1].Host == t.Host && kept[len(kept)-1].Port == t.Port {
			continue
		}
		kept = append(kept, t)
	}
	return kept
}

// opensDNS reports whether t lets DNS go straight to a server, past the filter. The same address without a port does not.
func opensDNS(t Target, mode Mode) bool {
	return mode == Allowlist && t.Port == 53 && !t.Kind.IsName()
}
