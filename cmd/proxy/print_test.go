package main

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/control"
)

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 999: "999 B", 1000: "1 kB", 1499: "1.5 kB", 999_499: "999 kB", 999_500: "1 MB", 123_456_789: "123 MB", math.MaxUint64: "18.4 EB"} {
		if got := size(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m01s", 3*time.Hour + 5*time.Minute: "3h05m", 99*time.Hour + 59*time.Minute: "99h59m", 240 * time.Hour: "10d"} {
		if got := age(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}

// Tables fit a terminal of 80 columns whatever is in them, in the columns that have no bound of their own.
func TestWidth(t *testing.T) {
	long := strings.Repeat("long-name.", 20) + "test:65535"
	flow := control.Flow{ID: "1", Protocol: "connect", Target: long, Address: "[2001:db8:1111:2222:3333:4444:5555:6666]:65535", Since: time.Now().Add(-99*time.Hour - 59*time.Minute), BytesIn: 999_000_000, BytesOut: math.MaxUint64}
	session := control.SessionStatus{ID: strings.Repeat("0", 64), State: control.Quarantined, Mode: "no-network", Phase: "evaluation", Generation: 4_000_000_000, Flows: 99999}
	explained := control.Explanation{Target: "a.test:443", Phase: "run", Verdict: "refuse", Reason: "private-wildcard", Rule: "*.test",
		Addresses: []control.ExplainedAddress{{Address: "2001:db8:1111:2222:3333:4444:5555:6666", Verdict: "refuse", Reason: "port-not-listed", Rule: long}}}
	for name, print := range map[string]func(*cobra.Command) error{
		"flows":   func(cmd *cobra.Command) error { return printFlows(cmd, []control.Flow{flow}) },
		"status":  func(cmd *cobra.Command) error { return printStatus(cmd, []control.SessionStatus{session}) },
		"explain": func(cmd *cobra.Command) error { return printExplanation(cmd, explained) },
		"receipt": func(cmd *cobra.Command) error {
			return printReceipt(cmd, control.Receipt{Phase: "evaluation", Generation: 999, FlowsCut: 1, FlowsKept: 999}, false)
		},
	} {
		var out strings.Builder
		cmd := &cobra.Command{}
		cmd.SetOut(&out)
		if err := print(cmd); err != nil {
			t.Fatal(err)
		}
		if out.Len() == 0 {
			t.Errorf("%s printed nothing", name)
		}
		for line := range strings.Lines(out.String()) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n ")); n > 80 {
				t.Errorf("%s: %d columns: %s", name, n, line)
			}
		}
	}
}
