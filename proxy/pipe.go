package proxy

import "golang.org/x/sys/unix"

// pipeBytes is the size that a splice pipe must have: what is smaller costs more system calls than copying.
// An unprivileged user may hold fs.pipe-user-pages-soft pages (64 MiB by default) in pipes; beyond that new ones
// have two pages only (pipe(7)).
const pipeBytes = 1 << 20

// maxPipes bounds the pipes of a worker, and with them the memory that slow receivers can hold: beyond it bytes are
// copied. A pipe is taken only while bytes are under way and is given back empty, so a worker needs one, and one more
// for each direction whose receiver is slow.
const maxPipes = 16

// pipe carries bytes from socket to socket inside the kernel (splice(2)).
type pipe struct {
	r, w int
	held int // bytes in it
}

type pipes struct {
	idle []*pipe
	live int // pipes that are open, idle or not
	most int // of them
	// denied counts down the requests that are answered with none, after one could not be made at full size.
	denied int
}

// take returns an empty pipe, or nil if none can be had at full size.
func (p *pipes) take() *pipe {
	if n := len(p.idle); n > 0 {
		q := p.idle[n-1]
		p.idle = p.idle[:n-1]
		return q
	}
	if p.live == p.most {
		return nil
	}
	if p.denied > 0 {
		p.denied--
		return nil
	}
	var fds [2]int
	if unix.Pipe2(fds[:], unix.O_NONBLOCK|unix.O_CLOEXEC) != nil {
		p.denied = 1000
		return nil
	}
	q := &pipe{r: fds[0], w: fds[1]}
	if size, err := unix.FcntlInt(uintptr(q.w), unix.F_SETPIPE_SZ, pipeBytes); err != nil || size < pipeBytes {
		q.close()
		p.denied = 1000
		return nil
	}
	p.live++
	return q
}

// give takes a pipe back. One that is not empty is closed: its bytes belong to a flow that has ended.
func (p *pipes) give(q *pipe) {
	if q.held != 0 {
		q.close()
		p.live--
		return
	}
	p.idle = append(p.idle, q)
}

func (p *pipes) close() {
	for _, q := range p.idle {
		q.close()
	}
	p.live -= len(p.idle)
	p.idle = nil
}

func (q *pipe) close() {
	unix.Close(q.r)
	unix.Close(q.w)
}

// fill moves bytes from a socket into the pipe: 0 bytes without error is the end of the stream.
func (q *pipe) fill(fd int) (int, error) {
	n, err := splice(fd, q.w, pipeBytes)
	q.held += n
	return n, err
}

// drain moves bytes from the pipe into a socket.
func (q *pipe) drain(fd int) (int, error) {
	n, err := splice(q.r, fd, q.held)
	q.held -= n
	return n, err
}

// splice waits for neither side. It moves at most a pipe's content, some tenths of a millisecond, so it goes past the
// scheduler, which would take the processor away from the event loop meanwhile.
func splice(from, to, most int) (int, error) {
	for {
		n, _, errno := unix.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(most), unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		if errno == unix.EINTR {
			continue
		}
		if errno != 0 {
			return 0, errno
		}
		return int(n), nil
	}
}
