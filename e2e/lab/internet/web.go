package internet

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"golang.org/x/net/websocket"
)

// maxBody bounds what one request may ask for or send, in bytes.
const maxBody = 1 << 30

// webHandler serves every host of the internet alike; what differs by host is only the certificate.
//
//	/             who answered: "web.test at 203.0.113.10 by https"
//	/headers      the request as the origin saw it, in JSON
//	/bytes?n=N    N bytes
//	/upload       the count and SHA-256 of what was sent
//	/status?code=N
//	/redirect?to=URL
//	/events?n=N   N server-sent events, one every 400 ms
//	/ticks?id=ID  a line "ID number" every 20 ms, until somebody ends it
//	/ws           WebSocket: sends back what it gets
//	/ws/ticks?id=ID
//	/smart/lab.git, /dumb/lab.git   a repository over either of git's HTTP protocols
//	/smart/index.git                the index of a registry for cargo
//	/simple/      a Python package index with one package, "labpkg"
//	/lab.Echo/Stream   a gRPC call that sends back what it gets
//	and what serveMirrors and servePages say
func (n *Internet) webHandler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s at %s by %s\n", r.Host, localHost(r), scheme(r))
	})
	mux.HandleFunc("/headers", func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]any{
			"method": r.Method, "url": r.RequestURI, "host": r.Host, "protocol": r.Proto, "headers": r.Header,
		})
	})
	mux.HandleFunc("/bytes", serveBytes)
	mux.HandleFunc("/upload", func(w http.ResponseWriter, r *http.Request) {
		hash := sha256.New()
		size, err := io.Copy(hash, http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%d %x\n", size, hash.Sum(nil))
	})
	mux.HandleFunc("/status", func(w http.ResponseWriter, r *http.Request) {
		code, err := strconv.Atoi(r.FormValue("code"))
		if err != nil || code < 200 || code > 599 {
			code = http.StatusBadRequest
		}
		w.WriteHeader(code)
	})
	mux.HandleFunc("/redirect", func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.FormValue("to"), http.StatusFound)
	})
	mux.HandleFunc("/events", serveEvents)
	mux.HandleFunc("/ticks", func(w http.ResponseWriter, r *http.Request) {
		n.ticks(r.Context(), r.FormValue("id"), func(line []byte) error {
			if _, err := w.Write(line); err != nil {
				return err
			}
			return http.NewResponseController(w).Flush()
		})
	})
	// A websocket.Server without a Handshake takes clients of any origin.
	mux.Handle("/ws", websocket.Server{Handler: func(ws *websocket.Conn) { io.Copy(ws, ws) }})
	mux.Handle("/ws/ticks", websocket.Server{Handler: func(ws *websocket.Conn) {
		ctx, cancel := context.WithCancel(ws.Request().Context())
		defer cancel()
		go func() { // ends with the connection, which ticks closes
			io.Copy(io.Discard, ws)
			cancel()
		}()
		n.ticks(ctx, ws.Request().FormValue("id"), func(line []byte) error {
			_, err := ws.Write(line)
			return err
		})
		ws.Close()
	}})
	mux.Handle("/smart/", n.git.smart())
	mux.Handle("/dumb/", n.git.dumb())
	mux.HandleFunc("/simple/labpkg/", serveIndex)
	mux.HandleFunc("/files/"+wheelName, serveWheel)
	mux.HandleFunc("/lab.Echo/Stream", serveGRPC)
	serveMirrors(mux)
	servePages(mux)
	return mux
}

func scheme(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// localHost returns the address that the client dialled.
func localHost(r *http.Request) string {
	addr := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}

func serveBytes(w http.ResponseWriter, r *http.Request) {
	n, err := strconv.ParseInt(r.FormValue("n"), 10, 64)
	if err != nil || n < 0 || n > maxBody {
		http.Error(w, "n must be a number of bytes up to 1 GiB", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.FormatInt(n, 10))
	io.CopyN(w, zeros{}, n)
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

func serveEvents(w http.ResponseWriter, r *http.Request) {
	count, err := strconv.Atoi(r.FormValue("n"))
	if err != nil || count < 1 || count > 1000 {
		http.Error(w, "n must be 1 to 1000 events", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for i := range count {
		fmt.Fprintf(w, "data: %d\n\n", i)
		http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(400 * time.Millisecond):
		}
	}
}
