package engine

import (
	"os"
	"strconv"
	"strings"
)

// Connections returns how many connections conntrack knows of in the calling thread's network namespace, and how many it may
// know of there; 0 is no limit. It fails where conntrack is not loaded. See nf_conntrack-sysctl in the kernel's
// documentation.
func Connections() (count, most int, err error) {
	if count, err = number("/proc/sys/net/netfilter/nf_conntrack_count"); err != nil {
		return 0, 0, err
	}
	most, err = number("/proc/sys/net/netfilter/nf_conntrack_max")
	return count, most, err
}

// NeighbourOverflows returns how often the kernel's tables of neighbours, which all namespaces share, had no room since the
// host started, by family: ipv4, ipv6. What cannot be read, as in other namespaces than the host's, is left out.
func NeighbourOverflows() map[string]uint64 {
	all := map[string]uint64{}
	for family, file := range map[string]string{"ipv4": "arp_cache", "ipv6": "ndisc_cache"} {
		if stats, err := os.ReadFile("/proc/net/stat/" + file); err == nil {
			all[family] = tableFulls(string(stats))
		}
	}
	return all
}

func number(file string) (int, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
