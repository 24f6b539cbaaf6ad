package host

import (
	"context"
	"net/netip"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/docker/docker/api/types/container"

	"sluice/controller"
	"sluice/dockernet/engine"
	"sluice/images"
	"sluice/proxy/agentcompass"
)

// Names that AgentCompass's Docker provider gives to what belongs to one task, up to a suffix that they share.
const agentCompassProxy = "agentcompass-egress-proxy-"

var agentCompassNetwork = regexp.MustCompile("^agentcompass-egress-([0-9a-f]{12})$")

// provider finds what AgentCompass's Docker provider has put beside a container, nil if that is no task of its.
func (e *Engine) provider(ctx context.Context, c *engine.Container) (*controller.Provider, error) {
	if !e.Adopt {
		return nil, nil
	}
	for _, p := range c.Endpoints {
		m := agentCompassNetwork.FindStringSubmatch(p.Name)
		if m == nil {
			continue
		}
		name := agentCompassProxy + m[1]
		if c.Name == name {
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(ctx, callLimit)
		defer cancel()
		proxy, err := e.Docker.ContainerInspect(ctx, name)
		if errdefs.IsNotFound(err) {
			return &controller.Provider{Name: name, Problem: "there is no container " + name + " that follows a policy file"}, nil
		}
		if err != nil {
			return nil, err
		}
		return readProvider(name, p.Name, &proxy), nil
	}
	return nil, nil
}

// readProvider reads what the engine says of a task's proxy on a network.
func readProvider(name, network string, proxy *container.InspectResponse) *controller.Provider {
	v := &controller.Provider{Name: name}
	if proxy.ContainerJSONBase == nil || proxy.State == nil || proxy.Config == nil || proxy.NetworkSettings == nil {
		v.Problem = "the engine's answer about container " + name + " is incomplete"
		return v
	}
	settings, err := agentcompass.FromEnvironment(func(key string) string {
		for _, line := range proxy.Config.Env {
			if value, ok := strings.CutPrefix(line, key+"="); ok {
				return value
			}
		}
		return ""
	})
	if err != nil {
		v.Problem = "container " + name + ": " + err.Error()
		return v
	}
	if v.PolicyFile = onHost(settings.PolicyPath, proxy.Mounts); v.PolicyFile == "" {
		v.Problem = "container " + name + " has its policy file in no directory of the host"
	}
	if !proxy.State.Running {
		return v
	}
	if at := proxy.NetworkSettings.Networks[network]; at != nil {
		for _, text := range []string{at.IPAddress, at.GlobalIPv6Address} {
			if a, err := netip.ParseAddr(text); err == nil {
				v.Addresses = append(v.Addresses, netip.AddrPortFrom(a, settings.Port))
			}
		}
	}
	if proxy.Config.Labels[images.TitleLabel] != images.ProxyTitle {
		v.Sandbox = proxy.NetworkSettings.SandboxKey
	}
	return v
}

// onHost returns the host's path of a container's, "" if that is in none of the mounts.
func onHost(file string, mounts []container.MountPoint) string {
	file, found, longest := path.Clean(file), "", -1
	for _, m := range mounts {
		destination := path.Clean(m.Destination)
		rest, under := strings.CutPrefix(file, destination)
		if under && (rest == "" || rest[0] == '/') && len(destination) > longest {
			found, longest = "", len(destination)
			if m.Type == "bind" && path.IsAbs(m.Source) {
				found = path.Join(m.Source, rest)
			}
		}
	}
	return found
}

// watched are the networks whose containers are to be admitted or adopted.
func (e *Engine) watched(ctx context.Context) ([]engine.Network, error) {
	if !e.Adopt {
		return e.Client.ManagedNetworks(ctx)
	}
	all, err := e.Client.Networks(ctx)
	return slices.DeleteFunc(all, func(n engine.Network) bool { return !n.Managed() && !agentCompassNetwork.MatchString(n.Name) }), err
}
