package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"sluice/lifecycle/daytona"
	"sluice/policy/provider"
)

// applied is the --json output of apply.
type applied struct {
	Provider string          `json:"provider"`
	Sandbox  string          `json:"sandbox"`
	Phase    string          `json:"phase"`
	Settings json.RawMessage `json:"settings"`
}

func newApply(g *globals) *cobra.Command {
	var f planFlags
	cmd := &cobra.Command{
		Use:   "apply --provider {daytona | modal} --sandbox ID [flags]",
		Short: "Put a phase's policy in force in a hosted sandbox",
		Long: `Apply makes the same plan as sluice plan and sends the settings of one phase to the provider of a running sandbox. It
fails if the provider cannot enforce the plan exactly, or does not confirm it.

Daytona is called by HTTP, with the key in DAYTONA_API_KEY. Modal is called by its SDK, in the program sluice-modal beside
this one, with MODAL_TOKEN_ID and MODAL_TOKEN_SECRET. Keys come from the environment only.`,
		Example: `  sluice apply --provider daytona --sandbox ID --phase run --env-params '{"run_network_policy": "no-network"}'`,
		Args:    cobra.NoArgs,
	}
	f.add(cmd)
	sandbox := cmd.Flags().String("sandbox", "", "the sandbox's `ID` (needed)")
	if err := cmd.MarkFlagRequired("sandbox"); err != nil {
		panic(err) // the flag does not exist
	}
	phase := addPhase(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.provider != "daytona" && f.provider != "modal" {
			return fmt.Errorf("--provider: write daytona or modal; a container of %s is switched by sluice phase", f.provider)
		}
		p, err := f.plan(cmd)
		if err != nil {
			return err
		}
		to, err := provider.Find(f.provider)
		if err != nil {
			return err
		}
		settings, err := to.Update(provider.Spec{Phases: p.phases, Fresh: f.evaluation == "fresh"}, phase.Phase)
		if err != nil {
			return failed(err)
		}
		send := applyModal
		if f.provider == "daytona" {
			send = applyDaytona
		}
		if err := send(cmd.Context(), *sandbox, settings); err != nil {
			return failed(fmt.Errorf("%s: %w", f.provider, err))
		}
		for _, note := range p.Notes {
			cmd.PrintErrf("sluice: note: %s\n", note)
		}
		if g.json {
			return printJSON(cmd, applied{f.provider, *sandbox, phase.String(), settings})
		}
		cmd.Printf("%s: phase %s is in force: %s\n", *sandbox, phase, settings)
		return nil
	}
	return cmd
}

func applyDaytona(ctx context.Context, sandbox string, settings json.RawMessage) error {
	client, err := daytona.FromEnvironment()
	if err != nil {
		return err
	}
	var want provider.Daytona
	if err := json.Unmarshal(settings, &want); err != nil {
		return err
	}
	return client.Apply(ctx, sandbox, want)
}

// modalProgram has Modal's SDK, which would make this program nearly twice as large.
const modalProgram = "sluice-modal"

func applyModal(ctx context.Context, sandbox string, settings json.RawMessage) error {
	path, err := modalPath()
	if err != nil {
		return err
	}
	var complaints bytes.Buffer
	call := exec.CommandContext(ctx, path, sandbox)
	call.Stdin, call.Stderr = bytes.NewReader(settings), &complaints
	if err := call.Run(); err != nil {
		if text := bytes.TrimSpace(complaints.Bytes()); len(text) > 0 {
			return errors.New(clean(string(text)))
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// modalPath is the program beside this one, or else in PATH.
func modalPath() (string, error) {
	if self, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(self), modalProgram)
		if info, err := os.Stat(beside); err == nil && info.Mode().IsRegular() {
			return beside, nil
		}
	}
	path, err := exec.LookPath(modalProgram)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program nor in PATH: build it with go build -o %s ./cmd/modal", modalProgram, modalProgram)
	}
	return path, nil
}
