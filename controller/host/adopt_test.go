package host

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/api/types/container"
	dockernetwork "github.com/docker/docker/api/types/network"
)

func TestReadProvider(t *testing.T) {
	const policyPath = "/opt/agentcompass/policy/policy.json"
	bind := container.MountPoint{Type: "bind", Source: "/tmp/policies", Destination: "/opt/agentcompass/policy"}
	good := func() *container.InspectResponse {
		c := &container.InspectResponse{
			ContainerJSONBase: &container.ContainerJSONBase{State: &container.State{Running: true}},
			Config:            &container.Config{Env: []string{"AGENTCOMPASS_PROXY_TOKEN=secret", "AGENTCOMPASS_POLICY_PATH=" + policyPath, "AGENTCOMPASS_PROXY_PORT=8081"}},
			Mounts:            []container.MountPoint{bind},
			NetworkSettings: &container.NetworkSettings{Networks: map[string]*dockernetwork.EndpointSettings{
				"bridge": {IPAddress: "172.17.0.9"}, "net": {IPAddress: "172.18.0.2", GlobalIPv6Address: "fd00::2"}}},
		}
		c.NetworkSettings.SandboxKey = "/netns/p"
		return c
	}
	both := []netip.AddrPort{netip.MustParseAddrPort("172.18.0.2:8081"), netip.MustParseAddrPort("[fd00::2]:8081")}
	for _, tt := range []struct {
		name          string
		change        func(*container.InspectResponse)
		file, problem string
		addresses     []netip.AddrPort
		sandbox       string
	}{
		{"python", func(*container.InspectResponse) {}, "/tmp/policies/policy.json", "", both, "/netns/p"},
		{"ours", func(c *container.InspectResponse) {
			c.Config.Labels = map[string]string{"org.opencontainers.image.title": "sluice-proxy"}
		}, "/tmp/policies/policy.json", "", both, ""},
		{"file-mounted-alone", func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: "bind", Source: "/tmp/p.json", Destination: policyPath})
		}, "/tmp/p.json", "", both, "/netns/p"},
		{"hidden-by-a-volume", func(c *container.InspectResponse) {
			c.Mounts = append(c.Mounts, container.MountPoint{Type: "volume", Source: "/var/lib/x", Destination: policyPath})
		}, "", "in no directory of the host", both, "/netns/p"},
		{"beside-the-mount", func(c *container.InspectResponse) { c.Mounts[0].Destination = "/opt/agentcompass/pol" }, "", "in no directory of the host", both, "/netns/p"},
		{"no-path", func(c *container.InspectResponse) { c.Config.Env = c.Config.Env[:1] }, "", "AGENTCOMPASS_POLICY_PATH is required", nil, ""},
		{"bad-port", func(c *container.InspectResponse) { c.Config.Env[2] += "0" }, "", "AGENTCOMPASS_PROXY_PORT", nil, ""},
		{"ended", func(c *container.InspectResponse) { c.State.Running = false }, "/tmp/policies/policy.json", "", nil, ""},
		{"incomplete", func(c *container.InspectResponse) { c.Config = nil }, "", "incomplete", nil, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := good()
			tt.change(c)
			p := readProvider("proxy", "net", c)
			if p.PolicyFile != tt.file || !strings.Contains(p.Problem, tt.problem) || (p.Problem == "") != (tt.problem == "") ||
				!slices.Equal(p.Addresses, tt.addresses) || p.Sandbox != tt.sandbox {
				t.Errorf("got %+v", *p)
			}
			if strings.Contains(p.Problem, "secret") {
				t.Errorf("the problem shows the token: %s", p.Problem)
			}
		})
	}
}
