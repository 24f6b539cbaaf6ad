package proxy

import "golang.org/x/sys/unix"

// connectionLimit is how many clients the descriptor limit has room for: two sockets each, and as much again for
// pipes, look-ups and connects that race.
func connectionLimit() int64 {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 64
	}
	return max(64, int64(min(limit.Cur, 4<<20))/4)
}
