package forward

import (
	"net/http"
	"slices"
	"strings"

	"sluice/proxy/refusal"
)

// client is one client connection.
type client struct {
	Conn
	server *Server
	guard  *guard
	idle   *upstream // of the request before, if it may serve another one
}

type clientKey struct{}

// serveHTTP serves one request.
func (c *client) serveHTTP(w http.ResponseWriter, r *http.Request) {
	defer c.guard.next()
	h := c.guard.current()
	switch {
	case h.bad != nil:
		c.refuse(w, h, Request{}, h.bad)
		return
	case h.method == http.MethodConnect:
		c.connect(w, h)
		return
	}
	if c.Self != nil && c.Mode == Explicit && h.asksProxy(r.Header) {
		c.answerSelf(w, r)
		return
	}
	d, request, bad := c.destination(h)
	switch {
	case c.Mode == Explicit && c.Authorize != nil && !c.Authorize(credentials(r.Header)):
		c.refuse(w, h, request, &refusal.Refusal{Status: http.StatusProxyAuthRequired, Reason: Unauthorized, Realm: c.Realm,
			Text: "This proxy wants a user name and password."})
		return
	case bad != nil:
		c.refuse(w, h, request, bad)
		return
	}
	if protocols := upgrades(r.Header); len(protocols) > 0 && h.minor == '1' {
		if bad := judgeUpgrade(h, &request, protocols); bad != nil {
			c.refuse(w, h, request, bad)
			return
		}
	}
	flow, no := c.Gate.Judge(r.Context(), c.guard.Conn, request)
	if no != nil || flow == nil {
		if flow != nil {
			flow.Close(0, 0)
		}
		if no == nil {
			no = &refusal.Refusal{Status: http.StatusForbidden, Decision: refusal.NewDecisionID(), Reason: Internal,
				Target: request.Target(), Text: "Nobody judged the request."}
		}
		c.answer(w, h, no)
		return
	}
	c.exchange(w, r, h, d, request, flow)
}

// asksProxy reports whether a request is for the first proxy on its way (RFC 9110 section 7.6.2).
func (h *head) asksProxy(fields http.Header) bool {
	hops := fields["Max-Forwards"]
	return h.method == http.MethodOptions && h.target == "*" && h.length == 0 && len(hops) == 1 && hops[0] == "0"
}

func (c *client) answerSelf(w http.ResponseWriter, r *http.Request) {
	if err := c.Self(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// credentials returns the Proxy-Authorization field, if there is one and no more.
func credentials(h http.Header) string {
	if v := h["Proxy-Authorization"]; len(v) == 1 {
		return v[0]
	}
	return ""
}

// judgeUpgrade says no to upgrades to protocols that nobody could judge, and notes one to WebSocket. An offer to go on
// in HTTP/2 or TLS needs no answer, so it is not passed on (RFC 9110 section 7.8, RFC 9113 appendix B).
func judgeUpgrade(h *head, r *Request, protocols []string) *refusal.Refusal {
	if slices.Contains(protocols, "websocket") {
		r.Protocol = "ws"
		if h.method != http.MethodGet || h.length != 0 {
			return malformed("A WebSocket upgrade is a GET without a body.")
		}
		return nil
	}
	for _, p := range protocols {
		if p != "h2c" && !strings.HasPrefix(p, "tls/") {
			return &refusal.Refusal{Status: http.StatusForbidden, Reason: Upgrade,
				Text: "The only protocol that a request may upgrade to is websocket."}
		}
	}
	return nil
}

// connect hands a later request of the connection to whoever serves tunnels.
func (c *client) connect(w http.ResponseWriter, h *head) {
	if c.Mode != Explicit || c.Connect == nil {
		status := http.StatusBadRequest
		if c.Mode == Tunnel {
			status = http.StatusForbidden // the way to another proxy
		}
		c.refuse(w, h, Request{Method: h.method}, &refusal.Refusal{Status: status, Reason: NestedConnect,
			Text: "CONNECT is not served here; ask for it on a connection of its own."})
		return
	}
	_, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil || buffered.Reader.Buffered() > 0 {
		panic(http.ErrAbortHandler) // the guard shows nothing behind a request
	}
	read := append(h.raw, c.guard.takeOver()...)
	defer c.guard.Close()
	c.Connect(c.guard.Conn, read)
}

// refuse answers with a refusal that was made here.
func (c *client) refuse(w http.ResponseWriter, h *head, r Request, no *refusal.Refusal) {
	c.answer(w, h, c.own(r, no))
}

// own completes a refusal that was made here, and tells of it.
func (c *client) own(r Request, no *refusal.Refusal) *refusal.Refusal {
	no.Decision = refusal.NewDecisionID()
	if r.Host != "" {
		no.Target = r.Target()
	}
	if c.Refused != nil {
		c.Refused(r, no)
	}
	return no
}

// answer writes a refusal. The connection stays open if nothing of the request is left on it.
func (c *client) answer(w http.ResponseWriter, h *head, no *refusal.Refusal) {
	if h.bad != nil || h.length != 0 || h.method == http.MethodConnect {
		w.Header().Set("Connection", "close")
		c.guard.giveUp()
	}
	c.server.adapted(no).Respond(w)
}

// end closes what is left when the connection has ended.
func (c *client) end() {
	if c.idle != nil {
		c.idle.close()
	}
}

// adapted returns r as clients shall see it.
func (s *Server) adapted(r *refusal.Refusal) *refusal.Refusal {
	if s.options.Adapt == nil {
		return r
	}
	shown := *r
	s.options.Adapt(&shown)
	return &shown
}
