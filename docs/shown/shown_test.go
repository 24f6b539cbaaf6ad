package shown

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

const example = "# Title\n\nText with `code`:\n\n    cat >p.yaml <<'END'\n    sluice is text here\n    END\n    sudo sluice check p.yaml | head    # as it is\n\n    sluice ls\n" +
	"\n```console\n$ sluice check - <<END\n> public\n> END\nok\n$ other\n```\n\n- a list\n\n```yaml\nsluice: 1\n```\n" +
	"\n## Table\n\n| a | b |\n|---|---|\n| `x|` | | y z |\n\n| c |\n|---|\n| `d` |\n\n## Other\n\n| a |\n|---|\n| b |\n"

func TestBlocks(t *testing.T) {
	d := Document{Path: "d.md", Text: example}
	blocks := d.Blocks()
	var got [][]string
	for _, b := range blocks {
		commands, err := b.Commands("sluice")
		if err != nil {
			t.Error(err)
		}
		got = append(got, commands...)
	}
	if diff := cmp.Diff([][]string{{"sluice", "check", "p.yaml"}, {"sluice", "ls"}, {"sluice", "check", "-"}}, got); diff != "" {
		t.Errorf("commands (-want +got):\n%s", diff)
	}
	if len(blocks) != 3 || blocks[1].Line != 13 || blocks[2].Language != "yaml" {
		t.Errorf("blocks %+v", blocks)
	}
	want := []Session{{"sluice check - <<END\npublic\nEND\n", "ok\n"}, {"other\n", ""}}
	if diff := cmp.Diff(want, blocks[1].Sessions()); diff != "" {
		t.Errorf("sessions (-want +got):\n%s", diff)
	}
}

func TestCommandsThatAreNoShell(t *testing.T) {
	for text, ok := range map[string]bool{"sluice ls 'open": false, "a drawing ─( of nothing": true} {
		if got, err := (Block{Text: text}).Commands("sluice"); (err == nil) != ok || len(got) > 0 {
			t.Errorf("%q: %q, %v", text, got, err)
		}
	}
}

func TestRows(t *testing.T) {
	d := Document{Text: example}
	if diff := cmp.Diff([]Row{{Line: 30, Cells: []string{"`x|`", "", "y z"}}, {Line: 34, Cells: []string{"`d`"}}}, d.Rows("Table")); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if rows := d.Rows("Nothing"); rows != nil {
		t.Errorf("rows %v", rows)
	}
}

func TestCode(t *testing.T) {
	for cell, want := range map[string]string{"`a b`": "a b", "a": "", "`a` and `b`": "", "`a": ""} {
		if got, err := Code(cell); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", cell, got, err)
		}
	}
}
