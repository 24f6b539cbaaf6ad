// Package attack is what a workload does that wants out: attempts to send something past its policy, by every kind of
// socket that a container with Docker's default capabilities can open.
//
// An attempt says nothing of whether it may succeed. Everything that it sends has its token in it, so whoever gets
// some of it can tell; package tap looks for tokens.
package attack

import "time"

// Attempt is one attempt.
type Attempt struct {
	Token string
	// Network is one of package net's ("tcp", "udp", "ip:47"), "mptcp", "packet" for whole IP packets, "frame" for whole
	// Ethernet frames, "socket" for a socket as Socket says, or "ring" for one that io_uring sends UDP by.
	Network string
	// To is an address, with a port where the network has ports. Frames have their own.
	To string
	// Send has messages, packets or frames. After each message the answer is awaited, 700 ms at most.
	Send [][]byte

	// Socket are the arguments of socket(2). An address of IPv4 is reached by AF_INET6 as an IPv4-mapped one.
	Socket [3]int
	// Options are set before anything is sent.
	Options []Option

	// Device is the interface that the socket is bound to, and that frames leave by.
	Device string
	// OwnHardware lets frames have the interface's own address as their source, instead of the one that is in Send.
	OwnHardware bool
	// From is the source address, which need not be one of the container's.
	From string
	// Mark is a firewall mark, SO_MARK.
	Mark int
	// Bypass sends frames past the interface's queue, PACKET_QDISC_BYPASS.
	Bypass bool
	// Ring sends frames from memory that is shared with the kernel, PACKET_TX_RING.
	Ring bool
	// Urgent has the last byte of each message of a "socket" be urgent data, MSG_OOB.
	Urgent bool
	// NoDefrag leaves fragments as they are, IP_NODEFRAG.
	NoDefrag bool
}

// Option is an argument of setsockopt(2).
type Option struct {
	Level, Name int
	Value       []byte
}

// Result is what came of an attempt.
type Result struct {
	Token string
	// Sent counts messages that the kernel took.
	Sent int
	// Got is what came back, of all answers together.
	Got []byte
	// Error ended the attempt. It is empty if nothing came back and nothing was wrong.
	Error string
	// TimedOut is set if the error was that nothing happened.
	TimedOut bool
}

// patience bounds each wait for an answer.
const patience = 700 * time.Millisecond
