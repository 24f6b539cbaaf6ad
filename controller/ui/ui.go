// Package ui is the controller's page for people: which containers there are, what is in force for them, how much they
// ask for and what was refused last. It can be read and changes nothing.
//
// Nobody is asked who they are, so it belongs on a loopback address, see [Loopback]; a browser on the same machine must
// not hand it to a page of somebody else's, so requests that name another host or come from another site are refused.
// All that a page shows is sent as data and put into the document as text: a name that a workload has chosen never
// becomes markup.
package ui

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"sluice/control"
	"sluice/controller/api"
)

// Source is what the page shows. Its methods are called from many goroutines at once.
type Source interface {
	List(ctx context.Context) ([]api.Status, error)
	Events() *control.Hub
	// Packets counts those of a container that went straight and those that were refused in the kernel; false if they
	// cannot be read.
	Packets(id string) (allowed, refused uint64, ok bool)
}

// Page serves the page. All methods are safe for concurrent use.
type Page struct {
	source  Source
	version string
	now     func() time.Time
	watch   *watch

	mu       sync.Mutex // guards what follows
	snapshot []api.Status
	taken    time.Time
	samples  map[string]sample // by the containers' ids
}

// New returns a page about what source has. Its rates and refusals begin with [Page.Run].
func New(source Source, version string) *Page {
	p := &Page{source: source, version: version, now: time.Now, samples: map[string]sample{}}
	p.watch = newWatch()
	return p
}

// Loopback reports with an error that addr, a host and a port, is an address which other machines reach.
func Loopback(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q: give an address and a port, as 127.0.0.1:9465: %w", addr, err)
	}
	if !loopback(host) {
		return fmt.Errorf("%q: the page asks nobody who they are, so it is served on loopback alone: "+
			"give 127.0.0.1:PORT or [::1]:PORT, and read it from elsewhere through ssh -L", addr)
	}
	return nil
}

// loopback reports whether a host, as it stands in an address or in a Host field, can only be this machine's.
func loopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	a, err := netip.ParseAddr(host)
	return err == nil && a.Zone() == "" && a.Unmap().IsLoopback()
}

// snapshotAge is how old the list of containers may be that a page is made of. However many pages are open, the
// controller is not asked more often.
const snapshotAge = time.Second

func (p *Page) containers(ctx context.Context) ([]api.Status, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := p.now(); p.snapshot == nil || now.Sub(p.taken) >= snapshotAge {
		all, err := p.source.List(ctx)
		if err != nil {
			return nil, err
		}
		p.snapshot, p.taken = append([]api.Status{}, all...), now
	}
	return p.snapshot, nil // nobody changes it
}

//go:embed page
var files embed.FS

// served are the files of the page by their paths.
var served = map[string]struct{ file, kind string }{
	"/":         {"page/index.html", "text/html; charset=utf-8"},
	"/page.css": {"page/page.css", "text/css; charset=utf-8"},
	"/page.js":  {"page/page.js", "text/javascript; charset=utf-8"},
	"/icon.svg": {"page/icon.svg", "image/svg+xml"},
}

// contentPolicy lets the page load its own files and ask for its data, and nothing else: no script in the document, no
// other site, no frame round it, and no text that is made into markup by a script.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements [http.Handler].
func (p *Page) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	header := w.Header()
	for _, h := range [][2]string{
		{"Content-Security-Policy", contentPolicy}, {"X-Content-Type-Options", "nosniff"}, {"X-Frame-Options", "DENY"},
		{"Referrer-Policy", "no-referrer"}, {"Cross-Origin-Resource-Policy", "same-origin"},
		{"Cross-Origin-Opener-Policy", "same-origin"}, {"Cache-Control", "no-store"},
	} {
		header.Set(h[0], h[1])
	}
	if refuse(w, req) {
		return
	}
	if req.URL.Path == "/data" {
		p.serveData(w, req)
		return
	}
	f, ok := served[req.URL.Path]
	if !ok {
		http.Error(w, "there is only /", http.StatusNotFound)
		return
	}
	text, err := files.ReadFile(f.file)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	header.Set("Content-Type", f.kind)
	_, _ = w.Write(text) // whoever asked may be gone
}

// Guard returns a handler for what else is served at a loopback address: it answers what a program on this machine asks,
// and nothing that a page of somebody else's made a browser ask.
func Guard(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !refuse(w, req) {
			h.ServeHTTP(w, req)
		}
	})
}

// refuse answers a request that nobody should have made, and reports whether it was one.
func refuse(w http.ResponseWriter, req *http.Request) bool {
	code, problem := refusal(req)
	if code != 0 {
		http.Error(w, problem, code)
	}
	return code != 0
}

// refusal says why a request is not answered; code is 0 if it is.
func refusal(req *http.Request) (code int, problem string) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		return http.StatusMethodNotAllowed, "here is only something to read"
	}
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	// A name of somebody else's that was made to point here (DNS rebinding) stands in Host.
	if !loopback(strings.Trim(host, "[]")) {
		return http.StatusForbidden, "this answers to localhost and loopback addresses alone"
	}
	// Following a link from elsewhere to the page itself does no harm; data are for the page alone.
	site := req.Header.Get("Sec-Fetch-Site")
	if foreign := site != "" && site != "same-origin" && site != "none"; foreign && req.URL.Path != "/" {
		return http.StatusForbidden, "a page of another site has asked for this"
	}
	return 0, ""
}

func (p *Page) serveData(w http.ResponseWriter, req *http.Request) {
	ask, err := parseAsk(req.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	all, err := p.containers(req.Context())
	if err != nil {
		http.Error(w, "the list of containers: "+err.Error(), http.StatusInternalServerError)
		return
	}
	v := p.view(all, ask)
	for i := range v.Rows {
		if rate, ok := p.direct(v.Rows[i].id); ok {
			v.Rows[i].Direct = &rate
		}
	}
	text, err := json.Marshal(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(text) // whoever asked may be gone
}
