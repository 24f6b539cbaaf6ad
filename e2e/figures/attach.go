package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"sluice/controller/api"
	"sluice/e2e/agentcompass"
)

// attachTimes is how often a container is attached.
const attachTimes = 60

// attachFigures attaches a container again and again.
func attachFigures(ctx context.Context, st *stage) error {
	for _, targets := range []int{10, 100} {
		own, whole, cpu, err := st.attachTimes(ctx, targets)
		if err != nil {
			return err
		}
		st.note(fmt.Sprintf("attach at %d", targets), own.at(0.5).Seconds()*1000)
		row(fmt.Sprintf("attach at %d targets, three phases staged%s", targets, st.besides()), "%v; with the call: %v; processor time %v", own, whole, cpu)
	}
	return nil
}

// besides says what else is attached.
func (st *stage) besides() string {
	if st.crowded {
		return fmt.Sprintf(", beside %d containers", st.beside)
	}
	return ""
}

func (st *stage) attachTimes(ctx context.Context, targets int) (own, whole, cpu times, err error) {
	c, err := st.start("attach", "bridge")
	if err != nil {
		return nil, nil, nil, err
	}
	text := document(targets)
	for i := range attachTimes + 1 {
		began := time.Now()
		var s api.Status
		used, err := st.used(func() (err error) {
			s, err = st.api.Attach(ctx, api.Attach{Container: c.name, Policy: text, Phase: "run"})
			return err
		})
		if err != nil {
			return nil, nil, nil, err
		}
		if i > 0 { // the first one finds nothing prepared
			own, whole = append(own, time.Duration(s.Milliseconds*float64(time.Millisecond))), append(whole, time.Since(began))
			cpu = append(cpu, used)
		}
		if err := st.api.Detach(ctx, c.name); err != nil {
			return nil, nil, nil, err
		}
	}
	return own, whole, cpu, st.remove(c)
}

// agentcompassRounds is how often AgentCompass and Sluice are measured by turns.
const agentcompassRounds = 8

// agentcompassFigures compares with what AgentCompass's Docker provider does by its own proxy and by the engine.
func agentcompassFigures(ctx context.Context, st *stage) error {
	var theirs, ours, theirSwitch, ourSwitch times
	var start, change ratios
	c, err := st.start("ours", "bridge")
	if err != nil {
		return err
	}
	text := document(100)
	for range agentcompassRounds {
		plain, _, err := st.open(`"public"`)
		if err != nil {
			return err
		}
		proxied, switched, err := st.open(`{"network_mode":"allowlist","allowed_hosts":["web.test"]}`)
		if err != nil {
			return err
		}
		theirs, theirSwitch = append(theirs, proxied-plain), append(theirSwitch, switched...)

		began := time.Now()
		if _, err := st.api.Attach(ctx, api.Attach{Container: c.name, Policy: text}); err != nil {
			return err
		}
		ours = append(ours, time.Since(began))
		var switches times
		for i := range switched {
			time.Sleep(afterwards)
			began := time.Now()
			if _, err := st.api.Phase(ctx, c.name, []string{"run", "baseline"}[i%2], 0); err != nil {
				return err
			}
			switches = append(switches, time.Since(began))
		}
		ourSwitch = append(ourSwitch, switches...)
		if err := st.api.Detach(ctx, c.name); err != nil {
			return err
		}
		start = append(start, float64(ours[len(ours)-1])/float64(theirs[len(theirs)-1]))
		change = append(change, float64(switches.at(0.5))/float64(switched.at(0.5)))
	}
	st.note("attach to AgentCompass", start.median())
	st.note("switch to AgentCompass", change.median())
	row("AgentCompass's network and sidecar: opening a task with an allowlist, less opening a public one", "%v", theirs)
	row("attach at 100 targets with the call, in the same rounds", "%v; ratio %v", ours, start)
	row("AgentCompass's switch between public and no-network, by docker network connect and disconnect", "%v", theirSwitch)
	row("switch with the call, in the same rounds", "%v; ratio %v", ourSwitch, change)
	return st.remove(c)
}

// open opens and closes a task by AgentCompass, with its own proxy where it needs one, and returns how long opening took
// and, unless all is public, how long switches between its run and baseline phases took.
func (st *stage) open(run string) (took time.Duration, switches times, err error) {
	spec := agentcompass.Spec{ID: "figures", Image: image, ProxyImage: image, Policies: map[string]json.RawMessage{"run": json.RawMessage(run)}}
	began := time.Now()
	task, err := agentcompass.Open(st.python, st.DockerHost(), spec)
	if err != nil {
		return 0, nil, err
	}
	took = time.Since(began)
	for i := range 4 {
		if task.Network == "" {
			break
		}
		s, err := task.Phase([]string{"run", "baseline"}[i%2])
		if err != nil {
			return 0, nil, errors.Join(err, task.Close())
		}
		switches = append(switches, s.Took)
	}
	return took, switches, task.Close()
}
