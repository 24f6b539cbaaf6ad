package matcher

import (
	"bytes"
	"math/bits"
	"unsafe"

	"sluice/policy"
)

// Name judges a host name as it stands in CONNECT, Host or SNI. Case and one final dot make no difference. What is
// not a host name is refused with [BadName]: addresses in any spelling, numbers, brackets, empty labels, other bytes
// than letters, digits, hyphens and underscores. Addresses are for [Ruleset.Addr].
//
// A name that is allowed may still have addresses that are refused: ask [Ruleset.Resolved] for each.
func (r *Ruleset) Name(host string, port uint16) Decision {
	return r.NameBytes(bytesOf(host), port)
}

// NameBytes is [Ruleset.Name] for parsers of the wire. It does not keep host.
func (r *Ruleset) NameBytes(host []byte, port uint16) Decision {
	return r.judgeName(host, int(port), hostNames)
}

// Query judges a name that DNS is asked for, without knowing what port will be dialled: it is allowed if any port may
// be. An SRV-style name, _service._proto.NAME, also counts as NAME. Every name below a wildcard's is that wildcard's,
// whatever its labels look like: it is in the zone of those that it allows. A denylist refuses a name only where every
// port is denied.
//
// It accepts every visible ASCII byte in a label but the backslash; the caller must refuse labels that contain a dot.
// In public mode every name is allowed and in no-network every name is refused, whatever it looks like.
func (r *Ruleset) Query(name string) Decision {
	return r.QueryBytes(bytesOf(name))
}

// QueryBytes is [Ruleset.Query] for parsers of the wire. It does not keep name.
func (r *Ruleset) QueryBytes(name []byte) Decision {
	port := anyPort
	switch r.mode {
	case policy.Public:
		return Decision{Verdict: Allow, Reason: PublicMode, Rule: NoRule}
	case policy.NoNetwork:
		return Decision{Reason: NoNetworkMode, Rule: NoRule}
	case policy.Denylist:
		port = 0 // only a target for every port matches
	}
	d := r.judgeName(name, port, dnsNames)
	if len(name) > 0 && name[0] == '_' && d.Reason != NameRule && d.Reason != BadName {
		if skip := serviceBytes(name); skip > 0 {
			if as := r.judgeName(name[skip:], port, dnsNames); as.Reason == NameRule {
				return as
			}
		}
	}
	return d
}

// serviceBytes returns the length of "_service._proto." in front of a name (RFC 2782), or 0.
func serviceBytes(name []byte) int {
	service := bytes.IndexByte(name, '.') + 1
	proto := bytes.IndexByte(name[service:], '.') + 1
	if service == 0 || proto == 0 || name[0] != '_' || name[service] != '_' {
		return 0
	}
	return service + proto
}

// bytesOf returns the bytes of s without copying them. They must not be written to.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// judgeName judges a name, with or without its final dot.
//
// Most names have 8 to 32 bytes and either are that of a host target, in the first slot that could be its, or there is no
// such slot and no wildcard. For them this function does what [index.find] and scanUsual do in general, without a loop and
// with few branches, all of them easy to guess: so the processor can begin with the next name while it waits for the memory
// of this one.
func (r *Ruleset) judgeName(name []byte, port int, a alphabet) Decision {
	if n := len(name); n > 0 && name[n-1] == '.' {
		name = name[:n-1]
	}
	if n := len(name); n >= 8 && n <= usualBytes {
		b, c := inner(n)
		w0, w1, w2, w3 := fourWords(&name[0], n, b, c)
		hash := mixFour(w0, w1, w2, w3, n)
		at := r.hosts.group(hash)
		tags := r.hosts.tags[at]
		if marked := marked(tags, hash); marked != 0 {
			end := r.hosts.groups[at].end(marked)
			footer := word(r.hosts.arena, end)
			// In front of every entry there are more bytes than a name has, see arenaPad.
			e0, e1, e2, e3 := fourWords(&r.hosts.arena[end-footerBytes-n], n, b, c)
			differ := (footer>>24&0xff ^ uint64(n)) | (e0 ^ w0) | (e1 ^ w1) | (e2 ^ w2) | (e3 ^ w3)
			if ports := footer >> 32; differ == 0 && (ports == 0 || ports == uint64(port)) {
				return r.matched(nameRule(hostRules, end, 0), true)
			}
		} else if tags&passesOn == 0 {
			if r.wildcards.hosts == 0 && isUsual(name, b, c, w0, w1, w2, w3) {
				return r.other(NotListed, port)
			}
			return r.judgeOther(name, port, a, false)
		}
	}
	if len(name) == 0 || len(name) > maxNameBytes {
		return Decision{Reason: BadName, Rule: NoRule}
	}
	end, ports := r.hosts.find(name, hashHost(name))
	if end != 0 {
		if n, ok := r.hosts.covers(ports, port); ok {
			return r.matched(nameRule(hostRules, end, n), true)
		}
	}
	return r.judgeOther(name, port, a, end != 0)
}

