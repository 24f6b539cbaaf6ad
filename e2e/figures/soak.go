package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"sluice/controller/api"
	"sluice/dockernet/netns"
)

const (
	// soakWorkers is how many use the containers at a time; each looks after some of its own.
	soakWorkers = 24
	// soakReport is how often the soak says where it stands.
	soakReport = time.Minute
	// soakShown is how many failures are shown.
	soakShown = 10
)

// soak uses simulated containers in every way at once, while their phases change and some are detached and attached
// again. Whatever is refused and should not be, or passes and should not, is a failure; so is what is left when all is
// over.
func soak(ctx context.Context, st *stage) (err error) {
	if err := st.nameSoak(); err != nil {
		return err
	}
	crowd, err := st.simulate(ctx, st.beside)
	if err != nil {
		return err
	}
	st.closers = append(st.closers, closer(crowd.close))
	// What is made once and kept shall be there before anything is counted.
	if err := st.soakOnce(ctx, crowd.members[:1]); err != nil {
		return err
	}
	before, err := st.counts(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := st.soakOnce(ctx, crowd.members); err != nil {
		return err
	}
	after, err := st.settled(ctx, before)
	row("left behind, of "+before.String(), "%s", after.less(before))
	if err == nil {
		row("the soak", "%d containers, %v", len(crowd.members), time.Since(began).Round(time.Second))
	}
	return err
}

// soakOnce attaches containers, uses them for as long as the flag says (once around for one alone), and detaches them.
func (st *stage) soakOnce(ctx context.Context, members []*simulated) (err error) {
	for _, m := range members {
		if err := st.attachForSoak(ctx, m.id); err != nil {
			return err
		}
	}
	users := make([]*soaker, 0, len(members))
	defer func() {
		for _, u := range users {
			err = errors.Join(err, u.ns.Close())
		}
	}()
	for _, m := range members {
		ns, err := netns.Open(m.sandbox, nil)
		if err != nil {
			return err
		}
		users = append(users, &soaker{stage: st, id: m.id, ns: ns, sandbox: m.sandbox, now: &soakRun, last: "attach", lastAt: time.Now()})
	}
	var tally tally
	if len(members) == 1 {
		for _, step := range soakSteps {
			tally.add(step.name, step.do(users[0], ctx))
		}
	} else {
		if err := st.soakLoad(ctx, users, &tally); err != nil {
			return err
		}
		if err := st.fairness(ctx, users); err != nil {
			return err
		}
	}
	for _, m := range members {
		if err := st.api.Detach(ctx, m.id); err != nil {
			return err
		}
	}
	return tally.err()
}

func (st *stage) attachForSoak(ctx context.Context, container string) error {
	_, err := st.api.Attach(ctx, api.Attach{Container: container, Policy: soakPolicy(), Phase: soakRun.phase})
	return err
}

// soakLoad lets workers use the containers for the time that the flag says.
func (st *stage) soakLoad(ctx context.Context, users []*soaker, tally *tally) error {
	ctx, cancel := context.WithTimeout(ctx, st.long)
	defer cancel()
	var workers sync.WaitGroup
	for i := range soakWorkers {
		workers.Go(func() {
			random := rand.New(rand.NewPCG(st.seed, uint64(i)))
			for ctx.Err() == nil {
				at := i + soakWorkers*random.IntN(max(1, (len(users)-i+soakWorkers-1)/soakWorkers))
				if at >= len(users) {
					return // more workers than containers
				}
				step := soakSteps[random.IntN(len(soakSteps))]
				// A step that has begun goes to its end.
				user, began := users[at], time.Now()
				err := step.do(user, context.WithoutCancel(ctx))
				if err != nil {
					err = fmt.Errorf("%w; in phase %s, %v after %s", err, user.now.phase, began.Sub(user.lastAt).Round(time.Millisecond), user.last)
				}
				if step.name == "switch" || step.name == "attach again" {
					user.last, user.lastAt = step.name, time.Now()
				}
				tally.add(step.name, err)
			}
		})
	}
	done := make(chan struct{})
	go func() { workers.Wait(); close(done) }()
	report := time.NewTicker(soakReport)
	defer report.Stop()
	for began := time.Now(); ; {
		select {
		case <-done:
			m, err := st.memory()
			row(fmt.Sprintf("%d containers used for %v (-seed %d)", len(users), st.long, st.seed), "%s; memory controller %d MiB, sidecar %d MiB", tally, m.controller>>20, m.sidecar>>20)
			return err
		case <-report.C:
			m, err := st.memory()
			if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "soak: %v: %d steps, %d failed; controller %d MiB, sidecar %d MiB\n",
				time.Since(began).Round(time.Second), tally.count(), tally.failures(), m.controller>>20, m.sidecar>>20)
		}
	}
}
