package closed

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

// restartLimit is how long dockerd may take to end or to answer.
const restartLimit = time.Minute

// SignalEngine sends a signal to dockerd, which stops, goes on, reads its configuration again or ends.
func (l *Lab) SignalEngine(s syscall.Signal) error {
	pid, err := l.enginePID()
	if err != nil {
		return err
	}
	return syscall.Kill(pid, s)
}

// enginePID is dockerd's process. It may have been started again.
func (l *Lab) enginePID() (int, error) {
	text, err := os.ReadFile(l.pidFile())
	if err != nil {
		return 0, fmt.Errorf("the engine's process: %w", err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("the engine's process is %q: %w", text, err)
	}
	return pid, nil
}

func (l *Lab) pidFile() string { return filepath.Join(l.dir, "docker.pid") }

// StopEngine ends dockerd with a signal and returns when it has ended. Containers end with it unless it was told otherwise
// or had no time for that.
func (l *Lab) StopEngine(ctx context.Context, s syscall.Signal) error {
	pid, err := l.enginePID()
	if err != nil {
		return err
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return fmt.Errorf("how the engine was started: %w", err)
	}
	l.stopped = nil
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(text, []byte{0}), []byte{0}) {
		l.stopped = append(l.stopped, string(arg))
	}
	if err := syscall.Kill(pid, s); err != nil {
		return fmt.Errorf("stop the engine: %w", err)
	}
	return until(ctx, func() error {
		if !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return errors.New("dockerd has not ended")
		}
		return nil
	})
}

// StartEngine starts dockerd as it was started before [Lab.StopEngine], and returns when it answers.
func (l *Lab) StartEngine(ctx context.Context) error {
	if l.stopped == nil {
		return errors.New("start the engine: it was not stopped")
	}
	log, err := os.OpenFile(filepath.Join(l.dir, "dockerd.log"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer log.Close()
	again := exec.Command(l.stopped[0], l.stopped[1:]...)
	again.Env = l.EngineEnviron()
	again.Stdout, again.Stderr = log, log
	again.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := l.InEngineNamespace(again.Start); err != nil {
		return fmt.Errorf("start the engine: %w", err)
	}
	l.stopped = nil
	go again.Wait() // the lab ends it with all that is in its network
	engine, err := l.Engine()
	if err != nil {
		return err
	}
	defer engine.Close()
	if err := until(ctx, func() error {
		_, err := engine.Ping(ctx)
		return err
	}); err != nil {
		return fmt.Errorf("the engine does not answer: %w", err)
	}
	return l.LeaveBridgesAlone()
}

// until tries again until something works, or has not worked for too long.
func until(ctx context.Context, works func() error) error {
	for deadline := time.Now().Add(restartLimit); ; time.Sleep(5 * time.Millisecond) {
		err := works()
		if err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return err
		}
	}
}
