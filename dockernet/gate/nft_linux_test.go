package gate

import (
	"bytes"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"sluice/dockernet/netns/netnstest"
	"sluice/policy"
)

// nft runs nft inside the namespace.
func nft(t testing.TB, ns *netnstest.Namespace, stdin string, args ...string) string {
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

// raw are the rules that nft can show, but not read, see Listing.
var raw = regexp.MustCompile(`(?m)^.*@nh,.*\n`)

// blocks returns what nft lists of the table, by the first line of each chain, set and counter.
func blocks(t *testing.T, ns *netnstest.Namespace) map[string]string {
	list := raw.ReplaceAllString(nft(t, ns, "", "list", "table", "inet", tableName), "")
	m := make(map[string]string)
	for block := range strings.SplitSeq(list, "\n\t}\n") {
		block = strings.TrimLeft(strings.TrimPrefix(block, "table inet sluice {\n"), "\n")
		if name, body, ok := strings.Cut(block, "\n"); ok {
			m[strings.TrimSpace(name)] = body
		}
	}
	return m
}

// The kernel has, of every rule, what nft makes of the listing: a wrong offset, mask or byte order would show.
func TestKernelHasTheListing(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		for _, p := range planes(t, family == "ipv6") {
			t.Run(p.name+"_"+family, func(t *testing.T) {
				ours, theirs := netnstest.New(t), netnstest.New(t)
				s := example(family == "ipv6", threeOf(t, p.phase, p.beside...))
				s.Internal = p.internal
				if err := newGate(t, ours).Install(s, policy.Baseline); err != nil {
					t.Fatal(err)
				}
				listing, err := Listing(s, policy.Baseline)
				if err != nil {
					t.Fatal(err)
				}
				nft(t, theirs, listing, "-f", "-")
				got, want := blocks(t, ours), blocks(t, theirs)
				if len(want) < 15 {
					t.Fatalf("only %d blocks in the listing", len(want))
				}
				for name, body := range want {
					if got[name] != body {
						t.Errorf("%s\ngot:\n%s\nwant:\n%s", name, got[name], body)
					}
				}
			})
		}
	}
}
