package policy

import (
	"fmt"
	"slices"
	"strings"
)

// The words of a policy file, indexed by the value they stand for.
var (
	modeWords    = []string{NoNetwork: "no-network", Public: "public", Allowlist: "allowlist", Denylist: "denylist"}
	phaseWords   = []string{Baseline: "baseline", Run: "run", Evaluation: "evaluation"}
	inboundWords = []string{InboundAll: "all", InboundHost: "host", InboundNone: "none"}
	echWords     = []string{echStrip: "strip", echKeep: "keep"}
	kindWords    = []string{
		Hostname: "hostname", Wildcard: "wildcard-hostname", IPv4Address: "ipv4-address", IPv6Address: "ipv6-address",
		IPv4CIDR: "ipv4-cidr", IPv6CIDR: "ipv6-cidr",
	}
)

const (
	echStrip = iota
	echKeep
)

// wordOr returns the word for i; the first one for values that have none, which the zero value has as well.
func wordOr(words []string, i int) string {
	if i < len(words) {
		return words[i]
	}
	return words[0]
}

// String returns the mode as it stands in a policy file. A value that is no mode counts as no-network.
func (m Mode) String() string { return wordOr(modeWords, int(m)) }

// String returns the phase's name: "baseline", "run" or "evaluation".
func (p Phase) String() string { return wordOr(phaseWords, int(p)) }

// String returns the option's value as it stands in a policy file.
func (i Inbound) String() string { return wordOr(inboundWords, int(i)) }

// String returns the kind as AgentCompass and Harbor call it, "" for the zero Kind.
func (k Kind) String() string { return wordOr(kindWords, int(k)) }

// ParseMode reads a mode as it stands in a policy file: lower case, nothing trimmed. The error is an *[Error].
func ParseMode(s string) (Mode, error) {
	m, err := parseWord[Mode]("mode", modeWords, s)
	if err != nil {
		return 0, err
	}
	return m, nil
}

// ParsePhase reads the name of a phase: lower case, nothing trimmed. The error is an *[Error].
func ParsePhase(s string) (Phase, error) {
	p, err := parseWord[Phase]("phase", phaseWords, s)
	if err != nil {
		return 0, err
	}
	return p, nil
}

func parseWord[T ~uint8](what string, words []string, s string) (T, *Error) {
	i := slices.Index(words, s)
	if i < 0 {
		return 0, unknownWord(what, words, s)
	}
	return T(i), nil
}

func unknownWord(what string, words []string, s string) *Error {
	e := &Error{Text: quote(s), Problem: "is not a known " + what, Repair: "write " + oneOf(words)}
	near := strings.ToLower(strings.TrimSpace(s))
	if alias, ok := wordAliases[what+" "+near]; ok {
		near = alias
	}
	if slices.Contains(words, near) {
		e.Repair = fmt.Sprintf("write %q", near)
	}
	return e
}

// wordAliases are words of other products, and of earlier ones of the same, for repairs.
var wordAliases = map[string]string{
	"mode none": "no-network", "mode deny-all": "no-network", "mode no_network": "no-network", "mode allow-all": "public",
	"mode allow-list": "allowlist", "mode deny-list": "denylist", "mode whitelist": "allowlist", "mode blacklist": "denylist",
	"phase verifier": "evaluation", "phase setup": "baseline",
}

// oneOf joins words as a choice.
func oneOf(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = fmt.Sprintf("%q", w)
	}
	last := len(quoted) - 1
	return strings.Join(quoted[:last], ", ") + " or " + quoted[last]
}

// MarshalText returns the mode's word.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText is [ParseMode].
func (m *Mode) UnmarshalText(text []byte) error {
	v, err := ParseMode(string(text))
	if err == nil {
		*m = v
	}
	return err
}

// MarshalText returns the phase's name.
func (p Phase) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText is [ParsePhase].
func (p *Phase) UnmarshalText(text []byte) error {
	v, err := ParsePhase(string(text))
	if err == nil {
		*p = v
	}
	return err
}

// MarshalText returns the option's value.
func (i Inbound) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads "all", "host" or "none".
func (i *Inbound) UnmarshalText(text []byte) error {
	v, err := parseWord[Inbound]("value of inbound", inboundWords, string(text))
	if err != nil {
		return err
	}
	*i = v
	return nil
}
