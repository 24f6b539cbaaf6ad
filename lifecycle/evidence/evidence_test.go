package evidence

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"sluice/control"
	"sluice/lifecycle"
)

func at(second int) time.Time { return time.Unix(int64(second), 0).UTC() }

func chain(t *testing.T) (file []byte, head string) {
	t.Helper()
	var b bytes.Buffer
	c := NewChain(&b)
	for i := range 5 {
		err := c.Decision(control.Event{Time: at(i), Phase: "run", Verdict: "refuse", Target: fmt.Sprintf("h%d.test", i)})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Step(lifecycle.Step{Boundary: lifecycle.RunTask, Generation: 2}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), c.Head()
}

func TestChain(t *testing.T) {
	file, want := chain(t)
	if head, err := Check(bytes.NewReader(file)); err != nil || head != want || !strings.HasPrefix(head, "sha256:") {
		t.Errorf("got %s, %v; want %s", head, err, want)
	}
	lines := bytes.SplitAfter(file, []byte("\n"))
	lines = lines[:len(lines)-1]
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, changed := range map[string][]byte{
		"changed":   bytes.Replace(file, []byte("h2.test"), []byte("h9.test"), 1),
		"taken-out": join(lines[0], lines[2], lines[3]),
		"first":     join(lines[1:]...),
		"twice":     join(lines[0], lines[1], lines[1]),
		"swapped":   join(lines[0], lines[2], lines[1]),
		"plain":     []byte(`{"phase":"run","verdict":"allow"}`),
		"no-json":   []byte("x"),
		"empty":     nil,
		"blank":     []byte("\n\n"),
		"two-tasks": join(file, file),
	} {
		if head, err := Check(bytes.NewReader(changed)); err == nil {
			t.Errorf("%s: accepted with the head %s", name, head)
		}
	}
	// What others have kept of it is found in it, in its order, or it is another file.
	digests := []string{"", ""} // before the first line
	for _, line := range lines {
		digests = append(digests, Digest(bytes.TrimSuffix(line, []byte("\n"))))
	}
	if _, err := Check(bytes.NewReader(file), digests...); err != nil {
		t.Error(err)
	}
	if _, err := Check(bytes.NewReader(file), digests[1], digests[3], digests[3], want); err != nil {
		t.Error(err)
	}
	for name, kept := range map[string][]string{"another": {digests[2], "sha256:0"}, "order": {digests[3], digests[2]}, "later": {want, digests[2]}} {
		if _, err := Check(bytes.NewReader(file), kept...); err == nil || !strings.Contains(err.Error(), "1 of 2 digests that were kept are of no line of it") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Check(bytes.NewReader(join(lines[:3]...)), digests...); err == nil {
		t.Error("the end is missing")
	}
	// What is missing at the end shows in the head.
	if head, err := Check(bytes.NewReader(join(lines[:4]...))); err != nil || head == want {
		t.Errorf("cut off: %s, %v", head, err)
	}
}

func TestRead(t *testing.T) {
	file, _ := chain(t)
	decisions, steps := 0, 0
	for r, err := range Read(bytes.NewReader(file)) {
		if err != nil {
			t.Fatal(err)
		}
		if r.Step != nil {
			steps++
			if r.Step.Boundary != lifecycle.RunTask || r.Step.Generation != 2 {
				t.Errorf("got %+v", r.Step)
			}
			continue
		}
		if r.Target != fmt.Sprintf("h%d.test", decisions) {
			t.Errorf("got %+v", r)
		}
		decisions++
	}
	if decisions != 5 || steps != 1 {
		t.Errorf("got %d decisions and %d steps", decisions, steps)
	}
	for _, row := range []struct{ in, want string }{
		{"{}", "line 1 is no audit record: it has no verdict and phase"},
		{"\n\n{\"phase\":", "line 3 is no audit record: unexpected end of JSON input"},
		{strings.Repeat("x", maxLineBytes+1), "after line 0: bufio.Scanner: token too long"},
	} {
		var got error
		for _, err := range Read(strings.NewReader(row.in)) {
			got = err
		}
		if got == nil || got.Error() != row.want {
			t.Errorf("got %v, want %s", got, row.want)
		}
	}
}

// TestAuditOfTheProxy checks that the lines of the proxy's log are records.
func TestAuditOfTheProxy(t *testing.T) {
	e := control.Event{Time: at(1), Phase: "run", Verdict: "allow", Target: "a.test", Port: 1}
	line, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range Read(bytes.NewReader(line)) {
		if err != nil || r.Event != e {
			t.Errorf("got %+v, %v", r, err)
		}
	}
}
