package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"syscall"
	"time"

	"sluice/control"
)

// ownGroup keeps a terminal's Ctrl-C from the programs that the demo runs.
var ownGroup = &syscall.SysProcAttr{Setpgid: true}

// attempt is something that the workload tries in a phase.
type attempt struct{ kind, target string }

var acts = []struct {
	phase, policy string
	attempts      []attempt
}{
	{"baseline", "public", []attempt{
		{"get", "pypi.test"},
		{"connect", "evil.test"},
		{"connect", "169.254.169.254"},
	}},
	{"run", "allowlist: model.test, *.docs.test", []attempt{
		{"connect", "model.test"},
		{"get", "pypi.test"},
		{"connect", "evil.test"},
		{"look-up", "c2VjcmV0.evil.test"},
	}},
	{"evaluation", "allowlist: judge.test:443", []attempt{
		{"connect", "judge.test"},
		{"get", "judge.test"},
		{"connect", "model.test"},
	}},
}

// play goes through the phases and prints what happens.
func play(ctx context.Context, s *stage, where string, stdout io.Writer) error {
	fmt.Fprintf(stdout, "One container, three phases: its policy changes while it runs.\nOn %s.\n\n", where)
	fmt.Fprintf(stdout, "%-10s %-30s %-8s %-21s %7s\n", "phase", "attempt", "verdict", "rule or reason", "ms")
	kept, err := s.hold(ctx, "model.test:7000")
	if err != nil {
		return err
	}
	cut, err := s.hold(ctx, "evil.test:7000")
	if err != nil {
		return err
	}
	for i, act := range acts {
		if i > 0 {
			receipt, err := s.switchTo(ctx, act.phase)
			if err != nil {
				return err
			}
			fmt.Fprintf(stdout, "\nreceipt: generation %d, policy %.12s…, %d cut, %d kept, %.1f ms\n",
				receipt.Generation, strings.TrimPrefix(receipt.Digest, "sha256:"), receipt.FlowsCut, receipt.FlowsKept, receipt.Milliseconds)
		}
		fmt.Fprintf(stdout, "%-10s %s\n", act.phase, act.policy)
		for _, a := range act.attempts {
			if err := s.try(ctx, a, stdout); err != nil {
				return err
			}
		}
		for _, h := range []*held{kept, cut} {
			fmt.Fprintf(stdout, "%-10s %-30s %s\n", "", "stream  "+h.target, h.state())
		}
	}
	fmt.Fprintf(stdout, "\nWhat Prometheus scrapes, of that what was refused or cut:\n")
	return s.printCounters(ctx, stdout)
}

// try makes one attempt and prints what the sidecar decided: of a connection as it stands in the audit, of a DNS
// question as the client was told.
func (s *stage) try(ctx context.Context, a attempt, stdout io.Writer) error {
	before, err := s.audit(ctx)
	if err != nil {
		return err
	}
	out, err := s.run(ctx, "exec", s.work, "/demo", "try", a.kind, a.target)
	if err != nil {
		return err
	}
	var o outcome
	if err := json.Unmarshal([]byte(out), &o); err != nil {
		return fmt.Errorf("attempt %s %s: %w: %s", a.kind, a.target, err, out)
	}
	verdict, why := "refuse", o.Seen
	switch {
	case a.kind != "look-up":
		event, err := s.nextEvent(ctx, len(before), a.target)
		if err != nil {
			return err
		}
		verdict, why = event.Verdict, cmp.Or(event.Rule, event.Reason)
	case !strings.HasPrefix(o.Seen, "NXDOMAIN"):
		verdict = "allow"
	}
	_, err = fmt.Fprintf(stdout, "%-10s %-30s %-8s %-21s %7.1f\n", "", fmt.Sprintf("%-7s %s", a.kind, a.target), verdict, why, o.MS)
	return err
}

// audit returns the sidecar's audit records so far.
func (s *stage) audit(ctx context.Context) ([]control.Event, error) {
	logs, err := s.run(ctx, "logs", s.sidecar)
	if err != nil {
		return nil, err
	}
	var events []control.Event
	for line := range strings.Lines(logs) {
		var event control.Event
		if json.Unmarshal([]byte(line), &event) == nil && event.Verdict != "" {
			events = append(events, event)
		}
	}
	return events, nil
}

// nextEvent returns the first record behind the first n that is about a host. Records are written behind the decision.
func (s *stage) nextEvent(ctx context.Context, n int, host string) (control.Event, error) {
	for range 100 {
		events, err := s.audit(ctx)
		if err != nil {
			return control.Event{}, err
		}
		for _, event := range events[min(n, len(events)):] {
			if event.Target == host {
				return event, nil
			}
		}
		time.Sleep(20 * time.Millisecond)
	}
	return control.Event{}, fmt.Errorf("the sidecar's audit has no record of %s", host)
}

func (s *stage) switchTo(ctx context.Context, phase string) (control.Receipt, error) {
	out, err := s.run(ctx, "exec", s.sidecar, "sluice-proxy", "ctl", "phase", phase, "--json")
	if err != nil {
		return control.Receipt{}, err
	}
	var receipt control.Receipt
	if err := json.Unmarshal([]byte(out), &receipt); err != nil {
		return control.Receipt{}, fmt.Errorf("receipt of the switch to %s: %w: %s", phase, err, out)
	}
	return receipt, nil
}

// printCounters prints some counters as they stand in the sidecar's /metrics, which the origin's container scrapes: it
// is on the outer network, as Prometheus would be.
func (s *stage) printCounters(ctx context.Context, stdout io.Writer) error {
	text, err := s.run(ctx, "exec", s.prefix+"origin", "/demo", "try", "scrape", s.sidecar+":9464")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(stdout, text)
	return err
}

// held is a stream that the workload holds open through the phases.
type held struct {
	target string

	mu    sync.Mutex // guards what follows
	lines int
	ended string
}

// hold opens a stream in the workload and returns when its first line has come.
func (s *stage) hold(ctx context.Context, target string) (*held, error) {
	command := s.command(ctx, "exec", s.work, "/demo", "try", "stream", target)
	out, err := command.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := command.Start(); err != nil {
		return nil, err
	}
	h := &held{target: target}
	first := make(chan struct{})
	go func() {
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			if h.line(scanner.Text()) {
				close(first)
			}
		}
		command.Wait()
		h.end("closed")
	}()
	select {
	case <-first:
		return h, nil
	case <-time.After(20 * time.Second):
		return nil, errors.New("no stream from " + target)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// line takes one line of the stream and reports whether it was the first. A line out of order ends the count.
func (h *held) line(text string) (first bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case text == fmt.Sprint(h.lines):
		h.lines++
	case h.ended == "":
		h.ended = text
	}
	return h.lines == 1 && h.ended == ""
}

func (h *held) end(how string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended == "" {
		h.ended = how
	}
}

func (h *held) state() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended != "" {
		return fmt.Sprintf("%s after %d lines", h.ended, h.lines)
	}
	return fmt.Sprintf("open, %d lines, none missing", h.lines)
}
