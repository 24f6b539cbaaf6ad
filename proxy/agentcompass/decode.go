package agentcompass

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"sluice/matcher"
	"sluice/policy"
)

// Payload is what a policy file says.
type Payload struct {
	// Policy may be an allowlist or denylist without targets: such an allowlist allows nothing, such a denylist denies
	// nothing but the floor.
	Policy   policy.Policy
	Rejected []Rejected
}

// Rejected is an entry that is no target here.
type Rejected struct {
	Err *policy.Error
	// Denied is what is denied in its place, only in a denylist; zero if the entry matches nothing.
	Denied policy.Target
}

// String says what is wrong with the entry and what becomes of it; safe to log, as [policy.Error] is.
func (r Rejected) String() string {
	if r.Denied.Host != "" {
		return fmt.Sprintf("%v (denied meanwhile: %s)", r.Err, r.Denied)
	}
	return fmt.Sprintf("%v (matches nothing)", r.Err)
}

// Decode reads a policy file: {"network_mode": …, "allowed_hosts": […], "denied_hosts": […]}, or the older form with
// allow_all in place of the mode. Errors are *[policy.Error], or wrap [io.ErrUnexpectedEOF] where the text is cut off.
func Decode(data []byte) (Payload, error) {
	fields, err := decodeObject(data)
	if err != nil {
		return Payload{}, err
	}
	mode, err := readMode(fields)
	if err != nil {
		return Payload{}, err
	}
	field := "allowed_hosts"
	if mode == policy.Denylist {
		field = "denied_hosts"
	}
	var entries []json.RawMessage
	if raw := fields[field]; truthy(raw) {
		if raw[0] != '[' {
			return Payload{}, &policy.Error{Pointer: "/" + field, Text: kindOf(raw), Problem: "is not a list", Repair: "write a list of targets"}
		}
		if err := json.Unmarshal(raw, &entries); err != nil {
			return Payload{}, &policy.Error{Pointer: "/" + field, Problem: err.Error()}
		}
	}
	p := Payload{Policy: policy.Policy{Mode: mode}}
	for i, raw := range entries {
		pointer := fmt.Sprintf("/%s/%d", field, i)
		e, err := readEntry(raw)
		if err != nil {
			err.Pointer = pointer + err.Pointer
			return Payload{}, err
		}
		if e.host == "" || mode == policy.Public || mode == policy.NoNetwork {
			continue // checked, but without a meaning there
		}
		t, err := e.target()
		if err != nil {
			err.Pointer = pointer
			r := Rejected{Err: err}
			if mode == policy.Denylist {
				r.Denied = e.deniable()
			}
			p.Rejected = append(p.Rejected, r)
			t = r.Denied
		}
		if t.Host != "" {
			p.Policy.Targets = append(p.Policy.Targets, t)
		}
	}
	slices.SortFunc(p.Policy.Targets, func(a, b policy.Target) int {
		return cmp.Or(strings.Compare(a.Host, b.Host), cmp.Compare(a.Port, b.Port))
	})
	p.Policy.Targets = slices.Compact(p.Policy.Targets)
	return p, nil
}

func decodeObject(data []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	var raw json.RawMessage
	if err := dec.Decode(&raw); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, fmt.Errorf("JSON is cut off: %w", err)
		}
		return nil, &policy.Error{Problem: "is not JSON: " + err.Error()}
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, &policy.Error{Problem: "has text behind the JSON object"}
	}
	if !utf8.Valid(data) {
		return nil, &policy.Error{Problem: "is not valid UTF-8"}
	}
	if raw[0] != '{' {
		return nil, &policy.Error{Text: kindOf(raw), Problem: "is not a JSON object"}
	}
	fields := map[string]json.RawMessage{} // keys are exact, and of repeated ones the last counts, as in Python
	if err := json.Unmarshal(raw, &fields); err != nil {
		return nil, &policy.Error{Problem: "is not JSON: " + err.Error()}
	}
	return fields, nil
}

func readMode(fields map[string]json.RawMessage) (policy.Mode, error) {
	raw := fields["network_mode"]
	if !truthy(raw) {
		// As written by AgentCompass before it had modes.
		if truthy(fields["allow_all"]) {
			return policy.Public, nil
		}
		return policy.Allowlist, nil
	}
	text, _ := stringOf(raw)
	text = strings.ToLower(strings.TrimSpace(text))
	if text == "" && raw[0] == '"' { // white space: no mode either, but AgentCompass takes it for the older form
		delete(fields, "network_mode")
		return readMode(fields)
	}
	mode, err := policy.ParseMode(text)
	if err != nil {
		return 0, &policy.Error{Pointer: "/network_mode", Text: kindOf(raw), Problem: "is not a mode",
			Repair: "write public, no-network, allowlist or denylist"}
	}
	return mode, nil
}

