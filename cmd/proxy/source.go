package main

import (
	"context"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"sluice/control"
	"sluice/policy"
	"sluice/proxy"
	"sluice/proxy/policyfile"
)

// loaded is what a policy file says.
type loaded struct {
	phases   policy.Phases
	rejected []string // entries that match nothing, or something else, and why
}

// source keeps a session to a policy file. It is the session's [proxy.Source].
type source struct {
	file *policyfile.File[loaded]
	path string
	log  *slog.Logger

	session *proxy.Session // set by attach, before the file is followed
}

var _ proxy.Source = (*source)(nil)

func openSource(ctx context.Context, log *slog.Logger, path string, decode func([]byte) (loaded, error)) (*source, error) {
	s := &source{path: path, log: log}
	var err error
	s.file, err = policyfile.New(ctx, policyfile.Options[loaded]{Path: path, Decode: decode, OnChange: s.change, MaxBytes: policy.MaxDocumentBytes, Logger: log})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// attach puts the file's first content in force and lets the session follow the file from then on.
func (s *source) attach(ctx context.Context, session *proxy.Session, phase policy.Phase) error {
	s.session = session
	if err := s.apply(ctx, s.file.State().Value, &phase); err != nil {
		return err
	}
	session.Follow(s)
	return nil
}

// apply puts policies in force; a nil phase keeps the one that is.
func (s *source) apply(ctx context.Context, l loaded, phase *policy.Phase) error {
	receipt, err := s.session.Apply(ctx, proxy.Change{Policies: &l.phases, Phase: phase})
	if err != nil {
		return err
	}
	for _, r := range l.rejected {
		s.log.Warn("an entry of the policy file is rejected", "entry", r)
	}
	inForce, err := policy.ParsePhase(receipt.Phase)
	if err != nil {
		return err
	}
	p := l.phases[inForce]
	s.log.Info("policy is in force", "phase", receipt.Phase, "mode", p.Mode, "targets", len(p.Targets), "rejected", len(l.rejected),
		"generation", receipt.Generation, "digest", receipt.Digest, "cut", receipt.FlowsCut, "kept", receipt.FlowsKept, "ms", receipt.Milliseconds)
	return nil
}

// change is called for every change of the file, and returns when it is in force.
func (s *source) change(state policyfile.State[loaded]) {
	if state.Status != policyfile.Current {
		s.session.Block(state.Err.Error())
		return
	}
	// Not the context of whoever looked at the file first: a change must not end half-way because he went away.
	if err := s.apply(context.Background(), state.Value, nil); err != nil {
		s.log.Error("policy file cannot be put in force: everything is refused", "path", s.path, "error", err)
		s.session.Block(err.Error())
	}
}

// Unchanged implements [proxy.Source].
func (s *source) Unchanged() bool { return s.file.Unchanged() }

// Fresh implements [proxy.Source].
func (s *source) Fresh() { s.file.Fresh(context.Background()) }

// Status implements [proxy.Source].
func (s *source) Status() control.Source {
	state := s.file.State()
	status := control.Source{Path: s.path, State: state.Status.String(), Since: state.Since, Rejected: state.Value.rejected}
	if state.Err != nil {
		status.Error = state.Err.Error()
	}
	return status
}

func (s *source) metrics() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_policy_rejected_entries",
		Help: "Entries of the policy file in force that are no targets."}, func() float64 { return float64(len(s.file.State().Value.rejected)) })
}
