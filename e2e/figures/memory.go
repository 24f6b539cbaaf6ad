package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// memory is what is used of it, in bytes.
type memory struct{ slab, controller, sidecar int64 }

func (m memory) less(o memory) memory {
	return memory{m.slab - o.slab, m.controller - o.controller, m.sidecar - o.sidecar}
}

// each says what that is for one of many.
func (m memory) each(n int) string {
	kib := func(b int64) string { return fmt.Sprintf("%.1f KiB", float64(b)/float64(n)/1024) }
	return fmt.Sprintf("controller %s, sidecar %s, kernel slab %s", kib(m.controller), kib(m.sidecar), kib(m.slab))
}

// memory reads it. Slab is that of the whole machine, without what the kernel gives back when memory is short.
func (st *stage) memory() (memory, error) { return st.memoryAfter(3 * time.Second) }

// memoryAfter waits before it reads: what was freed may still be waiting for its grace period.
func (st *stage) memoryAfter(wait time.Duration) (m memory, err error) {
	time.Sleep(wait)
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return m, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "SUnreclaim:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return m, fmt.Errorf("/proc/meminfo: %w", err)
			}
			m.slab = kib << 10
		}
	}
	if m.sidecar, err = resident(st.sidecar); err != nil {
		return m, err
	}
	m.controller, err = resident(st.serve.Process.Pid)
	return m, err
}

// resident reads how much of a process is in memory, in bytes, without pages of files.
func resident(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == "RssAnon:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no RssAnon", pid)
}

// memoryFigures attaches the simulated containers, and looks at memory before and afterwards; then it measures attach
// and switch once more.
func memoryFigures(ctx context.Context, st *stage) (err error) {
	if st.beside == 0 {
		return nil
	}
	began := time.Now()
	nothing, err := st.memory()
	if err != nil {
		return err
	}
	crowd, err := st.simulate(ctx, st.beside)
	if err != nil {
		return err
	}
	st.closers = append(st.closers, closer(crowd.close))
	made, err := st.memory()
	if err != nil {
		return err
	}
	const small = 10
	if err := st.attach(ctx, crowd.members, small); err != nil {
		return err
	}
	attached, err := st.memory()
	if err != nil {
		return err
	}
	row(fmt.Sprintf("a network namespace with a link, without Sluice, of %d", st.beside), "kernel slab %.1f KiB", float64(made.slab-nothing.slab)/float64(st.beside)/1024)
	session := attached.less(made)
	st.note("memory of programs", float64(session.controller+session.sidecar)/float64(st.beside)/1024)
	st.note("memory of kernel", float64(session.slab)/float64(st.beside)/1024)
	row(fmt.Sprintf("an idle session with %d targets in two phases each, of %d", small, st.beside), "%s (attached within %v)", session.each(st.beside),
		time.Since(began).Round(time.Second))

	const large, few = 10_000, 10
	for _, s := range crowd.members[:min(few, len(crowd.members))] {
		if _, err := st.api.Set(ctx, s.id, document(large), 0); err != nil {
			return err
		}
	}
	grown, err := st.memory()
	if err != nil {
		return err
	}
	row("a target, half of them names, in one phase of a session", "%s", grown.less(attached).each(few*2*(large-small)))
	for _, s := range crowd.members[:min(few, len(crowd.members))] {
		if _, err := st.api.Set(ctx, s.id, document(small), 0); err != nil {
			return err
		}
	}
	st.crowded = true
	if err := attachFigures(ctx, st); err != nil {
		return err
	}
	return switchFigures(ctx, st)
}

type closer func() error

func (c closer) Close() error { return c() }
