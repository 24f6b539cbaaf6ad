package internet

import (
	"bufio"
	"io"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// dialStream serves one tick stream on loopback and returns the client's end.
func dialStream(t *testing.T, n *Internet, id string) (conn *net.TCPConn, served chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served = make(chan struct{})
	go func() {
		defer close(served)
		defer l.Close()
		if conn, err := l.Accept(); err == nil {
			n.serveTicks(conn)
		}
	}()
	dialled, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	conn = dialled.(*net.TCPConn)
	if _, err := io.WriteString(conn, id+"\n"); err != nil {
		t.Fatal(err)
	}
	return conn, served
}

func TestTicksTellHowTheyEnd(t *testing.T) {
	for _, test := range []struct {
		how string
		end func(*net.TCPConn) error
	}{
		{"reset", func(c *net.TCPConn) error { c.SetLinger(0); return c.Close() }},
		{"closed", func(c *net.TCPConn) error { return c.CloseWrite() }},
	} {
		t.Run(test.how, func(t *testing.T) {
			defer goleak.VerifyNone(t)
			n := &Internet{record: newRecorder()}
			conn, served := dialStream(t, n, "s")
			defer conn.Close()
			reader := bufio.NewReader(conn)
			read := 0
			for _, want := range []string{"s 0\n", "s 1\n", "s 2\n"} {
				got, err := reader.ReadString('\n')
				if got != want || err != nil {
					t.Fatalf("line %q, %v; want %q", got, err, want)
				}
				read += len(got)
			}
			if before := n.record.counts().Streams["s"]; before.End != "" || !before.Ended.IsZero() {
				t.Errorf("ended (%s) before anybody ended it", before.End)
			}
			started := time.Now()
			if err := test.end(conn); err != nil {
				t.Fatal(err)
			}
			<-served
			stream := n.record.counts().Streams["s"]
			if stream.End != test.how || stream.Ended.Before(started) || stream.Bytes < read {
				t.Errorf("%+v, want an end %q after %v and at least %d bytes", stream, test.how, started, read)
			}
		})
	}
}
