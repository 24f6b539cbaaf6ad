package guard

import (
	"encoding/binary"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	mdnetlink "github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns/netnstest"
)

// logged is a message of NFLOG (linux/netfilter/nfnetlink_log.h).
type logged struct {
	prefix       string
	in, physical uint32
	payload      []byte
}

// nflog takes the messages of a group in a namespace.
func nflog(t testing.TB, ns *netnstest.Namespace, group uint16) *mdnetlink.Conn {
	t.Helper()
	var c *mdnetlink.Conn
	ns.Run(t, func() (err error) {
		c, err = mdnetlink.Dial(unix.NETLINK_NETFILTER, nil)
		return err
	})
	t.Cleanup(func() { c.Close() })
	const config, command, mode = 1, 1, 2
	const bind, copyPacket = 1, 2
	for _, a := range []mdnetlink.Attribute{
		{Type: command, Data: []byte{bind}},
		{Type: mode, Data: append(binary.BigEndian.AppendUint32(nil, 0xffff), copyPacket, 0)},
	} {
		data, err := mdnetlink.MarshalAttributes([]mdnetlink.Attribute{a})
		if err != nil {
			t.Fatal(err)
		}
		header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, group)
		if _, err := c.Execute(mdnetlink.Message{
			Header: mdnetlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | config, Flags: mdnetlink.Request | mdnetlink.Acknowledge},
			Data:   append(header, data...),
		}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// messages returns what has come and what comes until it is silent for a while.
func messages(t testing.TB, c *mdnetlink.Conn) (list []logged) {
	t.Helper()
	const physicalIn, in, payload, prefix = 6, 4, 9, 10
	for {
		// The kernel keeps messages back for up to a second (nfnetlink_log.c).
		if err := c.SetReadDeadline(time.Now().Add(1500 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		got, err := c.Receive()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range got {
			if len(m.Data) < genHeader {
				continue
			}
			var l logged
			d, err := mdnetlink.NewAttributeDecoder(m.Data[genHeader:])
			if err != nil {
				t.Fatal(err)
			}
			d.ByteOrder = binary.BigEndian
			for d.Next() {
				switch d.Type() {
				case prefix:
					l.prefix = d.String()
				case in:
					l.in = d.Uint32()
				case physicalIn:
					l.physical = d.Uint32()
				case payload:
					l.payload = d.Bytes()
				}
			}
			list = append(list, l)
		}
	}
}

// Refusals are told of, with what and who it was, but not without end.
func TestRefusalsAreLogged(t *testing.T) {
	l := newLab(t, "abs")
	a := l.containers["a"]
	l.silence(t, "a")
	l.install(t, "a", phaseOf(t, "no-network"))
	c := nflog(t, l.host, testLogGroup)
	h := ip{from: a.ip4, to: other4}
	const many = 1000
	frames := [][]byte{
		l.fromA(other4, ip{from: remote4, to: other4}.segment(1, 80, syn, 0, "<source>log")),
		l.fromA(other4, ip{from: a.ip4, to: other4, fragment: 0x2000, proto: 17}.packet([]byte("<fragment>log"))),
		l.fromA(other4, h.segment(1, 81, syn, 0, "<segment>log")),
		l.fromA(other4, h.datagram(1, 81, "<datagram>log")),
		l.fromA(l.containers["b"].ip4, ip{from: a.ip4, to: l.containers["b"].ip4}.datagram(1, 81, "<sibling>log"+strings.Repeat("x", 500))),
	}
	for range many {
		frames = append(frames, l.fromA(other4, h.segment(2, 82, syn, 0, "<many>log")))
	}
	start := time.Now()
	if got := l.where(t, "a", []byte(">log"), frames...); got != "" {
		t.Errorf("something reaches %q", got)
	}
	most := logBurst + logRate*(2+int(time.Since(start)/time.Second))
	bridge := uint32(0)
	l.host.Run(t, func() error {
		index, err := netInterface(labBridge)
		bridge = uint32(index)
		return err
	})
	list := messages(t, c)
	find := func(text string) (found []logged) {
		for _, m := range list {
			if strings.Contains(string(m.payload), text) {
				found = append(found, m)
			}
		}
		return found
	}
	for text, want := range map[string]struct {
		prefix       string
		in, physical uint32
	}{
		"<source>":   {"sluice guard forged", uint32(a.index), 0},
		"<fragment>": {"sluice guard forged", uint32(a.index), 0},
		"<segment>":  {"sluice guard refused", uint32(a.index), 0},
		"<datagram>": {"sluice guard not_reply", bridge, uint32(a.index)},
		"<sibling>":  {"sluice guard not_reply", bridge, uint32(a.index)},
	} {
		found := find(text)
		if len(found) != 1 {
			t.Errorf("%s is logged %d times", text, len(found))
			continue
		}
		if m := found[0]; m.prefix != want.prefix || m.in != want.in || m.physical != want.physical {
			t.Errorf("%s is logged as %q, from %d (%d), want %+v", text, m.prefix, m.in, m.physical, want)
		}
		if n := len(found[0].payload); n > logBytes {
			t.Errorf("%s: %d bytes are logged", text, n)
		}
	}
	// One of what is logged at once is <segment>.
	if n := len(find("<many>")); n < logBurst-1 || n > most {
		t.Errorf("%d of %d are logged, want %d to %d", n, many, logBurst, most)
	}
	if n := l.counters(t, "a")[refusedCount].Packets; n < many {
		t.Errorf("only %d of %d are counted", n, many)
	}
}
