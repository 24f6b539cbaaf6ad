// Package tap listens at the places of the lab where something must not arrive.
//
// What it looks for are tokens, words that an attempt puts into everything that it sends, and flows: a protocol and a
// destination, for packets that have no room for a token. It keeps nothing else of what it sees.
package tap

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// tokenPrefix begins tokens, tokenSize is their length. They are labels of domain names, so that they can be asked for.
const (
	tokenPrefix = "leak"
	tokenSize   = len(tokenPrefix) + 8 + 1
)

// Token is the n-th token.
func Token(n int) string { return fmt.Sprintf("%s%08dx", tokenPrefix, n) }

// Flow is what is looked for where a packet cannot have a token: "tcp 203.0.113.5:443".
func Flow(protocol string, to netip.AddrPort) string { return protocol + " " + to.String() }

// Tap is one place. Its methods may be called from any goroutine.
type Tap struct {
	Name  string
	close func() error
	ended chan struct{}

	mu   sync.Mutex // guards all below
	seen map[string]int
	more chan struct{} // closed, and made again, when something came
	lost error
}

func newTap(name string) *Tap {
	return &Tap{Name: name, ended: make(chan struct{}), seen: map[string]int{}, more: make(chan struct{})}
}

// Close ends the listening, and returns an error if something may have been missed.
func (t *Tap) Close() error {
	err := t.close()
	<-t.ended
	t.mu.Lock()
	defer t.mu.Unlock()
	return errors.Join(err, t.lost)
}

// Count returns how often a token or flow has come.
func (t *Tap) Count(what string) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.seen[what]
}

// Await waits until a token or flow has come.
func (t *Tap) Await(ctx context.Context, what string) error {
	for {
		t.mu.Lock()
		came, more := t.seen[what] > 0, t.more
		t.mu.Unlock()
		if came {
			return nil
		}
		select {
		case <-more:
		case <-ctx.Done():
			return fmt.Errorf("%s does not come to %s: %w", what, t.Name, ctx.Err())
		}
	}
}

func (t *Tap) lose(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lost = fmt.Errorf("tap at %s: %w", t.Name, err)
}

// packet notes what is in an IP packet, or in anything else.
func (t *Tap) packet(b []byte) {
	found := tokens(b)
	if f := flow(b); f != "" {
		found = append(found, f)
	}
	if len(found) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, f := range found {
		t.seen[f]++
	}
	close(t.more)
	t.more = make(chan struct{})
}

// tokens finds the tokens in something, whatever their case.
func tokens(b []byte) (found []string) {
	for b = bytes.ToLower(b); ; {
		i := bytes.Index(b, []byte(tokenPrefix))
		if i < 0 || len(b) < i+tokenSize {
			return found
		}
		if t := b[i : i+tokenSize]; t[tokenSize-1] == 'x' {
			found = append(found, string(t))
		}
		b = b[i+len(tokenPrefix):]
	}
}

// flow reads protocol and destination of TCP and UDP; it is empty for anything else.
func flow(b []byte) string {
	var to netip.Addr
	var protocol byte
	switch {
	case len(b) >= 20 && b[0]>>4 == 4 && binary.BigEndian.Uint16(b[6:])&0x1fff == 0:
		header := 4 * int(b[0]&0x0f)
		if header < 20 || len(b) < header {
			return ""
		}
		to, protocol, b = netip.AddrFrom4([4]byte(b[16:20])), b[9], b[header:]
	case len(b) >= 40 && b[0]>>4 == 6:
		to, protocol, b = netip.AddrFrom16([16]byte(b[24:40])), b[6], b[40:]
	default:
		return ""
	}
	name := map[byte]string{6: "tcp", 17: "udp"}[protocol]
	if name == "" || len(b) < 4 {
		return ""
	}
	return Flow(name, netip.AddrPortFrom(to, binary.BigEndian.Uint16(b[2:])))
}

// closeLimit bounds how long a reader may take to notice that it is to end.
const closeLimit = 100 * time.Millisecond
