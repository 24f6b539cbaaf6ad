package launch

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/image"
	"github.com/docker/docker/api/types/network"
	"github.com/docker/docker/api/types/system"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"
	oci "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"sluice/controller/api"
	"sluice/dockernet/engine"
	"sluice/images"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeEngine is one with a few images, whose containers echo their input, and end with the code of the signal that they
// get, or by themselves with 7.
type fakeEngine struct {
	mu         sync.Mutex
	images     []string
	security   []string            // what the engine says of itself
	containers map[string]*created // by id
	steps      []string
	fail       string // the step that fails
	signals    chan string
	started    chan struct{}
	output     net.Conn
}

type created struct {
	config  *container.Config
	host    *container.HostConfig
	network *network.NetworkingConfig
	name    string
	running bool
}

func newEngine() *fakeEngine {
	return &fakeEngine{images: []string{"debian"}, containers: map[string]*created{}, signals: make(chan string, 1), started: make(chan struct{})}
}

var errFake = errors.New("the engine says no")

func (e *fakeEngine) do(step string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.steps = append(e.steps, step)
	if step == e.fail {
		return errFake
	}
	return nil
}

func (e *fakeEngine) Info(context.Context) (system.Info, error) {
	return system.Info{SecurityOptions: e.security}, e.do("info")
}

func (e *fakeEngine) ImageInspect(_ context.Context, name string, _ ...client.ImageInspectOption) (r image.InspectResponse, err error) {
	if !slices.Contains(e.images, name) {
		return r, errdefs.ErrNotFound
	}
	return r, nil
}

func (e *fakeEngine) ImageLoad(_ context.Context, archive io.Reader, _ ...client.ImageLoadOption) (r image.LoadResponse, err error) {
	if _, err := io.Copy(io.Discard, archive); err != nil {
		return r, err
	}
	e.images = append(e.images, images.HolderTag)
	return image.LoadResponse{Body: io.NopCloser(strings.NewReader("{}"))}, e.do("load")
}

func (e *fakeEngine) ContainerCreate(_ context.Context, c *container.Config, h *container.HostConfig, n *network.NetworkingConfig, _ *oci.Platform, name string) (r container.CreateResponse, err error) {
	if !slices.Contains(e.images, c.Image) {
		return r, errdefs.ErrNotFound
	}
	id := "workload"
	if c.Image == images.HolderTag {
		id = "holder"
	}
	if err := e.do("create " + id); err != nil {
		return r, err
	}
	e.containers[id] = &created{config: c, host: h, network: n, name: name}
	return container.CreateResponse{ID: id}, nil
}

func (e *fakeEngine) ContainerStart(_ context.Context, id string, _ container.StartOptions) error {
	if err := e.do("start " + id); err != nil {
		return err
	}
	e.containers[id].running = true
	if id == "workload" {
		close(e.started)
	}
	return nil
}

func (e *fakeEngine) ContainerAttach(context.Context, string, container.AttachOptions) (r types.HijackedResponse, err error) {
	if err := e.do("attach"); err != nil {
		return r, err
	}
	near, far := net.Pipe()
	e.output = far
	return types.NewHijackedResponse(near, ""), nil
}

func (e *fakeEngine) ContainerWait(ctx context.Context, _ string, _ container.WaitCondition) (<-chan container.WaitResponse, <-chan error) {
	ended := make(chan container.WaitResponse, 1)
	interactive := e.containers["workload"].config.OpenStdin
	go func() {
		code := int64(7)
		select {
		case <-ctx.Done():
			return
		case <-e.started:
		}
		if interactive {
			line, _ := bufio.NewReader(e.output).ReadString('\n')
			_, _ = io.WriteString(stdcopy.NewStdWriter(e.output, stdcopy.Stdout), line)
			if <-e.signals == "TERM" {
				code = 143
			}
		}
		_, _ = io.WriteString(stdcopy.NewStdWriter(e.output, stdcopy.Stderr), "bye\n")
		e.output.Close()
		ended <- container.WaitResponse{StatusCode: code}
	}()
	return ended, make(chan error)
}

func (e *fakeEngine) ContainerKill(_ context.Context, _, signal string) error {
	e.signals <- signal
	return e.do("kill " + signal)
}

func (e *fakeEngine) ContainerRemove(_ context.Context, id string, o container.RemoveOptions) error {
	if e.containers[id] == nil {
		return errdefs.ErrNotFound
	}
	delete(e.containers, id)
	if !o.Force {
		return errors.New("not by force")
	}
	return e.do("remove " + id)
}

// Attach is the controller's.
func (e *fakeEngine) Attach(_ context.Context, a api.Attach) (api.Status, error) {
	if a.Container != "holder" || a.Workload != "workload" || a.Phase != "run" || string(a.Policy) != `"public"` || e.containers["workload"].running {
		return api.Status{}, errors.New("not as it was asked for")
	}
	return api.Status{}, e.do("policy")
}

func spec() Spec {
	return Spec{Name: "task", Image: "debian", Command: []string{"sh"}, Policies: []byte(`"public"`), Phase: "run", Network: "tasks",
		Hostname: "box", Publish: []string{"127.0.0.1:8080:80"}, DNS: []string{"192.0.2.53"}, ExtraHosts: []string{"db:192.0.2.9"}}
}

