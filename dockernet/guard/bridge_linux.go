package guard

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
)

// AddBridge looks after a bridge, by its name: the host's rules judge what comes from it, and what it only passes on
// from port to port too. With managed set, what comes from it without a mark is dropped, so that a container is mute
// until it has rules. Calling it again changes what managed says.
//
// A bridge that is not there yet is looked after when it comes, and so is one that takes the place of another; what
// they only pass on, and its ports, need [Host.Watch] for that. The error is then [ErrNoBridge].
func (h *Host) AddBridge(name string, managed bool) error {
	h.sets.Lock()
	defer h.sets.Unlock()
	err := h.change(change{allBridges, name, true}, change{managedBridges, name, managed}, change{managedARP, name, managed})
	if err == nil {
		err = h.in(func() error { return loadBridgeNetfilter("/proc/sys/net/bridge", modprobe) })
	}
	if err == nil {
		err = h.findBridge(name)
	}
	if err != nil {
		return fmt.Errorf("look after bridge %s: %w", name, err)
	}
	return nil
}

// RemoveBridge does not look after a bridge any more, on which no port may have rules. What it passes on calls the rules
// of IP only if it did before.
func (h *Host) RemoveBridge(name string) error {
	if err := h.removeBridge(name); err != nil {
		return fmt.Errorf("leave bridge %s alone: %w", name, err)
	}
	return nil
}

func (h *Host) removeBridge(name string) error {
	h.sets.Lock()
	defer h.sets.Unlock()
	for port := range h.names[guardedPorts] {
		bridge, err := h.bridgeOf(port)
		if err != nil && !isNotFound(err) {
			return err
		}
		if bridge == name {
			return fmt.Errorf("port %s has rules: remove them first", port)
		}
	}
	if err := h.letGo(name); err != nil {
		return err
	}
	changes := []change{{allBridges, name, false}, {managedBridges, name, false}, {managedARP, name, false},
		{made[0], name, false}, {made[1], name, false}, {made[2], name, false}}
	for port := range h.names[managedPorts] {
		if bridge, err := h.bridgeOf(port); isNotFound(err) || err == nil && bridge == name {
			changes = append(changes, change{managedPorts, port, false})
		}
	}
	maps.DeleteFunc(h.indexes, func(_ int, n string) bool { return n == name })
	return h.change(changes...)
}

// letGo gives a bridge its habits of before back.
func (h *Host) letGo(name string) error {
	l, err := h.bridge(name)
	if errors.Is(err, ErrNoBridge) {
		return nil
	}
	if err != nil {
		return err
	}
	before := l.does
	for i, set := range made {
		before[i] = l.does[i] && !h.names[set][name]
	}
	if before == l.does {
		return nil
	}
	return h.teach(l, before)
}

// The sysctls of br_netfilter that make every bridge call the hooks.
var bridgeSysctls = []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"}

func modprobe() error {
	if out, err := exec.Command("modprobe", "br_netfilter").CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe br_netfilter: %w: %s", err, out)
	}
	return nil
}

// loadBridgeNetfilter loads br_netfilter if it is not there. It comes with its sysctls set, which would change all
// bridges of the host, so they are cleared at once.
func loadBridgeNetfilter(sysctls string, load func() error) error {
	there := func() error {
		_, err := os.Stat(filepath.Join(sysctls, bridgeSysctls[0]))
		return err
	}
	if there() == nil {
		return nil
	}
	if err := load(); err != nil {
		return fmt.Errorf("bridged packets cannot be judged without the kernel module br_netfilter: load it, or install it: %w", err)
	}
	if err := there(); err != nil {
		return fmt.Errorf("br_netfilter is loaded but has no sysctls here: %w", err)
	}
	var errs error
	for _, name := range bridgeSysctls {
		errs = errors.Join(errs, os.WriteFile(filepath.Join(sysctls, name), []byte("0"), 0))
	}
	return errs
}
