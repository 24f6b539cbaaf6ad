package matcher

import (
	"net/netip"

	"github.com/gaissmai/bart"
)

// special is a range of addresses with a purpose of its own.
type special struct {
	prefix netip.Prefix
	what   string // as in "127.0.0.1 is a loopback address"
}

// floor lists what is refused in every mode unless a target names the very address. Sources: IANA's IPv4 and IPv6
// Special-Purpose Address Registries (RFC 6890), RFC 5771 and RFC 4291 for multicast, and the documents of the clouds
// for what they serve outside the link-local ranges, where all the other clouds' metadata services are.
var floor = specials([][2]string{
	{"0.0.0.0/8", "an unspecified address"},                // RFC 1122 §3.2.1.3
	{"127.0.0.0/8", "a loopback address"},                  // RFC 1122 §3.2.1.3
	{"169.254.0.0/16", "a link-local address"},             // RFC 3927
	{"224.0.0.0/4", "a multicast address"},                 // RFC 5771
	{"255.255.255.255/32", "the broadcast address"},        // RFC 919 §7
	{"::/128", "the unspecified address"},                  // RFC 4291 §2.5.2
	{"::1/128", "the loopback address"},                    // RFC 4291 §2.5.3
	{"fe80::/10", "a link-local address"},                  // RFC 4291 §2.5.6
	{"ff00::/8", "a multicast address"},                    // RFC 4291 §2.7
	{"100.100.100.200/32", "a cloud metadata address"},     // Alibaba Cloud: cloud-init, datasource AliYun
	{"168.63.129.16/32", "a cloud metadata address"},       // Azure: "What is IP address 168.63.129.16?"
	{"192.0.0.192/32", "a cloud metadata address"},         // Oracle Cloud Infrastructure Classic
	{"fd00:ec2::/32", "a cloud metadata address"},          // AWS: VPC guide, "Route tables", reserved for its services (metadata ::254, pod identity ::23)
	{"fd20:ce::254/128", "a cloud metadata address"},       // Google Cloud: "About VM metadata", IPv6-only instances
	{"fd00:c1::a9fe:a9fe/128", "a cloud metadata address"}, // Oracle Cloud: "Instance Metadata", IPv6
	{"fd00:42::42/128", "a cloud metadata address"},        // Scaleway: cloud-init, datasource Scaleway
	{"fd00:a9fe:a9fe::1/128", "a cloud metadata address"},  // Akamai (Linode): cloud-init, datasource Akamai
	{"fd00:100::100:200/128", "a cloud metadata address"},  // Alibaba Cloud, IPv6: cloud-init pull request 6893
})

// private lists what the answers for a wildcard's names may not be: what IANA's registries (RFC 6890) call not
// globally reachable, besides the floor, the ranges for documentation and those that only wrap an IPv4 address (see
// candidates); and the old site-local range.
var private = specials([][2]string{
	{"10.0.0.0/8", "a private address"},         // RFC 1918
	{"172.16.0.0/12", "a private address"},      // RFC 1918
	{"192.168.0.0/16", "a private address"},     // RFC 1918
	{"100.64.0.0/10", "a shared address"},       // RFC 6598
	{"192.0.0.0/24", "a reserved address"},      // RFC 6890 §2.1
	{"198.18.0.0/15", "a benchmarking address"}, // RFC 2544
	{"240.0.0.0/4", "a reserved address"},       // RFC 1112 §4
	{"fc00::/7", "a unique local address"},      // RFC 4193
	{"fec0::/10", "a site-local address"},       // RFC 3879
	{"100::/64", "a discard address"},           // RFC 6666
	{"100:0:0:1::/64", "a dummy address"},       // RFC 9780
	{"2001:2::/48", "a benchmarking address"},   // RFC 5180
	{"5f00::/16", "a segment routing address"},  // RFC 9602
})

func specials(rows [][2]string) []special {
	list := make([]special, len(rows))
	for i, row := range rows {
		list[i] = special{netip.MustParsePrefix(row[0]), row[1]}
	}
	return list
}

// FloorPrefixes returns the ranges that are refused in every mode unless a target names the very address.
func FloorPrefixes() []netip.Prefix {
	list := make([]netip.Prefix, len(floor))
	for i, s := range floor {
		list[i] = s.prefix
	}
	return list
}

var floorTable, privateTable = prefixSet(floor), prefixSet(private)

func prefixSet(list []special) *bart.Lite {
	t := new(bart.Lite)
	for _, s := range list {
		t.Insert(s.prefix)
	}
	return t
}

// describe says what an address in the list is, "" if it is in none of its ranges.
func describe(list []special, a netip.Addr) string {
	best := special{}
	for _, s := range list {
		if s.prefix.Contains(a) && (best.what == "" || s.prefix.Bits() > best.prefix.Bits()) {
			best = s
		}
	}
	return best.what
}
