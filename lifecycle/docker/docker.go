// Package docker runs the Environments of a task as containers that are under a policy from their first instruction.
package docker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"sluice/controller/api"
	"sluice/controller/launch"
	"sluice/lifecycle"
	"sluice/policy"
)

// Spec is what all containers of a task have in common.
type Spec struct {
	// Container is how they are run; its name, image and phase are set here, and its command is Idle.
	Container launch.Spec
	// Images are those of the roles; "" is that of Container.
	Images map[lifecycle.Role]string
	// Idle keeps a container running while no command of the task does; [DefaultIdle] if it is empty.
	Idle []string
	// Out and Err get what commands print.
	Out, Err io.Writer
	// Started is told of each container, by its id.
	Started func(role lifecycle.Role, id string)
}

// DefaultIdle works in every image with a shell.
var DefaultIdle = []string{"/bin/sh", "-c", "while :; do sleep 86400; done"}

// Controller is what is asked of the controller; [api.Client] has it.
type Controller interface {
	launch.Controller
	Phase(ctx context.Context, container, phase string, generation uint64) (api.Receipt, error)
	Status(ctx context.Context, container string) (api.Status, error)
}

// Engine opens Environments on a Docker engine.
type Engine struct {
	Docker     *client.Client
	Controller Controller
	Spec       Spec
}

// Open implements [lifecycle.Opener].
func (e *Engine) Open(ctx context.Context, role lifecycle.Role) (lifecycle.Environment, api.Receipt, error) {
	s := e.Spec.Container
	if image := e.Spec.Images[role]; image != "" {
		s.Image = image
	}
	if s.Name != "" && role == lifecycle.Evaluation {
		s.Name += "-evaluation"
	}
	idle := e.Spec.Idle
	if len(idle) == 0 {
		idle = DefaultIdle
	}
	s.Entrypoint, s.Command = idle[0], idle[1:]
	s.Phase, s.Detach, s.Keep, s.Restart = policy.Baseline.String(), true, true, "no"
	began := time.Now()
	env := &environment{engine: e, workdir: s.Workdir}
	if _, err := launch.Run(ctx, e.Docker, e.Controller, s, launch.Streams{Started: func(id string) { env.id = id }}); err != nil {
		return nil, api.Receipt{}, err
	}
	status, err := e.Controller.Status(ctx, env.id)
	if err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), lifecycle.CleanupTimeout)
		defer cancel()
		return nil, api.Receipt{}, errors.Join(err, env.Close(closing))
	}
	env.holder = status.Holder
	if e.Spec.Started != nil {
		e.Spec.Started(role, env.id)
	}
	return env, api.Receipt{Container: status.Name, ContainerID: status.ID, Generation: status.Generation, Phase: status.Phase,
		Digest: status.Digest, Milliseconds: float64(time.Since(began).Microseconds()) / 1000}, nil
}

type environment struct {
	engine     *Engine
	id, holder string
	workdir    string
}

func (e *environment) Switch(ctx context.Context, phase policy.Phase) (api.Receipt, error) {
	return e.engine.Controller.Phase(ctx, e.id, phase.String(), 0)
}

// markVariable is in the environment of everything that a command starts, so that it can be found.
const markVariable = "SLUICE_COMMAND"

func (e *environment) Exec(ctx context.Context, c lifecycle.Command) (code int, err error) {
	mark := rand.Text()
	workdir := c.Workdir
	if workdir == "" {
		workdir = e.workdir
	}
	code, err = e.exec(ctx, container.ExecOptions{Cmd: c.Argv, Env: append([]string{markVariable + "=" + mark}, c.Env...), WorkingDir: workdir,
		User: c.User, AttachStdout: true, AttachStderr: true}, e.engine.Spec.Out, e.engine.Spec.Err)
	if err != nil && ctx.Err() != nil {
		// The caller's ctx has ended, and with it the connection, but not the command.
		return 0, errors.Join(context.Cause(ctx), e.end(context.WithoutCancel(ctx), mark))
	}
	return code, err
}

// exec runs a command and waits for it.
func (e *environment) exec(ctx context.Context, o container.ExecOptions, stdout, stderr io.Writer) (code int, err error) {
	docker := e.engine.Docker
	created, err := docker.ContainerExecCreate(ctx, e.id, o)
	if err != nil {
		return 0, fmt.Errorf("run %q: %w", o.Cmd, err)
	}
	attached, err := docker.ContainerExecAttach(ctx, created.ID, container.ExecAttachOptions{})
	if err != nil {
		return 0, fmt.Errorf("run %q: %w", o.Cmd, err)
	}
	// Reading does not look at ctx.
	stop := context.AfterFunc(ctx, attached.Close)
	defer attached.Close()
	_, err = stdcopy.StdCopy(orDiscard(stdout), orDiscard(stderr), attached.Reader)
	if !stop() {
		return 0, context.Cause(ctx)
	}
	if err != nil {
		return 0, fmt.Errorf("the output of %q: %w", o.Cmd, err)
	}
	// The output has ended, but the engine may not know the exit code yet, or the command has closed its output.
	for delay := time.Millisecond; ; delay = min(2*delay, 100*time.Millisecond) {
		state, err := docker.ContainerExecInspect(ctx, created.ID)
		if err != nil {
			return 0, fmt.Errorf("run %q: %w", o.Cmd, err)
		}
		if !state.Running {
			return state.ExitCode, nil
		}
		select {
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		case <-time.After(delay):
		}
	}
}

func orDiscard(w io.Writer) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}

// killMarked ends everything that has the mark $1 in its environment, in two rounds for what starts more meanwhile,
// and fails if something is left.
const killMarked = `for round in 1 2 3; do
  left=0
  for process in /proc/[0-9]*; do
    if grep -q "` + markVariable + `=$1" "$process/environ" 2>/dev/null; then left=1; kill -9 "${process#/proc/}" 2>/dev/null; fi
  done
  [ "$left" = 0 ] && exit 0
done
sleep 1
for process in /proc/[0-9]*; do
  if grep -q "` + markVariable + `=$1" "$process/environ" 2>/dev/null; then exit 1; fi
done`

// endTimeout bounds how long it may take to end a command.
const endTimeout = 10 * time.Second

// end ends what a command has started. It finds all that has kept its environment; whoever hides from that is still
// under the policy in force.
func (e *environment) end(ctx context.Context, mark string) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	code, err := e.exec(ctx, container.ExecOptions{Cmd: []string{"/bin/sh", "-c", killMarked, "sh", mark}, User: "0:0", AttachStdout: true, AttachStderr: true}, nil, nil)
	switch {
	case errdefs.IsNotFound(err) || errdefs.IsConflict(err): // the container is gone, or has ended
		return nil
	case err != nil:
		return fmt.Errorf("%w: %w", lifecycle.ErrStillRuns, err)
	case code != 0:
		return fmt.Errorf("%w: the image needs a shell, grep and kill to end it (exit code %d)", lifecycle.ErrStillRuns, code)
	}
	return nil
}

func (e *environment) Copy(ctx context.Context, a lifecycle.Artifact) (leftOut []string, err error) {
	content, stat, err := e.engine.Docker.CopyFromContainer(ctx, e.id, a.From)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	return extract(content, path.Base(stat.Name), a.To)
}

// Close removes the container and the one that holds its network; the policy goes with them.
func (e *environment) Close(ctx context.Context) error {
	var errs []error
	for _, id := range []string{e.holder, e.id} { // in this order, or the controller would do it at the same time
		if id == "" {
			continue
		}
		err := e.engine.Docker.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true})
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			errs = append(errs, fmt.Errorf("remove container %.12s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}
