package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
)

// counts are how many there are of what could be left behind.
type counts map[string]int

// counts looks at both programs and at the engine's network namespace.
func (st *stage) counts(ctx context.Context) (counts, error) {
	c := counts{}
	for name, pid := range map[string]int{"controller": st.serve.Process.Pid, "sidecar": st.sidecar} {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return nil, err
		}
		c[name+" descriptors"] = len(entries)
	}
	metrics, err := st.api.Metrics(ctx)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(metrics) {
		switch {
		case strings.HasPrefix(line, "go_goroutines "):
			n, err := strconv.Atoi(strings.TrimSpace(strings.TrimPrefix(line, "go_goroutines ")))
			if err != nil {
				return nil, err
			}
			c["controller goroutines"] = n
		case strings.HasPrefix(line, "sluice_") && strings.Contains(line, "container="):
			c["series of containers"]++
		}
	}
	return c, st.InEngineNamespace(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		c["links"] = len(links)
		text, err := exec.CommandContext(ctx, "nft", "list", "ruleset").Output()
		if err != nil {
			return fmt.Errorf("nft list ruleset: %w", err)
		}
		c["lines of the host's rules"] = strings.Count(string(text), "\n")
		return nil
	})
}

func (c counts) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		all = append(all, fmt.Sprintf("%s %d", name, c[name]))
	}
	return strings.Join(all, ", ")
}

// less says what there is more than before.
func (c counts) less(before counts) counts {
	more := counts{}
	for name, n := range c {
		more[name] = n - before[name]
	}
	return more
}

// spare is how many of a kind may be there more than before: runtimes keep a few threads' descriptors and goroutines.
const spare = 8

// settled waits until there is nothing more than before.
func (st *stage) settled(ctx context.Context, before counts) (counts, error) {
	for deadline := time.Now().Add(startLimit); ; time.Sleep(time.Second) {
		after, err := st.counts(ctx)
		if err != nil {
			return nil, err
		}
		var left []string
		for name, n := range after.less(before) {
			if n > spare || n > 0 && (strings.HasPrefix(name, "series") || strings.HasPrefix(name, "lines")) {
				left = append(left, fmt.Sprintf("%s: %d before, %d after", name, before[name], after[name]))
			}
		}
		if left == nil {
			return after, nil
		}
		if time.Now().After(deadline) {
			slices.Sort(left)
			return after, errors.New("left behind: " + strings.Join(left, "; "))
		}
	}
}

// tally counts steps by their kind. It may be used at the same time.
type tally struct {
	mu     sync.Mutex // guards what follows
	done   map[string]int
	failed map[string]int
	shown  []error
}

func (t *tally) add(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.done == nil {
		t.done, t.failed = map[string]int{}, map[string]int{}
	}
	t.done[name]++
	if err == nil {
		return
	}
	t.failed[name]++
	if len(t.shown) < soakShown {
		t.shown = append(t.shown, fmt.Errorf("%s: %w", name, err))
	}
}

func sum(of map[string]int) (all int) {
	for _, n := range of {
		all += n
	}
	return all
}

func (t *tally) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return sum(t.done)
}

func (t *tally) failures() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return sum(t.failed)
}

func (t *tally) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return fmt.Sprintf("%d steps, %d of them switches, %d attaches; %d failed", sum(t.done), t.done["switch"], t.done["attach again"], sum(t.failed))
}

// err joins what was shown of the failures.
func (t *tally) err() error {
	if t.failures() == 0 {
		return nil
	}
	return fmt.Errorf("%d of %d steps failed: %w", t.failures(), t.count(), errors.Join(t.shown...))
}
