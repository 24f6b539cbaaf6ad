// Package launch starts a container that is under its policy from its first instruction: its network is held by another
// container, attached before the first process of this one begins.
package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	"github.com/docker/go-connections/nat"
	oci "github.com/opencontainers/image-spec/specs-go/v1"

	"sluice/controller/api"
	"sluice/dockernet/engine"
	"sluice/images"
)

// Spec says what to run, in the words of "docker run".
type Spec struct {
	Name    string // the engine chooses one if it is empty
	Image   string
	Command []string

	Entrypoint      string
	Env             []string
	Volumes         []string // SOURCE:TARGET[:ro]
	Workdir, User   string
	Memory          int64 // bytes; 0 is no limit
	Interactive     bool
	TTY             bool
	Detach          bool // do not wait for it
	Keep            bool // do not remove it when it has ended
	Restart         string
	CapDrop, CapAdd []string
	// SecurityOpt are the engine's security options. If none says which seccomp profile, the container gets that of
	// [engine.SeccompProfile], or the administrator's where the engine has one.
	SecurityOpt []string

	// What follows belongs to the network, so the holder gets it.
	Network, Hostname string
	Publish           []string
	DNS, ExtraHosts   []string

	Policies  json.RawMessage // of all phases
	Phase     string
	AllowWeak bool
	Verify    bool // send probes before its first instruction, see [api.Options]
}

// Docker is what is asked of the engine; [client.Client] has it.
type Docker interface {
	Info(ctx context.Context) (system.Info, error)
	ImageInspect(ctx context.Context, image string, options ...client.ImageInspectOption) (image.InspectResponse, error)
	ImageLoad(ctx context.Context, archive io.Reader, options ...client.ImageLoadOption) (image.LoadResponse, error)
	ContainerCreate(ctx context.Context, config *container.Config, host *container.HostConfig, networks *network.NetworkingConfig, platform *oci.Platform, name string) (container.CreateResponse, error)
	ContainerStart(ctx context.Context, container string, options container.StartOptions) error
	ContainerAttach(ctx context.Context, container string, options container.AttachOptions) (types.HijackedResponse, error)
	ContainerWait(ctx context.Context, container string, condition container.WaitCondition) (<-chan container.WaitResponse, <-chan error)
	ContainerKill(ctx context.Context, container, signal string) error
	ContainerRemove(ctx context.Context, container string, options container.RemoveOptions) error
}

// Controller is what is asked of the controller; [api.Client] has it.
type Controller interface {
	Attach(ctx context.Context, a api.Attach) (api.Status, error)
}

// Streams are those of the caller. Signals, by their names, are passed on.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Signals  <-chan string
	// Started is called with the container's id once it runs; nil is for nobody.
	Started func(id string)
}

// cleanTimeout bounds what is done for a container that has failed or ended.
const cleanTimeout = 30 * time.Second

// Run runs a container until it ends, and returns its exit code; with [Spec.Detach] it returns when it has started,
// with the code 0. On an error nothing is left of it.
func Run(ctx context.Context, docker Docker, controller Controller, s Spec, io Streams) (code int, err error) {
	if err := ensureHolder(ctx, docker); err != nil {
		return 0, err
	}
	r := &running{docker: docker}
	defer func() {
		if err != nil || !s.Detach && !s.Keep {
			err = errors.Join(err, r.remove())
		}
	}()
	if err := r.create(ctx, &s); err != nil {
		return 0, err
	}
	if err := docker.ContainerStart(ctx, r.holder, container.StartOptions{}); err != nil {
		return 0, fmt.Errorf("start the holder of the network: %w", withRepair(err))
	}
	if _, err := controller.Attach(ctx, api.Attach{Container: r.holder, Policy: s.Policies, Phase: s.Phase,
		Options: api.Options{AllowWeak: s.AllowWeak, Workload: r.workload, Verify: s.Verify}}); err != nil {
		return 0, err
	}
	if s.Detach {
		if err := docker.ContainerStart(ctx, r.workload, container.StartOptions{}); err != nil {
			return 0, fmt.Errorf("start the container: %w", err)
		}
		if io.Started != nil {
			io.Started(r.workload)
		}
		return 0, nil
	}
	return r.follow(ctx, &s, io)
}

// withRepair says what to do where the engine only passes on what the kernel says, EXFULL, errno(3).
func withRepair(err error) error {
	if strings.Contains(err.Error(), "exchange full") {
		return fmt.Errorf("%w: a bridge has 1023 ports at most; remove containers of that network, or use another one", err)
	}
	return err
}

// ensureHolder loads the holder's image, if the engine does not have it.
func ensureHolder(ctx context.Context, docker Docker) error {
	_, err := docker.ImageInspect(ctx, images.HolderTag)
	if !errdefs.IsNotFound(err) {
		return err
	}
	img, err := images.Holder()
	if err != nil {
		return err
	}
	return images.Load(ctx, docker, img)
}

// running is a container with its holder, by their ids; empty where there is none yet.
type running struct {
	docker           Docker
	holder, workload string
}

// Labels of what Sluice starts for itself.
const labelInternal = "sluice.internal"

// withSeccomp adds the profile to options that ask for none, for an engine with a default.
func withSeccomp(options []string, engineDefault string) []string {
	switch asked := engine.SeccompOf(options); {
	case asked == "" && engine.ReplacesSeccomp(engineDefault):
		return append(slices.Clone(options), "seccomp="+engine.SeccompProfile())
	case asked == engineDefault:
		// Engines before 23.0 do not know the word for their own one.
		return slices.DeleteFunc(slices.Clone(options), func(o string) bool { return engine.SeccompOf([]string{o}) != "" })
	}
	return options
}

