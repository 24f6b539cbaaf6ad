package proxy

import (
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sluice/policy"
)

// A container that opens as many connections as it can leaves places for the others; one that is alone may have all.
func TestSessionsLeavePlaces(t *testing.T) {
	const most = 16
	port := listen(t, echo)
	r := start(t, allow("127.0.0.1"), Config{MaxConnections: most})
	other := func(id string) *rig {
		t.Helper()
		session, err := r.server.Open(id)
		if err != nil {
			t.Fatal(err)
		}
		p, err := policy.ParsePolicy([]byte(allow("127.0.0.1")))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := session.Apply(t.Context(), Change{Policies: &policy.Phases{p, p, p}}); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := session.ServeTCP(l.(*net.TCPListener)); err != nil {
			t.Fatal(err)
		}
		return &rig{T: t, server: r.server, session: session, address: l.Addr().String()}
	}
	// fill opens tunnels until there is no place, and returns them.
	fill := func(r *rig) (open []client) {
		t.Helper()
		for range 2 * most {
			c, answer := r.connect("127.0.0.1:"+port, "")
			if answer.StatusCode != http.StatusOK {
				wantRefused(t, answer, http.StatusServiceUnavailable, reasonCapacity)
				return open
			}
			wantEcho(t, c, "\x00")
			open = append(open, c)
		}
		t.Fatal("no limit")
		return nil
	}
	all := fill(r)
	if len(all) != most {
		t.Errorf("one alone has %d connections, want %d", len(all), most)
	}
	for _, c := range all {
		c.Close()
	}
	r.wantConnections(0)
	second, third := other("second"), other("third")
	for _, one := range []struct {
		*rig
		want int
	}{{r, most / 2}, {second, most / 4}, {third, most / 8}} {
		if got := len(fill(one.rig)); got != one.want {
			t.Errorf("session %s has %d connections, want %d", one.session.id, got, one.want)
		}
	}
	if _, err := r.server.DeleteSession(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	if got := len(fill(third)); got == 0 {
		t.Error("the places of a session that has ended are not free")
	}
}

// A redirected client that finds no place knows of no proxy that could tell it.
func TestRedirectedFindsNoPlace(t *testing.T) {
	port := listen(t, echo)
	r, records := startAudited(t, allow("127.0.0.1"), Config{MaxConnections: 1})
	c, _ := r.connect("127.0.0.1:"+port, "")
	wantEcho(t, c, "\x00")
	r.redirect("127.0.0.1:" + port)
	conn, err := net.Dial("tcp", r.address)
	if err == nil { // else it was as quick as that
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		_, err = conn.Read(make([]byte, 1))
	}
	if err == nil || !strings.Contains(err.Error(), "reset") {
		t.Errorf("%v; want a reset", err)
	}
	c.Close()
	if all := records(); len(all) != 2 || all[0].Reason != string(reasonCapacity) || all[0].Verdict != "error" {
		t.Errorf("records %+v", all)
	}
}
