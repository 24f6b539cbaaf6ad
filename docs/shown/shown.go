// Package shown finds what the project's documents show: blocks of code, the commands in them, links and tables. Tests
// compare that with the programs, so that no document promises what is not there.
package shown

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// Document is a file in Markdown.
type Document struct {
	Path string // as it was given
	Text string
}

// Documents reads the README and everything in docs of the repository at root, sorted by path.
func Documents(root string) ([]Document, error) {
	var paths []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md"} {
		found, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			return nil, err
		}
		paths = append(paths, found...)
	}
	slices.Sort(paths)
	var all []Document
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		all = append(all, Document{path, string(text)})
	}
	return all, nil
}

// Block is a block of code. Language is what stands behind the fence; "" for none, and for a block that is indented.
type Block struct {
	Document string
	Line     int // of its first line of code
	Language string
	Text     string
}

func (b Block) String() string { return fmt.Sprintf("%s:%d", b.Document, b.Line) }

const indent = "    "

// Blocks returns the blocks of code, in their order.
func (d Document) Blocks() []Block {
	var all []Block
	var open *Block // the block that the line before belongs to
	fenced, blank := false, true
	for i, line := range strings.Split(d.Text, "\n") {
		language, fence := strings.CutPrefix(line, "```")
		switch {
		case fence && fenced:
			open, fenced = nil, false
		case fence:
			all = append(all, Block{Document: d.Path, Line: i + 2, Language: language})
			open, fenced = &all[len(all)-1], true
		case fenced:
			open.Text += line + "\n"
		case open != nil && (line == "" || strings.HasPrefix(line, indent)):
			open.Text += strings.TrimPrefix(line, indent) + "\n"
		case blank && strings.HasPrefix(line, indent):
			all = append(all, Block{Document: d.Path, Line: i + 1, Text: strings.TrimPrefix(line, indent) + "\n"})
			open = &all[len(all)-1]
		default:
			open = nil
		}
		blank = line == ""
	}
	for i := range all {
		all[i].Text = strings.TrimRight(all[i].Text, "\n") + "\n"
	}
	return all
}

// Session is a command of a console block with what it prints. The command may have several lines.
type Session struct {
	Command string
	Output  string
}

// The languages of blocks that show commands behind "$ ", "> " where they go on, and what they print.
const (
	Console       = "console"       // of commands that need no engine and print the same everywhere
	EngineConsole = "shell-session" // of commands that need an engine
)

// Sessions returns what a console block shows.
func (b Block) Sessions() []Session {
	var all []Session
	for line := range strings.Lines(b.Text) {
		command, isCommand := strings.CutPrefix(line, "$ ")
		more, goesOn := strings.CutPrefix(line, "> ")
		switch {
		case isCommand:
			all = append(all, Session{Command: command})
		case len(all) == 0:
		case goesOn && all[len(all)-1].Output == "":
			all[len(all)-1].Command += more
		default:
			all[len(all)-1].Output += line
		}
	}
	return all
}

// shells are the languages of blocks that hold commands; a block without language may hold some too.
var shells = []string{"sh", "bash", "shell", Console, EngineConsole}

// Commands returns the arguments of every command of one of these programs in the block, by way of sudo or not.
// Variables are empty. A block without language that is no shell text has none.
func (b Block) Commands(programs ...string) ([][]string, error) {
	text := b.Text
	switch {
	case b.Language == Console || b.Language == EngineConsole:
		text = ""
		for _, s := range b.Sessions() {
			text += s.Command
		}
	case b.Language != "" && !slices.Contains(shells, b.Language):
		return nil, nil
	}
	file, err := syntax.NewParser().Parse(strings.NewReader(text), b.Document)
	if err != nil {
		if b.Language == "" && !strings.Contains(text, "sluice") {
			return nil, nil
		}
		return nil, fmt.Errorf("%v: %w", b, err)
	}
	var all [][]string
	syntax.Walk(file, func(n syntax.Node) bool {
		call, ok := n.(*syntax.CallExpr)
		if !ok || err != nil {
			return err == nil
		}
		var args []string
		if args, err = expand.Fields(&expand.Config{CmdSubst: nothing}, call.Args...); err != nil {
			return false
		}
		for len(args) > 0 && args[0] == "sudo" {
			args = args[1:]
		}
		if len(args) > 0 && slices.Contains(programs, filepath.Base(args[0])) {
			all = append(all, args)
		}
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("%v: %w", b, err)
	}
	return all, nil
}

// nothing is what a command in another one prints here.
func nothing(io.Writer, *syntax.CmdSubst) error { return nil }

var fileLine = regexp.MustCompile(`^# ([\w.-]+)\n`)

// File returns the name of the file that a block with a language is, if its first line is a comment that names one.
func (b Block) File() (name string, ok bool) {
	m := fileLine.FindStringSubmatch(b.Text)
	if m == nil || b.Language == "" || slices.Contains(shells, b.Language) {
		return "", false
	}
	return m[1], true
}

// Row is a row of a table: its cells, without the space round them.
type Row struct {
	Line  int
	Cells []string
}

// Rows returns the rows of all tables with that heading in front of them, without their own heads.
func (d Document) Rows(heading string) []Row {
	var rows []Row
	inside, head := false, 0
	for i, line := range strings.Split(d.Text, "\n") {
		if title := strings.TrimLeft(line, "#"); title != line {
			inside = strings.TrimSpace(title) == heading
		}
		cells, isRow := strings.CutPrefix(strings.TrimSpace(line), "|")
		if !isRow {
			head = 0
			continue
		}
		if head++; inside && head > 2 {
			rows = append(rows, Row{i + 1, split(strings.TrimSuffix(cells, "|"))})
		}
	}
	return rows
}

// split returns the cells between bars that are not in code.
func split(row string) (cells []string) {
	code, begin := false, 0
	for i := range len(row) {
		switch {
		case row[i] == '`':
			code = !code
		case row[i] == '|' && !code:
			cells = append(cells, strings.TrimSpace(row[begin:i]))
			begin = i + 1
		}
	}
	return append(cells, strings.TrimSpace(row[begin:]))
}

// Code returns the text of a cell that is code as a whole.
func Code(cell string) (string, error) {
	text, opened := strings.CutPrefix(cell, "`")
	text, closed := strings.CutSuffix(text, "`")
	if !opened || !closed || strings.Contains(text, "`") {
		return "", fmt.Errorf("%q is not code as a whole", cell)
	}
	return text, nil
}
