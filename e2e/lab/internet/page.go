package internet

import (
	_ "embed"
	"net/http"
	"sync"
)

//go:embed page.html
var page []byte

// pages lets a page say when it is done: what it waits for is answered then.
type pages struct {
	mu   sync.Mutex // guards done
	done map[string]chan struct{}
}

// servePages adds /page?id=ID&other=HOST, a page for browsers which uses resources, a WebSocket and another host, and
// then has loaded.
func servePages(mux *http.ServeMux) {
	p := &pages{done: map[string]chan struct{}{}}
	mux.HandleFunc("GET /page", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Write(page)
	})
	mux.HandleFunc("GET /page/done", func(w http.ResponseWriter, r *http.Request) { p.end(r.FormValue("id")) })
	mux.HandleFunc("GET /page/wait", func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-p.of(r.FormValue("id")):
		case <-r.Context().Done():
		}
	})
}

func (p *pages) of(id string) chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.done[id] == nil {
		p.done[id] = make(chan struct{})
	}
	return p.done[id]
}

// end does nothing the second time.
func (p *pages) end(id string) {
	done := p.of(id)
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-done:
	default:
		close(done)
	}
}
