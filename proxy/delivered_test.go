package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// socketsTo returns how many sockets of this network namespace are connected to a port of 127.0.0.1, those included that
// no process has any more, and how many bytes they have sent that were not acknowledged (proc_net_tcp(5)).
func socketsTo(t *testing.T, port string) (sockets int, waiting uint64) {
	t.Helper()
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[2] != fmt.Sprintf("0100007F:%04X", number) || fields[3] == "06" { // TIME_WAIT
			continue
		}
		sockets++
		queued, _, _ := strings.Cut(fields[4], ":")
		n, err := strconv.ParseUint(queued, 16, 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		waiting += n
	}
	return sockets, waiting
}

// onSocket calls f with the descriptor of c.
func onSocket(t *testing.T, c net.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err == nil {
		var failed error
		if err = raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err == nil {
			err = failed
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// cutLine makes a peer deaf: its kernel drops what comes for it, so that nothing of it is acknowledged.
func cutLine(t *testing.T, c net.Conn) {
	drop := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K}
	onSocket(t, c, func(fd int) error {
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &drop})
	})
}

func mendLine(t *testing.T, c net.Conn) {
	onSocket(t, c, func(fd int) error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0) })
}

// deafPeer is an upstream that reads a byte and then is deaf.
type deafPeer struct {
	port string
	conn chan net.Conn // once it is
	done chan struct{}
}

// newDeafPeer makes a peer that has ended its stream before, if fin is set.
func newDeafPeer(t *testing.T, fin bool) *deafPeer {
	p := &deafPeer{conn: make(chan net.Conn), done: make(chan struct{})}
	p.port = listen(t, func(c net.Conn) {
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Error(err)
		}
		if fin {
			_ = c.(*net.TCPConn).CloseWrite()
			for acknowledged := false; !acknowledged && !t.Failed(); {
				onSocket(t, c, func(fd int) error {
					info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
					acknowledged = err != nil || info.State == unix.BPF_TCP_FIN_WAIT2
					return err
				})
			}
		}
		cutLine(t, c)
		p.conn <- c
		<-p.done
	})
	t.Cleanup(func() { close(p.done) })
	return p
}

// What was sent and got lost is sent again by the kernel, and must not be behind the receipt of a switch that refuses it:
// neither from a tunnel that is open nor from one that both sides have left.
func TestSwitchStopsWhatWouldBeSentAgain(t *testing.T) {
	for name, left := range map[string]bool{"open": false, "left": true} {
		t.Run(name, func(t *testing.T) {
			p := newDeafPeer(t, left)
			r := start(t, allow("127.0.0.1"), Config{Workers: 1})
			c, _ := r.connect("127.0.0.1:"+p.port, "\x00")
			<-p.conn
			if _, err := c.TCPConn.Write(make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			if left {
				if _, err := c.ReadByte(); err != io.EOF {
					t.Fatal(err)
				}
				c.Close()
				r.waitFor(ending)
			}
			r.await("nothing waits for the upstream", func() bool { _, waiting := socketsTo(t, p.port); return waiting >= 1000 })
			if receipt := r.apply(`"no-network"`); receipt.FlowsCut != 1 {
				t.Errorf("receipt %+v; want one cut", receipt)
			}
			if n, waiting := socketsTo(t, p.port); n != 0 {
				t.Errorf("%d sockets go on sending %d bytes", n, waiting)
			}
			r.wantConnections(0)
		})
	}
}

// The same for what an HTTP client has left.
func TestSwitchStopsWhatAnUploadWouldSendAgain(t *testing.T) {
	conn, done := make(chan net.Conn), make(chan struct{})
	port := listen(t, func(c net.Conn) {
		for in := bufio.NewReader(c); ; {
			if line, err := in.ReadString('\n'); err != nil || line == "\r\n" {
				break
			}
		}
		cutLine(t, c)
		conn <- c
		<-done
	})
	t.Cleanup(func() { close(done) })
	r := start(t, allow("127.0.0.1"), Config{Workers: 1})
	client := r.dial()
	if _, err := fmt.Fprintf(client, "POST http://127.0.0.1:%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n\r\n", port); err != nil {
		t.Fatal(err)
	}
	<-conn
	if _, err := client.Write(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	r.await("nothing waits for the upstream", func() bool { _, waiting := socketsTo(t, port); return waiting >= 1000 })
	_ = client.SetLinger(0)
	client.Close()
	r.awaitLeft()
	r.apply(`"no-network"`)
	if n, waiting := socketsTo(t, port); n != 0 {
		t.Errorf("%d sockets go on sending %d bytes", n, waiting)
	}
	r.wantConnections(0)
}

// A tunnel that both sides have left ends when its upstream has everything, or is gone.
func TestEndsOnceEverythingIsThere(t *testing.T) {
	for name, gone := range map[string]bool{"there": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			p := newDeafPeer(t, true)
			r := start(t, allow("127.0.0.1"), Config{Workers: 1})
			c, _ := r.connect("127.0.0.1:"+p.port, "\x00")
			up := <-p.conn
			if _, err := c.TCPConn.Write(make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.ReadByte(); err != io.EOF {
				t.Fatal(err)
			}
			c.Close()
			r.waitFor(ending)
			if gone {
				_ = up.(*net.TCPConn).SetLinger(0)
				up.Close()
			} else {
				mendLine(t, up)
				if n, err := io.Copy(io.Discard, up); n != 1000 || err != nil {
					t.Errorf("%d bytes arrived, %v; want 1000", n, err)
				}
			}
			r.wantConnections(0)
		})
	}
}
