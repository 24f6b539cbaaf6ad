package forward

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"slices"
	"sync"

	"github.com/elazarl/goproxy"
)

// exchange is one request that was allowed, and its answer.
type exchange struct {
	client  *client
	request Request
	flow    Flow
	writer  http.ResponseWriter
	upload  *upload // nil if the request has no body

	up        *upstream
	in, out   int64          // bytes over upstreams that up came after; less what went over up before
	answer    *http.Response // what the upgrade that was tried ended with
	readError error          // what reading the upstream's answer ended with, before its end
	last      bool           // the client's connection ends behind the answer
	to        *writer        // what the answer is written to

	mu       sync.Mutex // guards what follows, and writer until answered
	answered bool
	hints    int
}

type exchangeKey struct{}

// maxHints bounds the informational answers that come before the answer.
const maxHints = 16

// newEngine returns the goproxy that passes answers on. Which upstream it asks, and with what, is up to the exchange
// in the request's context: left to itself it dials nothing.
func newEngine(t *http.Transport) *goproxy.ProxyHttpServer {
	e := &goproxy.ProxyHttpServer{
		Logger:             silent{},
		NonproxyHandler:    http.NotFoundHandler(),
		Tr:                 t,
		KeepHeader:         true, // the exchange has removed what has to go
		KeepAcceptEncoding: true,
	}
	e.OnRequest().DoFunc(func(r *http.Request, ctx *goproxy.ProxyCtx) (*http.Request, *http.Response) {
		if x, ok := r.Context().Value(exchangeKey{}).(*exchange); ok {
			ctx.RoundTripper = x
		}
		return r, nil
	})
	return e
}

// silent is a log that nothing is written to: goproxy would write host names.
type silent struct{}

// Printf implements [goproxy.Logger].
func (silent) Printf(string, ...any) {}

// exchange passes a request on and its answer back.
func (c *client) exchange(w http.ResponseWriter, r *http.Request, h *head, d destination, request Request, flow Flow) {
	x := &exchange{client: c, request: request, flow: flow, writer: w}
	defer x.finish()
	out := x.outgoing(r, h, d)
	if h.length != 0 {
		// The answer may come, and go on to the client, while the body is still on its way.
		if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if request.Protocol == "ws" && x.upgrade(out) {
		return
	}
	x.to = &writer{ResponseWriter: w, exchange: x}
	defer x.to.end()
	c.server.engine.ServeHTTP(x.to, out)
	if x.readError != nil {
		if h.minor == '0' {
			c.guard.resets()
		}
		panic(http.ErrAbortHandler) // else net/http would end a cut-off answer as if it were whole
	}
}

// outgoing makes the upstream's request of the client's.
func (x *exchange) outgoing(r *http.Request, h *head, d destination) *http.Request {
	removeHopFields(r.Header)
	if _, ok := r.Header["User-Agent"]; !ok {
		r.Header["User-Agent"] = nil // or net/http puts its own
	}
	out := &http.Request{
		Method: h.method, URL: d.url, Host: d.field(), Header: r.Header,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	if h.length != 0 {
		x.upload = &upload{body: r.Body}
		out.Body, out.ContentLength = x.upload, h.length
		// A server that expects no body takes it for the next request, which nobody has judged (RFC 9110 section 9.3.1).
		out.Close = !expectsBody(h.method)
	}
	ctx := context.WithValue(r.Context(), exchangeKey{}, x)
	if len(r.Header["Expect"]) == 0 {
		if h.minor == '1' {
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got1xxResponse: x.hint})
		}
	} else if x.upload == nil || h.minor == '0' {
		r.Header.Del("Expect") // RFC 9110 section 10.1.1
	} else {
		out.Close = true // net/http sends the body after a refusal if the connection can be used again
	}
	if _, ok := x.flow.(Reuser); !ok && x.request.Protocol != "ws" {
		out.Close = true
	}
	return out.WithContext(ctx)
}

// expectsBody reports whether servers read the body of such a request. Those with methods unknown here may not.
func expectsBody(method string) bool {
	return slices.Contains([]string{http.MethodPost, http.MethodPut, http.MethodPatch}, method)
}

