package engine

import (
	"context"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/docker/docker/api/types"
	"github.com/docker/docker/api/types/system"
)

// Info is what the engine says of itself.
type Info struct {
	Version    string // "20.10.24+dfsg1"
	APIVersion string // the newest that it speaks, "1.41"
	// Product is "Docker" for Docker's own engine.
	Product string
	// Kernel is the release of the kernel that it runs on, as uname(2) gives it.
	Kernel string
	// System is the name of the operating system, "Debian GNU/Linux 12 (bookworm)".
	System string
	// Firewall is what the engine makes its own rules with: "iptables", as all before 29 do, or "nftables", each with
	// "+firewalld" behind it where that is asked to make them.
	Firewall string
	Rootless bool
	// Unconfined is set if containers have no seccomp filter unless they ask for one, and OtherSeccomp if they have one
	// that is not the engine's own.
	Unconfined, OtherSeccomp bool
	// DefaultRuntime is what containers use that name none.
	DefaultRuntime string
	// Runtimes maps their names to the program or shim behind each, by the last element of its path.
	Runtimes map[string]string
}

// Info asks the engine, once until it goes away.
func (c *Client) Info(ctx context.Context) (Info, error) {
	c.mu.Lock()
	known, api := c.info, c.api
	c.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	ctx, cancel := bounded(ctx)
	defer cancel()
	info, err := api.Info(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("ask the engine what it is: %w", err)
	}
	version, err := api.ServerVersion(ctx)
	if err != nil {
		return Info{}, fmt.Errorf("ask the engine for its version: %w", err)
	}
	i := describe(info, version)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.api == api {
		c.info = &i
	}
	return i, nil
}

func describe(info system.Info, version types.Version) Info {
	i := Info{
		Version:        version.Version,
		APIVersion:     version.APIVersion,
		Product:        "Docker",
		Kernel:         info.KernelVersion,
		System:         info.OperatingSystem,
		Firewall:       "iptables", // engines before 28 do not say
		DefaultRuntime: info.DefaultRuntime,
		Runtimes:       make(map[string]string),
	}
	if info.FirewallBackend != nil && info.FirewallBackend.Driver != "" {
		i.Firewall = info.FirewallBackend.Driver
	}
	for _, component := range version.Components {
		if strings.HasPrefix(component.Name, "Podman") {
			i.Product = component.Name
		}
	}
	for _, option := range info.SecurityOptions {
		name, _, _ := strings.Cut(option, ",")
		i.Rootless = i.Rootless || name == "name=rootless"
	}
	switch SeccompDefault(info.SecurityOptions) {
	case "", noSeccomp:
		i.Unconfined = true
	case ownSeccomp:
	default:
		i.OtherSeccomp = true
	}
	for name, runtime := range info.Runtimes {
		program := runtime.Path
		if program == "" {
			program = runtime.Type
		}
		if program == "" {
			program = name
		}
		i.Runtimes[name] = path.Base(program)
	}
	return i
}

// String names the engine in one line, for people.
func (i Info) String() string {
	return fmt.Sprintf("%s %s with version %s of its API; it makes its rules with %s", i.Product, i.Version, i.APIVersion, i.Firewall)
}

// versionAtLeast reports whether dotted numbers such as "1.41" or "25.0.5-rc.1" are as large as the wanted ones. What
// does not begin with a number, such as "dev", is not.
func versionAtLeast(version string, want ...int) bool {
	version = strings.TrimPrefix(version, "v")
	for _, w := range want {
		digits := len(version) - len(strings.TrimLeft(version, "0123456789"))
		n, err := strconv.Atoi(version[:digits])
		if err != nil || n < w {
			return false
		}
		if n > w {
			return true
		}
		version = strings.TrimPrefix(version[digits:], ".")
	}
	return true
}

// The oldest engine that is supported, 20.10, speaks this version of the API.
var oldestAPI = []int{1, 41}

// keepsDNSInside reports whether the engine's resolver asks nothing outside for containers that are on internal
// networks only (CVE-2024-29018, fixed in 23.0.11, 25.0.5 and 26.0, whose API is 1.45).
func (i Info) keepsDNSInside() bool {
	return versionAtLeast(i.APIVersion, 1, 45) ||
		versionAtLeast(i.Version, 25, 0, 5) ||
		versionAtLeast(i.Version, 23, 0, 11) && !versionAtLeast(i.Version, 24)
}
