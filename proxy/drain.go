package proxy

import (
	"context"
	"fmt"
	"time"
)

// drainTurn is how often it is looked whether the last client has gone.
const drainTurn = 20 * time.Millisecond

// Drain takes no more clients and waits for those that are there: until the last of them has ended, or ctx is done. It
// returns how many are left, which [Server.Close] resets. Policies can change meanwhile and cut flows as ever.
//
// HTTP clients are told with their next answer that it is the last one, and those that have none outstanding are closed
// at once. A tunnel ends when its two ends say so: whether a quiet one is still wanted cannot be told from outside.
func (s *Server) Drain(ctx context.Context) (left int64) {
	end, _ := ctx.Deadline()
	s.draining.Store(&end)
	for _, session := range s.list() {
		session.dropListeners(func(uint64) bool { return false })
	}
	s.forward.Drain()
	for _, w := range s.workers { // clients that were accepted come to be served, and counted
		_ = w.Do(ctx, func() {})
	}
	turn := time.NewTicker(drainTurn)
	defer turn.Stop()
	for {
		if left = s.places.connections.Load(); left == 0 {
			return 0
		}
		select {
		case <-ctx.Done():
			return left
		case <-turn.C:
		}
	}
}

// drains says what health says while the server drains; "" if it does not.
func (s *Server) drains() string {
	end := s.draining.Load()
	if end == nil {
		return ""
	}
	text := "draining: no new clients are served"
	if !end.IsZero() {
		text += fmt.Sprintf(", and those that are there are reset %.1f s from now", max(0, time.Until(*end).Seconds()))
	}
	return text
}
