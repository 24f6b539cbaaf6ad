package main

import (
	"context"
	"fmt"

	"sluice/controller/api"
)

// growTargets measures containers with policies of more and more targets, by turns.
func (st *stage) growTargets(ctx context.Context, g *growth) error {
	const axis = "targets"
	base, err := st.memoryAfter(settle)
	if err != nil {
		return err
	}
	sizes := []int{10, 100, 1_000, 10_000, 100_000}
	probes, containers, policies := make([]*soaker, len(sizes)), make([]*container, len(sizes)), make([]api.Attach, len(sizes))
	for i, n := range sizes {
		policies[i] = api.Attach{Container: fmt.Sprint("growing-targets-", n), Policy: document(n, soakRun.name), Phase: soakRun.phase}
		if probes[i], containers[i], err = st.growthProbe(ctx, policies[i]); err != nil {
			return fmt.Errorf("%d targets: %w", n, err)
		}
		if err := st.memoryPoint(g, axis, n, "", base); err != nil {
			return err
		}
	}
	for range growthRounds {
		for i, n := range sizes {
			if err := st.growTargetsAt(ctx, g, probes[i], n, policies[i]); err != nil {
				return fmt.Errorf("%d targets: %w", n, err)
			}
		}
	}
	return st.end(ctx, containers...)
}

func (st *stage) growTargetsAt(ctx context.Context, g *growth, probe *soaker, n int, a api.Attach) error {
	const axis = "targets"
	if err := probe.setUps(g, axis, n, "set-up", growthSetups); err != nil {
		return err
	}
	if err := probe.switches(ctx, g, axis, n); err != nil {
		return err
	}
	const times = 2 // of the largest each takes seconds
	for range times {
		if err := st.api.Detach(ctx, a.Container); err != nil {
			return err
		}
		if err := st.attachOnce(ctx, g, axis, n, a); err != nil {
			return err
		}
	}
	return nil
}