func (r *running) create(ctx context.Context, s *Spec) error {
	info, err := r.docker.Info(ctx)
	if err != nil {
		return fmt.Errorf("ask the engine what it is: %w", err)
	}
	seccomp := engine.SeccompDefault(info.SecurityOptions)
	exposed, bindings, err := nat.ParsePortSpecs(s.Publish)
	if err != nil {
		return fmt.Errorf("publish %v: %w", s.Publish, err)
	}
	name, networks := "", (*network.NetworkingConfig)(nil)
	if s.Name != "" {
		name = s.Name + "-holder"
		if s.Network != "" && s.Network != network.NetworkDefault && s.Network != network.NetworkBridge {
			networks = &network.NetworkingConfig{EndpointsConfig: map[string]*network.EndpointSettings{s.Network: {Aliases: []string{s.Name}}}}
		}
	}
	holder, err := r.docker.ContainerCreate(ctx,
		&container.Config{Image: images.HolderTag, Hostname: s.Hostname, ExposedPorts: exposed, Labels: map[string]string{labelInternal: "holder"}},
		&container.HostConfig{
			NetworkMode: container.NetworkMode(s.Network), PortBindings: bindings, DNS: s.DNS, ExtraHosts: s.ExtraHosts,
			RestartPolicy:  container.RestartPolicy{Name: container.RestartPolicyDisabled},
			ReadonlyRootfs: true, CapDrop: []string{"ALL"}, SecurityOpt: withSeccomp([]string{"no-new-privileges"}, seccomp),
			LogConfig: container.LogConfig{Type: "none"},
		}, networks, nil, name)
	if err != nil {
		return fmt.Errorf("create the holder of the network: %w", err)
	}
	r.holder = holder.ID

	config := &container.Config{
		Image: s.Image, Cmd: s.Command, Env: s.Env, WorkingDir: s.Workdir, User: s.User, Tty: s.TTY,
		AttachStdin: s.Interactive, OpenStdin: s.Interactive, StdinOnce: s.Interactive && !s.Detach,
		AttachStdout: !s.Detach, AttachStderr: !s.Detach,
	}
	if s.Entrypoint != "" {
		config.Entrypoint = []string{s.Entrypoint}
	}
	workload, err := r.docker.ContainerCreate(ctx, config, &container.HostConfig{
		NetworkMode: container.NetworkMode("container:" + r.holder), Binds: s.Volumes, CapDrop: s.CapDrop, CapAdd: s.CapAdd,
		SecurityOpt:   withSeccomp(s.SecurityOpt, seccomp),
		RestartPolicy: container.RestartPolicy{Name: container.RestartPolicyMode(s.Restart)},
		Resources:     container.Resources{Memory: s.Memory},
	}, nil, nil, s.Name)
	if errdefs.IsNotFound(err) {
		return fmt.Errorf("%w: docker pull %s", err, s.Image)
	}
	if err != nil {
		return fmt.Errorf("create the container: %w", err)
	}
	r.workload = workload.ID
	return nil
}

// follow starts the container and stays with it until it ends.
func (r *running) follow(ctx context.Context, s *Spec, streams Streams) (code int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	attached, err := r.docker.ContainerAttach(ctx, r.workload, container.AttachOptions{Stream: true, Stdin: s.Interactive, Stdout: true, Stderr: true})
	if err != nil {
		return 0, fmt.Errorf("attach to the container: %w", err)
	}
	defer attached.Close()
	ended, failed := r.docker.ContainerWait(ctx, r.workload, container.WaitConditionNextExit)
	printed := make(chan error, 1)
	go func() {
		var err error
		if s.TTY {
			_, err = io.Copy(streams.Out, attached.Reader)
		} else {
			_, err = stdcopy.StdCopy(streams.Out, streams.Err, attached.Reader)
		}
		printed <- err
	}()
	if err := r.docker.ContainerStart(ctx, r.workload, container.StartOptions{}); err != nil {
		attached.Close()
		<-printed
		return 0, fmt.Errorf("start the container: %w", err)
	}
	if streams.Started != nil {
		streams.Started(r.workload)
	}
	if s.Interactive {
		// Reading the caller's input cannot be interrupted: the goroutine ends with it, or with the program.
		go func() {
			_, _ = io.Copy(attached.Conn, streams.In)
			_ = attached.CloseWrite()
		}()
	}
	for {
		select {
		case signal := <-streams.Signals:
			if err := r.docker.ContainerKill(ctx, r.workload, signal); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
				return 0, fmt.Errorf("pass %s on: %w", signal, err)
			}
		case err := <-failed:
			return 0, fmt.Errorf("wait for the container: %w", err)
		case response := <-ended:
			if err := <-printed; err != nil && !errors.Is(err, os.ErrClosed) {
				return 0, fmt.Errorf("the container's output: %w", err)
			}
			return int(response.StatusCode), nil
		}
	}
}

// remove takes both containers away. Their policy goes with them.
func (r *running) remove() error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanTimeout)
	defer cancel()
	var errs []error
	remove := func(id string) {
		if id == "" {
			return
		}
		if err := r.docker.ContainerRemove(ctx, id, container.RemoveOptions{Force: true, RemoveVolumes: true}); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsConflict(err) {
			errs = append(errs, fmt.Errorf("remove container %.12s: %w", id, err))
		}
	}
	remove(r.holder) // first, or the controller would do it at the same time
	remove(r.workload)
	return errors.Join(errs...)
}
