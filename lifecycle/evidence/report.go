package evidence

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sluice/controller/api"
	"sluice/lifecycle"
	"sluice/policy"
)

// Report is what there is to say of a task, of a container that runs, or of an audit without either.
type Report struct {
	Task string `json:"task,omitempty"`
	// Container is one that runs, as it was at Now.
	Container *api.Status `json:"container,omitempty"`
	Now       time.Time   `json:"now,omitzero"`
	// Packets are those that were judged by address alone, of which there are no records.
	Packets []api.Packets `json:"packets,omitempty"`
	// Modes are those in force, by phase, as far as they are known.
	Modes map[string]string `json:"network_modes,omitempty"`
	// Steps are boundaries and switches in their order, with the receipts.
	Steps  []lifecycle.Step `json:"steps"`
	Phases []Phase          `json:"phases"`
	// Problem says what of the evidence may be missing.
	Problem string `json:"problem,omitempty"`
	// Violation: something was refused in the phase run.
	Violation bool   `json:"policy_violation"`
	Head      string `json:"head,omitempty"` // of the audit file
	Error     string `json:"error,omitempty"`
	// Advice says of each step that failed what may have kept it from succeeding, and what to do.
	Advice []string `json:"advice,omitempty"`
	// Enforcement is nil where no result says anything of it.
	Enforcement *Enforcement `json:"enforcement,omitempty"`
}

// maxResultBytes bounds a result file.
const maxResultBytes = 64 << 20

// result is what is read of the file that "sluice task --result" writes.
type result struct {
	Task       string           `json:"task"`
	Baseline   string           `json:"baseline_network_mode"`
	Run        string           `json:"run_network_mode"`
	Evaluation string           `json:"evaluation_network_mode"`
	Setup      string           `json:"setup_network_mode"` // of a task in the older field names
	Began      time.Time        `json:"began"`
	Steps      []lifecycle.Step `json:"steps"`
	Traffic    []Phase          `json:"traffic"`
	Packets    []api.Packets    `json:"packets"`
	Audit      struct {
		Problem string `json:"problem"`
		Head    string `json:"head"`
	} `json:"audit"`
	Error       string       `json:"error"`
	Enforcement *Enforcement `json:"enforcement"`
}

// ReadReport reads the result of a task, or an audit file as [Read] does.
func ReadReport(r io.Reader) (Report, error) {
	in := bufio.NewReaderSize(r, maxLineBytes)
	start, err := in.Peek(64)
	if err != nil && err != io.EOF && !errors.Is(err, bufio.ErrBufferFull) {
		return Report{}, err
	}
	// A result is indented, or a line that begins with its first field; a record is neither.
	if fields := bytes.Fields(start); len(fields) > 0 && (bytes.Equal(fields[0], []byte("{")) || bytes.HasPrefix(fields[0], []byte(`{"task":`))) {
		return readResult(in)
	}
	var report Report
	var sum Summary
	for record, err := range Read(in) {
		if err != nil {
			return Report{}, err
		}
		if record.Step != nil {
			report.Steps = append(report.Steps, *record.Step)
			continue
		}
		sum.Add(&record.Event)
	}
	report.Phases = sum.Phases()
	report.finish()
	return report, nil
}

func readResult(in io.Reader) (Report, error) {
	text, err := io.ReadAll(io.LimitReader(in, maxResultBytes+1))
	if err != nil {
		return Report{}, err
	}
	if len(text) > maxResultBytes {
		return Report{}, fmt.Errorf("has more than %d bytes", maxResultBytes)
	}
	var r result
	if err := json.Unmarshal(text, &r); err != nil {
		return Report{}, fmt.Errorf("is no result of a task: %w", err)
	}
	if r.Began.IsZero() {
		return Report{}, errors.New("is no result of a task: it says nowhere when it began")
	}
	report := Report{Task: r.Task, Modes: map[string]string{"baseline": r.Baseline, "run": r.Run, "evaluation": r.Evaluation},
		Steps: r.Steps, Phases: r.Traffic, Packets: r.Packets, Problem: r.Audit.Problem, Head: r.Audit.Head, Error: r.Error, Enforcement: r.Enforcement}
	report.Advice = Advise(r.Steps, r.Traffic, report.Modes, r.Setup != "")
	report.finish()
	return report, nil
}

// Heads reads of a task's result the digests that it has of its audit file: those of steps, of receipts, and the last one.
func Heads(r io.Reader) ([]string, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxResultBytes))
	if err != nil {
		return nil, err
	}
	var kept struct {
		Steps []struct {
			Head    string `json:"audit_head"`
			Receipt struct {
				Head string `json:"audit_head"`
			} `json:"receipt"`
		} `json:"steps"`
		Audit struct {
			Head string `json:"head"`
		} `json:"audit"`
	}
	if err := json.Unmarshal(text, &kept); err != nil {
		return nil, fmt.Errorf("is no result of a task: %w", err)
	}
	if kept.Audit.Head == "" {
		return nil, errors.New("is no result of a task with an audit file: it has no digest of one")
	}
	var heads []string
	for _, s := range kept.Steps {
		heads = append(heads, s.Head)
		if s.Receipt.Head != "" && s.Receipt.Head != s.Head {
			heads = append(heads, s.Receipt.Head)
		}
	}
	return append(heads, kept.Audit.Head), nil
}

// OfContainer is the report of a container that runs.
func OfContainer(c api.Report) Report {
	status := c.Status
	r := Report{Container: &status, Now: c.Now, Packets: c.Packets, Modes: map[string]string{}, Phases: c.Traffic, Problem: c.Partial}
	for phase, text := range status.Policies {
		if p, err := policy.ParsePolicy(text); err == nil { // one of a newer controller is not shown
			r.Modes[phase] = p.Mode.String()
		}
	}
	for _, s := range c.Switches {
		step := lifecycle.Step{Switch: true, Environment: lifecycle.Role(status.Name), Generation: s.Generation, Began: s.Began,
			Seconds: s.Milliseconds / 1000, Error: s.Problem}
		if phase, err := policy.ParsePhase(s.Phase); err == nil {
			step.Phase = phase
		}
		if s.Problem == "" {
			step.Receipt = &s.Receipt
		}
		r.Steps = append(r.Steps, step)
	}
	if c.Earlier > 0 {
		r.Problem = strings.TrimPrefix(fmt.Sprintf("%s; %d earlier switches are left out", r.Problem, c.Earlier), "; ")
	}
	r.Enforcement = &Enforcement{BeforeFirstProcess: status.Holder != "" && status.Holder != status.ID,
		UncoveredMilliseconds: status.UncoveredMilliseconds, Unknown: c.Partial, Generations: Generations(r.Steps, nil)}
	r.finish()
	return r
}

// Title is what the report is about.
func (r Report) Title() string {
	switch {
	case r.Task != "":
		return "task " + r.Task
	case r.Container != nil:
		return "container " + r.Container.Name
	}
	return "Network report"
}

func (r *Report) finish() {
	if r.Steps == nil {
		r.Steps = []lifecycle.Step{}
	}
	if r.Phases == nil {
		r.Phases = []Phase{}
	}
	for _, p := range r.Phases {
		r.Violation = r.Violation || p.Phase == "run" && p.Refused > 0
	}
}
