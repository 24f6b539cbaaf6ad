// Package cut ends the connections that a change of rules takes away: it destroys their sockets inside a container's
// network namespace and deletes their conntrack entries there and on the host.
//
// The rules alone stop every packet of such a connection. What they cannot do is tell an idle application that its
// connection is over, or close the host's address translation to what the far end still sends.
//
// Only the direct plane is touched: connections that leave the namespace. What is delivered inside of it, which the
// gate's redirected connections are too, stays, because the proxy has judged it.
package cut
