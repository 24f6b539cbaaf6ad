// Package nfttest has what tests of nftables rules need: nft itself, and checksums for packets made by hand.
package nfttest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"sluice/dockernet/netns/netnstest"
)

// Run runs nft inside the namespace and returns what it says.
func Run(t testing.TB, ns *netnstest.Namespace, stdin string, args ...string) string {
	t.Helper()
	var out, problems bytes.Buffer
	ns.Run(t, func() error {
		c := exec.Command("nft", args...)
		c.Stdin, c.Stdout, c.Stderr = strings.NewReader(stdin), &out, &problems
		if err := c.Run(); err != nil {
			return fmt.Errorf("nft %s: %w: %s", strings.Join(args, " "), err, problems.String())
		}
		return nil
	})
	return out.String()
}

// Checksum is that of RFC 1071.
func Checksum(b []byte) uint16 {
	sum := uint32(0)
	for i, x := range b {
		sum += uint32(x) << (8 * (1 - i%2))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// TransportChecksum has the addresses in it, RFC 9293 §3.1 and RFC 8200 §8.1.
func TransportChecksum(from, to netip.Addr, protocol byte, b []byte) uint16 {
	pseudo := append(from.AsSlice(), to.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(b)))
	pseudo = append(pseudo, 0, 0, 0, protocol)
	return Checksum(append(pseudo, b...))
}
