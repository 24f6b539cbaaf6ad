package matcher

import (
	"net"
	"strconv"
)

// Explain gives the sentence that tells a person why d was made about host and port, and what to change. It names the
// missing target where there is one. It is for answers and logs, not for hot paths.
func (r *Ruleset) Explain(d Decision, host string, port uint16) string {
	target := net.JoinHostPort(host, strconv.Itoa(int(port)))
	rule := ""
	if d.Rule != NoRule {
		rule = r.Target(d.Rule).String()
	}
	if d.Verdict != Refuse {
		switch d.Reason {
		case PublicMode:
			return "Allowed: the policy is public."
		case NotDenied:
			return "Allowed: the denylist names neither this name nor its addresses."
		}
		if rule != "" {
			return "Allowed by the target " + strconv.Quote(rule) + "."
		}
		return "Allowed if an address behind the name is covered by a target."
	}
	switch d.Reason {
	case NotListed:
		return "The allowlist does not name it: add the target " + strconv.Quote(target) + " if it is needed."
	case PortNotListed:
		return "The allowlist names this host on other ports only: add the target " + strconv.Quote(target) + " if it is needed."
	case NoNetworkMode:
		return "The policy is no-network: nothing is reachable in this phase."
	case NameRule, AddressRule:
		return "The denylist names it by the target " + strconv.Quote(rule) + "."
	case Floor:
		return "Loopback, link-local, multicast and cloud metadata addresses are refused in every mode: only a target that names this very address opens it."
	case PrivateWildcard:
		return "A name under a wildcard may not have a private address: name the host itself, or put its zone into private_zones."
	case OwnAddress:
		return "This is an address of the proxy, the host or the engine, and never dialled: connect directly where the policy allows it."
	case BadName:
		return "This is not a host name that could be judged: use a name of letters, digits and hyphens, or an address."
	}
	return ""
}
