package harbor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"sluice/control"
	"sluice/policy"
)

// fake is a kernel and a proxy that write down what they are told, and fail where they shall.
type fake struct {
	steps []string
	fails map[string]error
}

func (f *fake) step(s string) error {
	f.steps = append(f.steps, s)
	return f.fails[s]
}

func (f *fake) Install(p policy.Policy) error { return f.step("install " + p.Mode.String()) }
func (f *fake) Stage(p policy.Policy) error   { return f.step("stage") }
func (f *fake) Both() error                   { return f.step("both") }
func (f *fake) Switch() error                 { return f.step("switch") }
func (f *fake) Quarantine() error             { return f.step("quarantine") }
func (f *fake) Listing() (string, error)      { return "table inet\n", f.fails["listing"] }
func (f *fake) Refused() (uint64, error)      { return 5, f.fails["refused"] }
func (f *fake) Cut() (Cut, error)             { return Cut{Ended: 1, Kept: 2}, f.step("cut") }
func (f *fake) Block(string)                  { _ = f.step("block") }
func (f *fake) Apply(_ context.Context, p policy.Policy) (control.Receipt, error) {
	return control.Receipt{FlowsCut: 3, FlowsKept: 4}, f.step("apply " + p.Mode.String())
}

func (f *fake) took() string {
	s := strings.Join(f.steps, ", ")
	f.steps = nil
	return s
}

