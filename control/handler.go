package control

import (
	"net/http"
	"strconv"
	"strings"
)

// route is one line of the proxy's interface.
type route struct {
	path, method string
	serve        func(Backend, http.ResponseWriter, *http.Request) error
}

// routes are sorted by path, then method; a test keeps them so.
var routes = []route{
	{"/metrics", http.MethodGet, metrics},
	{"/v1/events", http.MethodGet, events},
	{"/v1/health", http.MethodGet, health},
	{"/v1/sessions", http.MethodGet, sessions},
	{"/v1/sessions/{id}", http.MethodDelete, deleteSession},
	{"/v1/sessions/{id}", http.MethodGet, session},
	{"/v1/sessions/{id}", http.MethodPut, setSession},
	{"/v1/sessions/{id}/explain", http.MethodGet, explain},
	{"/v1/sessions/{id}/flows", http.MethodGet, flows},
	{"/v1/sessions/{id}/listeners", http.MethodDelete, dropListeners},
}

// Handler serves b by [Routes].
func Handler(b Backend) http.Handler {
	var all []Route
	for _, r := range routes {
		all = append(all, Route{r.path, r.method, func(w http.ResponseWriter, req *http.Request) error {
			if strings.Contains(r.path, "{id}") {
				if err := CheckID(req.PathValue("id")); err != nil {
					return err
				}
			}
			return r.serve(b, w, req)
		}})
	}
	return Routes(all)
}

func health(b Backend, w http.ResponseWriter, req *http.Request) error {
	h, err := b.Health(req.Context())
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !h.OK {
		status = http.StatusServiceUnavailable
	}
	return writeJSON(w, status, h)
}

func sessions(b Backend, w http.ResponseWriter, req *http.Request) error {
	all, err := b.Sessions(req.Context())
	return Answer(w)(append([]SessionStatus{}, all...), err) // [], not null
}

func session(b Backend, w http.ResponseWriter, req *http.Request) error {
	return Answer(w)(b.Session(req.Context(), req.PathValue("id")))
}

func setSession(b Backend, w http.ResponseWriter, req *http.Request) error {
	var spec SessionSpec
	if err := ReadBody(req, &spec); err != nil {
		return err
	}
	return Answer(w)(b.SetSession(req.Context(), req.PathValue("id"), spec))
}

func deleteSession(b Backend, w http.ResponseWriter, req *http.Request) error {
	return Answer(w)(b.DeleteSession(req.Context(), req.PathValue("id")))
}

func dropListeners(b Backend, w http.ResponseWriter, req *http.Request) error {
	keep, err := strconv.ParseUint(req.URL.Query().Get("keep"), 10, 64)
	if err != nil {
		return &Error{Code: CodeInvalid, Message: "keep is missing or no number: add ?keep=SET, 0 to keep none"}
	}
	return Answer(w)(struct{}{}, b.DropListeners(req.Context(), req.PathValue("id"), keep))
}

func flows(b Backend, w http.ResponseWriter, req *http.Request) error {
	all, err := b.Flows(req.Context(), req.PathValue("id"))
	return Answer(w)(append([]Flow{}, all...), err) // [], not null
}

func explain(b Backend, w http.ResponseWriter, req *http.Request) error {
	target, err := Target(req)
	if err != nil {
		return err
	}
	return Answer(w)(b.Explain(req.Context(), req.PathValue("id"), target))
}

// Target returns what a request to explain asks for.
func Target(req *http.Request) (string, error) {
	target := req.URL.Query().Get("target")
	if target == "" {
		return "", &Error{Code: CodeInvalid, Message: "target is missing: add ?target=HOST:PORT"}
	}
	return target, nil
}

func metrics(b Backend, w http.ResponseWriter, req *http.Request) error {
	b.Metrics().ServeHTTP(w, req)
	return nil
}

func events(b Backend, w http.ResponseWriter, req *http.Request) error {
	b.Events().Stream(w, req)
	return nil
}
