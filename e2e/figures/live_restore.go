package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// liveRestore lets containers go on without the engine, as hosts do whose engine is upgraded under containers.
func (st *stage) liveRestore(ctx context.Context) error {
	if err := os.WriteFile(filepath.Join(filepath.Dir(strings.TrimPrefix(st.DockerHost(), "unix://")), "dockerd.json"), []byte(`{"live-restore": true}`), 0o600); err != nil {
		return err
	}
	if err := st.SignalEngine(syscall.SIGHUP); err != nil {
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
