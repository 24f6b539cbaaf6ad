package main

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"

	"sluice/control"
	"sluice/controller"
)

// olderSidecar gets on with proxies that have one set of name servers, hosts and refused networks for all sessions.
type olderSidecar struct {
	controller.Sidecar
	log  *slog.Logger
	once sync.Once
}

// Apply implements [controller.Sidecar].
func (s *olderSidecar) Apply(ctx context.Context, session string, spec control.SessionSpec) (control.Receipt, error) {
	r, err := s.Sidecar.Apply(ctx, session, spec)
	if !errors.Is(err, control.ErrInvalid) || !strings.Contains(err.Error(), "one set for all") {
		return r, err
	}
	s.once.Do(func() {
		s.log.Warn("the proxy has one set of name servers, hosts and refused networks for all containers: names of siblings are not answered")
	})
	spec.Upstreams, spec.Hosts, spec.Never = nil, nil, nil
	return s.Sidecar.Apply(ctx, session, spec)
}
