package sidecar

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
)

// fakeEngine is an engine whose containers are processes: the real program with its real arguments, but in this
// machine's own namespaces, so that its sockets are found at their path outside.
type fakeEngine struct {
	*testing.T
	binary string

	mu         sync.Mutex
	fail       error // of every call, if set
	images     map[string][]byte
	networks   map[string]network.Inspect
	containers map[string]*fakeContainer
	made       int
	security   []string // what the engine says of its own
	calls      []string
	files      []*os.File // to be removed
}

type fakeContainer struct {
	name   string
	config *container.Config
	host   *container.HostConfig
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process was waited for
	log    *os.File
}

func (e *fakeEngine) Info(context.Context) (system.Info, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return system.Info{SecurityOptions: e.security}, e.fail
}

func newEngine(t *testing.T, binary string) *fakeEngine {
	e := &fakeEngine{T: t, binary: binary, images: map[string][]byte{}, networks: map[string]network.Inspect{}, containers: map[string]*fakeContainer{},
		security: []string{"name=apparmor", "name=seccomp,profile=default"}}
	t.Cleanup(e.stop)
	return e
}

// stop ends what still runs. It comes when nobody starts anything any more, which files removed one by one would not.
func (e *fakeEngine) stop() {
	e.mu.Lock()
	defer e.mu.Unlock()
	defer func() {
		for _, f := range e.files {
			f.Close()
			os.Remove(f.Name())
		}
	}()
	for _, c := range e.containers {
		if c.cmd != nil {
			c.cmd.Process.Kill()
			<-c.done
			if e.Failed() {
				text, _ := os.ReadFile(c.log.Name())
				e.Logf("log of %s:\n%s", c.name, text)
			}
		}
	}
}

// call notes a call and says how it fails.
func (e *fakeEngine) call(name string) error {
	e.calls = append(e.calls, name)
	return e.fail
}

func (e *fakeEngine) set(fail error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fail = fail
}

func missing(what string) error { return fmt.Errorf("no such %s: %w", what, errdefs.ErrNotFound) }

func (e *fakeEngine) ImageInspect(_ context.Context, name string, _ ...client.ImageInspectOption) (image.InspectResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ImageInspect"); err != nil {
		return image.InspectResponse{}, err
	}
	if e.images[name] == nil {
		return image.InspectResponse{}, missing("image")
	}
	return image.InspectResponse{}, nil
}

func (e *fakeEngine) ImageLoad(_ context.Context, archive io.Reader, _ ...client.ImageLoadOption) (image.LoadResponse, error) {
	all, err := io.ReadAll(archive)
	if err != nil {
		return image.LoadResponse{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ImageLoad"); err != nil {
		return image.LoadResponse{}, err
	}
	at := strings.Index(string(all), `"RepoTags":["`)
	tag, _, _ := strings.Cut(string(all[at+len(`"RepoTags":["`):]), `"`)
	// The process must be the binary that was loaded, which may have been replaced meanwhile.
	binary, err := os.ReadFile(e.binary)
	if err != nil {
		return image.LoadResponse{}, err
	}
	e.images[tag] = binary
	return image.LoadResponse{Body: io.NopCloser(strings.NewReader(`{"stream":"Loaded"}`))}, nil
}

func (e *fakeEngine) ImageRemove(_ context.Context, name string, _ image.RemoveOptions) ([]image.DeleteResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ImageRemove"); err != nil {
		return nil, err
	}
	delete(e.images, name)
	return nil, nil
}

func (e *fakeEngine) NetworkCreate(_ context.Context, name string, o network.CreateOptions) (network.CreateResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("NetworkCreate"); err != nil {
		return network.CreateResponse{}, err
	}
	e.made++
	n := network.Inspect{Name: name, ID: "net" + strconv.Itoa(e.made), Driver: o.Driver, Options: o.Options, Labels: o.Labels, IPAM: *o.IPAM}
	if len(n.IPAM.Config) == 0 {
		n.IPAM.Config = []network.IPAMConfig{{Subnet: "172.31.9.0/24", Gateway: "172.31.9.1"}}
	}
	e.networks[name] = n
	return network.CreateResponse{ID: n.ID}, nil
}

func (e *fakeEngine) NetworkInspect(_ context.Context, name string, _ network.InspectOptions) (network.Inspect, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("NetworkInspect"); err != nil {
		return network.Inspect{}, err
	}
	n, ok := e.networks[name]
	if !ok {
		return n, missing("network")
	}
	return n, nil
}

func (e *fakeEngine) NetworkRemove(_ context.Context, name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("NetworkRemove"); err != nil {
		return err
	}
	if _, ok := e.networks[name]; !ok {
		return missing("network")
	}
	delete(e.networks, name)
	return nil
}

func (e *fakeEngine) ContainerCreate(_ context.Context, config *container.Config, host *container.HostConfig, _ *network.NetworkingConfig, _ *oci.Platform, name string) (container.CreateResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ContainerCreate"); err != nil {
		return container.CreateResponse{}, err
	}
	if e.images[config.Image] == nil {
		return container.CreateResponse{}, missing("image")
	}
	e.made++
	id := fmt.Sprintf("%064d", e.made)
	e.containers[id] = &fakeContainer{name: name, config: config, host: host, done: make(chan struct{})}
	return container.CreateResponse{ID: id}, nil
}

