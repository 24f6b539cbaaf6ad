package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"

	"sluice/dockernet/netns"
)

// TestSidecarCage looks at what the running sidecar is kept by, and tries to get out of the same.
func TestSidecarCage(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	var id string
	for deadline := time.Now().Add(waitLimit); id == ""; time.Sleep(100 * time.Millisecond) {
		out, err := docker("ps", "--quiet", "--no-trunc", "--filter", "label=sluice.internal=proxy")
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("there is no sidecar: %v", err)
		}
		id, _, _ = strings.Cut(strings.TrimSpace(out), "\n")
	}
	engine, err := lab.Engine()
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	c, err := engine.ContainerInspect(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	h := c.HostConfig
	if !h.ReadonlyRootfs || h.Privileged || h.Memory <= 0 || h.PidsLimit == nil || *h.PidsLimit <= 0 || len(h.CapAdd) != 0 || c.Config.User != "65532:65532" {
		t.Errorf("the engine keeps it by %+v", h)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.State.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Seccomp:\t2", "NoNewPrivs:\t1", "CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "CapBnd:\t0000000000000000",
		"Uid:\t65532\t65532\t65532\t65532", "Gid:\t65532\t65532\t65532\t65532"} {
		if !strings.Contains(string(status), "\n"+want+"\n") {
			t.Errorf("its process has not %q:\n%s", want, status)
		}
	}
	mounts, err := os.ReadFile(fmt.Sprintf("/proc/%d/mounts", c.State.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if root := strings.Fields(string(mounts)); len(root) < 4 || root[1] != "/" || !slices.Contains(strings.Split(root[3], ","), "ro") {
		t.Errorf("its root may be written: %.80s", mounts)
	}

	ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", c.State.Pid), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	if err := ns.Do(func() error {
		for name, want := range map[string]string{"tcp_tw_reuse": "1", "ip_local_port_range": "1024\t65535"} {
			got, err := os.ReadFile("/proc/sys/net/ipv4/" + name) // of the thread's namespace
			if strings.TrimSpace(string(got)) != want || err != nil {
				t.Errorf("%s is %q, %v, want %q", name, got, err, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}

	// The same profile holds another program, whose calls would succeed otherwise.
	dir := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", filepath.Join(dir, "cage"), "sluice/e2e/lab/cage")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the program: %v\n%s", err, out)
	}
	const works = ""
	for _, row := range []struct {
		name     string
		security []string
		want     map[string]string
	}{
		{"caged", h.SecurityOpt, map[string]string{"ptrace": "EPERM", "bpf": "EPERM", "unshare": "EPERM", "packet": "EPERM", "vsock": "EPERM", "netfilter": "EPERM",
			"memfd": "EPERM", "keyctl": "EPERM", "io_uring": "EPERM", "process": "EPERM", "symlink": "EPERM", "stream": works, "route": works}},
		{"free", []string{"seccomp=unconfined"}, map[string]string{"ptrace": "ESRCH", "process": "EINVAL", "netfilter": works, "memfd": works, "symlink": "EROFS", "stream": works, "route": works}},
	} {
		t.Run(row.name, func(t *testing.T) {
			made, err := engine.ContainerCreate(t.Context(), &container.Config{Image: c.Config.Image, Entrypoint: []string{"/bin/cage"}, User: c.Config.User},
				&container.HostConfig{NetworkMode: "none", ReadonlyRootfs: true, CapDrop: h.CapDrop, SecurityOpt: row.security,
					Binds: []string{filepath.Join(dir, "cage") + ":/bin/cage:ro"}}, nil, nil, "")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := engine.ContainerRemove(context.WithoutCancel(t.Context()), made.ID, container.RemoveOptions{Force: true}); err != nil {
					t.Error(err)
				}
			}()
			if out, err := docker("start", "--attach", made.ID); err != nil {
				t.Fatal(err)
			} else {
				got := map[string]string{}
				for line := range strings.Lines(out) {
					name, errno, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
					got[name] = errno
				}
				for name, want := range row.want {
					if errno, tried := got[name]; !tried || errno != want {
						t.Errorf("%s: %q, want %q; all: %v", name, errno, want, got)
					}
				}
			}
		})
	}
}
