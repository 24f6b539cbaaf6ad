package convert

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"sluice/policy"
)

// e2bEverything is how E2B says "all traffic".
const e2bEverything = "0.0.0.0/0"

// e2b reads the network settings of an E2B sandbox: allow_out and deny_out, alone or in "network", and
// allow_internet_access, in either spelling. An allowed entry goes before a denied one.
func e2b(data []byte, _ Options) (Result, error) {
	v, err := object(data)
	if err != nil {
		return Result{}, err
	}
	inner, ok := v["network"].(map[string]any)
	if !ok && v["network"] != nil {
		return Result{}, errors.New("network is not an object")
	}
	delete(v, "network")
	for _, name := range slices.Sorted(maps.Keys(v)) {
		if name == "metadata" || name == "envs" { // are the user's own
			continue
		}
		if at := e2bHidden(name, v[name]); at != "" {
			return Result{}, fmt.Errorf("%s is not where E2B looks for it: give this part alone, or the sandbox that it is about", at)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inner)) {
		if !slices.Contains(e2bNames, name) {
			return Result{}, fmt.Errorf("network/%s is not known: write allow_out and deny_out, and leave out what is about connections into the sandbox", name)
		}
	}
	if ok {
		for name, value := range inner {
			if _, twice := v[name]; twice {
				return Result{}, fmt.Errorf("%s stands in network and beside it", name)
			}
			v[name] = value
		}
	}
	allow, err := either(v, "allow_out", "allowOut")
	if err != nil {
		return Result{}, err
	}
	deny, err := either(v, "deny_out", "denyOut")
	if err != nil {
		return Result{}, err
	}
	closed := slices.Contains(deny, e2bEverything)
	for _, name := range []string{"allow_internet_access", "allowInternetAccess"} {
		switch access, given := v[name]; {
		case given && access == false:
			closed = true
		case given && access != true:
			return Result{}, fmt.Errorf("%s is neither true nor false", name)
		}
	}
	var r Result
	switch {
	case closed:
		err := e2bAllowlist(&r, allow)
		return r, err
	case len(allow) > 0:
		return r, fmt.Errorf(`allow_out without "0.0.0.0/0" in deny_out does not close the network: add it if an allowlist is meant, or remove allow_out`)
	}
	for _, entry := range deny {
		t, err := policy.ParseTarget(entry)
		if err != nil {
			return r, fmt.Errorf("deny_out: %w", err)
		}
		if t.Kind.IsName() || t.Port != 0 {
			return r, fmt.Errorf("deny_out: %q is no address or network, and E2B denies no other", entry)
		}
	}
	r.Policy, err = list(policy.Denylist, deny)
	return r, err
}

// e2bNames are the settings that say what may be reached.
var e2bNames = []string{"allow_out", "allowOut", "deny_out", "denyOut", "allow_internet_access", "allowInternetAccess"}

// e2bHidden returns where below a value one of them stands, which would go unread there; "" if none does.
func e2bHidden(at string, v any) string {
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			below := at + "/" + name
			if name == "network" || slices.Contains(e2bNames, name) {
				return below
			}
			if found := e2bHidden(below, v[name]); found != "" {
				return found
			}
		}
	case []any:
		for i := range v {
			if found := e2bHidden(fmt.Sprint(at, "/", i), v[i]); found != "" {
				return found
			}
		}
	}
	return ""
}

// e2bAllowlist allows names on the two ports on which E2B judges them.
func e2bAllowlist(r *Result, allow []string) error {
	var targets []string
	names := false
	for _, entry := range allow {
		t, err := policy.ParseTarget(entry)
		if err != nil {
			return fmt.Errorf("allow_out: %w", err)
		}
		if t.Port != 0 {
			return fmt.Errorf("allow_out: %q has a port, which E2B does not know", entry)
		}
		if t.Kind.IsName() {
			names = true
			targets = append(targets, t.Host+":80", t.Host+":443")
			continue
		}
		targets = append(targets, entry)
	}
	if names {
		r.note("E2B lets a name through on the ports 80 and 443 only, so the targets have these ports; its own 8.8.8.8 for DNS is not needed here")
	}
	p, err := list(policy.Allowlist, targets)
	r.Policy = p
	return err
}

// either reads a list that has two spellings.
func either(v map[string]any, snake, camel string) ([]string, error) {
	if v[snake] != nil && v[camel] != nil {
		return nil, fmt.Errorf("%s and %s: keep one of them", snake, camel)
	}
	if v[snake] == nil {
		snake = camel
	}
	return texts(snake, v[snake])
}
