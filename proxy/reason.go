package proxy

import "sluice/matcher"

// outcome is what became of a connection: the verdict of audit records and metrics.
type outcome string

const (
	allowed outcome = "allow"
	refused outcome = "refuse"
	failed  outcome = "error" // allowed, but it could not be done
	cutOff  outcome = "cut"   // was allowed, and is no more
	// observed was allowed, by a policy that would refuse it and only observes.
	observed outcome = "observed"
)

// protocol is what a client spoke, as far as it was seen.
type protocol string

const (
	protocolConnect   protocol = "connect"
	protocolTLS       protocol = "tls" // in a tunnel
	protocolTCP       protocol = "tcp" // redirected, and neither TLS nor HTTP
	protocolHTTP      protocol = "http"
	protocolWebSocket protocol = "websocket"
)

// Reasons that only the proxy can see, beside those of the matcher.
const (
	reasonMalformed     matcher.Reason = "malformed"        // the request cannot be read safely
	reasonHeaderSize    matcher.Reason = "header-too-large" //
	reasonSlowHead      matcher.Reason = "slow-header"      //
	reasonSlowHello     matcher.Reason = "slow-hello"       // a ClientHello was begun and not completed
	reasonAuth          matcher.Reason = "authentication"   // no or wrong credentials for the proxy
	reasonNoAddress     matcher.Reason = "no-address"       // the name has no address
	reasonDeniedHost    matcher.Reason = "denied-host"      // the address belongs to a denied host
	reasonNoSNI         matcher.Reason = "no-sni"           // TLS that names no server, under a name rule
	reasonOtherName     matcher.Reason = "other-name"       // the name shown inside is not allowed
	reasonOtherAddress  matcher.Reason = "other-address"    // it is allowed, but stands for another address
	reasonOpaque        matcher.Reason = "opaque"           // what is said inside cannot be judged by name
	reasonIdle          matcher.Reason = "idle"             // no byte for as long as the configuration lets a flow rest
	reasonClientGone    matcher.Reason = "client-gone"      //
	reasonCapacity      matcher.Reason = "capacity"         // no descriptors, memory or places left
	reasonNoSuchName    matcher.Reason = "no-such-name"     //
	reasonLookupFailed  matcher.Reason = "lookup-failed"    //
	reasonLookupTimeout matcher.Reason = "lookup-timeout"
	reasonDialRefused   matcher.Reason = "connection-refused"
	reasonDialTimeout   matcher.Reason = "dial-timeout"
	reasonUnreachable   matcher.Reason = "unreachable"
	reasonNoDestination matcher.Reason = "no-destination" // where a redirected connection was going is not known
	reasonNoRules       matcher.Reason = "no-rules"       // the session has no policy, or a bad one
	reasonQuarantine    matcher.Reason = "quarantine"     // a switch failed
)
