package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"sluice/control"
	"sluice/policy"
)

// Backend is what answers behind [Handler]. Its methods are called from many goroutines at once; a container is named
// by its name, its id or the beginning of that. Errors are as [control.Backend] has them.
type Backend interface {
	// List returns all containers that are looked after, sorted by name, without their policies.
	List(ctx context.Context) ([]Status, error)
	Attach(ctx context.Context, container string, policies policy.Phases, phase policy.Phase, o Options) (Status, error)
	Status(ctx context.Context, container string) (Status, error)
	Detach(ctx context.Context, container string) error
	Phase(ctx context.Context, container string, phase policy.Phase, generation uint64) (Receipt, error)
	Set(ctx context.Context, container string, policies policy.Phases, generation uint64) (Receipt, error)
	Explain(ctx context.Context, container, target string) (control.Explanation, error)
	Report(ctx context.Context, container string) (Report, error)
	Verify(ctx context.Context, container string, v Verify) (Verification, error)
	Flows(ctx context.Context, container string) ([]control.Flow, error)
	// Networks, CreateNetwork and RemoveNetwork are about managed networks.
	Networks(ctx context.Context) ([]Network, error)
	CreateNetwork(ctx context.Context, n NewNetwork) (Network, error)
	RemoveNetwork(ctx context.Context, name string, force bool) error
	// Events is where audit records are published.
	Events() *control.Hub
	// Metrics answers GET /metrics.
	Metrics() http.Handler
}

// route is one line of the interface.
type route struct {
	path, method string
	serve        func(Backend, http.ResponseWriter, *http.Request) error
}

// routes are sorted by path, then method; a test keeps them so.
var routes = []route{
	{"/metrics", http.MethodGet, func(b Backend, w http.ResponseWriter, req *http.Request) error {
		b.Metrics().ServeHTTP(w, req)
		return nil
	}},
	{"/v1/containers", http.MethodGet, list},
	{"/v1/containers", http.MethodPost, attach},
	{"/v1/containers/{id}", http.MethodDelete, detach},
	{"/v1/containers/{id}", http.MethodGet, status},
	{"/v1/containers/{id}/explain", http.MethodGet, explain},
	{"/v1/containers/{id}/flows", http.MethodGet, flows},
	{"/v1/containers/{id}/phase", http.MethodPut, phase},
	{"/v1/containers/{id}/policy", http.MethodPut, set},
	{"/v1/containers/{id}/report", http.MethodGet, report},
	{"/v1/containers/{id}/verify", http.MethodPost, verify},
	{"/v1/events", http.MethodGet, func(b Backend, w http.ResponseWriter, req *http.Request) error {
		b.Events().Stream(w, req)
		return nil
	}},
	{"/v1/networks", http.MethodGet, networks},
	{"/v1/networks", http.MethodPost, createNetwork},
	{"/v1/networks/{id}", http.MethodDelete, removeNetwork},
}

// Handler serves b by [control.Routes].
func Handler(b Backend) http.Handler {
	var all []control.Route
	for _, r := range routes {
		all = append(all, control.Route{Path: r.path, Method: r.method, Serve: func(w http.ResponseWriter, req *http.Request) error {
			return r.serve(b, w, req)
		}})
	}
	return control.Routes(all)
}

func list(b Backend, w http.ResponseWriter, req *http.Request) error {
	all, err := b.List(req.Context())
	return control.Answer(w)(append([]Status{}, all...), err) // [], not null
}

func attach(b Backend, w http.ResponseWriter, req *http.Request) error {
	var body Attach
	if err := control.ReadBody(req, &body); err != nil {
		return err
	}
	if body.Container == "" {
		return control.InvalidError(errors.New(`"container" is missing: give a name or an id`))
	}
	policies, err := readPolicies(body.Policy)
	if err != nil {
		return err
	}
	phase := policy.Baseline
	if body.Phase != "" {
		if phase, err = policy.ParsePhase(body.Phase); err != nil {
			return control.InvalidError(err)
		}
	}
	s, err := b.Attach(req.Context(), body.Container, policies, phase, body.Options)
	if err == nil && body.Verify {
		err = attachVerified(req.Context(), b, &s)
	}
	return control.Answer(w)(s, err)
}

func status(b Backend, w http.ResponseWriter, req *http.Request) error {
	return control.Answer(w)(b.Status(req.Context(), req.PathValue("id")))
}

func detach(b Backend, w http.ResponseWriter, req *http.Request) error {
	return control.Answer(w)(struct{}{}, b.Detach(req.Context(), req.PathValue("id")))
}

func phase(b Backend, w http.ResponseWriter, req *http.Request) error {
	var body Phase
	if err := control.ReadBody(req, &body); err != nil {
		return err
	}
	phase, err := policy.ParsePhase(body.Phase)
	if err != nil {
		return control.InvalidError(err)
	}
	return control.Answer(w)(b.Phase(req.Context(), req.PathValue("id"), phase, body.Generation))
}

func set(b Backend, w http.ResponseWriter, req *http.Request) error {
	var body Policy
	if err := control.ReadBody(req, &body); err != nil {
		return err
	}
	policies, err := readPolicies(body.Policy)
	if err != nil {
		return err
	}
	return control.Answer(w)(b.Set(req.Context(), req.PathValue("id"), policies, body.Generation))
}

func explain(b Backend, w http.ResponseWriter, req *http.Request) error {
	target, err := control.Target(req)
	if err != nil {
		return err
	}
	return control.Answer(w)(b.Explain(req.Context(), req.PathValue("id"), target))
}

func report(b Backend, w http.ResponseWriter, req *http.Request) error {
	return control.Answer(w)(b.Report(req.Context(), req.PathValue("id")))
}

func flows(b Backend, w http.ResponseWriter, req *http.Request) error {
	all, err := b.Flows(req.Context(), req.PathValue("id"))
	return control.Answer(w)(append([]control.Flow{}, all...), err) // [], not null
}

func networks(b Backend, w http.ResponseWriter, req *http.Request) error {
	all, err := b.Networks(req.Context())
	return control.Answer(w)(append([]Network{}, all...), err) // [], not null
}

func createNetwork(b Backend, w http.ResponseWriter, req *http.Request) error {
	var body NewNetwork
	if err := control.ReadBody(req, &body); err != nil {
		return err
	}
	if body.Name == "" {
		return control.InvalidError(errors.New(`"name" is missing: give the network one`))
	}
	if body.Policy != nil {
		policies, err := readPolicies(body.Policy)
		if err != nil {
			return err
		}
		if body.Policy, err = policies.MarshalJSON(); err != nil {
			return err
		}
	}
	return control.Answer(w)(b.CreateNetwork(req.Context(), body))
}

func removeNetwork(b Backend, w http.ResponseWriter, req *http.Request) error {
	return control.Answer(w)(struct{}{}, b.RemoveNetwork(req.Context(), req.PathValue("id"), req.URL.Query().Has("force")))
}

// readPolicies reads a policy document; a single policy is in force in every phase.
func readPolicies(text json.RawMessage) (policy.Phases, error) {
	if text == nil {
		return policy.Phases{}, control.InvalidError(errors.New(`"policy" is missing: give a policy, or the policies of phases`))
	}
	document, err := policy.Parse(text)
	if err != nil {
		return policy.Phases{}, control.InvalidError(fmt.Errorf("policy: %w", err))
	}
	return document.All(), nil
}
