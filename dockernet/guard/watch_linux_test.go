package guard

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"sluice/policy"
)

// watchGaps runs Watch until the test ends, and returns what waits for gaps.
func (l *lab) watchGaps(t *testing.T) *gaps {
	t.Helper()
	g := &gaps{more: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		done <- l.guard.watch(ctx, func() { close(ready) }, func(gap Gap) {
			g.mu.Lock()
			g.list = append(g.list, gap)
			g.mu.Unlock()
			select {
			case g.more <- struct{}{}:
			default:
			}
		})
	}()
	<-ready
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return g
}

type gaps struct {
	mu   sync.Mutex
	list []Gap
	more chan struct{}
}

// wait waits for gaps of all these ports, and returns them by port, of each the last one.
func (g *gaps) wait(t *testing.T, ports ...string) map[string]Gap {
	t.Helper()
	timeout := time.After(patience)
	for {
		g.mu.Lock()
		found := make(map[string]Gap)
		for _, gap := range g.list {
			found[gap.Port] = gap
		}
		complete := true
		for _, p := range ports {
			_, ok := found[p]
			complete = complete && ok
		}
		if complete {
			g.list = nil
			g.mu.Unlock()
			return found
		}
		g.mu.Unlock()
		select {
		case <-g.more:
		case <-timeout:
			t.Fatalf("no gap of one of %q: %v", ports, found)
		}
	}
}

// What others do to the rules is undone.
func TestRulesComeBack(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	flush := []string{"flush ruleset"}
	all := []string{"veth-a", "veth-b"} // which share a table
	for _, tt := range []struct {
		name string
		do   []string
		// whose rules are hit
		ports []string
		// state of the port when that happens
		prepare func(*testing.T, *lab, *Port)
		want    string
	}{
		{"flush", flush, append([]string{""}, all...), nil, "xy"},
		{"table_deleted", []string{"delete table netdev sluice_guard_1"}, all, nil, "xy"},
		{"table_flushed", []string{"flush table netdev sluice_guard_1"}, all, nil, "xy"},
		{"chain_flushed", []string{"flush chain netdev sluice_guard_1 veth-a/judge4_1"}, all, nil, "xy"},
		{"rule_added", []string{"insert rule netdev sluice_guard_1 veth-a/ingress accept"}, all, nil, "xy"},
		{"target_added", []string{"add element netdev sluice_guard_1 %s { 192.0.2.4 }"}, all, manyTargets, "xy"},
		{"target_deleted", []string{"delete element netdev sluice_guard_1 %s { 10.0.0.2 }"}, all, manyTargets, "xy"},
		{"host_flushed", []string{"flush table inet sluice_guard"}, []string{""}, nil, "xy"},
		{"host_deleted", []string{"delete table inet sluice_guard", "delete table bridge sluice_guard"}, []string{""}, nil, "xy"},
		{"bridge_forgotten", []string{`delete element inet sluice_guard bridges { "br-lab" }`}, []string{""}, nil, "xy"},
		{"flush_switched", flush, append([]string{""}, all...), func(t *testing.T, l *lab, p *Port) { check(t, p.Switch(policy.Run)) }, "xz"},
		{"flush_both", flush, append([]string{""}, all...), func(t *testing.T, l *lab, p *Port) { check(t, p.Both(policy.Run)) }, "x"},
		{"flush_staged", flush, append([]string{""}, all...), func(t *testing.T, l *lab, p *Port) {
			check(t, p.Stage(l.spec(t, "a", phaseOf(t, "public"), phaseOf(t, "public"))))
		}, "xy"},
		{"flush_both_staged", flush, append([]string{""}, all...), func(t *testing.T, l *lab, p *Port) {
			check(t, p.Stage(l.spec(t, "a", phaseOf(t, "public"), phaseXZ(t))))
			check(t, p.Both(policy.Run))
		}, "x"},
		{"flush_quarantine", flush, append([]string{""}, all...), func(t *testing.T, l *lab, p *Port) { check(t, p.Quarantine()) }, ""},
		{"flush_quarantine_only", flush, append([]string{""}, all...), func(t *testing.T, l *lab, p *Port) {
			check(t, p.Remove())
			check(t, l.port("a").Quarantine())
		}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLab(t, "abs")
			l.install(t, "b", phaseXY(t))
			l.install(t, "a", phaseXY(t), phaseXZ(t))
			serve(t, l.containers["a"].Namespace)
			if tt.prepare != nil {
				tt.prepare(t, l, l.port("a"))
			}
			want := blocks(l.nft(t, "", "list", "ruleset"))
			set := ""
			if p := l.port("a"); p.staged != nil {
				c, err := p.content(build(p.staged.spec, p.host.config, p.staged.generation))
				check(t, err)
				set = c.names["baseline_net4_2"]
			}
			g := l.watchGaps(t)
			for _, command := range tt.do {
				if strings.Contains(command, "%s") {
					command = fmt.Sprintf(command, set)
				}
				l.nft(t, command, "-f", "-")
			}
			for port, gap := range g.wait(t, tt.ports...) {
				if gap.Err != nil || gap.Uncovered <= 0 {
					t.Errorf("gap of %q: %v, %v", port, gap.Uncovered, gap.Err)
				}
				t.Logf("%q was not covered for %v", port, gap.Uncovered)
			}
			for _, letters := range bothLetters {
				l.expect(t, "after it", tt.want, letters)
			}
			got := blocks(l.nft(t, "", "list", "ruleset"))
			if tt.want == "" {
				// In a quarantine nothing leads to what was in force before.
				unused := func(name, _ string) bool {
					return strings.HasPrefix(name, "table netdev") && !containsAny(name, "chain veth-a/ingress", "veth-b/")
				}
				maps.DeleteFunc(want, unused)
				maps.DeleteFunc(got, unused)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the rules are not what they were (-want +got):\n%s", diff)
			}
			// It goes on from there.
			check(t, l.port("a").Install(l.spec(t, "a", phaseXY(t)), policy.Baseline))
			l.expect(t, "installed again", "xy", letters4)
			check(t, l.port("a").Switch(policy.Run))
			l.expect(t, "switched", "", letters4)
		})
	}
}

