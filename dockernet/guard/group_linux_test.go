package guard

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice/dockernet/nft"
	"sluice/policy"
)

// addPorts hangs further veths on the lab's bridge and returns the Spec of each, with an allowlist.
func (l *lab) addPorts(t testing.TB, n int, allowed func(i int) []string) (specs []*Spec) {
	t.Helper()
	h := l.host.Handle(t)
	bridge, err := h.LinkByName(labBridge)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = fmt.Sprintf("port%d", i), bridge.Attrs().Index
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("peer%d", i)}); err != nil {
			t.Fatal(err)
		}
		link, err := h.LinkByName(attrs.Name)
		if err != nil {
			t.Fatal(err)
		}
		s := l.spec(t, "s", phaseOf(t, "allowlist", allowed(i)...), phaseOf(t, "public"))
		s.Interface, s.Index, s.Hardware = attrs.Name, link.Attrs().Index, nft.Hardware{2, 0, 0, 0, 1, byte(i)}
		specs = append(specs, s)
	}
	return specs
}

// tables are the ports' tables, with their chains, sets and counters.
func (l *lab) tables(t testing.TB) map[string]string {
	t.Helper()
	tables := make(map[string]string)
	for table := range strings.SplitSeq(l.nft(t, "", "list", "ruleset"), "\n}\n") {
		if name, ok := strings.CutPrefix(table, "table netdev "); ok {
			name, text, _ := strings.Cut(name, " ")
			tables[name] = text
		}
	}
	return tables
}

// Ports share tables, and each takes only its own things with it.
func TestPortsShareTables(t *testing.T) {
	l := newLab(t, "s")
	specs := l.addPorts(t, 2*groupSize+1, func(i int) []string {
		return append(targets(40), fmt.Sprintf("192.0.2.%d", i%2)) // two different sets
	})
	for _, s := range specs {
		check(t, l.guard.Port(s.Interface).Install(s, policy.Baseline))
	}
	there := make(map[string]*Spec)
	for _, s := range specs {
		there[s.Interface] = s
	}
	compare := func(when string) {
		t.Helper()
		tables := l.tables(t)
		whole := ""
		for name, text := range tables {
			whole += text
			perPort := strings.Count(text, "/ingress {")
			if perPort == 0 || perPort > groupSize {
				t.Errorf("%s: table %s has %d ports", when, name, perPort)
			}
			if counters := strings.Count(text, "\n\tcounter "); counters != perPort*len(portCounters)+len(tableCounters) {
				t.Errorf("%s: table %s has %d counters for %d ports", when, name, counters, perPort)
			}
			for line := range strings.Lines(text) {
				set, isSet := strings.CutPrefix(strings.TrimSpace(line), "set ")
				chain, isChain := strings.CutPrefix(strings.TrimSpace(line), "chain ")
				if isSet && !strings.Contains(text, "@"+strings.Fields(set)[0]) {
					t.Errorf("%s: nothing in table %s needs set %s", when, name, set)
				}
				// Those of phases that are not in force have nothing that leads to them, but are kept for some port.
				if isChain && strings.HasPrefix(chain, "rules_") && l.guard.groups[name].shared[strings.Fields(chain)[0]] == 0 {
					t.Errorf("%s: nobody in table %s needs chain %s", when, name, chain)
				}
			}
			if n := strings.Count(text, "10.0.0.0"); perPort > 1 && n > 2 {
				t.Errorf("%s: table %s has the targets %d times", when, name, n)
			}
		}
		for _, s := range specs {
			if has := strings.Contains(whole, s.Interface+"/"); has != (there[s.Interface] != nil) {
				t.Errorf("%s: rules of %s are there: %v", when, s.Interface, has)
			}
		}
	}
	compare("installed")
	if n := len(l.tables(t)); n != 3 {
		t.Errorf("%d tables", n)
	}
	// A Spec of no set at all, and back.
	for _, s := range specs[:groupSize] {
		other := s.clone()
		other.Phases = threeOf(t, phaseOf(t, "no-network"))
		check(t, l.guard.Port(s.Interface).Install(other, policy.Baseline))
	}
	compare("installed_again")
	for _, i := range rand.Perm(len(specs)) {
		check(t, l.guard.Port(specs[i].Interface).Remove())
		delete(there, specs[i].Interface)
		if i%5 == 0 {
			compare("removed_some")
		}
	}
	if left := l.tables(t); len(left) != 0 {
		t.Errorf("tables are left: %v", left)
	}
}