func (e *fakeEngine) ContainerStart(_ context.Context, id string, _ container.StartOptions) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ContainerStart"); err != nil {
		return err
	}
	c := e.containers[id]
	if c == nil {
		return missing("container")
	}
	binary := e.tempFile("binary")
	if err := os.WriteFile(binary.Name(), e.images[c.config.Image], 0o755); err != nil {
		return err
	}
	binary.Close()
	if err := os.Chmod(binary.Name(), 0o755); err != nil {
		return err
	}
	var args []string
	for _, arg := range c.config.Cmd {
		if arg == c.host.Mounts[0].Target {
			arg = c.host.Mounts[0].Source
		}
		// The tests' origins are on the loopback that here is the sidecar's too.
		if !strings.HasPrefix(arg, "--never=") {
			args = append(args, arg)
		}
	}
	c.log = e.tempFile("log")
	start := func() (*exec.Cmd, error) {
		cmd := exec.Command(binary.Name(), args...)
		cmd.Stdout, cmd.Stderr = c.log, c.log
		cmd.Env = []string{"GOMAXPROCS=2"}
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: sidecarUID, Gid: sidecarGID}}
		}
		return cmd, cmd.Start()
	}
	cmd, err := start()
	// A child that another goroutine is just starting may still hold the file open for writing.
	for deadline := time.Now().Add(10 * time.Second); errors.Is(err, syscall.ETXTBSY) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
		cmd, err = start()
	}
	if err != nil {
		return err
	}
	c.cmd = cmd
	go func() {
		c.cmd.Wait()
		close(c.done)
	}()
	return nil
}

// tempFile is in a directory that the sidecar's user can enter. The caller has the lock.
func (e *fakeEngine) tempFile(name string) *os.File {
	f, err := os.CreateTemp("", "sluice-"+name)
	if err != nil {
		e.Fatal(err)
	}
	e.files = append(e.files, f)
	return f
}

func (c *fakeContainer) running() bool { return c.cmd != nil && !isClosed(c.done) }

func (e *fakeEngine) ContainerInspect(_ context.Context, id string) (container.InspectResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ContainerInspect"); err != nil {
		return container.InspectResponse{}, err
	}
	c := e.containers[id]
	if c == nil {
		return container.InspectResponse{}, missing("container")
	}
	state := &container.State{Running: c.running()}
	if state.Running {
		state.Pid = c.cmd.Process.Pid
	} else if c.cmd != nil {
		state.ExitCode = c.cmd.ProcessState.ExitCode()
	}
	return container.InspectResponse{
		ContainerJSONBase: &container.ContainerJSONBase{ID: id, Name: "/" + c.name, State: state, HostConfig: c.host},
		Config:            c.config,
		NetworkSettings: &container.NetworkSettings{Networks: map[string]*network.EndpointSettings{
			string(c.host.NetworkMode): {IPAddress: "172.31.9." + strconv.Itoa(1+e.made)}}},
	}, nil
}

func (e *fakeEngine) ContainerLogs(_ context.Context, id string, _ container.LogsOptions) (io.ReadCloser, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ContainerLogs"); err != nil {
		return nil, err
	}
	c := e.containers[id]
	if c == nil {
		return nil, missing("container")
	}
	text, err := os.ReadFile(c.log.Name())
	if err != nil {
		return nil, err
	}
	var framed bytes.Buffer
	if _, err := stdcopy.NewStdWriter(&framed, stdcopy.Stderr).Write(text); err != nil {
		return nil, err
	}
	return io.NopCloser(&framed), nil
}

func (e *fakeEngine) ContainerList(_ context.Context, o container.ListOptions) ([]container.Summary, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ContainerList"); err != nil {
		return nil, err
	}
	var all []container.Summary
	for id, c := range e.containers {
		if o.Filters.MatchKVList("label", c.config.Labels) {
			all = append(all, container.Summary{ID: id})
		}
	}
	return all, nil
}

func (e *fakeEngine) ContainerRemove(_ context.Context, id string, _ container.RemoveOptions) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.call("ContainerRemove"); err != nil {
		return err
	}
	c := e.containers[id]
	if c == nil {
		return missing("container")
	}
	if c.cmd != nil {
		c.cmd.Process.Kill()
		<-c.done
	}
	delete(e.containers, id)
	return nil
}

// processes are those of running containers, the newest last.
func (e *fakeEngine) processes() []*os.Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	var ids []string
	for id, c := range e.containers {
		if c.running() {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	var all []*os.Process
	for _, id := range ids {
		all = append(all, e.containers[id].cmd.Process)
	}
	return all
}

// newest is the process of the container that was started last.
func (e *fakeEngine) newest() *os.Process {
	e.Helper()
	all := e.processes()
	if len(all) == 0 {
		e.Fatal("no sidecar runs")
	}
	return last(all)
}
