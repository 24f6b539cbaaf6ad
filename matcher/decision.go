package matcher

// Verdict is the answer to a question. Its zero value is [Refuse].
type Verdict uint8

const (
	Refuse Verdict = iota
	Allow
	// ByAddress: no name rule decides, but the addresses behind the name may: resolve it and ask
	// [Ruleset.Resolved] for each. Only with [Options.ResolveForAddressRules].
	ByAddress
)

// String returns the verdict as logs and metrics show it.
func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case ByAddress:
		return "by-address"
	default:
		return "refuse"
	}
}

// Reason says why a verdict is what it is. Reasons are label values of metrics: constants, never text of a user.
// The proxy adds reasons of its own for what it alone can see.
type Reason string

const (
	PublicMode      Reason = "public"           // allowed: the mode is public
	NotDenied       Reason = "not-denied"       // allowed: denylist, and no target matches
	NameRule        Reason = "name-rule"        // a name target decided, either way
	AddressRule     Reason = "address-rule"     // an address or network target decided, either way
	NoNetworkMode   Reason = "no-network"       // refused: the mode is no-network
	NotListed       Reason = "not-listed"       // refused: allowlist, and no target matches the host
	PortNotListed   Reason = "port-not-listed"  // refused: allowlist, the host is a target but on other ports
	Floor           Reason = "floor"            // refused: loopback, link-local, metadata, multicast, … (see Options.NoFloor)
	PrivateWildcard Reason = "private-wildcard" // refused: a wildcard's name has a private address (see Options.PrivateZones)
	OwnAddress      Reason = "own-address"      // refused: an address of Options.Never, and for nothing else
	BadName         Reason = "bad-name"         // refused: not a host name (or address) that could be judged
)

// RuleID names the target that decided, for [Ruleset.Target]; NoRule if none did, and so does the zero RuleID. It means
// something only to the Ruleset that it comes from.
type RuleID int64

// NoRule is the RuleID of decisions that no target made.
const NoRule RuleID = -1

// Decision is a verdict with its reason and the rule behind it. The zero Decision refuses.
type Decision struct {
	Verdict Verdict
	// privateOK: the addresses of the name may be private ones.
	privateOK bool

	Reason Reason
	Rule   RuleID
}
