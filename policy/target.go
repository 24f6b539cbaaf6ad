package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxTargetBytes bounds the work for one target. The longest name with "*." and a port has 261 bytes; the rest is
// room for names that are not ASCII yet, so that their error can show what to write.
const maxTargetBytes = 1024

// ParseTarget reads a target in its short form: a host name, "*." and a host name, an IPv4 or IPv6 address, or a
// network, and behind all but a bare IPv6 address or network ":" and a port. An IPv6 address with a port stands in
// brackets. The error is an *[Error].
//
// An IPv6 network with a port has no short form, only the object {"host": …, "port": …}.
func ParseTarget(s string) (Target, error) {
	t, err := parser{}.target(s)
	if err != nil {
		return Target{}, err
	}
	return t, nil
}

// A parser reads targets. What an error offers as a repair is first parsed by a parser that offers nothing, so
// that nothing wrong is offered and the search is one step deep.
type parser struct {
	offersNothing bool
}

// target reads the short form.
func (p parser) target(s string) (Target, *Error) {
	t, err := p.short(s)
	if err != nil {
		err.Text = quote(s)
	}
	return t, err
}

// host reads a target whose port stands elsewhere, as in the object form.
func (p parser) host(s string) (Target, *Error) {
	t, err := p.alone(s)
	if err != nil {
		err.Text = quote(s)
	}
	return t, err
}

// write is the repair that offers s, in normal form; "" if s is no target either.
func (p parser) write(s string) string {
	if p.offersNothing {
		return ""
	}
	t, err := parser{offersNothing: true}.short(s)
	if err != nil {
		return ""
	}
	return "write " + t.input()
}

func orElse(first, second string) string {
	if first != "" {
		return first
	}
	return second
}

func (p parser) alone(s string) (Target, *Error) {
	if err := p.checkCharacters(s); err != nil {
		return Target{}, err
	}
	if inside, found := strings.CutPrefix(s, "["); found {
		inside, _, _ = strings.Cut(inside, "]")
		return Target{}, &Error{Problem: "has brackets, which belong to the short form", Repair: orElse(p.write(inside), "leave them out")}
	}
	if strings.IndexByte(s, '/') >= 0 {
		return p.network(s, false)
	}
	host, port, colon := strings.Cut(s, ":")
	if !colon {
		return p.name(s, "")
	}
	if isDigits(port) {
		return Target{}, &Error{Problem: "holds a port beside the host", Repair: orElse(p.write(host), "write the host alone") + ` and the port as "port"`}
	}
	return p.ipv6(s)
}

func (p parser) short(s string) (Target, *Error) {
	if err := p.checkCharacters(s); err != nil {
		return Target{}, err
	}
	if s[0] == '[' {
		return p.bracketed(s)
	}
	if strings.IndexByte(s, '/') >= 0 {
		return p.network(s, true)
	}
	host, port, hasPort := strings.Cut(s, ":")
	if !hasPort {
		return p.name(s, "")
	}
	if strings.IndexByte(port, ':') >= 0 {
		return p.ipv6(s)
	}
	number, portErr := p.port(host, port)
	rest := ""
	if portErr == nil {
		rest = ":" + port
	}
	t, err := p.name(host, rest)
	if err == nil {
		err = portErr
	}
	if err != nil {
		return Target{}, err
	}
	t.Port = number
	return t, nil
}

