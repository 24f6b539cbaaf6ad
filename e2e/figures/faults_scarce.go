package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/controller/api"
)

// scarceTime is for how long something is used up.
const scarceTime = time.Second

// starveSidecar lowers the limit of the sidecar's memory to what it uses, and makes it need more, until the kernel ends
// it.
func starveSidecar(ctx context.Context, st *stage, c *container) error {
	pid, err := st.sidecarPID()
	if err != nil {
		return err
	}
	limit, used, err := memoryFiles(pid)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(used)
	if err != nil {
		return err
	}
	if err := os.WriteFile(limit, []byte(strings.TrimSpace(string(text))), 0); err != nil {
		return fmt.Errorf("limit the sidecar's memory to %s: %w", text, err)
	}
	s := &soaker{stage: st, id: c.name, ns: c.ns, now: &soakRun}
	var hold flood
	hold.soaker = s
	defer hold.close()
	for deadline := time.Now().Add(recoverLimit); syscall.Kill(pid, 0) == nil; {
		hold.hold(explicit, "GET http://a/ HTTP/1.1\r\nX: "+strings.Repeat("x", 32<<10))
		if time.Now().After(deadline) {
			return errors.New("the sidecar lives without memory")
		}
	}
	return nil
}

// memoryFiles are where the limit of a process's memory is, and what is used of it, by either version of cgroups.
func memoryFiles(pid int) (limit, used string, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		switch {
		case len(fields) < 3:
		case fields[1] == "memory":
			dir := "/sys/fs/cgroup/memory" + fields[2]
			return dir + "/memory.limit_in_bytes", dir + "/memory.usage_in_bytes", nil
		case fields[0] == "0":
			limit, used = "/sys/fs/cgroup"+fields[2]+"/memory.max", "/sys/fs/cgroup"+fields[2]+"/memory.current"
		}
	}
	if limit == "" {
		return "", "", fmt.Errorf("process %d has no control group for memory", pid)
	}
	return limit, used, nil
}

// limitFiles lets a process open no more than it has open, and tells how many it could have. Its user asks for that: root
// may only where it has CAP_SYS_RESOURCE (prlimit(2)).
func limitFiles(ctx context.Context, pid int, most *uint64) error {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return err
	}
	limits, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return err
	}
	_, files, _ := strings.Cut(string(limits), "Max open files")
	if _, err := fmt.Sscan(files, most); err != nil {
		return fmt.Errorf("how many descriptors process %d may have: %w", pid, err)
	}
	return setFiles(ctx, pid, uint64(len(entries)))
}

func setFiles(ctx context.Context, pid int, most uint64) error {
	var owner unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &owner); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "setpriv", fmt.Sprintf("--reuid=%d", owner.Uid), fmt.Sprintf("--regid=%d", owner.Gid), "--clear-groups",
		"prlimit", fmt.Sprintf("--pid=%d", pid), fmt.Sprintf("--nofile=%d:", most)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("limit the descriptors of process %d to %d: %w: %s", pid, most, err, out)
	}
	return nil
}

func limitSidecar(ctx context.Context, st *stage, _ *container) error {
	pid, err := st.sidecarPID()
	if err != nil {
		return err
	}
	return limitFiles(ctx, pid, &st.files)
}

func unlimitSidecar(ctx context.Context, st *stage, _ *container) error {
	time.Sleep(scarceTime)
	pid, err := st.sidecarPID()
	if err != nil {
		return err
	}
	// Two health checks that met no descriptors, of two tries, have it replaced.
	if err := setFiles(ctx, pid, st.files); !errors.Is(err, syscall.ENOENT) {
		return err
	}
	return nil
}

func limitController(ctx context.Context, st *stage, _ *container) error {
	return limitFiles(ctx, st.serve.Process.Pid, &st.files)
}

func unlimitController(ctx context.Context, st *stage, _ *container) error {
	time.Sleep(scarceTime)
	return setFiles(ctx, st.serve.Process.Pid, st.files)
}

// restartAhead starts the controller in a time namespace: its monotonic clock and that since boot jump, the machine's do
// not. There is no such thing for the wall clock.
func restartAhead(_ context.Context, st *stage, _ *container) error {
	const years = "100000000"
	st.before = []string{"unshare", "--time", "--fork", "--kill-child", "--monotonic", years, "--boottime", years}
	defer func() { st.before = nil }()
	return st.startController()
}

