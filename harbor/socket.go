package harbor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// maxQuestion is more than the kernel takes as arguments of a program.
	maxQuestion = 8 << 20
	// askingTime is how long a question may take to be sent, and an answer to be read.
	askingTime = 10 * time.Second
	// answerTime is how long an answer may take, switches that wait for others included.
	answerTime = 60 * time.Second
	// again is how long to wait where descriptors are scarce.
	again = 50 * time.Millisecond
)

// listenAt binds the socket that network-policy asks at. It is a file, which only the sidecar's container has: names in
// the network namespace would be the workload's too.
func listenAt(path string) (net.Listener, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// serve answers on l until ctx is done. Questions that have come are answered.
func serve(ctx context.Context, l net.Listener, do func(ctx context.Context, args []string) Answer) error {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var answering sync.WaitGroup
	defer answering.Wait()
	for {
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			return nil
		}
		if scarce(err) { // what a workload does can make it so; who asks waits in the queue
			select {
			case <-time.After(again):
			case <-ctx.Done():
			}
			continue
		}
		if err != nil {
			return fmt.Errorf("accept at %v: %w", l.Addr(), err)
		}
		answering.Go(func() {
			defer c.Close()
			answer(ctx, c, do)
		})
	}
}

// scarce reports whether there are too few descriptors, or is too little memory, for the moment.
func scarce(err error) bool {
	for _, want := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM, syscall.ECONNABORTED} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

func answer(ctx context.Context, c net.Conn, do func(context.Context, []string) Answer) {
	var args []string
	_ = c.SetDeadline(time.Now().Add(askingTime))
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) }) // nobody waits for a question any more
	defer stop()
	if err := json.NewDecoder(io.LimitReader(c, maxQuestion)).Decode(&args); err != nil {
		return // nobody who could be told has asked
	}
	a := do(ctx, args)
	_ = c.SetDeadline(time.Now().Add(askingTime))
	_ = json.NewEncoder(c).Encode(a)
}

// Ask has the sidecar at a socket do a command of network-policy.
func Ask(ctx context.Context, path string, args []string) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return a, fmt.Errorf("no sidecar answers, so nothing has changed: %w", err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if err := json.NewEncoder(c).Encode(args); err != nil {
		return a, fmt.Errorf("the sidecar does not listen: %w", err)
	}
	if err := json.NewDecoder(c).Decode(&a); err != nil {
		return a, fmt.Errorf("no answer, so what is in force is not known: %w: look into the sidecar's log", err)
	}
	return a, nil
}
