// Command bench takes all figures that the project has set itself in one run, and prints one table: what, target, measured,
// met or not.
//
//	go run ./e2e/bench -compare ../shared/bench/compare     # as root; some fifteen minutes
//	go run ./e2e/bench -only matcher
//
// It runs compare, the side-by-side benchmark, which is not part of this repository and is left out where it is not given;
// benchmarks of packages; and e2e/figures. What could not be taken is in the table as well.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// settings are the flags.
type settings struct {
	compare, bin, only string
	rounds, beside     int
}

// figures are what was measured, by source and name.
type figures map[string]float64

// sources are what figures come from, in the order in which they are taken.
var sources = []struct {
	name string
	take func(context.Context, settings, string) (figures, error)
}{
	{"compare", takeCompare}, {"matcher", takeMatcher}, {"ready", takeReady}, {"controller", takeController},
}

func main() {
	var s settings
	flag.StringVar(&s.compare, "compare", "", "where the side-by-side benchmark is; without it its figures are left out")
	flag.StringVar(&s.bin, "bin", "bin", "where sluice and sluice-proxy are")
	flag.StringVar(&s.only, "only", "", "take the figures of these alone: compare, matcher, ready, controller")
	flag.IntVar(&s.rounds, "rounds", 15, "rounds of compare")
	flag.IntVar(&s.beside, "beside", 2000, "how many containers are simulated; the controller needs 8 descriptors for each")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, s settings) (err error) {
	dir, err := os.MkdirTemp("", "bench-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if s.bin, err = filepath.Abs(s.bin); err != nil {
		return err
	}
	measured, why := map[string]figures{}, map[string]string{}
	var errs []error
	for _, source := range sources {
		if s.only != "" && !slices.Contains(strings.Split(s.only, ","), source.name) {
			why[source.name] = "not asked for"
			continue
		}
		got, err := source.take(ctx, s, dir)
		if errors.Is(err, errNotThere) {
			why[source.name] = err.Error()
			continue
		}
		if err != nil { // the others are worth having
			why[source.name] = "it failed"
			errs = append(errs, fmt.Errorf("%s: %w", source.name, err))
		}
		measured[source.name] = got
	}
	fmt.Print("\n| what | target | measured | |\n|---|---|---|---|\n")
	for _, t := range targets {
		fmt.Println(t.line(measured[t.source], why[t.source]))
	}
	return errors.Join(errs...)
}

// errNotThere is a source that cannot be had here.
var errNotThere = errors.New("not taken")

// target is what a figure has to be.
type target struct {
	what         string
	source, name string
	over         string // the figure is the ratio to this one, if not empty
	least        bool   // it has to be at least the limit, not at most
	limit        float64
	stretch      float64 // what would be better still, if not 0
	unit         string
}

func (t *target) line(from figures, why string) string {
	sign := "≤"
	if t.least {
		sign = "≥"
	}
	said := fmt.Sprintf("%s | %s %s%s", t.what, sign, number(t.limit), t.unit)
	if t.stretch != 0 {
		said += ", better " + number(t.stretch) + t.unit
	}
	value, ok := from[t.name]
	if ok && t.over != "" {
		base, there := from[t.over]
		value, ok = value/base, there
	}
	if !ok || math.IsNaN(value) {
		if why == "" {
			why = "not measured"
		}
		return fmt.Sprintf("| %s | – | %s |", said, why)
	}
	verdict := "met"
	switch {
	case !t.reached(value, t.limit):
		verdict = "**missed**"
	case t.stretch != 0 && t.reached(value, t.stretch):
		verdict = "met, and better"
	}
	return fmt.Sprintf("| %s | %s%s | %s |", said, number(value), t.unit, verdict)
}

func (t *target) reached(value, limit float64) bool {
	if t.least {
		return value >= limit
	}
	return value <= limit
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 3, 64) }

// command runs a program whose output is for whoever waits.
func command(ctx context.Context, name string, args ...string) error {
	c := exec.CommandContext(ctx, name, args...)
	c.Stdout, c.Stderr = os.Stderr, os.Stderr
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w", c, err)
	}
	return nil
}