// Ports that share tables do not get in each other's way.
func TestPortsAtTheSameTime(t *testing.T) {
	l := newLab(t, "s")
	specs := l.addPorts(t, groupSize+4, func(i int) []string { return targets(10 * (1 + i%3)) })
	var all sync.WaitGroup
	for i, s := range specs {
		all.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			other := s.clone()
			other.Phases = specs[(i+1)%len(specs)].Phases
			for range 15 {
				p := l.guard.Port(s.Interface)
				err := p.Install(s, policy.Baseline)
				for range random.IntN(6) {
					switch phase := policy.Phase(random.IntN(policy.PhaseCount)); random.IntN(5) {
					case 0:
						err = errors.Join(err, p.Stage(other))
					case 1:
						err = errors.Join(err, p.Both(phase))
					case 2:
						err = errors.Join(err, p.Switch(phase))
					case 3:
						err = errors.Join(err, p.Quarantine())
					case 4:
						err = errors.Join(err, p.Install(other, phase))
					}
				}
				if err = errors.Join(err, p.Remove()); err != nil {
					t.Errorf("%s: %v", s.Interface, err)
					return
				}
			}
		})
	}
	all.Wait()
	if left := l.tables(t); len(left) != 0 || len(l.guard.groups) != 0 {
		t.Errorf("tables are left: %v, %v", left, l.guard.groups)
	}
}

// An earlier process's rules hold until others are there, also of several ports in one table.
func TestSharedTablesAreFound(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "a", phaseXY(t))
	l.install(t, "b", phaseXY(t))
	check(t, l.guard.Close())
	l.guard = l.openGuard(t)
	if got := strings.Join(l.guard.Found(), " "); got != "veth-a veth-b" {
		t.Errorf("found %s", got)
	}
	l.expect(t, "before Install", "xy", letters4)
	check(t, l.port("b").Remove())
	l.expect(t, "when the other one is removed", "xy", letters4)
	check(t, l.port("a").Install(l.spec(t, "a", phaseXZ(t)), policy.Baseline))
	l.expect(t, "installed", "xz", letters4)
	if tables := l.tables(t); len(tables) != 1 || strings.Contains(tables[groupID(2).Name], "veth-b") {
		t.Errorf("tables: %v", tables)
	}
	if got := l.guard.Found(); len(got) != 0 {
		t.Errorf("found %v after Install", got)
	}

	// Two ports that were in quarantine, of which one is never asked for.
	check(t, l.port("b").Quarantine())
	check(t, l.port("a").Quarantine())
	check(t, l.guard.Close())
	l.guard = l.openGuard(t)
	l.expect(t, "in quarantine", "", letters4)
	check(t, l.port("a").Quarantine())
	check(t, l.port("a").Install(l.spec(t, "a", phaseXY(t)), policy.Baseline))
	l.expect(t, "after it", "xy", letters4)
	check(t, l.port("a").Remove())
	l.expect(t, "removed", "xyzn", letters4)
	check(t, l.guard.Port("veth-b").Remove())
	if left := l.tables(t); len(left) != 0 {
		t.Errorf("tables are left: %v", left)
	}
}

// A port whose rules somebody has damaged can be removed, and the others stay.
func TestRemoveWhatSomebodyHasDamaged(t *testing.T) {
	for _, damage := range []string{
		"flush chain netdev sluice_guard_1 veth-a/ip4_1",
		"delete table netdev sluice_guard_1",
		"flush chain netdev sluice_guard_1 veth-a/ingress; delete chain netdev sluice_guard_1 veth-a/ingress",
		"add chain netdev sluice_guard_1 veth-a/more",
	} {
		l := newLab(t, "abs")
		l.install(t, "a", phaseXY(t))
		l.install(t, "b", phaseXY(t))
		l.nft(t, damage, "-f", "-")
		check(t, l.port("a").Remove())
		l.expect(t, damage, "xyzn", letters4)
		l.install(t, "a", phaseXZ(t))
		l.expect(t, damage+" and installed", "xz", letters4)
		for _, name := range []string{"a", "b"} {
			check(t, l.port(name).Remove())
		}
		if left := l.tables(t); len(left) != 0 {
			t.Errorf("%s: tables are left: %v", damage, left)
		}
	}
}
