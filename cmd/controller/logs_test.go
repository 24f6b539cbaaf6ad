package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// reader ends a command when it has seen enough lines of it.
type reader struct {
	strings.Builder
	enough int
	end    func()
}

func (r *reader) Write(p []byte) (int, error) {
	n, err := r.Builder.Write(p)
	if strings.Count(r.String(), "\n") >= r.enough {
		r.end()
	}
	return n, err
}

func TestLogs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c", "sluice.sock")
	stop, err := startFake(path)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, row := range []struct{ name, args, want, not string }{
		{"all", "logs -f", " db run refuse connect evil.test:443 not-listed decision=d-db", "{"},
		{"one", "logs -f web", " web run refuse connect evil.test:443 not-listed decision=d-web", " db "},
		{"json", "logs -f --json", `"container":"db",`, "decision="},
	} {
		t.Run(row.name, func(t *testing.T) {
			if row.name == "one" {
				var out, errs strings.Builder
				if got := run(t.Context(), []string{"attach", "web", "--policy", "-", "--socket", path}, strings.NewReader("public"), &out, &errs); got != exitDone {
					t.Fatal(errs.String())
				}
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := &reader{enough: 4, end: cancel}
			var errs strings.Builder
			if got := run(ctx, append(strings.Fields(row.args), "--socket", path), strings.NewReader(""), out, &errs); got != exitDone {
				t.Errorf("exit code %d: %s", got, errs.String())
			}
			if !strings.Contains(out.String(), row.want) || strings.Contains(out.String(), row.not) {
				t.Errorf("want %q and not %q in\n%s", row.want, row.not, out)
			}
		})
	}
}
