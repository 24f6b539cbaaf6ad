package evidence

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"

	"sluice/control"
	"sluice/lifecycle"
)

// maxLineBytes bounds a line of an audit: a record has some hundred bytes, a step's error may be long.
const maxLineBytes = 1 << 20

// Record is a line of an audit file: a decision, or a step of a task.
type Record struct {
	// Prev is the [Digest] of the line before, in a file that is chained.
	Prev string `json:"prev,omitempty"`
	control.Event
	Step *lifecycle.Step `json:"step,omitempty"`
}

// Read yields the records of an audit file: JSON lines, as the proxy, "sluice logs --json" and "sluice task --audit"
// write them. It stops at the first error, which names the line. An empty line is no record.
func Read(r io.Reader) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for line, err := range lines(r) {
			var e Record
			if err == nil {
				e, err = line.record()
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

type numbered struct {
	number int
	text   []byte
}

func (l numbered) record() (Record, error) {
	var e Record
	if err := json.Unmarshal(l.text, &e); err != nil {
		return e, fmt.Errorf("line %d is no audit record: %w", l.number, err)
	}
	if e.Step == nil && (e.Verdict == "" || e.Phase == "") {
		return e, fmt.Errorf("line %d is no audit record: it has no verdict and phase", l.number)
	}
	return e, nil
}

func lines(r io.Reader) iter.Seq2[numbered, error] {
	return func(yield func(numbered, error) bool) {
		scan := bufio.NewScanner(r)
		scan.Buffer(nil, maxLineBytes)
		number := 0
		for scan.Scan() {
			number++
			if text := bytes.TrimSpace(scan.Bytes()); len(text) > 0 && !yield(numbered{number, text}, nil) {
				return
			}
		}
		if err := scan.Err(); err != nil {
			yield(numbered{}, fmt.Errorf("after line %d: %w", number, err))
		}
	}
}

// Digest identifies a line, and with the lines that are chained before it all of them. That of no line is "".
func Digest(line []byte) string {
	sum := sha256.Sum256(line)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Chain writes an audit file of which each line has the digest of the one before, so that none can be changed, taken
// out or put in without all later ones. Only whoever has kept the head somewhere else sees that the last ones are
// missing. It is not safe for concurrent use.
type Chain struct {
	w    io.Writer
	head string
}

// NewChain begins a file.
func NewChain(w io.Writer) *Chain { return &Chain{w: w} }

// Head is the digest of the last line; "" before the first.
func (c *Chain) Head() string { return c.head }

// Decision writes the record of a decision.
func (c *Chain) Decision(e control.Event) error {
	return c.write(struct {
		Prev string `json:"prev"`
		control.Event
	}{c.head, e})
}

// Step writes the record of a step.
func (c *Chain) Step(s lifecycle.Step) error {
	return c.write(struct {
		Prev string         `json:"prev"`
		Step lifecycle.Step `json:"step"`
	}{c.head, s})
}

func (c *Chain) write(v any) error {
	line, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := c.w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the audit: %w", err)
	}
	c.head = Digest(line)
	return nil
}

// Check reports whether the lines of an audit file are a chain, and returns its head. The heads, if any, are what others
// have kept of it, in their order: each has to be the digest of a line. A file without a line is none.
func Check(r io.Reader, heads ...string) (head string, err error) {
	heads = slices.Compact(heads)
	known := len(heads)
	pass := func() {
		if len(heads) > 0 && heads[0] == head {
			heads = heads[1:]
		}
	}
	pass() // what was kept before the first line
	for line, err := range lines(r) {
		if err != nil {
			return head, err
		}
		var is struct {
			Prev *string `json:"prev"`
		}
		switch err := json.Unmarshal(line.text, &is); {
		case err != nil:
			return head, fmt.Errorf("line %d is no audit record: %w", line.number, err)
		case is.Prev == nil:
			return head, fmt.Errorf(`line %d has no "prev": the file is not chained; write it with sluice task --audit`, line.number)
		case *is.Prev != head:
			return head, fmt.Errorf("line %d does not follow the line before it: one of them was changed, or something between them is missing", line.number)
		}
		head = Digest(line.text)
		pass()
	}
	if head == "" {
		return "", errors.New("it has no line: write it with sluice task --audit")
	}
	if len(heads) > 0 {
		return head, fmt.Errorf("%d of %d digests that were kept are of no line of it, %s first: another file, or one that was written anew", len(heads), known, heads[0])
	}
	return head, nil
}
