package attack

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// TestWays: what an attempt says is sent does come, by each way that needs no rights.
func TestWays(t *testing.T) {
	peer, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer peer.Close()
	to := peer.LocalAddr().String()
	for name, a := range map[string]Attempt{
		"ring":   {Network: "ring"},
		"mapped": {Network: "socket", Socket: [3]int{10, 2, 0}},
		"plain":  {Network: "udp", Options: []Option{{Level: 0, Name: 2, Value: []byte{64, 0, 0, 0}}}}, // IP_TTL
	} {
		t.Run(name, func(t *testing.T) {
			a.To, a.Send = to, [][]byte{[]byte("one"), []byte("two")}
			r := Fire(context.Background(), []Attempt{a})[0]
			if strings.Contains(r.Error, "io_uring_setup") {
				t.Skip("this machine lets no program make a ring: ", r.Error)
			}
			if name != "plain" && (r.Error != "" || r.Sent != 2) {
				t.Fatalf("%+v", r)
			}
			_ = peer.SetReadDeadline(time.Now().Add(10 * time.Second))
			b := make([]byte, 100)
			if n, _, err := peer.ReadFrom(b); err != nil || string(b[:n]) != "one" {
				t.Errorf("%q, %v", b[:n], err)
			}
			for { // the rest
				_ = peer.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				if _, _, err := peer.ReadFrom(b); err != nil {
					var late net.Error
					if !errors.As(err, &late) || !late.Timeout() {
						t.Error(err)
					}
					return
				}
			}
		})
	}
}
