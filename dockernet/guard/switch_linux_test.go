package guard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/direct"
	"sluice/policy"
)

// passes reports whether a datagram of container a to an address passes.
func (l *lab) passes(t testing.TB, to netip.Addr) bool {
	t.Helper()
	h := ip{from: l.containers["a"].ip4, to: to}
	if to.Is6() {
		h.from = l.containers["a"].ip6
	}
	key := l.token()
	return l.where(t, "a", []byte(key), l.fromA(to, h.datagram(1000, 2000, key))) != ""
}

// expect checks which of some addresses are passed to: the letters of those that are.
func (l *lab) expect(t testing.TB, when, want string, letters map[string]netip.Addr) {
	t.Helper()
	got := ""
	for _, letter := range []string{"x", "y", "z", "n"} {
		if to, ok := letters[letter]; ok && l.passes(t, to) {
			got += letter
		}
	}
	if got != want {
		t.Errorf("%s: passes to %q, want %q", when, got, want)
	}
}

// Destinations: x is allowed by two phases, y by the first, z by the second, and n by none.
var (
	letters4 = map[string]netip.Addr{"x": netip.MustParseAddr("192.0.2.1"), "y": netip.MustParseAddr("192.0.2.2"),
		"z": netip.MustParseAddr("192.0.2.3"), "n": netip.MustParseAddr("192.0.2.4")}
	letters6 = map[string]netip.Addr{"x": netip.MustParseAddr("2001:db8:2::1"), "y": netip.MustParseAddr("2001:db8:2::2"),
		"z": netip.MustParseAddr("2001:db8:2::3"), "n": netip.MustParseAddr("2001:db8:2::4")}
	bothLetters = []map[string]netip.Addr{letters4, letters6}
)

func phaseXY(t testing.TB) direct.Phase {
	return phaseOf(t, "allowlist", "192.0.2.1", "192.0.2.2", "2001:db8:2::1", "2001:db8:2::2")
}
func phaseXZ(t testing.TB) direct.Phase {
	return phaseOf(t, "allowlist", "192.0.2.1", "192.0.2.3", "2001:db8:2::1", "2001:db8:2::3")
}

func TestLifeOfAPort(t *testing.T) {
	l := newLab(t, "abs")
	p := l.port("a")
	step := func(name string, err error, want string) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, letters := range bothLetters {
			l.expect(t, name, want, letters)
		}
	}
	step("before", nil, "xyzn")
	for _, f := range []func(policy.Phase) error{p.Both, p.Switch} {
		if err := f(policy.Run); !errors.Is(err, errNotInstalled) {
			t.Errorf("before Install: %v", err)
		}
	}
	first := l.spec(t, "a", phaseXY(t), phaseXZ(t))
	step("install", p.Install(first, policy.Baseline), "xy")
	step("both", p.Both(policy.Run), "x")
	step("switch", p.Switch(policy.Run), "xz")
	step("back", p.Switch(policy.Baseline), "xy")
	step("nothing", p.Switch(policy.Evaluation), "")
	step("both_of_nothing", p.Both(policy.Run), "")
	step("again", p.Switch(policy.Run), "xz")

	second := l.spec(t, "a", phaseOf(t, "public"), phaseXY(t))
	step("stage", p.Stage(second), "xz")
	step("both_staged", p.Both(policy.Run), "x")
	step("switch_staged", p.Switch(policy.Run), "xy")
	step("public", p.Switch(policy.Baseline), "xyzn")

	step("quarantine", p.Quarantine(), "")
	step("both_in_quarantine", p.Both(policy.Baseline), "")
	step("stage_in_quarantine", p.Stage(first), "")
	step("after_quarantine", p.Switch(policy.Baseline), "xy")
	step("quarantine_again", p.Quarantine(), "")
	step("install_in_quarantine", p.Install(second, policy.Run), "xy")

	broken := l.spec(t, "a", phaseXY(t))
	broken.Phases[1].Rules = nil
	if err := p.Stage(broken); err == nil {
		t.Error("a Spec without rules is staged")
	}
	gone := l.spec(t, "a", phaseXY(t))
	gone.Index++
	if err := p.Install(gone, policy.Baseline); !errors.Is(err, ErrGone) {
		t.Errorf("a veth of another index: %v", err)
	}
	other := l.spec(t, "b", phaseXY(t))
	if err := p.Install(other, policy.Baseline); err == nil {
		t.Error("rules of another veth are installed")
	}
	step("after_errors", nil, "xy")

	step("remove", p.Remove(), "xyzn")
	step("remove_again", p.Remove(), "xyzn")
	for _, err := range []error{p.Install(first, policy.Baseline), p.Quarantine()} {
		if !errors.Is(err, errRemoved) {
			t.Errorf("after Remove: %v", err)
		}
	}
	step("quarantine_of_nothing", l.port("a").Quarantine(), "")
	step("install_after_quarantine", l.port("a").Install(first, policy.Baseline), "xy")
	if err := l.port("a").Remove(); err != nil {
		t.Fatal(err)
	}
	if list := l.nft(t, "", "list", "tables", "netdev"); list != "" {
		t.Errorf("tables are left:\n%s", list)
	}
}

