package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"sluice/policy"
)

// readDocument reads a policy file, or stdin for "-". The error says which file it was, but for the *policy.Errors of
// what is in it.
func readDocument(cmd *cobra.Command, name string) (policy.Document, error) {
	data, err := readFile(cmd, name)
	if err != nil {
		return policy.Document{}, err
	}
	return policy.Parse(data)
}

// readFile reads a policy file, or stdin for "-".
func readFile(cmd *cobra.Command, name string) ([]byte, error) {
	in, err := open(cmd, name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, policy.MaxDocumentBytes+1)) // package policy refuses the byte too many
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", display(name), err)
	}
	return data, nil
}

// readAll reads a file, or stdin for "-", of at most limit bytes.
func readAll(cmd *cobra.Command, name string, limit int64) ([]byte, error) {
	in, err := open(cmd, name)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	data, err := io.ReadAll(io.LimitReader(in, limit+1))
	if err == nil && int64(len(data)) > limit {
		err = fmt.Errorf("has more than %d bytes", limit)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", display(name), err)
	}
	return data, nil
}

// open opens a file, or stdin for "-".
func open(cmd *cobra.Command, name string) (io.ReadCloser, error) {
	if name == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	return os.Open(name)
}

// readPolicy reads the policy of a phase: that of a file which names phases, or the one of a file that holds one.
func readPolicy(cmd *cobra.Command, name string, phase policy.Phase) (policy.Policy, error) {
	doc, err := readDocument(cmd, name)
	if err != nil {
		if errs, ok := errors.AsType[*policy.Errors](err); ok {
			err = fmt.Errorf("%s is refused:\n%w", display(name), errs)
		}
		return policy.Policy{}, failed(err)
	}
	if doc.Policy != nil {
		return *doc.Policy, nil
	}
	return doc.Phases.Phases()[phase], nil
}

// phaseFlag is --phase, of which the value is checked when flags are.
type phaseFlag struct{ policy.Phase }

func (p *phaseFlag) Set(s string) error { return p.UnmarshalText([]byte(s)) }

func (p *phaseFlag) Type() string { return "phase" }

// addPhase adds --phase to a command.
func addPhase(cmd *cobra.Command) *phaseFlag {
	phase := &phaseFlag{policy.Run}
	cmd.Flags().Var(phase, "phase", "baseline, run or evaluation, where the file names phases")
	return phase
}

// allowlist is the text of a policy with these targets.
func allowlist(targets []string) ([]byte, error) {
	return json.Marshal(map[string]any{"network_mode": policy.Allowlist, "allowed_hosts": targets})
}

// unbuffered is stdout for what somebody may be waiting for.
func unbuffered(cmd *cobra.Command) io.Writer { return flusher{cmd} }

type flusher struct{ cmd *cobra.Command }

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.cmd.OutOrStdout().Write(p)
	return n, errors.Join(err, flush(f.cmd))
}

// printJSON prints v on a line of its own.
func printJSON(cmd *cobra.Command, v any) error {
	enc := json.NewEncoder(cmd.OutOrStdout())
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return failed(err)
	}
	return nil
}

// display is what a file is called in output.
func display(name string) string {
	if name == "-" {
		return "stdin"
	}
	return name
}
