package nflog

import (
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sluice/dockernet/netns/netnstest"
)

// group is that of the rules in these tests.
const group = 5303

// What is logged in several namespaces is told to whoever has asked there, until that is stopped.
func TestLogs(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type place struct {
		ns   *netnstest.Namespace
		told chan Message
		stop func()
	}
	var places []place
	for range 3 {
		p := place{ns: netnstest.New(t), told: make(chan Message, 100)}
		p.ns.Run(t, func() error {
			nft := exec.Command("nft", "-f", "-")
			nft.Stdin = strings.NewReader("table inet t { chain out { type filter hook output priority 0; udp dport 9 log prefix \"sluice run\" group 5303 drop; }; }")
			return nft.Run()
		})
		if p.stop, err = l.Open(p.ns.Do, group, func(l Message) { p.told <- l }); err != nil {
			t.Fatal(err)
		}
		places = append(places, p)
	}
	send := func(p place) {
		p.ns.Run(t, func() error {
			c, err := net.Dial("udp", "127.0.0.1:9")
			if err == nil {
				_, _ = c.Write([]byte("x")) // refused
				err = c.Close()
			}
			return err
		})
	}
	want := netip.MustParseAddrPort("127.0.0.1:9")
	for i, p := range places {
		send(p)
		select {
		case got := <-p.told:
			if protocol, to := got.Packet(); got.Prefix != "sluice run" || protocol != "udp" || to != want {
				t.Errorf("told of %+v, want %v", got, want)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("namespace %d: nobody was told", i)
		}
	}
	places[0].stop()
	send(places[0])
	send(places[1])
	<-places[1].told // the loop reads in turns: what was to be told before has been
	for i, p := range places {
		if len(p.told) > 0 {
			t.Errorf("namespace %d: %d messages too many", i, len(p.told))
		}
		if i > 0 {
			p.stop()
		}
	}
}

// After the end nobody can ask any more, and what was open is closed.
func TestLogsEnd(t *testing.T) {
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ns := netnstest.New(t)
	stop, err := l.Open(ns.Do, group, func(Message) {})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Open(ns.Do, group, func(Message) {}); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("a second reader of the group: %v", err)
	}
	l.Close()
	stop()
	if _, err := l.Open(ns.Do, group, func(Message) {}); err == nil {
		t.Error("a reader after the end")
	}
}