// matched is the decision for a name that a target matches, in the modes that have targets.
func (r *Ruleset) matched(id RuleID, privateOK bool) Decision {
	if r.mode == policy.Denylist {
		return Decision{Reason: NameRule, Rule: id}
	}
	return Decision{Verdict: Allow, Reason: NameRule, Rule: id, privateOK: privateOK}
}

// judgeOther judges a name that is no host target as it is written, or one with other ports only.
func (r *Ruleset) judgeOther(name []byte, port int, a alphabet, listed bool) Decision {
	first, usual := scanUsual(name)
	if usual && r.wildcards.hosts == 0 && !listed {
		return r.other(NotListed, port)
	}
	d := dots{first}
	if !usual {
		upper, ok := d.scan(name, a)
		if !ok {
			return Decision{Reason: BadName, Rule: NoRule}
		}
		if upper {
			return r.judgeUpper(name, port, a)
		}
	}
	id := NoRule
	for t := r.wildcards.parents(name, &d); t.next(); {
		listed = true
		if n, ok := r.wildcards.covers(t.ports, port); ok {
			id = nameRule(wildcardRules, t.end, n) // the longest wildcard comes last
		}
	}
	if id != NoRule {
		return r.matched(id, r.options.WildcardPrivate || r.inZone(name, &d))
	}
	if listed {
		return r.other(PortNotListed, port)
	}
	return r.other(NotListed, port)
}

// other is the decision for a name that no target matches; why says why not if the mode is allowlist.
func (r *Ruleset) other(why Reason, port int) Decision {
	switch r.mode {
	case policy.Public:
		return Decision{Verdict: Allow, Reason: PublicMode, Rule: NoRule}
	case policy.Allowlist:
		if r.options.ResolveForAddressRules && r.addresses.hasPort(port) {
			return Decision{Verdict: ByAddress, Reason: why, Rule: NoRule}
		}
		return Decision{Reason: why, Rule: NoRule}
	case policy.Denylist:
		return Decision{Verdict: Allow, Reason: NotDenied, Rule: NoRule}
	default:
		return Decision{Reason: NoNetworkMode, Rule: NoRule}
	}
}

// judgeUpper judges a valid name that has upper case letters.
func (r *Ruleset) judgeUpper(name []byte, port int, a alphabet) Decision {
	var b [maxNameBytes]byte
	n := copy(b[:], name)
	for i, c := range b[:n] {
		if c >= 'A' && c <= 'Z' {
			b[i] = c | 0x20
		}
	}
	return r.judgeName(b[:n], port, a)
}

// inZone reports whether a name is a private zone or in one.
func (r *Ruleset) inZone(name []byte, d *dots) bool {
	if r.zones.hosts == 0 {
		return false
	}
	if end, _ := r.zones.find(name, hashOf(name)); end != 0 {
		return true
	}
	t := r.zones.parents(name, d)
	return t.next()
}

// parents goes through those names in an index that a name lies under, the shortest first, in one pass from the
// right.
type parents struct {
	x    *index
	name []byte
	dots *dots

	end   int // of the name that next has found, as from find
	ports uint32

	word  int    // the next one of dots
	mask  uint64 // what is left of the one before
	done  int    // bytes that are in state
	state uint64
}

// parents takes a name and the dots of it, or of a longer name that ends in it.
func (x *index) parents(name []byte, d *dots) parents {
	return parents{x: x, name: name, dots: d, state: hashKey[0]}
}

func (t *parents) next() bool {
	for {
		for t.mask == 0 {
			if t.word == len(t.dots) {
				return false
			}
			t.mask = t.dots.within(t.word, len(t.name)) & t.x.lengths[t.word]
			t.word++
		}
		n := (t.word-1)<<6 + bits.TrailingZeros64(t.mask)
		t.mask &= t.mask - 1
		parent := t.name[len(t.name)-n:]
		for ; n-t.done > 8; t.done += 8 { // as in hashOf
			t.state = mix(t.state, word(parent, n-t.done))
		}
		if t.end, t.ports = t.x.find(parent, finish(t.state, leftmost(parent), n)); t.end != 0 {
			return true
		}
	}
}