// newVersion puts other programs in the place of those that are started. They do the same: a program may have anything
// behind its end.
func (st *stage) newVersion() error {
	st.versions++
	dir := filepath.Join(st.dir, "version-"+strconv.Itoa(st.versions))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, name := range []string{"sluice", "sluice-proxy"} {
		program, err := os.ReadFile(filepath.Join(st.bin, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(program, byte(st.versions)), 0o755); err != nil {
			return err
		}
	}
	st.bin = dir
	return nil
}

// upgraded starts the new controller, and waits for the new sidecar.
func upgraded(ctx context.Context, st *stage, _ *container) error {
	before := st.sidecar
	if err := st.startController(); err != nil {
		return err
	}
	return st.until(ctx, func() (err error) {
		out, err := st.docker("ps", "--quiet", "--filter", "label=sluice.internal=proxy")
		if err != nil {
			return err
		}
		for id := range strings.FieldsSeq(out) {
			pid, err := st.docker("inspect", "--format", "{{.State.Pid}}", id)
			if err != nil {
				return err
			}
			if st.sidecar, err = strconv.Atoi(pid); err != nil || st.sidecar != before {
				return err
			}
		}
		return errors.New("there is no new sidecar")
	})
}

// stateOnSmallDisk starts the controller once more with its state on a disk of its own.
func (st *stage) stateOnSmallDisk() error {
	dir := filepath.Join(st.dir, "small")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("sluice-figures", dir, "tmpfs", 0, "size=8m"); err != nil {
		return fmt.Errorf("mount a small disk: %w", err)
	}
	st.closers = append(st.closers, closer(func() error { return unix.Unmount(dir, unix.MNT_DETACH) }))
	clear := st.command("--clear")
	if err := st.endController(syscall.SIGTERM); err != nil {
		return err
	}
	if err := st.InEngineNamespace(clear.Run); err != nil {
		return fmt.Errorf("clear the first controller: %w", err)
	}
	st.runDir = dir
	return st.startController()
}

// fillState fills that disk. Meanwhile what can be done is done, and what cannot is refused and changes nothing.
func fillState(ctx context.Context, st *stage, c *container) error {
	filler, err := os.Create(filepath.Join(st.runDir, "filler"))
	if err != nil {
		return err
	}
	defer filler.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = filler.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	s := &soaker{stage: st, id: c.name, ns: c.ns, now: &soakRun}
	for range 3 {
		_, err := st.api.Phase(ctx, c.name, soakEnd.phase, 0)
		if err == nil {
			return errors.New("a switch was done that could not be written down")
		}
		status, err2 := st.api.Status(ctx, c.name)
		if err2 != nil || status.Phase != soakRun.phase || status.State != api.Attached {
			return fmt.Errorf("a switch failed (%w), and then it is %s in phase %s: %w", err, status.State, status.Phase, err2)
		}
		if err := errors.Join(s.echo("tcp4", soakRun.bare), refused(s.echo("tcp4", soakEnd.bare))); err != nil {
			return err
		}
	}
	other, err := st.start("on-a-full-disk", "bridge")
	if err != nil {
		return err
	}
	if err := st.attachForSoak(ctx, other.name); err == nil {
		return errors.New("a container was attached that could not be written down")
	}
	if _, err := st.api.Status(ctx, other.name); !errors.Is(err, control.ErrNotFound) {
		return fmt.Errorf("a container could not be attached, and then: %w", err)
	}
	return st.remove(other)
}

func emptyState(ctx context.Context, st *stage, c *container) error {
	if err := os.Remove(filepath.Join(st.runDir, "filler")); err != nil {
		return err
	}
	_, err := st.api.Phase(ctx, c.name, soakRun.phase, 0)
	return err
}

// cutEvents ends the controller's stream of the engine's events, and lets it have none while an attached container ends.
func cutEvents(ctx context.Context, st *stage, _ *container) error {
	other, err := st.start("unseen", "bridge")
	if err != nil {
		return err
	}
	if err := st.attachForSoak(ctx, other.name); err != nil {
		return err
	}
	st.front.cutEvents(true)
	return st.remove(other)
}

// eventsAgain lets it have events again; what it has not seen it has to find out.
func eventsAgain(ctx context.Context, st *stage, _ *container) error {
	st.front.cutEvents(false)
	return st.until(ctx, func() error {
		if _, err := st.api.Status(ctx, "unseen"); !errors.Is(err, control.ErrNotFound) {
			return fmt.Errorf("a container that has ended unseen: %w", err)
		}
		return nil
	})
}
