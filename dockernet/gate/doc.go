// Package gate keeps the nftables rules inside a container's network namespace: they decide by address what goes
// straight to its destination, what goes to the session's listeners, and what goes nowhere.
//
// All but a few rules for frames is in one table. [Spec] says what the rules shall mean, [Listing] shows those of the
// table, and a [Gate] puts them into a namespace. The rules of every phase are there from the start; which of them are
// in force is said in a few chains, and a switch changes only those, in one transaction.
//
// # How a packet goes
//
// A new connection passes "steer" first, where it is redirected to a listener or left as it is. Every packet then
// passes "output", from where IPv6 goes to a chain of its own. These have
//
//   - what does not depend on a phase: the container's own loopback, redirected connections, odd headers
//   - a jump for each phase in force, to a chain that refuses a packet or returns
//   - accept
//
// So two phases in force at once let through what both allow, and a chain that comes to its end has refused. Packets
// of open connections are judged like all others: nothing is accepted for being established. What a phase lets go
// straight is said by package direct.
//
// What answers a connection into the container is let through, if the phase lets such connections in. Such are only those
// whose beginning conntrack has seen come in by a link, or that package cut has told it of, see [JoinedMark].
//
// Frames that the workload makes itself, past all of this, do not leave, but for those of IPv4 if all phases are public:
// see package guard about checksums. Raw IP sockets are the kernel's, and go the same way as others.
//
// Where the sidecar lives in the namespace itself, its own connections go by "steer" and "output" too, before everything
// else: see [Shared].
package gate