// A container that ends leaves nothing that would keep its rules from going.
func TestRemoveAfterTheVeth(t *testing.T) {
	l := newLab(t, "abs")
	l.install(t, "a", phaseXY(t))
	h := l.host.Handle(t)
	link, err := h.LinkByName("veth-a")
	if err != nil {
		t.Fatal(err)
	}
	if err := h.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	if err := l.port("a").Install(l.spec(t, "a", phaseXY(t)), policy.Baseline); !errors.Is(err, ErrGone) {
		t.Errorf("install without a veth: %v", err)
	}
	if err := l.port("a").Remove(); err != nil {
		t.Error(err)
	}
	if list := l.nft(t, "", "list", "ruleset"); containsAny(list, "veth-a", "sluice_guard_") {
		t.Errorf("rules are left:\n%s", list)
	}
}

// Large sets are complete, in one step.
func TestManyTargets(t *testing.T) {
	l := newLab(t, "abs")
	var targets []string
	for i := range 5000 {
		targets = append(targets, fmt.Sprintf("10.%d.%d.1", i/250, i%250), fmt.Sprintf("10.%d.%d.2:%d", i/250, i%250, 1000+i),
			fmt.Sprintf("2001:db8:%x::/64", 0x100+i))
	}
	l.install(t, "a", phaseOf(t, "allowlist", targets...))
	for to, want := range map[string]bool{
		"10.0.0.1": true, "10.19.249.1": true, "10.9.99.1": true, "10.9.99.3": false, "10.19.250.1": false,
		"2001:db8:100::9": true, "2001:db8:1487::9": true, "2001:db8:1488::9": false, "2001:db8:ff::9": false,
	} {
		if got := l.passes(t, netip.MustParseAddr(to)); got != want {
			t.Errorf("%s passes: %v, want %v", to, got, want)
		}
	}
}

