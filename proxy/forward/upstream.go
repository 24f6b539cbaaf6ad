package forward

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"
)

// upstream is one connection to a server, for the requests of one client connection to one authority.
type upstream struct {
	target string
	conn   *upstreamConn
	client *http.ClientConn
}

// upstreamConn is a dialled connection as net/http sees it.
type upstreamConn struct {
	net.Conn
	in, out atomic.Int64 // bytes read and written
	idle    atomic.Bool  // no request is under way
	toFlush atomic.Pointer[writer]
}

// Read counts, has what came before sent to the client before it waits for more, and takes what comes while no request
// is under way for the end: net/http would print it.
func (c *upstreamConn) Read(p []byte) (int, error) {
	if w := c.toFlush.Load(); w != nil {
		w.Flush()
	}
	n, err := c.Conn.Read(p)
	c.in.Add(int64(n))
	if n > 0 && c.idle.Load() {
		return 0, io.EOF
	}
	return n, err
}

// Write counts, and leaves errors to Read: a server that has answered and closed while the request was still on its
// way makes writing fail, and net/http would then not look at the answer. Where writing fails reading ends.
func (c *upstreamConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.out.Add(int64(n))
	if err != nil && !errors.Is(err, net.ErrClosed) {
		return len(p), nil
	}
	return n, err
}

// CloseWrite sends a FIN, if the connection can.
func (c *upstreamConn) CloseWrite() error { return closeWrite(c.Conn) }

type dialledKey struct{}

const (
	// continueTimeout is how long a request waits for a 100 before its body is sent (RFC 9110 section 10.1.1).
	continueTimeout = 500 * time.Millisecond
	// maxResponseHead is the size in bytes of the largest response head that is passed on.
	maxResponseHead = 256 << 10
)

// newTransport returns what makes an [http.ClientConn] of a dialled connection. It dials nothing itself, keeps no
// connections and asks no environment for proxies.
func newTransport() *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			if c, ok := ctx.Value(dialledKey{}).(*upstreamConn); ok {
				return c, nil
			}
			return nil, errors.New("only judged connections are used")
		},
		DisableCompression:     true,
		ExpectContinueTimeout:  continueTimeout,
		MaxResponseHeaderBytes: maxResponseHead,
		Protocols:              new(http.Protocols),
	}
	t.Protocols.SetHTTP1(true)
	return t
}

// newUpstream makes an upstream of a dialled connection, which it closes if it fails.
func newUpstream(ctx context.Context, t *http.Transport, c net.Conn, target string) (*upstream, error) {
	conn := &upstreamConn{Conn: c}
	client, err := t.NewClientConn(context.WithValue(ctx, dialledKey{}, conn), "http", target)
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	return &upstream{target: target, conn: conn, client: client}, nil
}

// rest makes the upstream wait for its next request, or reports that there can be none.
func (u *upstream) rest() bool {
	u.conn.idle.Store(true)
	return u.client.Available() > 0
}

// wakeUp makes the upstream ready for a request, or reports that it has ended.
func (u *upstream) wakeUp() bool {
	u.conn.idle.Store(false)
	return u.client.Available() > 0
}

func (u *upstream) close() {
	_ = u.client.Close()
	_ = u.conn.Close() // net/http leaves an upgraded connection to its caller
}
