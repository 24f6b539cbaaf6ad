package control

import (
	"context"
	"net/http"
)

// Backend is what answers behind [Handler]. Its methods are called from many goroutines at once.
//
// Errors that are the caller's to repair are *[Error] values, or wrap one; every other error is answered as internal.
type Backend interface {
	// Health makes a round trip through the data plane. A proxy that does not work is a Health with OK false, not
	// an error.
	Health(ctx context.Context) (Health, error)
	// Sessions returns all sessions, sorted by id, without their policies.
	Sessions(ctx context.Context) ([]SessionStatus, error)
	Session(ctx context.Context, id string) (SessionStatus, error)
	// SetSession makes or changes a session, whole or not at all, and returns when the new rule set is in force
	// and every flow that it refuses is cut.
	SetSession(ctx context.Context, id string, spec SessionSpec) (Receipt, error)
	// DeleteSession cuts the session's flows, closes its listeners and forgets it.
	DeleteSession(ctx context.Context, id string) (Receipt, error)
	// DropListeners ends the service of a session's listeners but those of the set keep. Connections that were accepted,
	// and queries that were received, are served to their end.
	DropListeners(ctx context.Context, id string, keep uint64) error
	Flows(ctx context.Context, id string) ([]Flow, error)
	// Explain says what would happen to target, "host:port". It may look names up, but dials nothing and
	// leaves no audit record.
	Explain(ctx context.Context, id, target string) (Explanation, error)
	// Events is where the backend publishes its audit records.
	Events() *Hub
	// Metrics answers GET /metrics.
	Metrics() http.Handler
}
