package forward

import (
	"io"
	"sync"
	"sync/atomic"
)

// upload is the body of a request on its way to the upstream. net/http may still read it when the upstream has
// answered; [upload.stop] ends that.
type upload struct {
	body io.Reader
	done atomic.Bool // read to its end

	mu      sync.Mutex // held while body is read; guards what follows
	stopped bool
	err     error // what reading ended with, other than io.EOF
}

// Read implements [io.Reader].
func (u *upload) Read(p []byte) (int, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.stopped {
		return 0, errGivenUp
	}
	n, err := u.body.Read(p)
	if err == io.EOF {
		u.done.Store(true)
	} else if err != nil {
		u.err = err
	}
	return n, err
}

// Close implements [io.Closer]. The body belongs to the server.
func (u *upload) Close() error { return nil }

// stop returns when the body is not read any more, and what reading it ended with, other than its end. interrupt must
// make a Read that waits for the client return.
func (u *upload) stop(interrupt func()) error {
	if u.done.Load() {
		u.mu.Lock()
	} else if !u.mu.TryLock() {
		interrupt()
		u.mu.Lock()
	}
	defer u.mu.Unlock()
	u.stopped = true
	return u.err
}