// While phases change under load, no packet meets neither of them or both: what two phases allow always passes, what
// none of them does never, and what only one does passes before the change or after it.
func TestSwitchUnderLoad(t *testing.T) {
	const switches = 100
	for _, generations := range []bool{false, true} {
		t.Run(fmt.Sprintf("new_sets_%v", generations), func(t *testing.T) {
			l := newLab(t, "abs")
			p := l.port("a")
			specs := []*Spec{l.spec(t, "a", phaseXY(t), phaseXZ(t)), l.spec(t, "a", phaseXY(t), phaseXZ(t))}
			// More targets make interval sets that take their time to fill.
			if generations {
				for i, letter := range []string{"2", "3"} {
					targets := []string{"192.0.2.1", "192.0.2." + letter, "2001:db8:2::1", "2001:db8:2::" + letter}
					for n := range 300 {
						targets = append(targets, fmt.Sprintf("10.%d.%d.0/26", n%250, n/250*8+4*i))
					}
					specs[i] = l.spec(t, "a", phaseOf(t, "allowlist", targets...))
				}
			}
			if err := p.Install(specs[0], policy.Baseline); err != nil {
				t.Fatal(err)
			}
			var stop, sent atomic.Bool
			var rounds atomic.Uint64
			done := make(chan error, 1)
			go func() { done <- l.load(&stop, &sent, &rounds) }()
			for !sent.Load() {
				time.Sleep(time.Millisecond)
			}
			// changed are the round that was being sent when a change began and when it was over, by what passes after.
			type change struct{ began, over uint64 }
			var changes []change
			for i := range switches {
				c := change{began: rounds.Load()}
				var err error
				if phase := policy.Phase((i + 1) % 2); generations {
					err = errors.Join(p.Stage(specs[phase]), p.Both(policy.Baseline), p.Switch(policy.Baseline))
				} else {
					err = errors.Join(p.Both(phase), p.Switch(phase))
				}
				if err != nil {
					t.Fatal(err)
				}
				c.over = rounds.Load() + 1
				changes = append(changes, c)
				// A phase is in force for some packets at least.
				for start := rounds.Load(); rounds.Load() < start+10; {
					time.Sleep(100 * time.Microsecond)
				}
			}
			stop.Store(true)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			last := []byte(l.token())
			onOneCPU(t, func() error { return l.signal(last) })
			if err := l.watchers["outside"].waitFor(patience, last); err != nil {
				t.Fatal(err)
			}
			total := rounds.Load()
			for family, letters := range bothLetters {
				arrived := l.arrivals(letters)
				if n := len(arrived["n"]); n > 0 {
					t.Errorf("family %d: %d packets pass that nobody allows", family, n)
				}
				for round := range total {
					if !arrived["x"][round] {
						t.Fatalf("family %d: a packet that both phases allow is lost, in round %d of %d", family, round, total)
					}
				}
				// Between changes exactly one of y and z passes.
				next, now, count := 0, "y", map[string]int{}
				for round := range total {
					for next < len(changes) && round > changes[next].over {
						next++
						now = map[string]string{"y": "z", "z": "y"}[now]
					}
					inChange := next < len(changes) && round >= changes[next].began
					for _, letter := range []string{"y", "z"} {
						if got := arrived[letter][round]; !inChange && got != (letter == now) {
							t.Fatalf("family %d, round %d, phase of %s: %s passes: %v", family, round, now, letter, got)
						}
						if arrived[letter][round] {
							count[letter]++
						}
					}
					if arrived["y"][round] && arrived["z"][round] && !inChange {
						t.Fatalf("family %d, round %d: what either phase alone allows passes", family, round)
					}
				}
				if count["y"] < switches || count["z"] < switches {
					t.Errorf("family %d: too little has passed: %v of %d rounds", family, count, total)
				}
			}
			t.Logf("%d rounds of 8 packets, %d switches", total, switches)
		})
	}
}

// load sends a packet to each letter's address in turn, with the number of the round in it, as fast as it can.
func (l *lab) load(stop, sent *atomic.Bool, rounds *atomic.Uint64) error {
	a := l.containers["a"]
	var frames [][]byte
	for _, letters := range bothLetters {
		for _, letter := range []string{"y", "x", "n", "z"} {
			h := ip{from: a.ip4, to: letters[letter]}
			if h.to.Is6() {
				h.from = a.ip6
			}
			frames = append(frames, l.fromA(h.to, h.echo(map[bool]byte{false: 8, true: 128}[h.to.Is6()], "12345678")))
		}
	}
	for !stop.Load() {
		round := rounds.Load()
		for _, f := range frames {
			// Conntrack and the checksum do not matter: the number is in the last bytes, and the host is told so.
			binary.BigEndian.PutUint64(f[len(f)-8:], round)
			if err := send(a.fd, f); err != nil && !errors.Is(err, unix.ENOBUFS) {
				return err
			}
		}
		rounds.Add(1)
		sent.Store(true)
		// In bursts, so that others get the CPU and the watchers can follow.
		if round%16 == 15 {
			time.Sleep(500 * time.Microsecond)
		}
	}
	return nil
}

// arrivals are the rounds in which something to the letters' addresses has come to the outside.
func (l *lab) arrivals(letters map[string]netip.Addr) map[string]map[uint64]bool {
	w := l.watchers["outside"]
	w.mu.Lock()
	defer w.mu.Unlock()
	arrived := make(map[string]map[uint64]bool)
	for letter, a := range letters {
		arrived[letter] = make(map[uint64]bool)
		at := 14 + 16
		if a.Is6() {
			at = 14 + 24
		}
		for _, f := range w.frames {
			if len(f) > at+len(a.AsSlice()) && netip.AddrFrom4([4]byte(f[at:at+4])) == a ||
				len(f) > at+16 && netip.AddrFrom16([16]byte(f[at:at+16])) == a {
				arrived[letter][binary.BigEndian.Uint64(f[len(f)-8:])] = true
			}
		}
	}
	return arrived
}