// checkCharacters refuses what no form of a target may hold. What it lets through is not empty and is ASCII
// without white space and controls.
func (p parser) checkCharacters(s string) *Error {
	if s == "" {
		return &Error{Problem: "is empty", Repair: "write a host, an address or a network, or remove the entry"}
	}
	if len(s) > maxTargetBytes {
		return &Error{Problem: fmt.Sprintf("has %d bytes, more than any target", len(s)), Repair: "write each target as an entry of its own"}
	}
	ascii := true
	for i, r := range s {
		if r < utf8.RuneSelf {
			if r > ' ' && r < 0x7f {
				continue
			}
		} else if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return &Error{Problem: "is not valid UTF-8", Repair: "write the name in ASCII"}
			}
		}
		if isInvisible(r) {
			return &Error{Problem: "has white space or an invisible character",
				Repair: orElse(p.write(strings.TrimFunc(s, isInvisible)), "remove it, nothing is trimmed")}
		}
		ascii = false
	}
	if i := strings.Index(s, "://"); i >= 0 {
		return p.schemeError(s[:i], s[i+len("://"):])
	}
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		return &Error{Problem: "has user info", Repair: orElse(p.write(s[i+1:]), "write the host without it")}
	}
	if i := strings.IndexAny(s, `?#\`); i >= 0 {
		return &Error{Problem: fmt.Sprintf("has a %q, as in a URL", s[i]), Repair: orElse(p.write(s[:i]), "write the host alone")}
	}
	if !ascii {
		return p.notASCII(s)
	}
	return nil
}

// isInvisible reports whether r leaves no mark, so that a reader takes the text for another one.
func isInvisible(r rune) bool {
	return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r)
}

var schemePorts = map[string]uint16{"http": 80, "https": 443, "ws": 80, "wss": 443, "ssh": 22, "git": 9418}

func (p parser) schemeError(scheme, rest string) *Error {
	e := &Error{Problem: "is a URL", Repair: `write the host alone, as in "api.example.com"`}
	path := ""
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest, path = rest[:i], rest[i:]
	}
	if p.offersNothing || strings.IndexByte(path, '@') >= 0 { // user info may hold a slash: what the host is, is open
		return e
	}
	t, err := parser{offersNothing: true}.short(rest[strings.LastIndexByte(rest, '@')+1:])
	if err != nil {
		return e
	}
	e.Repair = "write " + t.input()
	if port := schemePorts[strings.ToLower(scheme)]; t.Port == 0 && port != 0 {
		t.Port = port
		e.Repair += fmt.Sprintf(", or %s for that port only", t.input())
	}
	return e
}

// bracketed reads what begins with a bracket: an IPv6 address, with or without a port.
func (p parser) bracketed(s string) (Target, *Error) {
	inside, rest, closed := strings.Cut(s[1:], "]")
	if !closed {
		return Target{}, &Error{Problem: "has no closing bracket", Repair: orElse(p.write("["+inside+"]"), `write an IPv6 address as in "[2001:db8::1]:443"`)}
	}
	if strings.IndexByte(inside, '/') >= 0 || strings.HasPrefix(rest, "/") {
		length, port, _ := strings.Cut(rest, ":")
		return Target{}, &Error{Problem: "has brackets, which a network may not have", Repair: p.writeNetwork(inside+length, port)}
	}
	if strings.IndexByte(inside, ':') < 0 {
		return Target{}, &Error{Problem: "has brackets round something that is not an IPv6 address",
			Repair: orElse(p.write(inside+rest), orElse(p.write(inside), "leave them out"))}
	}
	if before, _, zone := strings.Cut(inside, "%"); zone {
		return Target{}, p.zoneError("[" + before + "]" + rest)
	}
	t, err := p.ipv6(inside)
	if err != nil || rest == "" {
		return t, err
	}
	port, colon := strings.CutPrefix(rest, ":")
	if !colon {
		return Target{}, &Error{Problem: "has text behind the closing bracket",
			Repair: orElse(p.write("["+inside+"]:"+rest), "write "+t.input()+" or a port behind a colon")}
	}
	if t.Port, err = p.port("["+inside+"]", port); err != nil {
		return Target{}, err
	}
	return t, nil
}

// port reads the port behind host, which is only used to say how to write it.
func (p parser) port(host, port string) (uint16, *Error) {
	number, err := strconv.ParseUint(port, 10, 16)
	e := &Error{Repair: "write a port from 1 to 65535, or none for every port"}
	switch {
	case port == "":
		e.Problem = "has no port behind the colon"
	case !isDigits(port):
		e.Problem = "has a port that is not plain digits"
	case err != nil || number == 0:
		e.Problem = "has a port outside 1 to 65535"
	case port[0] == '0':
		e.Problem = "has a port with a leading zero"
		e.Repair = orElse(p.write(fmt.Sprintf("%s:%d", host, number)), e.Repair)
	default:
		return uint16(number), nil
	}
	if offer := p.write(host); offer != "" && number == 0 {
		e.Repair = offer + " for every port, or a port from 1 to 65535 behind the colon"
	}
	return 0, e
}

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// input returns the target as it is written in a policy: in quotes, or as an object where it has no short form.
func (t Target) input() string {
	if t.Kind == IPv6CIDR && t.Port != 0 {
		return fmt.Sprintf(`{"host": %q, "port": %d}`, t.Host, t.Port)
	}
	return strconv.Quote(t.String())
}

// String returns the target as the notice shows it. [ParseTarget] reads it back, but for an IPv6 network with a
// port, which AgentCompass shows as "[2001:db8::/32]:443".
func (t Target) String() string {
	if t.Port == 0 {
		return t.Host
	}
	port := strconv.Itoa(int(t.Port))
	if strings.IndexByte(t.Host, ':') >= 0 {
		return "[" + t.Host + "]:" + port
	}
	return t.Host + ":" + port
}

// Compare orders targets as the normal form does: by host, no port first, then by port.
func (t Target) Compare(other Target) int {
	return cmp.Or(strings.Compare(t.Host, other.Host), cmp.Compare(t.Port, other.Port))
}

// addressTarget returns the target for addr, which has no zone.
func addressTarget(addr netip.Addr) Target {
	t := Target{Host: addressText(addr), Kind: IPv4Address}
	if addr.Is6() {
		t.Kind = IPv6Address
	}
	addr = addr.Unmap()
	t.Prefix = netip.PrefixFrom(addr, addr.BitLen())
	return t
}