// begun is a sidecar that has begun with a policy.
func begun(t *testing.T, f *fake, p policy.Policy) *Sidecar {
	t.Helper()
	s := &Sidecar{kernel: f, proxy: f, log: slog.New(slog.DiscardHandler), holds: func(ok bool) error { return f.step(fmt.Sprint("ready ", ok)) }}
	if err := s.begin(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *Sidecar) do(args ...string) Answer { return s.Do(context.Background(), args) }

func TestBegin(t *testing.T) {
	f := new(fake)
	begun(t, f, refuseAll())
	if got, want := f.took(), "apply no-network, install no-network, cut, ready true"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	for _, step := range []string{"apply public", "install public", "cut", "ready true"} {
		f := &fake{fails: map[string]error{step: errors.New("out of order")}}
		s := &Sidecar{kernel: f, proxy: f, log: slog.New(slog.DiscardHandler), holds: func(ok bool) error { return f.step(fmt.Sprint("ready ", ok)) }}
		if err := s.begin(context.Background(), public()); err == nil || !strings.Contains(err.Error(), "out of order") {
			t.Errorf("%s: %v", step, err)
		}
	}
}

// Interfaces that come later are under the policy too, in a quarantine as well; where that fails everything is refused.
func TestRefresh(t *testing.T) {
	for _, row := range []struct{ fails, steps, show string }{
		{"", "stage, both, apply no-network, switch, cut, ready true", "generation: 2"},
		{"stage", "stage, block, quarantine, ready false", "the network has changed: out of order"},
		{"switch", "stage, both, apply no-network, switch, block, quarantine, ready false", "the network has changed: out of order"},
	} {
		f := new(fake)
		s := begun(t, f, refuseAll())
		f.took()
		f.fails = map[string]error{row.fails: errors.New("out of order")}
		s.refresh(context.Background())
		if got := f.took(); got != row.steps {
			t.Errorf("%s fails: %s; want %s", row.fails, got, row.steps)
		}
		if got := s.do("show"); !strings.Contains(got.Stdout+got.Stderr, row.show) {
			t.Errorf("%s fails: it shows %+v", row.fails, got)
		}
		if row.fails == "" {
			continue
		}
		f.fails = nil
		s.refresh(context.Background())
		if got, want := f.took(), "stage"; got != want {
			t.Errorf("in a quarantine: %s; want %s", got, want)
		}
	}
	f := new(fake)
	s := begun(t, f, refuseAll())
	if err := s.end(true); err != nil {
		t.Fatal(err)
	}
	f.took()
	if s.refresh(context.Background()); f.took() != "" {
		t.Error("the rules are made anew after the end")
	}
}

// What is allowed during a switch is a part of what both policies allow, and the answer comes when all is done.
func TestSwitchOrder(t *testing.T) {
	f := new(fake)
	s := begun(t, f, public())
	f.took()
	for _, row := range []struct{ args, steps, out string }{
		{"deny-all", "stage, both, apply no-network, switch, cut, ready true", "ok: deny all egress (generation 2, 4 connections cut, 6 kept, "},
		{"deny-all", "", "ok: deny all egress (generation 2, as before)"},
		{"allow", "", "ok: deny all egress, for no target was given (generation 2, as before)"},
		{"allow B.test a.test", "stage, both, apply allowlist, switch, cut, ready true", "ok: allowlist applied (generation 3, "},
		{"allow a.test. b.test a.test", "", "ok: allowlist applied (generation 3, as before)"},
		{"show", "", "mode: allowlist\ngeneration: 3\nallowed: a.test\nallowed: b.test\nrefused by the kernel: 5 packets\n"},
		{"rules", "", "table inet\n"},
		{"allow-all", "stage, both, apply public, switch, cut, ready true", "ok: allow all egress (generation 4, "},
	} {
		a := s.do(strings.Fields(row.args)...)
		if got := f.took(); a.Code != 0 || a.Stderr != "" || !strings.HasPrefix(a.Stdout, row.out) || got != row.steps {
			t.Errorf("%s: %+v after %s; want %s after %s", row.args, a, got, row.out, row.steps)
		}
	}
}

func TestBadCommandsChangeNothing(t *testing.T) {
	f := new(fake)
	s := begun(t, f, public())
	f.took()
	for _, row := range []struct {
		args []string
		code int
		want string
	}{
		{nil, wrong, "Usage:"},
		{[]string{"--help"}, wrong, "Usage:"},
		{[]string{"allow_all"}, wrong, "Usage:"},
		{[]string{"deny-all", "now"}, wrong, `"deny-all" takes no further word; nothing has changed`},
		{[]string{"show", "x"}, wrong, "takes no further word"},
		{[]string{"allow", "a.test", "http://b.test"}, failed, `network-policy: "http://b.test": is a URL`},
		{[]string{"allow", "a.test b.test"}, failed, "white space"},
		{[]string{"allow", "10.0.0.1/8", "10.0.0.1-10.0.0.9"}, failed, "10.0.0.0/8"},
		{[]string{"allow", "*"}, failed, "nothing has changed"},
	} {
		a := s.do(row.args...)
		if a.Code != row.code || a.Stdout != "" || !strings.Contains(a.Stderr, row.want) || len(f.steps) > 0 {
			t.Errorf("%q: %+v after %q; want code %d and %q after nothing", row.args, a, f.took(), row.code, row.want)
		}
	}
	if a := s.do("show"); a.Stdout != "mode: public\ngeneration: 1\nrefused by the kernel: 5 packets\n" {
		t.Errorf("show: %+v", a)
	}
}

// A switch that fails before anything is in force leaves everything as it was; any later, everything is refused, until
// one succeeds.
func TestSwitchFailures(t *testing.T) {
	for _, step := range []string{"both", "apply no-network", "switch", "cut", "ready true"} {
		f := &fake{fails: map[string]error{}}
		s := begun(t, f, public())
		f.fails[step] = errors.New("no room")
		a := s.do("deny-all")
		if a.Code != failed || a.Stdout != "" || !strings.Contains(a.Stderr, "everything is refused until a switch succeeds: no room") {
			t.Errorf("%s: %+v", step, a)
		}
		if got := f.took(); !strings.HasSuffix(got, "block, quarantine, ready false") {
			t.Errorf("%s: %s", step, got)
		}
		if a := s.do("show"); a.Code != failed || a.Stdout != "mode: refuses everything\n" || !strings.Contains(a.Stderr, "no room") {
			t.Errorf("%s: show: %+v", step, a)
		}
		if a := s.do("rules"); a.Code != failed || !strings.Contains(a.Stderr, "no room") {
			t.Errorf("%s: rules: %+v", step, a)
		}
		f.fails["stage"] = errors.New("no room either")
		if a := s.do("allow-all"); a.Code != failed || !strings.Contains(a.Stderr, "everything is refused as before: no room either") {
			t.Errorf("%s: %+v", step, a)
		}
		f.took()
		clear(f.fails)
		// The policy that was in force before is no reason to do nothing.
		if a := s.do("allow-all"); a.Code != 0 || f.took() != "stage, both, apply public, switch, cut, ready true" {
			t.Errorf("%s: again: %+v", step, a)
		}
	}
	f := &fake{fails: map[string]error{}}
	s := begun(t, f, public())
	f.fails["stage"] = errors.New("no room")
	f.took()
	if a := s.do("deny-all"); a.Code != failed || !strings.Contains(a.Stderr, "nothing has changed: no room") || f.took() != "stage" {
		t.Errorf("%+v", a)
	}
	if a := s.do("show"); a.Code != 0 || !strings.HasPrefix(a.Stdout, "mode: public\n") {
		t.Errorf("%+v", a)
	}
	f.fails = map[string]error{"switch": errors.New("no room"), "quarantine": errors.New("nor power")}
	if a := s.do("deny-all"); a.Code != failed || !strings.Contains(a.Stderr, "STOP THE TASK: no room") || !strings.Contains(a.Stderr, "nor power") {
		t.Errorf("%+v", a)
	}
}

func TestEnd(t *testing.T) {
	f := new(fake)
	s := begun(t, f, public())
	f.took()
	if err := s.end(true); err != nil || f.took() != "ready false, quarantine" {
		t.Errorf("%v", err)
	}
	if a := s.do("allow-all"); a.Code != failed || len(f.steps) > 0 || !strings.Contains(a.Stderr, "ending") {
		t.Errorf("%+v after %q", a, f.steps)
	}
}

func TestInitial(t *testing.T) {
	for _, row := range []struct{ mode, hosts, want string }{
		{"public", "", "public"},
		{"no-network", " ", "no-network"},
		{"allowlist", "", "no-network"},
		{"allowlist", "b.test\t*.a.test  10.0.0.0/8\n2001:db8::1 b.test", "allowlist *.a.test 10.0.0.0/8 2001:db8::1 b.test"},
		{"", "", ModeVariable + " is not set"},
		{"Public", "", `"Public"`},
		{"denylist", "", `"denylist"`},
		{"public", "a.test", "belong to the mode allowlist"},
		{"no-network", "a.test", "belong to the mode allowlist"},
		{"allowlist", "a.test https://b.test", HostsVariable + `: "https://b.test": is a URL`},
	} {
		p, err := initial(row.mode, row.hosts)
		got := []string{p.Mode.String()}
		for _, t := range p.Targets {
			got = append(got, t.String())
		}
		text := strings.Join(got, " ")
		if err != nil {
			text = err.Error()
		}
		if !strings.Contains(text, row.want) || (err == nil) != (text == row.want) {
			t.Errorf("%q %q: %s; want %s", row.mode, row.hosts, text, row.want)
		}
		if err != nil && (p.Mode != policy.NoNetwork || len(p.Targets) > 0) {
			t.Errorf("%q %q: %+v beside an error", row.mode, row.hosts, p)
		}
	}
	many := slices.Repeat([]string{"a b"}, 50)
	if _, err := allowlist(many); err == nil || strings.Count(err.Error(), "\n") > 10 {
		t.Errorf("%v", err)
	}
}
