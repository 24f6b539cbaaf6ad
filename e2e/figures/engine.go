package main

import (
	"bytes"
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
)

// engineDir is where the lab keeps the engine's files.
func (st *stage) engineDir() string {
	return filepath.Dir(strings.TrimPrefix(st.DockerHost(), "unix://"))
}

// enginePID is the process of the lab's dockerd.
func (st *stage) enginePID() (int, error) {
	text, err := os.ReadFile(filepath.Join(st.engineDir(), "docker.pid"))
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("the engine's process is %q: %w", text, err)
	}
	return pid, nil
}

// signalEngine sends a signal to the lab's dockerd.
func (st *stage) signalEngine(s syscall.Signal) error {
	pid, err := st.enginePID()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, s)
}

// liveRestore lets containers go on without the engine, as hosts do whose engine is upgraded under containers.
func (st *stage) liveRestore(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(st.engineDir(), "dockerd.json"), []byte(`{"live-restore": true}`), 0o600); err != nil {
		return err
	}
	if err := st.signalEngine(syscall.SIGHUP); err != nil {
		return err
	}
	return st.until(ctx, func() error {
		out, err := st.docker("info", "--format", "{{.LiveRestoreEnabled}}")
		if err == nil && out != "true" {
			err = errors.New("the engine does not keep containers running")
		}
		return err
	})
}

// until tries again until something works, or has not worked for too long.
func (st *stage) until(ctx context.Context, works func() error) error {
	for deadline := time.Now().Add(recoverLimit); ; time.Sleep(5 * time.Millisecond) {
		err := works()
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}

// stopEngine ends dockerd with a signal, and returns how it was started.
func (st *stage) stopEngine(ctx context.Context, s syscall.Signal) (line []string, err error) {
	pid, err := st.enginePID()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil, err
	}
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(text, []byte{0}), []byte{0}) {
		line = append(line, string(arg))
	}
	if err := syscall.Kill(pid, s); err != nil {
		return nil, err
	}
	return line, st.until(ctx, func() error {
		if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return errors.New("the engine has not ended")
		}
		return nil
	})
}

// startEngine starts dockerd as it was started before.
func (st *stage) startEngine(ctx context.Context, line []string) error {
	log, err := os.OpenFile(filepath.Join(st.engineDir(), "dockerd.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	again := exec.Command(line[0], line[1:]...)
	again.Stdout, again.Stderr = log, log
	again.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := st.InEngineNamespace(again.Start); err != nil {
		return fmt.Errorf("start the engine: %w", err)
	}
	go again.Wait() // the lab ends it with all that is in its network
	if err := st.until(ctx, func() error {
		_, err := st.docker("version")
		return err
	}); err != nil {
		return err
	}
	return st.LeaveBridgesAlone()
}
