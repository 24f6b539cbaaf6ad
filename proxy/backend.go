package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"sluice/control"
	"sluice/giveback"
	"sluice/matcher"
	"sluice/policy"
)

// Sessions implements [control.Backend].
func (s *Server) Sessions(context.Context) ([]control.SessionStatus, error) {
	all := []control.SessionStatus{}
	for _, session := range s.list() {
		all = append(all, session.status(false))
	}
	return all, nil
}

func (s *Server) find(id string) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if session := s.sessions[id]; session != nil {
		return session, nil
	}
	return nil, control.NotFoundError(id)
}

// Session implements [control.Backend].
func (s *Server) Session(_ context.Context, id string) (control.SessionStatus, error) {
	session, err := s.find(id)
	if err != nil {
		return control.SessionStatus{}, err
	}
	return session.status(true), nil
}

// SetSession implements [control.Backend].
func (s *Server) SetSession(ctx context.Context, id string, spec control.SessionSpec) (control.Receipt, error) {
	around, err := surroundings(&spec)
	if err != nil {
		return control.Receipt{}, control.InvalidError(err)
	}
	change := Change{Generation: spec.Generation, Around: around}
	if spec.Policies != nil {
		phases, err := policiesFrom(spec.Policies)
		if err != nil {
			return control.Receipt{}, control.InvalidError(err)
		}
		change.Policies = &phases
		giveback.Soon()
	}
	if spec.Phase != "" {
		phase, err := policy.ParsePhase(spec.Phase)
		if err != nil {
			return control.Receipt{}, control.InvalidError(err)
		}
		change.Phase = &phase
	}
	session, err := s.find(id)
	if err != nil {
		if change.Policies == nil {
			return control.Receipt{}, err
		}
		if session, err = s.Open(id); err != nil {
			return control.Receipt{}, err
		}
	}
	receipt, err := session.Apply(ctx, change)
	if err == nil && (spec.Container != "" || spec.ContainerID != "") {
		session.container.Store(&containerName{spec.Container, spec.ContainerID})
	}
	return receipt, err
}

// policiesFrom reads the policies of all phases.
func policiesFrom(raw map[string]json.RawMessage) (policy.Phases, error) {
	var phases policy.Phases
	for name := range raw {
		if _, err := policy.ParsePhase(name); err != nil {
			return phases, err
		}
	}
	for phase := range policy.Phase(policy.PhaseCount) {
		text, ok := raw[phase.String()]
		if !ok {
			return phases, fmt.Errorf("no policy for phase %s: send one for every phase", phase)
		}
		p, err := policy.ParsePolicy(text)
		if err != nil {
			return phases, fmt.Errorf("policy of phase %s: %w", phase, err)
		}
		phases[phase] = p
	}
	return phases, nil
}

func policiesJSON(all [policy.PhaseCount]staged) map[string]json.RawMessage {
	out := make(map[string]json.RawMessage, len(all))
	for phase, one := range all {
		text, err := json.Marshal(one.policy)
		if err != nil {
			continue // a policy that was parsed can be printed
		}
		out[policy.Phase(phase).String()] = text
	}
	return out
}

// DeleteSession implements [control.Backend].
func (s *Server) DeleteSession(_ context.Context, id string) (control.Receipt, error) {
	s.mu.Lock()
	session := s.sessions[id]
	delete(s.sessions, id)
	s.several.Store(len(s.sessions) > 1)
	s.mu.Unlock()
	if session == nil {
		return control.Receipt{}, control.NotFoundError(id)
	}
	giveback.Soon()
	open := int(session.flows.Load())
	session.close()
	return control.Receipt{Session: id, Generation: session.rules().generation, Phase: session.rules().phase.String(),
		FlowsCut: open}, nil
}

// Flows implements [control.Backend].
func (s *Server) Flows(ctx context.Context, id string) ([]control.Flow, error) {
	session, err := s.find(id)
	if err != nil {
		return nil, err
	}
	all := session.web.describe()
	for _, w := range s.workers {
		if err := w.Do(ctx, func() { all = append(all, w.describe(session)...) }); err != nil {
			return nil, fmt.Errorf("listing flows: %w", err)
		}
	}
	return all, nil
}

// Explain implements [control.Backend].
func (s *Server) Explain(ctx context.Context, id, target string) (control.Explanation, error) {
	session, err := s.find(id)
	if err != nil {
		return control.Explanation{}, err
	}
	e, err := parseAuthority(target)
	if err != nil {
		return control.Explanation{}, control.InvalidError(fmt.Errorf(
			"target %q is not host:port: give a port, and brackets round an IPv6 address", target))
	}
	r := session.rules()
	d := r.target(e)
	x := control.Explanation{Target: e.String(), Phase: r.phase.String()}
	if d.Verdict != matcher.Refuse && !e.addr.IsValid() {
		ctx, cancel := context.WithTimeout(ctx, s.config.DialTimeout)
		defer cancel()
		answer, err := session.resolveName(ctx, e.host)
		if err != nil {
			_, _, reason := lookupFailure(err)
			x.Verdict, x.Reason, x.Rule, x.Text = string(failed), string(reason), r.ruleText(d.Rule), texts[reason]
			return x, nil
		}
		for _, a := range answer.Addrs {
			one := r.address(d, e, answer.Chain, a)
			x.Addresses = append(x.Addresses, control.ExplainedAddress{Address: a.String(), Verdict: one.Verdict.String(),
				Reason: string(one.Reason), Rule: r.ruleText(one.Rule)})
		}
		_, d = session.reach(r, d, e, answer)
	} else if d.Verdict != matcher.Refuse && session.isOwn(e.addr, e.port) {
		d = refusedOwn
	}
	x.Verdict, x.Reason, x.Rule = d.Verdict.String(), string(d.Reason), r.ruleText(d.Rule)
	x.Text = r.explain(d, d.Reason, e)
	return x, nil
}

// Events implements [control.Backend].
func (s *Server) Events() *control.Hub { return s.events }

// Metrics implements [control.Backend].
func (s *Server) Metrics() http.Handler {
	return promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{})
}
