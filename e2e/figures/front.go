package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"sync"
)

// front stands before the engine's socket and hands on everything but questions about simulated containers, which it
// answers itself.
type front struct {
	path   string
	server *http.Server

	mu        sync.Mutex // guards what follows
	simulated map[string][]byte
	streams   map[*http.Request]context.CancelFunc // of events
	deaf      bool                                 // there are no events
}

var inspect = regexp.MustCompile(`^/v[0-9.]+/containers/([^/]+)/json$`)

func openFront(path, engine string) (*front, error) {
	f := &front{path: path, simulated: map[string][]byte{}, streams: map[*http.Request]context.CancelFunc{}}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	behind := strings.TrimPrefix(engine, "unix://")
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "engine"})
	proxy.FlushInterval = -1 // events come when they happen
	proxy.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", behind)
	}}
	f.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked := inspect.FindStringSubmatch(r.URL.Path); asked != nil && r.Method == http.MethodGet {
			if answer := f.answer(asked[1]); answer != nil {
				w.Header().Set("Content-Type", "application/json")
				w.Write(answer)
				return
			}
		}
		if strings.HasSuffix(r.URL.Path, "/events") {
			stream, end := f.stream(r)
			if stream == nil {
				http.Error(w, "the engine's events are cut", http.StatusServiceUnavailable)
				return
			}
			defer end()
			r = stream
		}
		proxy.ServeHTTP(w, r)
	})}
	go f.server.Serve(listener)
	return f, nil
}

// Close implements io.Closer.
func (f *front) Close() error { return f.server.Close() }

// stream takes note of a request for events, or returns nil if there are none.
func (f *front) stream(r *http.Request) (noted *http.Request, end func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.deaf {
		return nil, nil
	}
	ctx, cancel := context.WithCancel(r.Context())
	noted = r.WithContext(ctx)
	f.streams[noted] = cancel
	return noted, func() {
		cancel()
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.streams, noted)
	}
}

// cutEvents ends all streams of events and allows no others, or allows them again.
func (f *front) cutEvents(cut bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.deaf = cut
	if cut {
		for _, end := range f.streams {
			end()
		}
	}
}

func (f *front) answer(id string) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.simulated[id]
}

// add makes a simulated container known: like another one of which the engine has said what it is, but for its
// identity and its place on the network.
func (f *front) add(like []byte, s *simulated) error {
	var c map[string]any
	decoder := json.NewDecoder(bytes.NewReader(like))
	decoder.UseNumber()
	if err := decoder.Decode(&c); err != nil {
		return fmt.Errorf("read what the engine says of a container: %w", err)
	}
	settings, ok := c["NetworkSettings"].(map[string]any)
	if !ok {
		return fmt.Errorf("the engine's answer has no NetworkSettings: %s", like)
	}
	networks, ok := settings["Networks"].(map[string]any)
	if !ok || len(networks) != 1 {
		return fmt.Errorf("the engine's answer has not one network: %s", like)
	}
	c["Id"], c["Name"] = s.id, "/"+s.name
	settings["SandboxID"], settings["SandboxKey"] = s.id, s.sandbox
	for name, value := range networks {
		endpoint, ok := value.(map[string]any)
		if !ok {
			return fmt.Errorf("network %s in the engine's answer is no object", name)
		}
		endpoint["EndpointID"], endpoint["IPAddress"], endpoint["MacAddress"] = s.id, s.address.Addr().String(), s.mac
		endpoint["DNSNames"], endpoint["Aliases"] = nil, nil
	}
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.simulated[s.id] = text
	return nil
}
