package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxBodyBytes bounds a request: three phases of 100,000 targets fit.
const maxBodyBytes = 32 << 20

// eventWriteTimeout is how long one line may take to reach a reader of events before the connection is closed.
const eventWriteTimeout = 10 * time.Second

// hosts are the values of the Host header that are answered: the clients', and what people give to curl. Anything else
// is a page in a browser that was talked into naming this socket's proxy.
var hosts = map[string]bool{"sluice": true, "localhost": true}

// Route is one line of an interface: what answers a method of a path, in the syntax of [http.ServeMux]. An error that
// Serve returns is answered as an [*Error], unless something was written already.
type Route struct {
	Path, Method string
	Serve        func(http.ResponseWriter, *http.Request) error
}

// Routes serves an interface. It refuses what a browser might have sent, and bodies over 32 MiB. Who may connect is
// the listener's business (see [Listen]).
func Routes(routes []Route) http.Handler {
	mux := http.NewServeMux()
	for _, r := range routes {
		mux.HandleFunc(r.Method+" "+r.Path, func(w http.ResponseWriter, req *http.Request) {
			if err := r.Serve(w, req); err != nil {
				writeError(w, err)
			}
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, req *http.Request) { writeError(w, noRoute(mux, routes, req)) })
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
func noRoute(mux *http.ServeMux, routes []Route, req *http.Request) error {
	for _, r := range routes {
		try := req.Clone(req.Context())
		try.Method = r.Method
		if _, pattern := mux.Handler(try); pattern == r.Method+" "+r.Path {
			return &Error{Code: CodeMethod, Message: fmt.Sprintf("%s is not for %s; %s is", req.Method, r.Path, r.Method)}
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

// ReadBody reads a request's body for v to decode, whose UnmarshalJSON is strict (see [Members]). Its errors are the
// caller's to repair.
func ReadBody(req *http.Request, v json.Unmarshaler) error {
	data, err := io.ReadAll(req.Body)
	if err != nil {
		if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
			return &Error{Code: CodeTooLarge, Message: fmt.Sprintf("the body is larger than %d bytes", maxBodyBytes)}
		}
		return InvalidError(fmt.Errorf("read body: %w", err))
	}
	if err := v.UnmarshalJSON(data); err != nil {
		return InvalidError(fmt.Errorf("body: %w", err))
	}
	return nil
}

// Answer returns what writes a result as JSON, or hands its error on.
func Answer(w http.ResponseWriter) func(v any, err error) error {
	return func(v any, err error) error {
		if err != nil {
			return err
		}
		return writeJSON(w, http.StatusOK, v)
	}
}

// Stream writes events as they are published, a line of JSON each, until the request's context is done or its sender
// falls too far behind, which the last line then says.
func (h *Hub) Stream(w http.ResponseWriter, req *http.Request) {
	sub := h.Subscribe()
	defer sub.Close()
	rc := http.NewResponseController(w)
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.WriteHeader(http.StatusOK)
	if err := rc.Flush(); err != nil {
		return // the reader is gone; there is nobody to tell
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
			return
		case e, ok := <-sub.C:
			if !ok {
				// Said last, after all that was queued: a reader that catches up learns that it missed some.
				send(failure{&Error{Code: CodeInternal, Message: fmt.Sprintf(
					"reader too slow: more than %d events behind; connect again", subscriberEvents)}})
				return
			}
			if send(e) != nil {
				return
			}
			if len(sub.C) == 0 && rc.Flush() != nil {
				return
			}
		}
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
