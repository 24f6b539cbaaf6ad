package convert

import (
	"fmt"
	"slices"
	"strings"

	"sluice/policy"
)

// squid reads a list of dstdomain entries, one or more a line, or "acl NAME dstdomain ..." and "acl NAME dst ..." lines
// of a squid.conf. A leading dot is a domain with all that is under it. What a list is for its reader says: it is an
// allowlist unless [Options.Deny] is set.
func squid(data []byte, o Options) (Result, error) {
	var targets []string
	names := map[string]bool{}
	for number, line := range strings.Split(string(data), "\n") {
		text, _, _ := strings.Cut(line, "#")
		words := strings.Fields(text)
		if len(words) == 0 {
			continue
		}
		fail := func(format string, args ...any) error {
			return fmt.Errorf("line %d: %s", number+1, fmt.Sprintf(format, args...))
		}
		kind := "dstdomain"
		if strings.EqualFold(words[0], "acl") {
			if len(words) < 4 {
				return Result{}, fail("is no complete acl")
			}
			kind = words[2]
			names[words[1]] = true
			words = words[3:]
		}
		if kind != "dstdomain" && kind != "dst" {
			return Result{}, fail("acls of the type %q are not about destinations by name or address: take them out", kind)
		}
		for _, w := range words {
			entry, err := squidEntry(kind, w)
			if err != nil {
				return Result{}, fail("%v", err)
			}
			targets = append(targets, entry...)
		}
	}
	if len(names) > 1 {
		return Result{}, fmt.Errorf("has %d acls, and only squid.conf says which are allowed and which denied: import one at a time", len(names))
	}
	if len(targets) == 0 {
		return Result{}, fmt.Errorf("holds no destination")
	}
	var r Result
	mode := policy.Allowlist
	if o.Deny {
		mode = policy.Denylist
	}
	var err error
	r.Policy, err = list(mode, slices.Compact(targets))
	if err == nil {
		r.note("Squid's list has no ports, so every port counts; add those that are meant")
	}
	return r, err
}

// squidWords are what Squid reads as addresses where it expects some.
var squidWords = []string{"all", "ipv4", "ipv6", "none"}

func squidEntry(kind, w string) ([]string, error) {
	domain, dotted := strings.CutPrefix(w, ".")
	switch {
	case strings.HasPrefix(w, "-"):
		if w == "-n" || w == "--" {
			return nil, nil
		}
		return nil, fmt.Errorf("the option %q changes what is matched: take it out", w)
	case strings.HasPrefix(w, `"`):
		return nil, fmt.Errorf("%s names another file: import that one", w)
	case kind == "dst" && slices.Contains(squidWords, w):
		return nil, fmt.Errorf("%q stands for many addresses in Squid, and would be a host name here: write networks", w)
	case kind == "dst" && strings.Contains(w, "-"):
		return nil, fmt.Errorf("%q is a range of addresses: write networks", w)
	}
	t, err := policy.ParseTarget(domain)
	if err != nil {
		return nil, err
	}
	if t.Port != 0 || t.Kind == policy.Wildcard {
		return nil, fmt.Errorf("%q is not how Squid names a destination", w)
	}
	if dotted {
		if t.Kind != policy.Hostname {
			return nil, fmt.Errorf("%q is no domain", w)
		}
		return []string{domain, "*." + domain}, nil
	}
	return []string{w}, nil
}
