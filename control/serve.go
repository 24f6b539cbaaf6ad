package control

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Serve answers requests for b on l, as [ServeHTTP] does.
func Serve(ctx context.Context, l net.Listener, b Backend, log *slog.Logger) error {
	return ServeHTTP(ctx, l, Handler(b), log)
}

// lastLimit is how long requests may take once ctx is done: longer than a switch whose sidecar hangs, which is 3 s.
const lastLimit = 4 * time.Second

// ServeHTTP answers requests on l until ctx is done, then closes l, ends the streams of events, gives other requests
// up to 4 s to finish, and returns nil. Nothing it started outlives it.
func ServeHTTP(ctx context.Context, l net.Listener, handler http.Handler, log *slog.Logger) error {
	// Streams end by this context; requests that change something are not to be cut in the middle, so Shutdown waits
	// for them.
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	s := &http.Server{
		Handler:           handler,
		BaseContext:       func(net.Listener) context.Context { return base },
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	failed := make(chan error, 1)
	go func() { failed <- s.Serve(l) }()
	select {
	case err := <-failed:
		s.Close()
		return fmt.Errorf("serve control socket: %w", err)
	case <-ctx.Done():
	}
	end()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLimit)
	defer cancel()
	if err := s.Shutdown(last); err != nil {
		s.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve control socket: %w", err)
	}
	return nil
}
