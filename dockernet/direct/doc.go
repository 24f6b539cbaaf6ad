// Package direct says what a container may reach directly: which destinations a policy decides by their address
// alone, without the proxy.
//
// A [Spec] is what has to be known for that, and a [Plan] turns it into sets and rules of nftables. Who uses the rules
// says what it does with a packet that is let through or refused, so that all who use them let the same through.
package direct