// RoundTrip implements [goproxy.RoundTripper]. Its answer is the upstream's, fit for the client, or a refusal.
func (x *exchange) RoundTrip(r *http.Request, _ *goproxy.ProxyCtx) (*http.Response, error) {
	if x.answer != nil {
		return x.answer, nil
	}
	resp, err := x.send(r)
	if err != nil {
		return x.failed(r, err), nil
	}
	if resp.StatusCode < 200 || resp.StatusCode > 999 {
		return x.failed(r, errStatus), nil
	}
	return x.clean(resp), nil
}

var errStatus = errors.New("a status that is no answer to the request")

// send sends r on the connection of the request before, if that may be, or on one of its own.
func (x *exchange) send(r *http.Request) (*http.Response, error) {
	defer func() {
		x.mu.Lock()
		x.answered = true
		x.mu.Unlock()
	}()
	u := x.client.idle
	x.client.idle = nil
	if u != nil {
		if reuser, ok := x.flow.(Reuser); ok && u.target == x.request.Target() && repeatable(r) && u.wakeUp() && reuser.Reuse(u.conn.Conn) {
			x.use(u)
			resp, err := u.client.RoundTrip(r)
			if err == nil || x.received() > 0 || r.Context().Err() != nil {
				return resp, err
			}
			// It was closed when the request came. Nothing has been answered, so the request can be sent again.
		}
		u.close()
	}
	conn, err := x.flow.Dial(r.Context())
	if err != nil {
		return nil, dialError{err}
	}
	if u, err = newUpstream(r.Context(), x.client.server.transport, conn, x.request.Target()); err != nil {
		return nil, err
	}
	x.use(u)
	return u.client.RoundTrip(r)
}

// repeatable reports whether r may be sent twice (RFC 9110 section 9.2.2). One that may not gets a new connection,
// since an old one may be closed by the upstream when it arrives.
func repeatable(r *http.Request) bool {
	return r.Body == nil && slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace}, r.Method)
}

// use makes u the upstream of the exchange.
func (x *exchange) use(u *upstream) {
	if x.up != nil {
		x.in += x.up.conn.in.Load()
		x.out += x.up.conn.out.Load()
	}
	x.up = u
	x.in -= u.conn.in.Load()
	x.out -= u.conn.out.Load()
}

// received returns how many bytes have come from the upstream for this exchange.
func (x *exchange) received() int64 {
	if x.up == nil {
		return x.in
	}
	return x.in + x.up.conn.in.Load()
}

// hint passes an informational answer on, other than 100, which is net/http's own business.
func (x *exchange) hint(code int, h textproto.MIMEHeader) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.hints++; x.hints > maxHints {
		return errors.New("too many informational answers")
	}
	if code == http.StatusContinue || x.answered {
		return nil
	}
	header := http.Header(h)
	removeHopFields(header)
	own := x.writer.Header()
	for name, values := range header {
		own[name] = values
	}
	x.writer.WriteHeader(code)
	clear(own)
	return nil
}

// clean makes an upstream's answer fit for the client.
func (x *exchange) clean(resp *http.Response) *http.Response {
	removeHopFields(resp.Header)
	resp.Header.Del("Sluice-Decision") // only refusals of ours have one
	if _, ok := resp.Header["Content-Type"]; !ok {
		resp.Header["Content-Type"] = nil // or net/http makes one up
	}
	x.last = x.last || resp.Close && x.client.Mode == Tunnel
	resp.Body = &download{ReadCloser: resp.Body, exchange: x}
	return resp
}

// download is the body of an upstream's answer.
type download struct {
	io.ReadCloser
	exchange *exchange
}

// Read implements [io.Reader].
func (d *download) Read(p []byte) (int, error) {
	d.exchange.up.conn.toFlush.Store(d.exchange.to)
	n, err := d.ReadCloser.Read(p)
	d.exchange.up.conn.toFlush.Store(nil)
	if err != nil && err != io.EOF {
		d.exchange.readError = err
	}
	return n, err
}

// finish gives back what the exchange used.
func (x *exchange) finish() {
	if x.upload != nil {
		_ = x.upload.stop(x.client.guard.giveUp)
		if !x.upload.done.Load() {
			x.client.guard.giveUp()
		}
	}
	if u := x.up; u != nil {
		if _, ok := x.flow.(Reuser); ok && u.rest() {
			x.client.idle = u
		} else {
			u.close()
		}
		x.in += u.conn.in.Load()
		x.out += u.conn.out.Load()
	}
	x.flow.Close(x.in, x.out)
}
