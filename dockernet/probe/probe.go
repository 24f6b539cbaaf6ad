// Package probe sends single packets and requests from inside of a container's network namespace, as a workload could
// that has every right there, and says what became of them. What that means for a policy is the caller's business.
//
// Probes are made to be refused. Where they would go if nothing refused them, see [Nobody4], nobody is.
package probe

import (
	"net/netip"
	"time"
)

// nonce is what a probe has in it that nobody else knows: a workload that floods its rules with the same packets has
// another one, or none.
type nonce [6]byte

// Kind is what is sent.
type Kind uint8

const (
	TCP       Kind = iota // a connection, and a line of text in it
	UDP                   // a datagram
	Echo                  // an ICMP echo request
	DNS                   // a question for Name by UDP
	DNSTCP                // the same by TCP
	Connect               // a CONNECT request for Name, "host:port", to the proxy at To
	Loopback              // a connection to a listener of its own on 127.0.0.1
	RawSource             // a UDP packet from a raw socket, with a source that is not the container's
	Frame                 // such a packet in a frame of a packet socket, on every interface
	ARP                   // an ARP request in the name of somebody else, on every interface
)

// Nobody4, Nobody6 and Stranger4 belong to nobody: they are for documentation (RFC 5737, RFC 3849), and no router
// outside has a route for them.
var (
	Nobody4   = netip.MustParseAddr("192.0.2.1")
	Nobody6   = netip.MustParseAddr("2001:db8::1")
	Stranger4 = netip.MustParseAddr("198.51.100.77")
)

// Probe is what to send, and where to.
type Probe struct {
	Kind Kind
	To   netip.AddrPort // without a port where the protocol has none; ignored by Loopback and ARP
	Name string         // of DNS and Connect
	Mark uint32         // of the socket, unless 0; TCP and UDP only

	nonce nonce // of [SendWatched], in packets that are not of a connection
}

// Limit is how long an answer is waited for. What a policy refuses is refused at once.
const Limit = 2 * time.Second

// Outcome is what became of a probe.
type Outcome uint8

const (
	Failed      Outcome = iota // it could not be sent, for a reason of its own
	Unreachable                // there is no way for the family in the namespace
	Silent                     // nothing came within Limit, or nothing can come
	Refused                    // the kernel said no: a reset, an ICMP error, or the call itself failed
	Closed                     // the connection was made and then ended without a byte
	Blocked                    // a refusal in words: NXDOMAIN with the error "Blocked", a status of 403
	Answered                   // bytes came back, or the connection stays open
)

// String returns a few words for people.
func (o Outcome) String() string {
	return [...]string{"not sent", "no route", "no answer", "refused", "closed", "blocked", "answered"}[o]
}

// Answer says what became of a probe.
type Answer struct {
	Outcome Outcome
	// Decision is the id that a proxy's refusal has, if it told one.
	Decision string
	// Detail is more for people: an error, a status.
	Detail string
	// Sent is on how many interfaces a frame was sent, and Stopped on how many of them rules of the namespace have dropped
	// it at once.
	Sent, Stopped int
	// Arrived is on how many links the host has got the probe, and Passed on how many bridges it was seen behind the
	// rules there. Both are of [SendWatched].
	Arrived, Passed int
}
