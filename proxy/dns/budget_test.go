package dns

import (
	"fmt"
	"strings"
	"testing"

	"github.com/miekg/dns"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/dnstest"
)

// spent is how many names and bytes the rules in force have counted.
func (f *filter) spent() (names, bytes int) { return f.rules.Load().Budget.Spent() }

// TestNameBudget: data in the names under a wildcard is counted, and stopped where the policy says so. [I-06]
func TestNameBudget(t *testing.T) {
	up := dnstest.New(t, addresses)
	p := allow("*.ok.test", "ok.test")
	p.Options.DNSUniqueNames = 20
	f := newFilter(t, p, Options{}, up.Addr)
	ask := func(i int) *dns.Msg {
		return f.ask(fmt.Sprintf("%060d.cdn.ok.test", i), dns.TypeA)
	}
	refused := 0
	for i := range 50 {
		if m := ask(i); blocked(m) {
			refused++
			e := f.lastEvent()
			if e.Decision.Reason != ReasonNameBudget {
				t.Errorf("reason %q", e.Decision.Reason)
			}
			if told := extendedError(m); told == nil || e.ID == "" || told.ExtraText != "name-budget, decision "+e.ID {
				t.Errorf("the client is told %v, the event has the id %q", told, e.ID)
			}
		}
	}
	if names, _ := f.spent(); refused != 30 || up.Count() != 20 || names != 20 {
		t.Errorf("%d of 50 refused, upstream asked %d times, counted %d", refused, up.Count(), names)
	}
	f.Flush() // of the cache alone
	if blocked(ask(3)) || blocked(f.ask("ok.test", dns.TypeA)) {
		t.Error("a name that was counted, or is no wildcard's, is refused")
	}
	if !blocked(f.ask("_x._tcp.ok.test", dns.TypeTXT)) {
		t.Error("a service's name does not count")
	}
	f.switchTo(p)
	if names, _ := f.spent(); names != 0 || blocked(ask(40)) {
		t.Errorf("the next phase begins with %d names", names)
	}

	unlimited := newFilter(t, allow("*.ok.test"), Options{}, up.Addr)
	for i := range 100 {
		unlimited.ask(fmt.Sprintf("n%d.ok.test", i%50), dns.TypeA)
	}
	if got, _ := unlimited.spent(); got != 50 {
		t.Errorf("counted %d names, want 50", got)
	}
}

// TestQuestionBytes: a few names, asked for again and again in an order that says something, by types that do, are a
// tunnel too; each question that leaves counts, what the cache answers does not. [I-06]
func TestQuestionBytes(t *testing.T) {
	up := dnstest.New(t, func(q dnstest.Query) *dns.Msg { // nothing is kept
		return q.Records(q.Name+" 0 A 192.0.2.1", q.Name+" 0 TXT x")
	})
	p := allow("*.ok.test", "fixed.test")
	const name = "a.ok.test"
	const question = len(name) + 2 + 4
	p.Options.DNSQuestionBytes = 10*question + question/2
	f := newFilter(t, p, Options{}, up.Addr)
	types := []uint16{dns.TypeA, dns.TypeTXT, dns.TypeAAAA, dns.TypeHTTPS}
	asked := 0
	for i := range 40 {
		if !blocked(f.ask(name, types[i%len(types)])) {
			asked++
		}
		if blocked(f.ask("fixed.test", dns.TypeA)) {
			t.Fatal("a name that is no wildcard's is refused")
		}
	}
	if names, bytes := f.spent(); asked > 10 || names != 1 || bytes > p.Options.DNSQuestionBytes || bytes < asked*question/2 {
		t.Errorf("%d questions were asked, counted %d names and %d bytes", asked, names, bytes)
	}
	before := up.Count()
	if !blocked(f.ask(strings.Repeat("b", 60)+".ok.test", dns.TypeA)) || up.Count() != before {
		t.Error("a long name still leaves")
	}
}

// TestCarry: a budget goes on where only the surroundings of a policy change.
func TestCarry(t *testing.T) {
	p := allow("*.ok.test")
	p.Options.DNSUniqueNames = 2
	rs, err := matcher.Compile(p, matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	spend := func(b *Budget, name string) bool { return b.Spend(rs.Query(name), []byte(name), 1) }
	former := NewBudget(rs, p.Options)
	if !spend(former, "a.ok.test") {
		t.Fatal("the first name is refused")
	}
	next := NewBudget(rs, p.Options)
	next.Carry(former)
	if !spend(next, "a.ok.test") || !spend(next, "b.ok.test") || spend(next, "c.ok.test") {
		t.Error("what was counted before does not count")
	}
	if names, _ := former.Spent(); names != 1 {
		t.Errorf("the former budget has %d names", names)
	}
	var none *Budget
	none.Carry(former)
	next.Carry(none)
	if none = NewBudget(rs, policy.Options{}); none == nil || !none.Spend(matcher.Decision{Rule: matcher.NoRule, Verdict: matcher.ByAddress}, nil, 1) {
		t.Error("no limit limits")
	}
}
