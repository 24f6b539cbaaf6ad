package agentcompass

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os/exec"
)

//go:embed reference.py
var reference string

// Ask has AgentCompass's own functions answer requests, which reference.py describes, and returns an answer each.
// python is what [Install] returned.
func Ask(ctx context.Context, python string, requests []any) ([]json.RawMessage, error) {
	var in, complaints bytes.Buffer
	for _, r := range requests {
		if err := json.NewEncoder(&in).Encode(r); err != nil {
			return nil, err
		}
	}
	process := exec.CommandContext(ctx, python, "-c", reference)
	process.Stdin, process.Stderr = &in, &complaints
	out, err := process.Output()
	if err != nil {
		return nil, fmt.Errorf("AgentCompass: %w: %s", err, &complaints)
	}
	answers := make([]json.RawMessage, 0, len(requests))
	for line := range bytes.Lines(out) {
		answers = append(answers, bytes.TrimSpace(line))
	}
	if len(answers) != len(requests) {
		return nil, fmt.Errorf("AgentCompass gave %d answers to %d requests: %s", len(answers), len(requests), &complaints)
	}
	return answers, nil
}