// entry is one element of a list: a host, and a port where it is an object.
type entry struct {
	host string
	port uint16
}

// readEntry refuses what AgentCompass's proxy refuses.
func readEntry(raw json.RawMessage) (entry, *policy.Error) {
	if text, ok := stringOf(raw); ok {
		return entry{host: normalize(text)}, nil
	}
	if raw[0] != '{' {
		return entry{}, &policy.Error{Text: kindOf(raw), Problem: "is neither a string nor an object", Repair: `write "host" or {"host": …, "port": …}`}
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		return entry{}, &policy.Error{Problem: err.Error()}
	}
	port, err := strconv.ParseUint(string(fields["port"]), 10, 16)
	if err != nil || port == 0 {
		return entry{}, &policy.Error{Pointer: "/port", Text: kindOf(fields["port"]), Problem: "is not an integer from 1 to 65535",
			Repair: "write the port as a number, or the host as a string for every port"}
	}
	e := entry{port: uint16(port)}
	if host := fields["host"]; truthy(host) {
		text, ok := stringOf(host)
		if !ok {
			text = string(host) // matches nothing, and shows in the log
		}
		e.host = normalize(text)
	}
	return e, nil
}

// normalize does to a host what AgentCompass does before it compares. Brackets stay: only an address may have them.
func normalize(host string) string {
	return strings.TrimRight(strings.ToLower(strings.TrimSpace(host)), ".")
}

// target reads an entry as this project's policies do.
func (e entry) target() (policy.Target, *policy.Error) {
	t, err := policy.ParseTarget(e.host)
	if err != nil {
		one, ok := errors.AsType[*policy.Error](err)
		if !ok {
			one = &policy.Error{Problem: err.Error()}
		}
		return policy.Target{}, one
	}
	if e.port == 0 {
		return t, nil
	}
	if t.Port != 0 {
		return policy.Target{}, &policy.Error{Text: strconv.Quote(e.host), Problem: "holds a port beside the host", Repair: `write the host alone and put the port into "port"`}
	}
	t.Port = e.port
	return t, nil
}

// deniable returns a target that denies at least what the entry can stand for; zero if that is nothing.
func (e entry) deniable() policy.Target {
	host, port := e.host, ""
	if bracketed, ok := strings.CutPrefix(host, "["); ok { // AgentCompass takes brackets off names, too
		host, port, _ = strings.Cut(bracketed, "]")
		port = strings.TrimPrefix(port, ":")
	} else if before, after, ok := strings.Cut(host, ":"); ok && strings.Trim(after, "0123456789") == "" {
		host, port = before, after
	}
	if before, _, ok := strings.Cut(host, "%"); ok {
		if _, err := netip.ParseAddr(before); err == nil {
			host = before
		}
	}
	t, err := policy.ParseTarget(host)
	if prefix, parseErr := netip.ParsePrefix(host); err != nil && parseErr == nil {
		t, err = policy.ParseTarget(prefix.Masked().String())
	}
	if err != nil {
		t = policy.Target{Host: host, Kind: policy.Hostname}
		if strings.HasPrefix(host, "*.") {
			t.Kind = policy.Wildcard
		}
	}
	// Every port, unless it is plain which one is meant.
	if number, err := strconv.ParseUint(port, 10, 16); err == nil && e.port == 0 {
		t.Port = uint16(number)
	} else if port == "" {
		t.Port = e.port
	}
	// Names that the matcher cannot index are those that it does not let through either.
	if _, err := matcher.Compile(policy.Policy{Mode: policy.Denylist, Targets: []policy.Target{t}}, matcher.Options{}); err != nil {
		return policy.Target{}
	}
	return t
}

// truthy reports what Python's bool would say of a JSON value; false for one that is missing.
func truthy(raw json.RawMessage) bool {
	switch {
	case len(raw) == 0:
		return false
	case raw[0] == '[' || raw[0] == '{':
		return len(bytes.TrimSpace(raw[1:len(raw)-1])) > 0
	case raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9':
		number, _ := strconv.ParseFloat(string(raw), 64) // beyond the range it is an infinity, which is not 0
		return number != 0
	}
	return !slices.Contains([]string{"null", "false", `""`}, string(raw))
}

func stringOf(raw json.RawMessage) (string, bool) {
	var s string
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &s) != nil {
		return "", false
	}
	return s, true
}

// kindOf names a JSON value without showing more of it than an error should.
func kindOf(raw json.RawMessage) string {
	switch {
	case len(raw) == 0:
		return "nothing"
	case raw[0] == '{':
		return "an object"
	case raw[0] == '[':
		return "a list"
	case raw[0] == '"':
		s, _ := stringOf(raw)
		return strconv.QuoteToASCII(s[:min(len(s), 40)])
	}
	return string(raw[:min(len(raw), 40)])
}
