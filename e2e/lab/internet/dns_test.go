package internet

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

// answerOf asks a zone over a pretended UDP or TCP connection.
type answerOf struct {
	dns.ResponseWriter
	from net.Addr
	msg  *dns.Msg
}

func (a *answerOf) RemoteAddr() net.Addr        { return a.from }
func (a *answerOf) WriteMsg(msg *dns.Msg) error { a.msg = msg; return nil }

func ask(z *zone, from net.Addr, name string, qtype uint16) *dns.Msg {
	a := &answerOf{from: from}
	z.ServeDNS(a, new(dns.Msg).SetQuestion(name, qtype))
	return a.msg
}

// summary is an answer as "RCODE value value", without lifetimes.
func summary(msg *dns.Msg) string {
	words := []string{dns.RcodeToString[msg.Rcode]}
	for _, rr := range msg.Answer {
		words = append(words, strings.TrimPrefix(rr.String(), rr.Header().String()))
	}
	return strings.Join(words, " ")
}

func TestZone(t *testing.T) {
	z := newZone(func(string, string) {})
	for _, test := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"web.test.", dns.TypeA, "NOERROR 203.0.113.10"},
		{"WEB.test.", dns.TypeAAAA, "NOERROR 2001:db8::10"},
		{"web.test.", dns.TypeMX, "NOERROR 10 mail.test."},
		{"_https._tcp.web.test.", dns.TypeSRV, "NOERROR 1 1 443 web.test."},
		{"four.test.", dns.TypeAAAA, "NOERROR"},
		{"chain.test.", dns.TypeA, "NOERROR a.cdn.test. b.cdn.test. 203.0.113.24"},
		{"chain.test.", dns.TypeCNAME, "NOERROR a.cdn.test."},
		{"deep.x.any.test.", dns.TypeA, "NOERROR 203.0.113.77"},
		{"cdn.test.", dns.TypeA, "NOERROR"}, // names lie under it
		{"absent.test.", dns.TypeA, "NXDOMAIN"},
		{"rebind.test.", dns.TypeA, "NOERROR 203.0.113.30"},
		{"rebind.test.", dns.TypeA, "NOERROR 127.0.0.1"},
		{"rebind.test.", dns.TypeA, "NOERROR 127.0.0.1"},
		{"example.com.", dns.TypeA, "REFUSED"},
	} {
		if got := summary(ask(z, &net.TCPAddr{}, test.name, test.qtype)); got != test.want {
			t.Errorf("%s %s: %s, want %s", test.name, dns.TypeToString[test.qtype], got, test.want)
		}
	}
}

func TestZoneWildcardKeepsTheAskedName(t *testing.T) {
	msg := ask(newZone(func(string, string) {}), &net.TCPAddr{}, "a.any.test.", dns.TypeA)
	if got := msg.Answer[0].Header().Name; got != "a.any.test." {
		t.Errorf("owner %s, want a.any.test.", got)
	}
}

func TestZoneTruncatesOverUDPOnly(t *testing.T) {
	z := newZone(func(string, string) {})
	if msg := ask(z, &net.UDPAddr{}, "many.test.", dns.TypeA); !msg.Truncated || len(msg.Answer) == 100 {
		t.Errorf("UDP: truncated %v with %d answers, want TC and fewer than 100", msg.Truncated, len(msg.Answer))
	}
	if msg := ask(z, &net.TCPAddr{}, "many.test.", dns.TypeA); msg.Truncated || len(msg.Answer) != 100 {
		t.Errorf("TCP: truncated %v with %d answers, want all 100", msg.Truncated, len(msg.Answer))
	}
}

func TestZoneCountsEveryQuestion(t *testing.T) {
	r := newRecorder()
	z := newZone(r.question)
	for _, from := range []net.Addr{&net.UDPAddr{}, &net.TCPAddr{}} {
		for i := range 3 {
			ask(z, from, fmt.Sprintf("n%d.evil.test.", i), dns.TypeTXT)
		}
	}
	ask(z, &net.UDPAddr{}, "Evil.test.", dns.TypeA)
	ask(z, &net.UDPAddr{}, "notevil.test.", dns.TypeA)
	counts := r.counts()
	for name, want := range map[string]int{"*.evil.test": 6, "evil.test": 1, "n1.evil.test": 2, "web.test": 0} {
		if got := counts.Questions(name); got != want {
			t.Errorf("%s: %d questions, want %d", name, got, want)
		}
	}
}

func TestZoneSet(t *testing.T) {
	z := newZone(func(string, string) {})
	if err := z.set("new.test", []string{"5 A 203.0.113.40", "AAAA 2001:db8::40"}); err != nil {
		t.Fatal(err)
	}
	msg := ask(z, &net.TCPAddr{}, "new.test.", dns.TypeA)
	if got := summary(msg); got != "NOERROR 203.0.113.40" || msg.Answer[0].Header().Ttl != 5 {
		t.Errorf("%s, want 203.0.113.40 for 5 seconds", msg)
	}
	if err := z.set("new.test", nil); err != nil {
		t.Fatal(err)
	}
	if got := summary(ask(z, &net.TCPAddr{}, "new.test.", dns.TypeA)); got != "NXDOMAIN" {
		t.Errorf("%s after the name was removed, want NXDOMAIN", got)
	}
	if err := z.set("new.test", []string{"A nonsense"}); err == nil {
		t.Error("a record that cannot be read was taken")
	}
}
