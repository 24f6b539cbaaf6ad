// Package nfttest runs nft for tests of nftables rules.
package nfttest

import (
	"bytes"
	"fmt"
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
