package trajectory

import (
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
)

// TestOperationsAsPatterns compares the search for words with the patterns that it takes the place of.
func TestOperationsAsPatterns(t *testing.T) {
	pieces := []string{" ", "\n", "  ", ";", "_", "z", "3", "-get", "install", "add", "clone", "get", "co", "api", "browse", "checkout", "repo"}
	for _, o := range operations {
		pieces = append(pieces, o.word, o.word+" ")
	}
	found := 0
	r := rand.New(rand.NewPCG(1, 2))
	for _, o := range operations {
		whole := regexp.MustCompile(`\b` + strings.TrimPrefix(o.command.String(), "^"))
		for range 2000 {
			var b strings.Builder
			for range r.IntN(8) {
				b.WriteString(pieces[r.IntN(len(pieces))])
			}
			b.WriteString(o.word)
			for range r.IntN(5) {
				b.WriteString(pieces[r.IntN(len(pieces))])
			}
			text := plain(b.String())
			want := whole.MatchString(text)
			if got := o.in(text); got != want {
				t.Fatalf("%s in %q: got %v, want %v", o.label, text, got, want)
			}
			if want {
				found++
			}
		}
	}
	if found == 0 {
		t.Error("no text had an operation")
	}
}
