package proxy

import "golang.org/x/sys/unix"

// What clients are counted with, so that those of one container cannot make the proxy die for want of memory.
const (
	// connectionBytes is for a client that does its least: its state here, and what the kernel keeps of its sockets.
	connectionBytes = 32 << 10
	// requestBytes is for a client of the HTTP engine with the largest head that is allowed.
	requestBytes = 512 << 10
	// streamsBytes is for the state of an HTTP/2 client. Its largest has a table of maxTableBytes.
	streamsBytes = 16 << 10
	// bufferShare is the part of the memory, as a divisor, that what waits for a socket may take; pipes may as much.
	bufferShare = 8
)

// descriptorLimit is how many descriptors the process may have. A client takes two sockets, and as much again is for
// pipes, look-ups and connects that race.
func descriptorLimit() int64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return int64(min(limit.Cur, 4<<20))
}
