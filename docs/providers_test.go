package docs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/policy/provider"
)

// What providers.md says of each provider is what the program goes by.
func TestProvidersAreAsDescribed(t *testing.T) {
	yes := map[bool]string{true: "yes", false: "no"}
	var want, got [][]string
	for _, name := range provider.Names() {
		p, err := provider.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, []string{"`" + name + "`", joined(p.Modes), yes[p.Switches], yes[p.Ports], joined(p.Kinds)})
	}
	for _, r := range documentRows(t, "providers.md", "What each can enforce") {
		got = append(got, r.Cells)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-the program +providers.md\n%s", diff)
	}
}

func joined[T fmt.Stringer](list []T) string {
	var texts []string
	for _, v := range list {
		texts = append(texts, v.String())
	}
	switch n := len(texts); n {
	case 0:
		return "none"
	case 1:
		return texts[0] + " only"
	default:
		return strings.Join(slices.Concat(texts[:n-2], []string{texts[n-2] + " and " + texts[n-1]}), ", ")
	}
}
