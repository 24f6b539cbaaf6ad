package proxy

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/matcher"
	"sluice/policy"
)

// Health implements [control.Backend]: it opens a tunnel through the proxy's own accept path, dial and relay to an
// echo on loopback, and sends random bytes to and fro. The session for it has no listener, so no client reaches it,
// and neither metrics nor audit.
func (s *Server) Health(ctx context.Context) (control.Health, error) {
	h := control.Health{Version: s.config.Version}
	for _, session := range s.list() {
		h.Sessions++
		if status := session.status(false); status.State != control.Serving {
			h.Problems = append(h.Problems, fmt.Sprintf("session %s is %s", session.label(), status.State))
		}
	}
	if text := s.drains(); text != "" {
		h.Problems = append(h.Problems, text)
		return h, nil
	}
	began := time.Now()
	if err := s.roundTrip(ctx); err != nil {
		h.Problems = append(h.Problems, "forwarding does not work: "+err.Error())
		return h, nil
	}
	h.Milliseconds = float64(time.Since(began)) / float64(time.Millisecond)
	h.OK = true
	return h, nil
}

// recentTime is how long clients are told what a round trip has shown, so that they cannot keep the proxy busy with them.
const recentTime = time.Second

// recent is what the last round trip that a client asked for has shown.
type recent struct {
	trip sync.Mutex // one round trip at a time, for all that wait; guards what follows
	at   time.Time
	err  error
}

// Works reports, as an error, that nothing is forwarded. It is for anybody who can reach the proxy: it does what
// [Server.Health] does once a second at most, and tells nothing of sessions.
func (s *Server) Works(context.Context) error {
	r := &s.recent
	r.trip.Lock()
	defer r.trip.Unlock()
	if r.at.IsZero() || time.Since(r.at) > recentTime {
		r.err = s.roundTrip(s.context)
		r.at = time.Now()
	}
	if text := s.drains(); text != "" {
		return errors.New(text)
	}
	if r.err != nil {
		return fmt.Errorf("forwarding does not work: %w", r.err)
	}
	return nil
}

// roundTripTimeout is plenty for bytes that stay inside the machine.
const roundTripTimeout = 5 * time.Second

func (s *Server) roundTrip(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, roundTripTimeout)
	defer cancel()
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("opening an echo: %w", err)
	}
	defer echo.Close()
	s.running.Go(func() {
		c, err := echo.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(roundTripTimeout))
		_, _ = io.Copy(c, c)
	})
	session, err := s.newSession("health")
	if err != nil {
		return err
	}
	session.hidden = true
	defer session.close()
	to := echo.Addr().(*net.TCPAddr).AddrPort()
	only := policy.Policy{Mode: policy.Allowlist, Targets: []policy.Target{{Host: to.Addr().String(), Port: to.Port(),
		Kind: policy.IPv4Address, Prefix: netip.PrefixFrom(to.Addr(), to.Addr().BitLen())}}}
	set, err := matcher.Compile(only, matcher.Options{})
	if err != nil {
		return err
	}
	session.current.Store(session.makeRules(staged{policy: only, set: set}, policy.Baseline, 1, ""))

	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("making a socket pair: %w", err)
	}
	file := os.NewFile(uintptr(pair[0]), "health")
	client, err := net.FileConn(file)
	file.Close()
	if err != nil {
		unix.Close(pair[1])
		return err
	}
	defer client.Close()
	w := s.workers[s.nextWorker()]
	if !w.Post(func() { w.serve(pair[1], session, nil) }) {
		unix.Close(pair[1])
		return errClosing
	}
	stop := context.AfterFunc(ctx, func() { _ = client.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	sent := rand.Text() + "\n" // neither TLS nor HTTP, which the end of the line shows
	if _, err := fmt.Fprintf(client, "CONNECT %s HTTP/1.1\r\n\r\n%s", to, sent); err != nil {
		return fmt.Errorf("asking for a tunnel: %w", err)
	}
	head := make([]byte, len(established))
	if _, err := io.ReadFull(client, head); err != nil || !bytes.Equal(head, established) {
		return fmt.Errorf("the tunnel was not opened: %q, %v", head, err)
	}
	got := make([]byte, len(sent))
	if _, err := io.ReadFull(client, got); err != nil || string(got) != sent {
		return fmt.Errorf("the bytes did not come back: %v", err)
	}
	return nil
}
