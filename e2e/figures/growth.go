package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"sluice/controller/api"
)

const (
	// descriptorsEach is how many descriptors the controller has for each container, and descriptorsKept how many are left
	// for everything else.
	descriptorsEach, descriptorsKept = 9, 1000
	// growthSetups, growthSwitches and growthAttaches are how often each is measured in a round.
	growthSetups, growthSwitches, growthAttaches = 150, 20, 6
	// growthRounds is how often all points of a curve are measured, by turns.
	growthRounds = 3
	// settle is how long memory gets to come to rest before it is read.
	settle = 1500 * time.Millisecond
)

// sample is one point of a curve, as it was measured once or again and again.
type sample struct {
	axis  string // what grows: sessions, targets, flows
	n     int
	curve string
	unit  string // "ms" or "MiB"
	all   []float64
}

func (s *sample) median() float64 {
	sorted := slices.Sorted(slices.Values(s.all))
	return sorted[len(sorted)/2]
}

// growth collects points, in the order in which they were first met.
type growth struct{ samples []*sample }

func (g *growth) add(axis string, n int, curve, unit string, values ...float64) {
	at := slices.IndexFunc(g.samples, func(s *sample) bool { return s.axis == axis && s.n == n && s.curve == curve })
	if at < 0 {
		g.samples = append(g.samples, &sample{axis: axis, n: n, curve: curve, unit: unit})
		at = len(g.samples) - 1
	}
	g.samples[at].all = append(g.samples[at].all, values...)
}

func (g *growth) took(axis string, n int, curve string, t time.Duration) {
	g.add(axis, n, curve, "ms", float64(t)/float64(time.Millisecond))
}

// growthFigures measures attach, switch, the set-up of a tunnel and memory against the numbers of targets, flows and
// sessions.
func growthFigures(ctx context.Context, st *stage) error {
	var g growth
	if err := st.nameSoak(); err != nil {
		return err
	}
	for _, axis := range []func(context.Context, *growth) error{st.growTargets, st.growFlows, st.growSessions} {
		if err := axis(ctx, &g); err != nil {
			return err
		}
	}
	g.print()
	if st.points == "" {
		return nil
	}
	return g.write(st.points)
}

// print gives each curve's first and last points, and how it grows.
func (g *growth) print() {
	var names []string
	curves := map[string][]*sample{}
	for _, s := range g.samples {
		name := s.axis + ": " + s.curve
		if curves[name] == nil {
			names = append(names, name)
		}
		curves[name] = append(curves[name], s)
	}
	for _, name := range names {
		curve := curves[name]
		slices.SortFunc(curve, func(a, b *sample) int { return cmp.Compare(a.n, b.n) })
		first, last := curve[0], curve[len(curve)-1]
		row(fmt.Sprintf("%s, %d to %d", name, first.n, last.n), "%.2f to %.2f %s; %s", first.median(), last.median(), first.unit, order(curve))
	}
}

// order says how a curve grows: flat if its last point is at most half as high again as its first, otherwise with which
// power of n over its last factor of ten.
func order(curve []*sample) string {
	last := curve[len(curve)-1]
	if last.median() <= 1.5*curve[0].median() {
		return "flat"
	}
	before := curve[0]
	for _, s := range curve {
		if s.n*10 <= last.n {
			before = s
		}
	}
	return fmt.Sprintf("n^%.2f from %d on", math.Log(last.median()/before.median())/math.Log(float64(last.n)/float64(before.n)), before.n)
}

// write leaves the points for scripts/plot-growth.
func (g *growth) write(name string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	number := func(v float64) string { return strconv.FormatFloat(v, 'f', 3, 64) }
	w := csv.NewWriter(f)
	records := [][]string{{"axis", "n", "curve", "unit", "median", "low", "high", "samples"}}
	for _, s := range g.samples {
		sorted := slices.Sorted(slices.Values(s.all))
		records = append(records, []string{s.axis, strconv.Itoa(s.n), s.curve, s.unit, number(s.median()),
			number(sorted[len(sorted)/4]), number(sorted[len(sorted)*3/4]), strconv.Itoa(len(sorted))})
	}
	return errors.Join(w.WriteAll(records), f.Close())
}

// room is how many containers the controller has descriptors for, of those that are asked for.
func room(asked int) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return asked
	}
	return min(asked, int(min(limit.Cur, math.MaxInt32)-descriptorsKept)/descriptorsEach)
}

// growthProbe is a container that is measured while something grows.
func (st *stage) growthProbe(ctx context.Context, a api.Attach) (*soaker, *container, error) {
	c, err := st.start(a.Container, "bridge")
	if err != nil {
		return nil, nil, err
	}
	_, err = st.api.Attach(ctx, a)
	return &soaker{stage: st, id: c.name, ns: c.ns, now: &soakRun}, c, err
}

// end detaches and removes containers.
func (st *stage) end(ctx context.Context, all ...*container) error {
	var errs []error
	for _, c := range all {
		errs = append(errs, st.api.Detach(ctx, c.name), st.remove(c))
	}
	return errors.Join(errs...)
}

// setUps measures how long a tunnel takes until the proxy says that it is there.
func (s *soaker) setUps(g *growth, axis string, n int, curve string, times int) error {
	for range times {
		began := time.Now()
		conn, err := s.tunnel(s.now.name)
		if err != nil {
			return err
		}
		g.took(axis, n, curve, time.Since(began))
		if err := errors.Join(exchange(conn), conn.Close()); err != nil {
			return err
		}
	}
	return nil
}

// switches measures switches without anything to cut, of a container that is in phase run and is so afterwards.
func (s *soaker) switches(ctx context.Context, g *growth, axis string, n int) error {
	for range growthSwitches {
		for _, phase := range []string{soakEnd.phase, soakRun.phase} {
			receipt, err := s.api.Phase(ctx, s.id, phase, 0)
			if err != nil {
				return err
			}
			g.took(axis, n, "switch", own(receipt.Milliseconds))
		}
	}
	return nil
}

// own is what the controller says that it took.
func own(milliseconds float64) time.Duration {
	return time.Duration(milliseconds * float64(time.Millisecond))
}

// attachOnce measures it.
func (st *stage) attachOnce(ctx context.Context, g *growth, axis string, n int, a api.Attach) error {
	s, err := st.api.Attach(ctx, a)
	if err == nil {
		g.took(axis, n, "attach", own(s.Milliseconds))
	}
	return err
}

// memoryPoint reads memory once: all that the programs have, and what the kernel has more than at base.
func (st *stage) memoryPoint(g *growth, axis string, n int, suffix string, base memory) error {
	m, err := st.memoryAfter(settle)
	if err != nil {
		return err
	}
	mib := func(bytes int64) float64 { return float64(bytes) / (1 << 20) }
	g.add(axis, n, "controller"+suffix, "MiB", mib(m.controller))
	g.add(axis, n, "sidecar"+suffix, "MiB", mib(m.sidecar))
	g.add(axis, n, "kernel, more"+suffix, "MiB", mib(max(0, m.slab-base.slab)))
	return nil
}
