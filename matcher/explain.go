package matcher

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"sluice/policy"
)

// Explain gives the sentence, without a full stop, that tells a user why a destination has this decision and, if it is
// refused, what would let it through. host is the name or address (without brackets) that was asked for and port its
// port, 0 for a look-up in DNS. The reason may lie in an address of the host.
//
// What is asked for may be anything: it is shortened, and quoted unless it is a plain name or address.
func (r *Ruleset) Explain(d Decision, host string, port uint16) string {
	a := readAsked(host, port)
	rule := r.Target(d.Rule).String()
	switch d.Reason {
	case PublicMode:
		if r.observed != nil {
			return a.text + " is allowed: the policy only observes"
		}
		return a.text + " is allowed: the mode is public"
	case NotDenied:
		return a.text + " is allowed: no denied target matches it"
	case NoNetworkMode:
		return a.text + " is refused: the mode is no-network, which refuses everything"
	case NameRule, AddressRule:
		if d.Verdict == Allow {
			return fmt.Sprintf("%s is allowed by the target %q", a.text, rule)
		}
		return fmt.Sprintf("%s is denied, itself or its address, by the target %q", a.text, rule)
	case NotListed:
		return a.text + " is not listed" + a.remedy("; ")
	case PortNotListed:
		return a.text + " is listed with other ports only" + a.remedy("; ")
	case Floor:
		return r.explainFloor(a)
	case PrivateWildcard:
		return fmt.Sprintf("%s has a private address, which the wildcard %q does not open%s, or put its domain into private_zones", a.text, rule, a.remedy("; "))
	case OwnAddress:
		return a.text + " is an address of this host, of its networks or of the proxy, to which the proxy never connects; connect directly"
	case BadName:
		return a.text + " is not a host name; write a name of letters, digits and hyphens, or an address in its usual form"
	default:
		return fmt.Sprintf("%s: %v (%s)", a.text, d.Verdict, d.Reason)
	}
}

// explainFloor tells what on the floor an address is, or the address hidden in it.
func (r *Ruleset) explainFloor(a asked) string {
	is, remedy := "has an address that is loopback, link-local, multicast or cloud metadata", "; only a target that names that very address opens it"
	if a.addr.IsValid() {
		c := candidatesOf(a.addr)
		remedy = "; only a target that names this very address opens it" + a.remedy(": ")
		for i := c.n; i >= 0; i-- {
			what := describe(floor, c.at(i))
			switch {
			case what == "":
			case i == 0:
				is = "is " + what
			default:
				is = fmt.Sprintf("holds %v, %s", c.at(i), what)
			}
		}
	}
	if r.mode != policy.Allowlist {
		remedy += ", in an allowlist"
	}
	return a.text + " " + is + remedy
}

// asked is a destination as a refusal shows it.
type asked struct {
	text   string
	target string     // that would allow it, "" if there is none
	addr   netip.Addr // if it is one
}

func readAsked(host string, port uint16) asked {
	if addr, err := netip.ParseAddr(host); err == nil {
		addr = addr.WithZone("")
		text := policy.Target{Host: addr.String(), Port: port}.String()
		return asked{text: text, target: text, addr: addr}
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	if _, ok := new(dots).scan(bytesOf(name), hostNames); !ok {
		return asked{text: strconv.QuoteToASCII(host[:min(len(host), maxNameBytes)])}
	}
	a := asked{text: policy.Target{Host: name, Port: port}.String()}
	// Targets have no underscores: NAME stands for _service._proto.NAME, and a wildcard for what is left.
	target := name[serviceBytes(bytesOf(name)):]
	if i := strings.LastIndexByte(target, '_'); i >= 0 {
		_, parent, found := strings.Cut(target[i:], ".")
		if !found {
			return a
		}
		target = "*." + parent
	}
	a.target = policy.Target{Host: target, Port: port}.String()
	return a
}

// remedy says to add the target, behind sep.
func (a asked) remedy(sep string) string {
	if a.target == "" {
		return ""
	}
	return fmt.Sprintf("%sadd the target %q", sep, a.target)
}
