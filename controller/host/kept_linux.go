package host

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sluice/controller/api"
	"sluice/dockernet/guard"
)

// guardKept makes the bridges that an earlier controller has named mute, whether they are there yet or not.
func (h *Host) guardKept() error {
	if h.options.Kept == "" {
		return nil
	}
	text, err := os.ReadFile(h.options.Kept)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("bridges of managed networks: %w", err)
	}
	for _, bridge := range strings.Fields(string(text)) {
		if err := h.guard.AddBridge(bridge, true); err != nil && !errors.Is(err, guard.ErrNoBridge) {
			return fmt.Errorf("bridges of managed networks in %s: %w", h.options.Kept, err)
		}
		h.bridges[bridge] = true
	}
	return nil
}

// keep writes the names of the managed networks' bridges down, a line each.
func (h *Host) keep(managed []api.Network) error {
	if h.options.Kept == "" {
		return nil
	}
	var names []string
	for _, n := range managed {
		names = append(names, n.Bridge+"\n")
	}
	slices.Sort(names)
	text := strings.Join(names, "")
	if before, err := os.ReadFile(h.options.Kept); err == nil && string(before) == text {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(h.options.Kept), 0o700)
	if err == nil {
		err = writeSynced(h.options.Kept+".new", text)
	}
	if err == nil {
		err = os.Rename(h.options.Kept+".new", h.options.Kept)
	}
	if err != nil {
		return fmt.Errorf("write down the bridges of managed networks: %w", err)
	}
	return nil
}

// writeSynced writes a file that is whole after the machine has lost its power.
func writeSynced(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Sync(), f.Close())
}
