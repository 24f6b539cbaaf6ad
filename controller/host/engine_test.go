package host

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"

	"sluice/controller"
)

// inspected is an engine that knows one container.
type inspected struct {
	client.ContainerAPIClient
	answer container.InspectResponse
	err    error
}

func (i *inspected) ContainerInspect(context.Context, string) (container.InspectResponse, error) {
	return i.answer, i.err
}

// A namespace gets rules only if the same run of the same container still has it: neither a name, a number nor a path that
// is used again leads to another one.
func TestRuns(t *testing.T) {
	const started = "2024-05-06T07:08:09.1Z"
	c := &controller.Container{ID: "c1", Name: "web", Started: started, Sandbox: "/run/docker/netns/1"}
	for _, tt := range []struct {
		name   string
		change func(*container.InspectResponse)
		want   bool
	}{
		{"same", nil, true},
		{"same_time_elsewhere", func(r *container.InspectResponse) { r.State.StartedAt = "2024-05-06T09:08:09.100+02:00" }, true},
		{"its_pid_is_anothers", func(r *container.InspectResponse) { r.ID, r.State.StartedAt = "c2", "2024-05-06T07:08:10Z" }, false},
		{"other_container_at_once", func(r *container.InspectResponse) { r.ID = "c2" }, false},
		{"restarted_with_the_same_pid", func(r *container.InspectResponse) { r.State.StartedAt = "2024-05-06T07:08:10Z" }, false},
		{"other_namespace", func(r *container.InspectResponse) { r.NetworkSettings.SandboxKey = "/run/docker/netns/2" }, false},
		{"ended", func(r *container.InspectResponse) { r.State.Running = false }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := container.InspectResponse{
				ContainerJSONBase: &container.ContainerJSONBase{ID: "c1", State: &container.State{Running: true, Pid: 4711, StartedAt: started}},
				NetworkSettings:   new(container.NetworkSettings),
			}
			r.NetworkSettings.SandboxKey = c.Sandbox
			if tt.change != nil {
				tt.change(&r)
			}
			got, err := (&Engine{Docker: &inspected{answer: r}}).Runs(t.Context(), c)
			if err != nil || got != tt.want {
				t.Errorf("got %v, %v, want %v", got, err, tt.want)
			}
		})
	}
	if same, err := (&Engine{Docker: &inspected{err: errdefs.ErrNotFound}}).Runs(t.Context(), c); same || err != nil {
		t.Errorf("gone: %v, %v", same, err)
	}
	if same, err := (&Engine{Docker: &inspected{err: errors.New("no answer")}}).Runs(t.Context(), c); same || err == nil {
		t.Errorf("no answer: %v, %v", same, err)
	}
	if same, err := (&Engine{Docker: &inspected{}}).Runs(t.Context(), c); same || err == nil {
		t.Errorf("half an answer: %v, %v", same, err)
	}
}