func TestRun(t *testing.T) {
	e := newEngine()
	var out, errs strings.Builder
	started := ""
	code, err := Run(t.Context(), e, e, spec(), Streams{Out: &out, Err: &errs, Started: func(id string) { started = id }})
	if err != nil || code != 7 || errs.String() != "bye\n" || out.String() != "" || started != "workload" {
		t.Errorf("code %d, error %v, output %q and %q, started %q", code, err, out.String(), errs.String(), started)
	}
	want := "load, info, create holder, create workload, start holder, policy, attach, start workload, remove holder, remove workload"
	if got := strings.Join(e.steps, ", "); got != want {
		t.Errorf("steps %s, want %s", got, want)
	}
}

func TestNetworkIsTheHolders(t *testing.T) {
	e := newEngine()
	s := spec()
	s.Detach = true
	if _, err := Run(t.Context(), e, e, s, Streams{}); err != nil {
		t.Fatal(err)
	}
	h, w := e.containers["holder"], e.containers["workload"]
	if h.config.Hostname != "box" || h.host.NetworkMode != "tasks" || len(h.host.PortBindings) != 1 || h.host.DNS[0] != "192.0.2.53" ||
		h.host.ExtraHosts[0] != "db:192.0.2.9" || h.network.EndpointsConfig["tasks"].Aliases[0] != "task" || !h.host.RestartPolicy.IsNone() {
		t.Errorf("holder: %+v %+v", h.config, h.host)
	}
	if w.host.NetworkMode != "container:holder" || len(w.host.PortBindings)+len(w.host.DNS)+len(w.host.ExtraHosts) > 0 || w.name != "task" || !w.running {
		t.Errorf("workload: %+v %+v", w.config, w.host)
	}
}

// The default is what each row's engine says of itself.
func TestSeccomp(t *testing.T) {
	ours := "seccomp=" + engine.SeccompProfile()
	for _, tt := range []struct {
		name, engine string
		asked, want  []string
	}{
		{"old", "name=seccomp,profile=default", nil, []string{ours}},
		{"new", "name=seccomp,profile=builtin", []string{"no-new-privileges"}, []string{"no-new-privileges", ours}},
		{"engine-without", "name=seccomp,profile=unconfined", nil, []string{ours}},
		{"kernel-without", "name=apparmor", nil, nil},
		{"administrators", "name=seccomp,profile=/etc/docker/seccomp.json", nil, nil},
		{"users", "name=seccomp,profile=default", []string{`seccomp={"defaultAction":"SCMP_ACT_ERRNO"}`}, []string{`seccomp={"defaultAction":"SCMP_ACT_ERRNO"}`}},
		{"users-none", "name=seccomp,profile=default", []string{"seccomp=unconfined"}, []string{"seccomp=unconfined"}},
		{"engines-own", "name=seccomp,profile=default", []string{"seccomp=builtin"}, nil},
		{"engines-own-instead", "name=seccomp,profile=/etc/docker/seccomp.json", []string{"seccomp=builtin"}, []string{"seccomp=builtin"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := newEngine()
			e.security = []string{"name=cgroupns", tt.engine}
			s := spec()
			s.Detach, s.SecurityOpt = true, tt.asked
			if _, err := Run(t.Context(), e, e, s, Streams{}); err != nil {
				t.Fatal(err)
			}
			if got := e.containers["workload"].host.SecurityOpt; !slices.Equal(got, tt.want) {
				t.Errorf("got %.100q, want %.100q", got, tt.want)
			}
			holder := e.containers["holder"].host.SecurityOpt
			if has := slices.Contains(holder, ours); holder[0] != "no-new-privileges" || has != engine.ReplacesSeccomp(engine.SeccompDefault(e.security)) {
				t.Errorf("holder: %.100q", holder)
			}
		})
	}
}

func TestInputAndSignals(t *testing.T) {
	e := newEngine()
	s := spec()
	s.Interactive = true
	signals := make(chan string, 1)
	in, write := io.Pipe()
	var out strings.Builder
	go func() {
		_, _ = io.WriteString(write, "hello\n")
		write.Close()
		signals <- "TERM"
	}()
	code, err := Run(t.Context(), e, e, s, Streams{In: in, Out: &out, Err: io.Discard, Signals: signals})
	if err != nil || code != 143 || out.String() != "hello\n" {
		t.Errorf("code %d, error %v, output %q", code, err, out.String())
	}
}

// TestFailuresLeaveNothing fails every step.
func TestFailuresLeaveNothing(t *testing.T) {
	for _, step := range []string{"load", "info", "create holder", "create workload", "start holder", "policy", "attach", "start workload"} {
		t.Run(strings.ReplaceAll(step, " ", "-"), func(t *testing.T) {
			e := newEngine()
			e.fail = step
			_, err := Run(t.Context(), e, e, spec(), Streams{Out: io.Discard, Err: io.Discard})
			if !errors.Is(err, errFake) {
				t.Errorf("error %v", err)
			}
			if len(e.containers) > 0 {
				t.Errorf("left: %v", e.containers)
			}
		})
	}
	t.Run("no-image", func(t *testing.T) {
		e := newEngine()
		s := spec()
		s.Image = "nosuch"
		if _, err := Run(t.Context(), e, e, s, Streams{}); err == nil || !strings.Contains(err.Error(), "docker pull nosuch") || len(e.containers) > 0 {
			t.Errorf("error %v, left %v", err, e.containers)
		}
	})
}