// A connection that was open before a phase came in which TCP goes to the proxy stays open, and its like cannot be
// opened any more.
func TestOpenConnectionsStay(t *testing.T) {
	l := newLab(t, "abs")
	serve(t, l.outside)
	a := l.containers["a"].Namespace
	l.install(t, "a", phaseOf(t, "allowlist", "203.0.113.9", "2001:db8:ffff::9"), phaseOf(t, "public"), phaseOf(t, "allowlist", "ok.test"))
	for _, to := range []netip.Addr{remote4, remote6} {
		if err := l.port("a").Switch(policy.Baseline); err != nil {
			t.Fatal(err)
		}
		at := netip.AddrPortFrom(to, 80).String()
		c, err := dial(a, "tcp", at, patience)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := l.port("a").Switch(policy.Run); err != nil {
			t.Fatal(err)
		}
		if err := exchange(c, patience); err != nil {
			t.Errorf("%v: a connection that both phases allow: %v", to, err)
		}
		before, err := l.guard.Counters()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dial(a, "tcp", at, silence); !isTimeout(err) {
			t.Errorf("%v: a new connection that has to go to the proxy: %v", to, err)
		}
		if after, err := l.guard.Counters(); err != nil || after.NotOpen.Packets == before.NotOpen.Packets {
			t.Errorf("%v: it is not counted (%v): %+v", to, err, after)
		}
		if err := l.port("a").Switch(policy.Evaluation); err != nil {
			t.Fatal(err)
		}
		if err := exchange(c, silence); !isTimeout(err) {
			t.Errorf("%v: a connection that the phase refuses: %v", to, err)
		}
	}
}

// The reset of a socket that is destroyed after a switch reaches the other end, with no data in it.
func TestResets(t *testing.T) {
	l := newLab(t, "abs")
	serve(t, l.outside)
	a := l.containers["a"]
	l.install(t, "a", phaseOf(t, "allowlist", "203.0.113.9", "2001:db8:ffff::9"), phaseOf(t, "no-network"))
	for _, to := range []netip.Addr{remote4, remote6} {
		if err := l.port("a").Switch(policy.Baseline); err != nil {
			t.Fatal(err)
		}
		c, err := dial(a.Namespace, "tcp", netip.AddrPortFrom(to, 80).String(), patience)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.port("a").Switch(policy.Run); err != nil {
			t.Fatal(err)
		}
		source := uint16(c.LocalAddr().(*net.TCPAddr).Port)
		h := ip{from: a.ip4, to: to}
		if to.Is6() {
			h.from = a.ip6
		}
		for _, tt := range []struct {
			name    string
			frame   []byte
			key     string
			arrives bool
		}{
			{"with_data", h.segment(source, 80, rst, 0, "<secret>"), "<secret>", false},
			{"with_ack_and_data", h.segment(source, 80, rst|ack, 0, "<hidden>"), "<hidden>", false},
			{"with_many_options", h.segment(source, 80, rst, 10, ""), string(h.segment(source, 80, rst, 10, "")[len(h.packet(nil)):]), false},
			{"of_no_connection", h.segment(1, 80, rst, 0, ""), string(h.segment(1, 80, rst, 0, "")[len(h.packet(nil)):]), false},
		} {
			if got := l.where(t, "a", []byte(tt.key), l.fromA(to, tt.frame)); (got != "") != tt.arrives {
				t.Errorf("%v, a reset %s: reaches %q", to, tt.name, got)
			}
		}
		// With as many options as Linux gives a reset, and others.
		for words := range 5 {
			before := l.counters(t, "a")[resetsCount].Packets
			l.where(t, "a", []byte("<"), l.fromA(to, h.segment(source, 80, rst, words, "")))
			if got, want := l.counters(t, "a")[resetsCount].Packets-before == 1, words == 0 || words == 3; got != want {
				t.Errorf("%v, a reset with %d words of options may pass: %v, want %v", to, words, got, want)
			}
		}
		before := l.counters(t, "a")[resetsCount].Packets
		w := l.watchers["outside"]
		w.forget()
		if err := c.(*net.TCPConn).SetLinger(0); err != nil {
			t.Fatal(err)
		}
		c.Close()
		// The kernel's own reset: from that port, with the flag in byte 13 of its header.
		deadline := time.Now().Add(patience)
		for !w.any(func(f []byte) bool {
			at := 14 + len(h.packet(nil))
			return len(f) >= at+20 && binary.BigEndian.Uint16(f[at:]) == source && f[at+13]&rst != 0
		}) {
			if time.Now().After(deadline) {
				t.Fatalf("%v: the reset of the socket does not arrive", to)
			}
			time.Sleep(time.Millisecond)
		}
		if after := l.counters(t, "a")[resetsCount].Packets; after == before {
			t.Errorf("%v: the reset is not counted", to)
		}
	}
}
