// Package xdp keeps the queues of a container's interfaces, so that the workload cannot open sockets of AF_XDP on them.
//
// Frames of such sockets pass no hook of the container's namespace, and since Linux 6.8 they can ask for checksums that
// are written where they leave the host, behind all rules: see package guard. Docker's seccomp profile lets the sockets
// through, and CAP_NET_RAW opens them. But a queue has one at most, so one that does nothing keeps others out.
package xdp

import "errors"

// ErrTaken is in the error for a queue on which somebody else has a socket.
var ErrTaken = errors.New("a program has a socket of AF_XDP on it, whose frames pass no rule inside: end that program, or create the container with --cap-drop NET_RAW")
