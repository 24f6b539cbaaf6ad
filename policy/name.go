package policy

import (
	"fmt"
	"net/netip"
	"strings"

	"golang.org/x/net/idna"
)

const (
	maxLabelBytes = 63  // RFC 1035, section 2.3.4
	maxNameBytes  = 253 // the 255 of RFC 1035 without the first length and the root
)

// name reads a host without colon, slash and bracket: a name, a wildcard or an IPv4 address. rest is the port that
// stands behind it, for repairs.
func (p parser) name(host, rest string) (Target, *Error) {
	if endsInNumber(host) {
		if addr, err := netip.ParseAddr(host); err == nil {
			return addressTarget(addr), nil
		}
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	kind := Hostname
	suffix, wildcard := strings.CutPrefix(name, "*.")
	if wildcard {
		kind = Wildcard
	}
	switch {
	case suffix == "" && host == "":
		return Target{}, &Error{Problem: "has no host before the port", Repair: "write the host as well; for everything use the mode public"}
	case suffix == "" || suffix == "*":
		return Target{}, &Error{Problem: "names no host", Repair: "for everything use the mode public"}
	case strings.IndexByte(suffix, '*') >= 0:
		return Target{}, p.starError(suffix, rest)
	case suffix == "localhost" || strings.HasSuffix(suffix, ".localhost"):
		return Target{}, &Error{Problem: "is the container's own loopback, which is not outbound", Repair: "remove it"}
	case endsInNumber(suffix):
		if wildcard {
			return Target{}, &Error{Problem: "has a number behind the wildcard", Repair: `for addresses write a network as in "10.0.0.0/8"`}
		}
		return Target{}, numberLike(name, rest)
	case len(suffix) > maxNameBytes:
		return Target{}, &Error{Problem: fmt.Sprintf("has a name of %d bytes, more than %d", len(suffix), maxNameBytes), Repair: "shorten it: no resolver accepts it"}
	}
	for label := range strings.SplitSeq(suffix, ".") {
		if err := p.checkLabel(label, suffix, rest); err != nil {
			return Target{}, err
		}
	}
	return Target{Host: name, Kind: kind}, nil
}

// starError is the error for a star inside a name or beside a label.
func (p parser) starError(name, rest string) *Error {
	e := &Error{Problem: `has a "*" that is not a leading "*."`, Repair: `write each name, or "*.example.com" for all names under one`}
	tail := name[strings.LastIndexByte(name, '*')+1:]
	if suffix, whole := strings.CutPrefix(tail, "."); whole && strings.IndexByte(suffix, '.') > 0 {
		if offer := p.write("*." + suffix + rest); offer != "" {
			e.Repair = offer + ", or each name by itself"
		}
	}
	if strings.Trim(name, "0123456789.*") == "" {
		e.Repair = `for addresses write a network as in "10.0.0.0/8"`
	}
	return e
}

func (p parser) checkLabel(label, name, rest string) *Error {
	switch {
	case label == "":
		e := &Error{Problem: "has an empty label", Repair: "write the name with one dot between labels"}
		if under, leading := strings.CutPrefix(name, "."); leading {
			if offer := p.write("*." + under + rest); offer != "" {
				e.Repair = offer + " for the names under it"
			}
		}
		return e
	case len(label) > maxLabelBytes:
		return &Error{Problem: fmt.Sprintf("has a label of %d bytes, more than %d", len(label), maxLabelBytes), Repair: "shorten it: no resolver accepts it"}
	case strings.IndexByte(label, '_') >= 0:
		return &Error{Problem: "has an underscore, which host names do not have", Repair: "write the host name: a service name such as _http._tcp.ok.test is judged as ok.test"}
	}
	for i := range len(label) {
		c := label[i]
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			continue
		}
		e := &Error{Problem: fmt.Sprintf("has the character %q", c), Repair: "use letters, digits, hyphens and dots only"}
		if c == ',' || c == ';' || c == '|' {
			e.Repair = "write each target as an entry of its own"
		}
		return e
	}
	if label[0] == '-' || label[len(label)-1] == '-' {
		return &Error{Problem: "has a label that begins or ends with a hyphen", Repair: "write the name without that hyphen"}
	}
	if strings.HasPrefix(label, "xn--") && !isALabel(label) {
		return &Error{Problem: fmt.Sprintf("has %q, which is not a valid A-label", label), Repair: "write the A-label that the name's registry shows"}
	}
	return nil
}

// isALabel reports whether label is what its Unicode form encodes to (RFC 5891, section 5.4; UTS 46 as resolvers use it).
func isALabel(label string) bool {
	u, err := idna.Lookup.ToUnicode(label)
	if err != nil || u == label {
		return false
	}
	a, err := idna.Lookup.ToASCII(u)
	return err == nil && a == label
}

// notASCII is the error for a target with letters beyond ASCII. It shows the A-label form, which also unmasks
// letters that only look like others.
func (p parser) notASCII(s string) *Error {
	e := &Error{Problem: "is not ASCII", Repair: "write the name's A-labels (xn--...)"}
	if p.offersNothing {
		return e
	}
	host, wildcard := strings.CutPrefix(s, "*.")
	rest := ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host, rest = host[:i], host[i:]
	}
	a, err := idna.Lookup.ToASCII(host)
	if err != nil {
		return e
	}
	if wildcard {
		a = "*." + a
	}
	if offer := p.write(a + rest); offer != "" {
		e.Repair = offer + " if this very name is meant"
	}
	return e
}
