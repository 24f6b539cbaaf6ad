package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxBodyBytes bounds a request: three phases of 100,000 targets fit.
const maxBodyBytes = 32 << 20

// eventWriteTimeout is how long one line may take to reach a reader of events before the connection is closed.
const eventWriteTimeout = 10 * time.Second

// hosts are the values of the Host header that are answered: [Client]'s, and what people give to curl. Anything else
// is a page in a browser that was talked into naming this socket's proxy.
var hosts = map[string]bool{"sluice": true, "localhost": true}

// route is one line of the interface. Sorted by path, then method; a test keeps it so.
type route struct {
	path, method string
	serve        func(*server, http.ResponseWriter, *http.Request) error
}

var routes = []route{
	{"/metrics", http.MethodGet, (*server).metrics},
	{"/v1/events", http.MethodGet, (*server).events},
	{"/v1/health", http.MethodGet, (*server).health},
	{"/v1/sessions", http.MethodGet, (*server).sessions},
	{"/v1/sessions/{id}", http.MethodDelete, (*server).deleteSession},
	{"/v1/sessions/{id}", http.MethodGet, (*server).session},
	{"/v1/sessions/{id}", http.MethodPut, (*server).setSession},
	{"/v1/sessions/{id}/explain", http.MethodGet, (*server).explain},
	{"/v1/sessions/{id}/flows", http.MethodGet, (*server).flows},
}

type server struct{ Backend }

// Handler serves b. It refuses what a browser might have sent, and bodies over 32 MiB. Who may connect is the
// listener's business (see [Listen]).
func Handler(b Backend) http.Handler {
	s := &server{b}
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.method+" "+r.path, func(w http.ResponseWriter, req *http.Request) {
			var err error
			if strings.Contains(r.path, "{id}") {
				err = CheckID(req.PathValue("id"))
			}
			if err == nil {
				err = r.serve(s, w, req)
			}
			if err != nil {
				writeError(w, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { writeError(w, noRoute(mux, req)) })
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if err := browser(req); err != nil {
			writeError(w, err)
			return
		}
		req.Body = http.MaxBytesReader(w, req.Body, maxBodyBytes)
		mux.ServeHTTP(w, req)
	})
}

// noRoute tells a wrong method from a wrong path.
func noRoute(mux *http.ServeMux, req *http.Request) error {
	for _, r := range routes {
		try := req.Clone(req.Context())
		try.Method = r.method
		if _, pattern := mux.Handler(try); pattern == r.method+" "+r.path {
			return &Error{Code: CodeMethod, Message: fmt.Sprintf("%s is not for %s; %s is", req.Method, r.path, r.method)}
		}
	}
	return &Error{Code: CodeNotFound, Message: fmt.Sprintf("no path %q here", req.URL.Path)}
}

// browser refuses requests that a web page could cause.
func browser(req *http.Request) error {
	for _, h := range []string{"Origin", "Referer", "Sec-Fetch-Site"} {
		if req.Header.Get(h) != "" {
			return &Error{Code: CodeForbidden, Message: "requests with " + h + " are refused: this is not for browsers"}
		}
	}
	if !hosts[req.Host] {
		return &Error{Code: CodeForbidden, Message: fmt.Sprintf("host %q is refused: use \"localhost\"", req.Host)}
	}
	return nil
}

func (s *server) health(w http.ResponseWriter, req *http.Request) error {
	h, err := s.Backend.Health(req.Context())
	if err != nil {
		return err
	}
	status := http.StatusOK
	if !h.OK {
		status = http.StatusServiceUnavailable
	}
	return writeJSON(w, status, h)
}

func (s *server) sessions(w http.ResponseWriter, req *http.Request) error {
	all, err := s.Backend.Sessions(req.Context())
	return answer(w)(append([]SessionStatus{}, all...), err) // [], not null
}

func (s *server) session(w http.ResponseWriter, req *http.Request) error {
	return answer(w)(s.Backend.Session(req.Context(), req.PathValue("id")))
}

func (s *server) setSession(w http.ResponseWriter, req *http.Request) error {
	spec, err := readSpec(req.Body)
	if err != nil {
		return err
	}
	return answer(w)(s.Backend.SetSession(req.Context(), req.PathValue("id"), spec))
}

func (s *server) deleteSession(w http.ResponseWriter, req *http.Request) error {
	return answer(w)(s.Backend.DeleteSession(req.Context(), req.PathValue("id")))
}

func (s *server) flows(w http.ResponseWriter, req *http.Request) error {
	all, err := s.Backend.Flows(req.Context(), req.PathValue("id"))
	return answer(w)(append([]Flow{}, all...), err) // [], not null
}

func (s *server) explain(w http.ResponseWriter, req *http.Request) error {
	target := req.URL.Query().Get("target")
	if target == "" {
		return &Error{Code: CodeInvalid, Message: "target is missing: add ?target=HOST:PORT"}
	}
	return answer(w)(s.Backend.Explain(req.Context(), req.PathValue("id"), target))
}

func (s *server) metrics(w http.ResponseWriter, req *http.Request) error {
	s.Backend.Metrics().ServeHTTP(w, req)
	return nil
}

func (s *server) events(w http.ResponseWriter, req *http.Request) error {
	hub := s.Backend.Events()
	sub := hub.Subscribe()
	defer sub.Close()
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := rc.Flush(); err != nil {
		return nil // the reader is gone; there is nobody to tell
	}
	enc := json.NewEncoder(w)
	send := func(line any) error {
		// A writer without deadlines (a test's recorder) is served all the same.
		if err := rc.SetWriteDeadline(time.Now().Add(eventWriteTimeout)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		return enc.Encode(line)
	}
	for {
		select {
		case <-req.Context().Done():
			return nil
		case e, ok := <-sub.C:
			if !ok {
				// Said last, after all that was queued: a reader that catches up learns that it missed some.
				send(failure{&Error{Code: CodeInternal, Message: fmt.Sprintf(
					"reader too slow: more than %d events behind; connect again", subscriberEvents)}})
				return nil
			}
			if send(e) != nil {
				return nil
			}
			if len(sub.C) == 0 && rc.Flush() != nil {
				return nil
			}
		}
	}
}

func readSpec(r io.Reader) (SessionSpec, error) {
	var spec SessionSpec
	data, err := io.ReadAll(r)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return spec, &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the body is larger than %d bytes", maxBodyBytes)}
		}
		return spec, InvalidError(fmt.Errorf("read body: %w", err))
	}
	if err := spec.UnmarshalJSON(data); err != nil {
		return spec, InvalidError(fmt.Errorf("body: %w", err))
	}
	return spec, nil
}

// answer writes a result, or hands its error on.
func answer(w http.ResponseWriter) func(v any, err error) error {
	return func(v any, err error) error {
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, v)
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		return fmt.Errorf("encode answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	w.Write(b.Bytes())
	return nil
}

// failure is the body of every answer that is an error, and the last line of a stream that the server ended.
type failure struct {
	Error *Error `json:"error"`
}

func writeError(w http.ResponseWriter, err error) {
	if errors.Is(err, context.Canceled) {
		return // the client is gone
	}
	e := asError(err)
	if err := writeJSON(w, statuses[e.Code], failure{e}); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}
