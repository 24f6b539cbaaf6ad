package gate

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"

	"sluice/dockernet/netns"
)

// narrowed is the Spec without rules for what IPv6 could reach, if that is off on all links: they are half of what the
// kernel would have to keep. The engine turns it on when it connects a network that has it, and a newer Spec comes then;
// until that is in force all of IPv6 is refused. The workload cannot turn it on. Where there are no links yet they may
// come with either.
func (g *Gate) narrowed(s *Spec) (*Spec, error) {
	narrow := *s
	err := g.ns.Do(func() error {
		links, err := netns.Interfaces()
		if err != nil {
			return err
		}
		narrow.noLinks6 = len(links) > 1
		for _, l := range links {
			if l.Flags&net.FlagLoopback != 0 {
				continue
			}
			off, err := ipv6Off(l.Name)
			if err != nil {
				return fmt.Errorf("interface %s: whether IPv6 is on: %w", l.Name, err)
			}
			narrow.noLinks6 = narrow.noLinks6 && off
		}
		return nil
	})
	return &narrow, err
}

// ipv6Off asks in the namespace of the calling thread. Without the kernel's module, and for links that cannot have IPv6,
// there is no such file.
func ipv6Off(link string) (bool, error) {
	text, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + strings.ReplaceAll(link, "/", ".") + "/disable_ipv6")
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	return strings.TrimSpace(string(text)) == "1", err
}
