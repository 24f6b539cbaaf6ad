// Package agentcompass runs tasks by the Docker provider of the released AgentCompass, as its users do: the provider
// starts the sidecar from an image name and knows nothing else of it.
package agentcompass

import (
	"bufio"
	"bytes"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"time"
)

//go:embed task.py
var driver string

// Spec says what a task is made of. Policies are in the provider's form, by phase name; a phase without one is public.
type Spec struct {
	ID         string                     `json:"id"` // part of the container's name
	Image      string                     `json:"image"`
	ProxyImage string                     `json:"proxy_image"`
	Network    string                     `json:"network,omitempty"` // "" is the engine's default bridge
	Policies   map[string]json.RawMessage `json:"policies"`
}

// Task is an open task. It is not safe for concurrent use.
type Task struct {
	// Container, Proxy and Network name what the provider made. Proxy and Network are empty if it made none.
	Container, Proxy, Network string

	process *exec.Cmd
	stdin   io.WriteCloser
	stdout  *bufio.Reader
	stderr  bytes.Buffer
}

// Switch is a change of phase.
type Switch struct {
	Took time.Duration
	// Returned is when the provider's call came back.
	Returned time.Time
}

// Result is what a command in the task's container did.
type Result struct {
	Code     int    `json:"code"`
	Stdout   string `json:"stdout"`
	Stderr   string `json:"stderr"`
	TimedOut bool   `json:"timed_out"`
}

// Open starts a task on the engine that dockerHost names. python is what [Install] returned.
func Open(python, dockerHost string, spec Spec) (*Task, error) {
	t := &Task{process: exec.Command(python, "-c", driver)}
	t.process.Env = append(os.Environ(), "DOCKER_HOST="+dockerHost)
	t.process.Stderr = &t.stderr
	stdin, err := t.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := t.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	t.stdin, t.stdout = stdin, bufio.NewReader(stdout)
	if err := t.process.Start(); err != nil {
		return nil, err
	}
	request := struct {
		Do string `json:"do"`
		Spec
	}{"open", spec}
	var answer struct{ Container, Proxy, Network string }
	if err := t.call(request, &answer); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	t.Container, t.Proxy, t.Network = answer.Container, answer.Proxy, answer.Network
	return t, nil
}

// Phase puts the policy of a phase in force: "baseline", "run" or "evaluation".
func (t *Task) Phase(name string) (Switch, error) {
	var answer struct{ Seconds, Returned float64 }
	if err := t.call(map[string]any{"do": "phase", "phase": name}, &answer); err != nil {
		return Switch{}, err
	}
	whole, part := math.Modf(answer.Returned)
	return Switch{
		Took:     time.Duration(answer.Seconds * float64(time.Second)),
		Returned: time.Unix(int64(whole), int64(part*1e9)),
	}, nil
}

// Exec runs a command in the task's container and waits for it, up to a limit.
func (t *Task) Exec(limit time.Duration, argv ...string) (Result, error) {
	var answer Result
	err := t.call(map[string]any{"do": "exec", "argv": argv, "timeout": limit.Seconds()}, &answer)
	return answer, err
}

// Start runs a command in the task's container and does not wait for it.
func (t *Task) Start(argv ...string) error {
	var answer Result
	err := t.call(map[string]any{"do": "exec", "argv": argv, "timeout": 20, "detach": true}, &answer)
	if err == nil && answer.Code != 0 {
		err = fmt.Errorf("start %q: exit code %d", argv, answer.Code)
	}
	return err
}

// Close ends the task as the provider does: container, proxy, network and policy directory go. It may be called again.
func (t *Task) Close() error {
	if t.process.ProcessState != nil {
		return nil
	}
	var answer struct{}
	err := t.call(map[string]any{"do": "close"}, &answer)
	t.stdin.Close()
	if ended := t.process.Wait(); ended != nil && err == nil {
		err = fmt.Errorf("AgentCompass driver: %w: %s", ended, &t.stderr)
	}
	return err
}

func (t *Task) call(request, answer any) error {
	line, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if _, err := t.stdin.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("AgentCompass driver: %w: %s", err, &t.stderr)
	}
	reply, err := t.stdout.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("AgentCompass driver: %w: %s", err, &t.stderr)
	}
	var failed struct{ Error string }
	if err := json.Unmarshal(reply, &failed); err != nil {
		return fmt.Errorf("AgentCompass driver: %w: %s", err, reply)
	}
	if failed.Error != "" {
		return errors.New(failed.Error)
	}
	return json.Unmarshal(reply, answer)
}
