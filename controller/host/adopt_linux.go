package host

import (
	"errors"
	"io/fs"
	"net/netip"

	"golang.org/x/sys/unix"

	"sluice/dockernet/cut"
	"sluice/dockernet/netns"
)

// EndFlows implements [controller.Host].
func (h *Host) EndFlows(sandbox string) (int, error) {
	ns, err := netns.Open(sandbox, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // and its connections with it
	}
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	report, err := cut.Cut(ns, cut.Spec{
		Refused:        func(_ netip.AddrPort, protocol uint8) bool { return protocol == unix.IPPROTO_TCP },
		RefusedInbound: func(netip.Addr) bool { return true },
	})
	return report.Ended, err
}