// manyTargets makes a set of ranges, to which elements can be added.
func manyTargets(t *testing.T, l *lab, p *Port) {
	list := []string{"192.0.2.1", "192.0.2.2", "2001:db8:2::1", "2001:db8:2::2"}
	for i := range 40 {
		list = append(list, fmt.Sprintf("10.0.0.%d", 2*i), fmt.Sprintf("10.0.1.%d:443", 2*i), fmt.Sprintf("10.0.%d.0/24", 2*i+2))
	}
	check(t, p.Install(l.spec(t, "a", phaseOf(t, "allowlist", list...)), policy.Baseline))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// blocks are the chains, sets and counters of a listing, by table and name, without the numbers of generations and the
// values of counters.
func blocks(list string) map[string]string {
	m := make(map[string]string)
	table, block := "", ""
	for line := range strings.Lines(generationNumber.ReplaceAllString(list, "_N")) {
		switch {
		case strings.HasPrefix(line, "table "):
			table = strings.TrimSpace(line)
		case strings.HasPrefix(line, "\t\t"):
			if !strings.Contains(line, "packets ") || strings.Contains(line, "limit") {
				m[block] += line
			}
		case strings.HasSuffix(line, " {\n"):
			block = table + line
			m[block] = ""
		}
	}
	return m
}

var generationNumber = regexp.MustCompile(`_\d+\b`)

// What the guard itself changes is no reason to put rules in force again, nor is what happens to others' tables.
func TestOwnChangesAreNoGaps(t *testing.T) {
	l := newLab(t, "abs")
	g := l.watchGaps(t)
	p := l.port("a")
	for range 3 {
		check(t, p.Install(l.spec(t, "a", phaseXY(t), phaseXZ(t)), policy.Baseline))
		check(t, p.Both(policy.Run))
		check(t, p.Switch(policy.Run))
		check(t, p.Quarantine())
		check(t, l.guard.AddBridge(labBridge, true))
		check(t, l.guard.AddBridge(labBridge, false))
		check(t, p.Remove())
		p = l.port("a")
	}
	l.nft(t, "add table inet others; flush table inet others; delete table inet others", "-f", "-")
	l.install(t, "b", phaseXY(t))
	l.nft(t, "flush table netdev "+l.port("b").tables()[0].Name, "-f", "-")
	// The last change is the only one of which something is heard.
	g.mu.Lock()
	early := g.list
	g.mu.Unlock()
	if found := g.wait(t, "veth-b"); len(found) != 1 || len(early) > 1 {
		t.Errorf("gaps of %v, and before that %v", found, early)
	}
}

// A veth that is gone needs no rules.
func TestGoneVethIsNoGap(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "a", phaseXY(t))
	l.install(t, "b", phaseXY(t))
	g := l.watchGaps(t)
	h := l.host.Handle(t)
	link, err := h.LinkByName("veth-a")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	l.nft(t, "flush ruleset", "-f", "-")
	if found := g.wait(t, "veth-b", ""); len(found) != 2 {
		t.Errorf("gaps of %v", found)
	}
}

// If the kernel has told more than could be read, everything is put in force again.
func TestOverrunIsTakenForAChange(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "a", phaseXY(t))
	w := &watcher{host: l.guard, since: make(map[string]time.Time)}
	w.all()
	var reported []string
	w.restore(func(gap Gap) { reported = append(reported, gap.Port) })
	if strings.Join(reported, " ") != " veth-a" || len(w.since) != 0 {
		t.Errorf("put in force again: %q, left: %v", reported, w.since)
	}
	l.expect(t, "after it", "xy", letters4)
}
