package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"sluice/controller/api"
	"sluice/controller/tally"
)

// output is stdout, and what is known of the terminal that it may be.
type output struct {
	*bufio.Writer
	columns int // that fit in a line; 0 where it is no terminal, so that programs get whole lines
	colour  bool
}

func newOutput(stdout io.Writer) *output {
	o := &output{Writer: bufio.NewWriter(stdout)}
	if f, ok := stdout.(*os.File); ok {
		o.columns = columns(f)
	}
	o.colour = o.columns > 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" // no-color.org
	return o
}

// outputOf is what a command prints to.
func outputOf(cmd *cobra.Command) *output {
	if o, ok := cmd.OutOrStdout().(*output); ok {
		return o
	}
	return &output{}
}

// style is a colour or a weight of text, a parameter of SGR (ECMA-48 8.3.117). The zero style changes nothing.
type style string

const (
	bold   style = "1"
	faint  style = "2"
	red    style = "31"
	green  style = "32"
	yellow style = "33"
)

// paint gives text a style where there are colours.
func (o *output) paint(s style, text string) string {
	if !o.colour || s == "" || text == "" {
		return text
	}
	return "\x1b[" + string(s) + "m" + text + "\x1b[0m"
}

func stateStyle(s api.State) style {
	switch s {
	case api.Attached:
		return green
	case api.Quarantined:
		return red
	}
	return faint
}

func verdictStyle(verdict string) style {
	switch verdict {
	case tally.Allowed:
		return green
	case tally.Refused:
		return red
	}
	return yellow
}

// short keeps the beginning of a text, in a column of n characters.
func short(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:max(0, n-1)]) + "…"
}

// fit keeps of a text what fits in a line after the columns that are used already.
func (o *output) fit(s string, used int) string {
	if o.columns == 0 {
		return s
	}
	return short(s, max(1, o.columns-used))
}

// inert shows a text that somebody else has chosen as it is, or quoted if it has anything but letters, digits, marks and
// signs: a terminal would obey some of the rest, and white space would look like the next field.
func inert(s string) string {
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || unicode.IsSpace(r) || r == utf8.RuneError }) {
		return strconv.Quote(s)
	}
	return s
}

// printTable prints rows in columns of equal width.
func printTable(cmd *cobra.Command, rows [][]string) error {
	return printStyled(cmd, rows, func(int, int) style { return "" })
}

// printStyled is [printTable] with a style for each cell. On a terminal the last cells are cut where a line would not fit.
func printStyled(cmd *cobra.Command, rows [][]string, of func(row, column int) style) error {
	const gap = 2
	var widths []int
	for _, row := range rows {
		for i := range max(0, len(row)-1) {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	o := outputOf(cmd)
	for r, row := range rows {
		used := 0
		for c, text := range row {
			if c == len(row)-1 {
				fmt.Fprintln(cmd.OutOrStdout(), o.paint(of(r, c), o.fit(text, used)))
				break
			}
			pad := widths[c] + gap - utf8.RuneCountInString(text)
			fmt.Fprint(cmd.OutOrStdout(), o.paint(of(r, c), text), strings.Repeat(" ", pad))
			used += widths[c] + gap
		}
	}
	return nil // what cannot be written is told by run
}
