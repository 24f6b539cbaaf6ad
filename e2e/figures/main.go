// Command figures measures what the controller costs, on an engine of its own in the closed lab, and prints a table:
//
//	go run ./e2e/figures            # as root; some ten minutes
//	go run ./e2e/figures -only switch,traffic -beside 0
//	go run ./e2e/figures -only soak -beside 1000 -for 10m
//
// It runs "sluice serve" as it is. Beside real containers it attaches simulated ones: network namespaces with a veth
// pair on a bridge of the engine, of which a proxy in front of the engine's socket says that they are containers. To
// the controller, to the kernel and to the sidecar they are like any other, but no process runs in them.
//
// AgentCompass's Docker provider does the same work by its own means in the same run, as far as it can.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

// settings are the flags.
type settings struct {
	only   string
	bin    string
	beside int
	rounds int
	long   time.Duration
	seed   uint64
	points string
	json   string
	named  string
}

// part is something that can be measured.
type part struct {
	name  string
	do    func(context.Context, *stage) error
	asked bool // it is measured only when it is asked for
}

// parts are what can be measured, in this order.
var parts = []part{
	{name: "attach", do: attachFigures},
	{name: "switch", do: switchFigures},
	{name: "agentcompass", do: agentcompassFigures},
	{name: "traffic", do: trafficFigures},
	{name: "faults", do: faultFigures, asked: true},
	{name: "points", do: pointFigures, asked: true},
	{name: "soak", do: soak, asked: true},
	{name: "fairness", do: fairnessFigures, asked: true},
	{name: "growth", do: growthFigures, asked: true},
	// It attaches the simulated containers, beside which the first two are measured again.
	{name: "memory", do: memoryFigures},
}

func partNames() string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

func main() {
	if helper := helperProcess(os.Args[1:]); helper != nil {
		if err := helper(); err != nil {
			fmt.Fprintln(os.Stderr, "figures:", err)
			os.Exit(1)
		}
		return
	}
	var s settings
	flag.StringVar(&s.only, "only", "", "measure these alone: "+partNames())
	flag.StringVar(&s.bin, "bin", "", "where sluice and sluice-proxy are; they are built from this tree if not given")
	flag.IntVar(&s.beside, "beside", 2000, "how many containers are simulated")
	flag.IntVar(&s.rounds, "rounds", 60, "how often traffic with and without Sluice is measured by turns")
	flag.DurationVar(&s.long, "for", 5*time.Minute, "how long the soak uses the containers")
	flag.Uint64Var(&s.seed, "seed", rand.Uint64(), "what the soak's order of steps comes from")
	flag.StringVar(&s.json, "json", "", "write figures to this file too, for e2e/bench")
	flag.StringVar(&s.points, "points", "", "write the points of the growth to this file too, for scripts/plot-growth")
	flag.StringVar(&s.named, "named", "", "make those floods and faults alone whose names contain this")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, s); err != nil {
		fmt.Fprintln(os.Stderr, "figures:", err)
		os.Exit(1)
	}
}

// helperProcess is what this program does when it has started itself, or nil.
func helperProcess(args []string) func() error {
	switch {
	case len(args) == 1 && args[0] == farArgument:
		return holdConnections
	case len(args) == 2 && args[0] == plainArgument:
		return func() error { return relayPlainly(args[1]) }
	case len(args) == 3 && args[0] == floodArgument:
		return func() error { return floodMain(args[1], args[2]) }
	}
	return nil
}

func run(ctx context.Context, s settings) (err error) {
	for _, name := range strings.FieldsFunc(s.only, func(c rune) bool { return c == ',' }) {
		if !slices.ContainsFunc(parts, func(p part) bool { return p.name == name }) {
			return fmt.Errorf("-only %q: there is %s", name, partNames())
		}
	}
	began := time.Now()
	st, err := setStage(ctx, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	fmt.Printf("%s, load at the beginning %s\n\n| what | measured |\n|---|---|\n", machine(), load())
	for _, p := range parts {
		if s.only == "" && p.asked || s.only != "" && !slices.Contains(strings.Split(s.only, ","), p.name) {
			continue
		}
		if err := p.do(ctx, st); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if s.json != "" {
		text, err := json.MarshalIndent(st.noted, "", " ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(s.json, text, 0o644); err != nil {
			return err
		}
	}
	fmt.Printf("\nLoad at the end %s; %v in all.\n", load(), time.Since(began).Round(time.Second))
	return nil
}

// note keeps a figure for e2e/bench, which knows it by its name. Beside simulated containers the name has an end of its own.
func (st *stage) note(name string, value float64) {
	if st.crowded {
		name += " beside"
	}
	st.noted[name] = value
}

// row prints a line of the table.
func row(what, format string, args ...any) {
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(format, args...))
}
