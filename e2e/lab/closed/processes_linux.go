package closed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// engineProgram reports whether a process of this name in the engine's namespace is part of the engine, or what a test
// has it looked after by: a controller would go on with the next lab's engine. Somebody's shell in there is not.
func engineProgram(comm string) bool {
	for _, prefix := range []string{"dockerd", "containerd", "docker-proxy", "runc", "sluice"} {
		if strings.HasPrefix(comm, prefix) {
			return true
		}
	}
	return false
}

// killProcesses ends the engine and every process of its containers, and returns when they are gone.
func (l *Lab) killProcesses() error {
	const rounds = 500
	for range rounds {
		pids, err := l.processes()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		l.thaw()
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("end process %d of %s: %w", pid, l.name, err)
			}
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("processes of %s do not end", l.name)
}

// thaw lets paused containers go on, for the processes of a frozen cgroup do not end (cgroups(7)). Either version of
// cgroups has another file for that, and those that are not there need no thawing.
func (l *Lab) thaw() {
	for _, below := range []string{"", "/*", "/*/*"} {
		for pattern, running := range map[string]string{
			"/sys/fs/cgroup/freezer/" + l.name + below + "/freezer.state": "THAWED",
			"/sys/fs/cgroup/" + l.name + below + "/cgroup.freeze":         "0",
		} {
			files, _ := filepath.Glob(pattern)
			for _, file := range files {
				_ = os.WriteFile(file, []byte(running), 0)
			}
		}
	}
}

// processes finds the lab's processes: what is in the cgroup of its containers, and the engine's programs in its
// namespace. The engine's come first, so that nothing is restarted.
func (l *Lab) processes() ([]int, error) {
	engine, err := os.Stat(l.path(engineNS))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var daemons, contained []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		proc := filepath.Join("/proc", entry.Name())
		// A process that ends meanwhile has no such files, and neither has a zombie a namespace.
		if cgroup, _ := os.ReadFile(filepath.Join(proc, "cgroup")); strings.Contains(string(cgroup), ":/"+l.name+"/") {
			if !isZombie(proc) {
				contained = append(contained, pid)
			}
			continue
		}
		if engine == nil {
			continue
		}
		ns, err := os.Stat(filepath.Join(proc, "ns/net"))
		if err != nil || !os.SameFile(ns, engine) {
			continue
		}
		if comm, _ := os.ReadFile(filepath.Join(proc, "comm")); engineProgram(string(comm)) {
			daemons = append(daemons, pid)
		}
	}
	return slices.Concat(daemons, contained), nil
}

// isZombie reports whether a process has ended and only waits for its parent (proc_pid_stat(5), third field).
func isZombie(proc string) bool {
	stat, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return true
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return strings.HasPrefix(after, "Z") || strings.HasPrefix(after, "X")
}

// removeCgroups removes the cgroups of the lab's containers, in every hierarchy that is mounted. What is left of
// them costs next to nothing, so errors do not matter.
func (l *Lab) removeCgroups() {
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
		for _, depth := range []string{"/*/*", "/*", ""} {
			dirs, _ := filepath.Glob(pattern + l.name + depth)
			for _, dir := range dirs {
				unix.Rmdir(dir)
			}
		}
	}
}
