package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// sweepAll is one turn of the idle limit, by all workers.
func (r *rig) sweepAll() {
	r.Helper()
	for _, w := range r.server.workers {
		if err := w.Do(r.Context(), w.sweep); err != nil {
			r.Fatal(err)
		}
	}
}

// Case L-05: of flows that last three times the limit, those are cut in which nothing moves at all. What moves one way is
// not idle, and neither is what moves seldom.
func TestIdleLimit(t *testing.T) {
	server := make(chan net.Conn, 4)
	port := listen(t, func(c net.Conn) {
		server <- c
		echo(c)
	})
	site := listen(t, func(c net.Conn) {
		b := bufio.NewReader(c)
		if _, err := http.ReadRequest(b); err != nil {
			return
		}
		fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
		server <- c
		_, _ = io.Copy(io.Discard, b)
	})
	r, records := startAudited(t, allow("127.0.0.1"), Config{IdleTimeout: time.Hour})
	open := func() (client, net.Conn) {
		t.Helper()
		c, _ := r.connect("127.0.0.1:"+port, "")
		wantEcho(t, c, "\x00")
		return c, <-server
	}
	request := func() (io.Reader, net.Conn) {
		t.Helper()
		_, answer := r.send("GET http://127.0.0.1:" + site + "/ HTTP/1.1\r\nHost: 127.0.0.1:" + site + "\r\n\r\n")
		return answer.Body, <-server
	}
	quiet, _ := open()
	download, from := open()
	upload, _ := open()
	silent, _ := request()
	page, pageFrom := request()

	seldom := 0
	for turn := 1; turn <= 3*idleTurns; turn++ {
		if _, err := from.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := download.ReadByte(); err != nil {
			t.Fatalf("turn %d: the download has ended: %v", turn, err)
		}
		if turn%(idleTurns-1) == 0 {
			wantEcho(t, upload, "y")
			seldom++
		}
		if _, err := pageFrom.Write([]byte("z")); err != nil {
			t.Fatal(err)
		}
		if _, err := page.Read(make([]byte, 1)); err != nil {
			t.Fatalf("turn %d: the answer has ended: %v", turn, err)
		}
		if turn == idleTurns { // one turn sees the last byte, and so many that there was none behind it
			wantEcho(t, quiet, "just in time")
		}
		r.sweepAll()
	}
	wantReset(t, quiet)
	wantReset(t, silent)
	wantEcho(t, upload, "still there")
	for _, c := range []client{download, upload} {
		c.Close()
	}
	r.session.close()
	cut := 0
	for _, one := range records() {
		if one.Reason == string(reasonIdle) && one.Verdict == string(cutOff) {
			cut++
		}
	}
	if cut != 2 || seldom == 0 {
		t.Errorf("%d records of idle flows, want 2", cut)
	}
}

func TestIdleTimer(t *testing.T) {
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{IdleTimeout: 20 * time.Millisecond})
	c, answer := r.connect("127.0.0.1:"+port, "")
	if answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status)
	}
	if _, err := c.Read(make([]byte, 1)); err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("got %v, want a reset", err)
	}
}
