package engine

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// EngineSockets are where engines and what is behind them listen.
func EngineSockets() []string {
	return []string{
		"/run/docker.sock", "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/docker/containerd/containerd.sock",
		"/run/podman/podman.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock", "/run/buildkit/buildkitd.sock",
	}
}

// sockets refuses mounts of sockets that give power over the engine or the policy.
func (c *Container) sockets(o *Conditions) []Refusal {
	var list []Refusal
	for _, m := range c.Mounts {
		for _, s := range slices.Concat(EngineSockets(), o.Sockets) {
			if !shows(m.Source, s) {
				continue
			}
			what := "the mount of %s at %s gives the container the socket %s, and with it the engine or its own policy"
			if filepath.Ext(s) != ".sock" {
				what = "the mount of %s at %s gives the container what is in %s, and with it its own policy"
			}
			list = append(list, Refusal{SocketMount, fmt.Sprintf(what, m.Source, m.Destination, s),
				"create it without that mount", false})
			break
		}
	}
	return list
}

// MayWrite returns the refusal of a container that has a host's file with its own policy mounted, by itself or in a
// directory, so that it may write it; false if it has none.
func (c *Container) MayWrite(policyFile string) (Refusal, bool) {
	for _, m := range c.Mounts {
		if !m.ReadOnly && shows(m.Source, policyFile) {
			return Refusal{SocketMount, fmt.Sprintf("the mount of %s at %s lets the container write %s, which has its own policy", m.Source, m.Destination, policyFile),
				"create it without that mount, or with a read-only one", false}, true
		}
	}
	return Refusal{}, false
}

// shows reports whether a mount of source has the file at path in it. Files are compared too, where this process
// can see them, since a mount can give a directory another name.
func shows(source, path string) bool {
	source, path = followed(source), followed(path)
	mounted, err := os.Stat(source)
	for p := path; ; p = filepath.Dir(p) {
		if p == source {
			return true
		}
		if err == nil {
			if there, err := os.Stat(p); err == nil && os.SameFile(mounted, there) {
				return true
			}
		}
		if p == filepath.Dir(p) {
			return false
		}
	}
}

// followed follows links as the engine does. Where there is nothing to follow, /var/run is /run, as it is everywhere.
func followed(path string) string {
	path = filepath.Clean("/" + path)
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	if path == "/var/run" || strings.HasPrefix(path, "/var/run/") {
		path = strings.TrimPrefix(path, "/var")
	}
	return path
}
