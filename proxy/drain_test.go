package proxy

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/policy"
)

// A request that is under way when the proxy drains has its whole answer, and the policy in force can still change.
func TestDrain(t *testing.T) {
	more := make(chan struct{})
	site := listen(t, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello ")
		<-more
		fmt.Fprint(c, "world")
	})
	other := listen(t, echo)
	target, kept := "127.0.0.1:"+site, "127.0.0.1:"+other
	r := start(t, allow(target, kept), Config{})
	tunnel, answer := r.connect(kept, "")
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	wantEcho(t, tunnel, "ping\n")
	web, download := r.send("GET http://" + target + "/ HTTP/1.1\r\nHost: " + target + "\r\n\r\n")
	body := make([]byte, 6)
	if _, err := io.ReadFull(download.Body, body); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	left := make(chan int64, 1)
	go func() { left <- r.server.Drain(ctx) }()
	for ctx.Err() == nil { // a client that comes in between may be one of the last
		c, err := net.Dial("tcp", r.address)
		if err != nil {
			break
		}
		c.Close()
	}
	h, err := r.server.Health(ctx)
	if err != nil || h.OK || len(h.Problems) != 1 || !strings.Contains(h.Problems[0], "draining") {
		t.Errorf("health: %+v, %v", h, err)
	}
	close(more)
	if rest, err := io.ReadAll(download.Body); string(rest) != "world" {
		t.Errorf("got %q, %v", rest, err)
	}
	if n, err := web.Read(body); n != 0 || err != io.EOF {
		t.Errorf("behind the answer: %d bytes, %v; want the end", n, err)
	}
	wantEcho(t, tunnel, "still there\n")
	select {
	case n := <-left:
		t.Fatalf("drained with a tunnel open: %d left", n)
	default:
	}
	if receipt := r.apply(fmt.Sprintf("%q", policy.NoNetwork)); receipt.FlowsCut != 1 {
		t.Errorf("cut %d flows, want 1", receipt.FlowsCut)
	}
	wantReset(t, tunnel)
	if n := <-left; n != 0 {
		t.Errorf("%d left, want none", n)
	}
}

func TestDrainLimit(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1:"+port), Config{})
	tunnel, _ := r.connect("127.0.0.1:"+port, "")
	wantEcho(t, tunnel, "ping\n")
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if n := r.server.Drain(ctx); n != 1 {
		t.Errorf("%d left, want 1", n)
	}
	wantEcho(t, tunnel, "pong\n") // it is for Close to reset it
	r.server.Close()
	wantReset(t, tunnel)
}
