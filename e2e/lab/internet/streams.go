package internet

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"time"
)

const (
	tickEvery = 20 * time.Millisecond
	// maxTicks ends a stream that everybody has forgotten, after five minutes.
	maxTicks = 15_000
)

// ticks sends a line "ID number" every 20 ms until send fails, ctx is done, or the limit is reached.
func (n *Internet) ticks(ctx context.Context, id string, send func(line []byte) error) {
	ticker := time.NewTicker(tickEvery)
	defer ticker.Stop()
	for i := range maxTicks {
		line := fmt.Appendf(nil, "%s %d\n", id, i)
		if err := send(line); err != nil {
			n.record.ended(id, howEnded(err))
			return
		}
		n.record.sent(id, len(line))
		select {
		case <-ctx.Done():
			n.record.ended(id, howEnded(context.Cause(ctx)))
			return
		case <-ticker.C:
		}
	}
	n.record.ended(id, "closed")
}

func howEnded(err error) string {
	if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return "reset"
	}
	return "closed"
}

// serveTicks is the bare TCP form: the client's first line is the id.
func (n *Internet) serveTicks(conn net.Conn) {
	defer conn.Close()
	reader := bufio.NewReaderSize(io.LimitReader(conn, 1<<20), 256)
	line, err := reader.ReadString('\n')
	if err != nil {
		return
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		_, err := io.Copy(io.Discard, reader)
		if err == nil {
			err = io.EOF
		}
		cancel(err)
	}()
	n.ticks(ctx, strings.TrimSpace(line), func(line []byte) error {
		_, err := conn.Write(line)
		return err
	})
	conn.Close()
	<-watched
}

// serveFirst is a protocol in which the server speaks first, as mail servers do.
func serveFirst(conn net.Conn) {
	defer conn.Close()
	io.WriteString(conn, "220 ready\r\n")
	io.Copy(conn, conn)
}

func serveEcho(conn net.Conn) {
	defer conn.Close()
	io.Copy(conn, conn)
	// The client has closed its sending half; what it sent has been sent back.
}

// serveUDPEcho answers from the address that was asked, until conn is closed. The kernel says which one it was, in a form
// that it also takes back, of IPv4 addresses too (ipv6(7), IPV6_PKTINFO).
func serveUDPEcho(conn *net.UDPConn) {
	buffer, asked := make([]byte, 64<<10), make([]byte, 128)
	for {
		size, control, _, from, err := conn.ReadMsgUDPAddrPort(buffer, asked)
		if err != nil {
			return
		}
		conn.WriteMsgUDPAddrPort(buffer[:size], asked[:control], from)
	}
}
