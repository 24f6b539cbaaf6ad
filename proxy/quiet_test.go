package proxy

import (
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Case L-04: a tunnel may be quiet for as long as it likes, whatever its client has said so far. The limits for heads
// and dials are so short here that they would have ended it many times over.
func TestQuietTunnel(t *testing.T) {
	const limit = 5 * time.Millisecond
	port := listen(t, echo)
	for name, first := range map[string]string{
		"nothing-said": "", "half-a-line": "PI", "relayed": "\x00", "hello": clientHello(t, "ok.test"),
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, allow("ok.test"), Config{Hosts: names{"ok.test": {"127.0.0.1"}}.hosts, HeaderTimeout: limit,
				DialTimeout: 50 * time.Millisecond})
			c, _ := r.connect("ok.test:"+port, "")
			wantEcho(t, c, first)
			time.Sleep(20 * limit)
			wantEcho(t, c, "NG")
		})
	}
}

// Case L-05: peers that are gone are found by probes of the kernel, on both sides, whether or not there is a limit.
func TestDeadPeersAreProbed(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{Workers: 1})
	c, _ := r.connect("127.0.0.1:"+port, "")
	wantEcho(t, c, "\x00")
	w := r.server.workers[0]
	if err := w.Do(t.Context(), func() {
		one := w.all()[0]
		one.settled() // as when the tunnel has lasted for settleTime
		for side, fd := range map[string]int{"client": one.client.fd, "upstream": one.up.fd} {
			for option, want := range map[[2]int]int{
				{unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}: 60,
				{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}: 15, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}: 4,
			} {
				if got, err := unix.GetsockoptInt(fd, option[0], option[1]); err != nil || got != want {
					t.Errorf("%s, option %v: %d, %v; want %d", side, option, got, err, want)
				}
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	wantEcho(t, c, "goes on")
}

// Case L-34: two hundred tunnels at once, and again.
func TestManyTunnelsAtOnce(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{})
	for range 2 {
		done := make(chan error)
		const tunnels = 200
		for range tunnels {
			go func() {
				c, err := net.Dial("tcp", r.address)
				if err == nil {
					defer c.Close()
					_ = c.SetDeadline(time.Now().Add(10 * time.Second))
					err = tunnelEcho(c, "127.0.0.1:"+port, "\x00 once", "and again")
				}
				done <- err
			}()
		}
		for range tunnels {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
	}
}
