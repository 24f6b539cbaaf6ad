package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"net"
	"net/http"
	"strings"
)

// Peer is the other end of a unix socket on which [Routes] are served. It keeps no connection between calls, so that
// there is nothing to close, and may be used by many goroutines.
//
// Errors that the other side sent are *[Error] values. A call whose context ended returns the context's error.
type Peer struct {
	Path string
	// UIDs are the users that may own the other end, besides root and the caller's own.
	UIDs []uint32
	// Hint says what to do if nobody listens there.
	Hint string
}

// Call sends body, unless it is nil, as JSON and decodes the answer.
func Call[T any](ctx context.Context, p Peer, method, path string, body any) (T, error) {
	var result T
	resp, err := p.send(ctx, method, path, body)
	if err != nil {
		return result, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return result, failed(ctx, resp)
	}
	return result, read(ctx, resp, &result)
}

// Text returns an answer that is not JSON.
func (p Peer) Text(ctx context.Context, path string) (string, error) {
	resp, err := p.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return "", failed(ctx, resp)
	}
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", because(ctx, fmt.Errorf("read %s: %w", path, err))
	}
	return string(text), nil
}

// Events yields what [Hub.Stream] writes at a path, until ctx ends or the stream does; the last pair then has the
// error. A reader that falls too far behind gets one that says so.
func (p Peer) Events(ctx context.Context, path string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		events, err := p.Subscribe(ctx, path)
		if err != nil {
			yield(Event{}, err)
			return
		}
		events(yield)
	}
}

// Subscribe is [Peer.Events] for those who must miss nothing: when it returns, the other side collects events for the
// caller, who reads them once, to the end or not, or ends ctx.
func (p Peer) Subscribe(ctx context.Context, path string) (iter.Seq2[Event, error], error) {
	resp, err := p.send(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer resp.Body.Close()
		return nil, failed(ctx, resp)
	}
	return func(yield func(Event, error) bool) {
		defer resp.Body.Close()
		dec := json.NewDecoder(resp.Body)
		for {
			var line struct {
				Event
				Error *Error `json:"error"`
			}
			if err := dec.Decode(&line); err != nil {
				if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
					err = fmt.Errorf("the stream of events ended: the other side stopped, or this reader was too slow")
				}
				yield(Event{}, because(ctx, err))
				return
			}
			if line.Error != nil {
				yield(Event{}, line.Error)
				return
			}
			if !yield(line.Event, nil) {
				return
			}
		}
	}, nil
}

func (p Peer) send(ctx context.Context, method, path string, body any) (*http.Response, error) {
	var data io.Reader
	if body != nil {
		encoded, err := json.Marshal(body)
		if err != nil {
			return nil, fmt.Errorf("encode request: %w", err)
		}
		data = bytes.NewReader(encoded)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://sluice"+path, data)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	// Proxy variables of the environment have no say here, and no connection outlives its request.
	t := &http.Transport{DialContext: p.dial, DisableKeepAlives: true, MaxResponseHeaderBytes: 64 << 10}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return nil, because(ctx, err)
	}
	return resp, nil
}

func (p Peer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", p.Path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: be root, or the user that runs the other end", err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s", err, p.Hint)
	}
	if err := CheckPeer(conn.(*net.UnixConn), p.UIDs...); err != nil {
		conn.Close()
		return nil, fmt.Errorf("%s: %w", p.Path, err)
	}
	return conn, nil
}

// read decodes one JSON answer of any status.
func read(ctx context.Context, resp *http.Response, v any) error {
	if err := json.NewDecoder(resp.Body).Decode(v); err != nil {
		return because(ctx, fmt.Errorf("read answer (%s): %w", resp.Status, err))
	}
	return nil
}

// failed turns an answer that is an error into that error.
func failed(ctx context.Context, resp *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return because(ctx, fmt.Errorf("read error answer (%s): %w", resp.Status, err))
	}
	var body failure
	if err := json.Unmarshal(text, &body); err == nil && body.Error != nil {
		return body.Error
	}
	// Not from our handler, but from the HTTP server below it.
	e := &Error{Code: CodeInternal, Message: strings.TrimSpace(resp.Status + ": " + string(text))}
	for code, status := range statuses {
		if status == resp.StatusCode {
			e.Code = code
		}
	}
	return e
}

// because prefers the context's error to what the transport made of it.
func because(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}
