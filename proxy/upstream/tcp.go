package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"sluice/proxy/dnswire"
)

// overTCP asks q again over TCP, for the answer that was too long for UDP (RFC 7766 section 5). If that fails, the
// truncated answer must do.
func (c *Client) overTCP(q *Query, server netip.AddrPort, truncated []byte) {
	defer c.wg.Done()
	msg, err := c.exchangeTCP(q, server)
	if err != nil && !errors.Is(err, ErrCancelled) {
		c.opts.Logger.Debug("name server gives no answer over TCP", "upstream", server, "err", err)
		truncated[2] |= dnswire.FlagTruncated
		msg, err = truncated, nil
	}
	c.mu.Lock()
	c.tcp--
	c.outstanding--
	c.mu.Unlock()
	c.opts.Gate.Lock()
	defer c.opts.Gate.Unlock()
	sink := c.opts.NewSink()
	if err != nil {
		sink.Fail(q, err)
	} else {
		sink.Answer(q, msg)
	}
	sink.Flush()
}

func (c *Client) exchangeTCP(q *Query, server netip.AddrPort) ([]byte, error) {
	ctx, cancel := context.WithTimeout(c.ctx, 2*c.opts.Timeout)
	defer cancel()
	conn, err := c.opts.Outgoing.DialTCP(ctx, server)
	if err != nil {
		return nil, fmt.Errorf("asking %v over TCP: %w", server, err)
	}
	defer conn.Close()
	release := context.AfterFunc(ctx, func() { conn.Close() })
	defer release()

	if err := c.sendTCP(q, conn); err != nil {
		return nil, fmt.Errorf("asking %v over TCP: %w", server, err)
	}
	var length [2]byte
	if _, err := io.ReadFull(conn, length[:]); err != nil {
		return nil, fmt.Errorf("reading the answer of %v over TCP: %w", server, err)
	}
	msg := make([]byte, binary.BigEndian.Uint16(length[:]))
	if _, err := io.ReadFull(conn, msg); err != nil {
		return nil, fmt.Errorf("reading the answer of %v over TCP: %w", server, err)
	}
	if len(msg) < dnswire.HeaderLen || !q.answeredBy(msg) {
		return nil, fmt.Errorf("%v answers another question over TCP", server)
	}
	return msg, nil
}

func (c *Client) sendTCP(q *Query, conn net.Conn) error {
	c.opts.Gate.Lock()
	defer c.opts.Gate.Unlock()
	if !c.opts.Again(q) {
		return ErrCancelled
	}
	// One small write to a new connection does not block.
	_, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(q.Msg))), q.Msg...))
	return err
}
