package guard

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// AddBridge looks after a bridge, by its name: the host's rules judge what comes from it, and what it only passes on
// from port to port too. With managed set, what comes from it without a mark is dropped, so that a container is mute
// until it has rules. Calling it again changes what managed says.
//
// A bridge that is not there yet is looked after too, when it comes, but for what it passes on: the error is then
// [ErrNoBridge].
func (h *Host) AddBridge(name string, managed bool) error {
	if err := h.setMember(h.bridges, bridgeSets, name, true, managed); err != nil {
		return fmt.Errorf("look after bridge %s: %w", name, err)
	}
	err := h.in(func() error {
		if err := loadBridgeNetfilter("/proc/sys/net/bridge", modprobe); err != nil {
			return err
		}
		return h.callHooks(name)
	})
	if err != nil {
		return fmt.Errorf("look after bridge %s: %w", name, err)
	}
	return nil
}

// RemoveBridge does not look after a bridge any more, on which no port may have rules. What it passes on still calls the
// rules of IP: others may have come to rely on that.
func (h *Host) RemoveBridge(name string) error {
	if err := h.removeBridge(name); err != nil {
		return fmt.Errorf("leave bridge %s alone: %w", name, err)
	}
	return nil
}

func (h *Host) removeBridge(name string) error {
	h.members.Lock()
	defer h.members.Unlock()
	for port := range h.guarded {
		bridge, err := h.bridgeOf(port)
		if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) {
			return err
		}
		if bridge == name {
			return fmt.Errorf("port %s has rules: remove them first", port)
		}
	}
	return h.setMemberLocked(h.bridges, bridgeSets, name, false, false)
}

// callHooks makes a bridge call the hooks of IP for what it passes on, whatever the global sysctls say.
func (h *Host) callHooks(name string) error {
	link, err := h.links.LinkByName(name)
	if errors.As(err, new(netlink.LinkNotFoundError)) || err == nil && link.Type() != "bridge" {
		return ErrNoBridge
	}
	if err != nil {
		return err
	}
	request := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(link.Attrs().Index)
	request.AddData(message)
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("bridge"))
	data := info.AddRtAttr(nl.IFLA_INFO_DATA, nil)
	data.AddRtAttr(nl.IFLA_BR_NF_CALL_IPTABLES, nl.Uint8Attr(1))
	data.AddRtAttr(nl.IFLA_BR_NF_CALL_IP6TABLES, nl.Uint8Attr(1))
	request.AddData(info)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set nf_call_iptables: %w", err)
	}
	return nil
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
