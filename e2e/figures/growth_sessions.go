package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"

	"sluice/controller/api"
)

// growSessions attaches more and more simulated containers, and then takes them away again: each point is measured on
// the way up and on the way down.
func (st *stage) growSessions(ctx context.Context, g *growth) error {
	const axis, small = "sessions", 10
	most := room(st.beside)
	if most < st.beside {
		fmt.Fprintf(os.Stderr, "figures: there are descriptors for %d containers of %d, and sessions end there\n", most, st.beside)
	}
	crowd, err := st.simulate(ctx, most)
	if err != nil {
		return err
	}
	st.closers = append(st.closers, closer(crowd.close))
	probe, c, err := st.growthProbe(ctx, api.Attach{Container: "growing-sessions", Policy: soakPolicy(), Phase: soakRun.phase})
	if err != nil {
		return err
	}
	fresh, err := st.start("growing-attach", "bridge")
	if err != nil {
		return err
	}
	base, err := st.memoryAfter(settle)
	if err != nil {
		return err
	}
	measure := func(n int) error {
		if err := errors.Join(probe.setUps(g, axis, n, "set-up", growthSetups), probe.switches(ctx, g, axis, n)); err != nil {
			return err
		}
		for range growthAttaches {
			a := api.Attach{Container: fresh.name, Policy: document(small), Phase: soakRun.phase}
			if err := errors.Join(st.attachOnce(ctx, g, axis, n, a), st.api.Detach(ctx, fresh.name)); err != nil {
				return err
			}
		}
		return nil
	}
	points, attached := steps(10, most), 0
	for _, n := range points {
		if err := st.attach(ctx, crowd.members[attached:n], small); err != nil {
			return err
		}
		attached = n
		if err := errors.Join(st.memoryPoint(g, axis, n, "", base), measure(n)); err != nil {
			return fmt.Errorf("%d sessions: %w", n, err)
		}
	}
	for i, n := range slices.Backward(points) {
		if err := measure(n); err != nil {
			return fmt.Errorf("%d sessions again: %w", n, err)
		}
		fewer := 0
		if i > 0 {
			fewer = points[i-1]
		}
		for _, m := range crowd.members[fewer:n] {
			if err := st.api.Detach(ctx, m.id); err != nil {
				return err
			}
		}
	}
	return errors.Join(st.end(ctx, c), st.remove(fresh))
}

// steps are numbers from least to most, two for each factor of ten.
func steps(least, most int) (all []int) {
	for i := 0; ; i++ {
		n := int(float64(least)*math.Pow(10, float64(i)/2) + 0.5)
		if n >= most {
			return append(all, most)
		}
		all = append(all, n)
	}
}
