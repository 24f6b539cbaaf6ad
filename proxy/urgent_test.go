package proxy

import (
	"io"
	"net"
	"testing"

	"golang.org/x/sys/unix"
)

// sendUrgent sends b, of which the last byte is urgent.
func sendUrgent(t *testing.T, c *net.TCPConn, b string) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = unix.Sendto(int(fd), []byte(b), unix.MSG_OOB, nil) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}

// Urgent data, as telnet and FTP send it, neither stops a tunnel nor gets lost in it.
func TestUrgentData(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{Workers: 1})
	for name, first := range map[string]string{"relayed": "\x00", "not-known-yet": "P", "watched": clientHello(t, "ok.test")} {
		t.Run(name, func(t *testing.T) {
			c, _ := r.connect("127.0.0.1:"+port, "")
			wantEcho(t, c, first)
			goOn := r.server.workers[0].stop(t) // so that one read meets all of it
			if _, err := io.WriteString(c.TCPConn, "abc"); err != nil {
				t.Fatal(err)
			}
			sendUrgent(t, c.TCPConn, "de!")
			if _, err := io.WriteString(c.TCPConn, "fgh"); err != nil {
				t.Fatal(err)
			}
			goOn()
			const want = "abcde!fgh"
			got := make([]byte, len(want))
			if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
				t.Errorf("got %q, %v; want %q", got[:n], err, want)
			}
		})
	}
}
