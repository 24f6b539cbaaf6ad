package policy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"go.yaml.in/yaml/v3"
)

// Limits of what is read, so that no document can exhaust a small sidecar. They are far above what a task needs.
const (
	MaxDocumentBytes = 16 << 20 // of a JSON document
	MaxYAMLBytes     = 4 << 20  // of a YAML document, whose reader takes a hundred times its size in memory
	MaxTargets       = 250_000  // of one policy

	maxValues = 8 * MaxTargets // of one JSON document
	maxDepth  = 16             // of objects and lists in each other
)

type nodeKind uint8

const (
	stringNode nodeKind = iota + 1
	numberNode
	boolNode
	nullNode
	objectNode
	listNode
)

// node is a value of a JSON or YAML document. Scalars keep their spelling, because it matters: a YAML reader makes
// 443 out of 0673, 0x1bb and 4.43e2.
type node struct {
	kind  nodeKind
	text  string   // a string's value, another scalar's spelling
	names []string // of an object's members, as often as they occur
	kids  []node
}

// show returns the value as an error may show it.
func (n *node) show() string {
	switch n.kind {
	case stringNode:
		return quote(n.text)
	case objectNode:
		return "{...}"
	case listNode:
		return "[...]"
	default:
		q := quote(n.text)
		return q[1 : len(q)-1]
	}
}

// number returns the value of a number that is spelt in plain digits and lies in 1..limit.
func (n *node) number(limit int) (int, bool) {
	v, err := strconv.Atoi(n.text)
	ok := n.kind == numberNode && isDigits(n.text) && n.text[0] != '0' && err == nil && v <= limit
	return v, ok
}

// readDocument reads JSON where the text begins with { or [, and YAML otherwise.
func readDocument(data []byte) (node, *Error) {
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return node{}, &Error{Problem: "the text begins with a byte order mark", Repair: "save it as UTF-8 without one"}
	}
	text := bytes.TrimLeft(data, " \t\r\n")
	if len(text) == 0 {
		return node{}, errNoDocument()
	}
	if text[0] == '{' || text[0] == '[' {
		return readJSON(data)
	}
	return readYAML(data)
}

func errNoDocument() *Error {
	return &Error{Problem: "the text is empty", Repair: `write a policy, "public" for example`, cause: io.ErrUnexpectedEOF}
}

func tooLarge(size, limit int, format string) *Error {
	if size <= limit {
		return nil
	}
	return &Error{Problem: fmt.Sprintf("the text has %d bytes, more than the %d of a %s document", size, limit, format),
		Repair: "use wildcards and networks instead of single targets"}
}

// A jsonReader builds nodes of what jsontext reads, which accepts RFC 8259 alone: valid UTF-8, no comments.
type jsonReader struct {
	*jsontext.Decoder
	values int
}

func readJSON(data []byte) (node, *Error) {
	if err := tooLarge(len(data), MaxDocumentBytes, "JSON"); err != nil {
		return node{}, err
	}
	// Duplicate names are left in, so that they are reported beside whatever else is wrong.
	r := jsonReader{Decoder: jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))}
	n, err := r.value(0)
	if err != nil {
		return node{}, jsonError(data, err)
	}
	at := r.InputOffset()
	if _, err := r.ReadToken(); err != io.EOF {
		return node{}, &Error{Problem: "something follows the JSON value" + position(data, at), Repair: "remove it"}
	}
	return n, nil
}

func (r *jsonReader) value(depth int) (node, error) {
	r.values++
	if r.values > maxValues || depth > maxDepth {
		return node{}, errors.New("more values, or deeper ones, than a policy has")
	}
	tok, err := r.ReadToken()
	if err != nil {
		return node{}, err
	}
	switch tok.Kind() {
	case '{':
		n := node{kind: objectNode}
		for r.PeekKind() != '}' {
			name, err := r.ReadToken()
			if err != nil {
				return node{}, err
			}
			text := name.String() // a token is void after the next read
			kid, err := r.value(depth + 1)
			if err != nil {
				return node{}, err
			}
			n.names, n.kids = append(n.names, text), append(n.kids, kid)
		}
		_, err := r.ReadToken()
		return n, err
	case '[':
		n := node{kind: listNode}
		for r.PeekKind() != ']' {
			kid, err := r.value(depth + 1)
			if err != nil {
				return node{}, err
			}
			n.kids = append(n.kids, kid)
		}
		_, err := r.ReadToken()
		return n, err
	case '"':
		return node{kind: stringNode, text: tok.String()}, nil
	case '0':
		return node{kind: numberNode, text: tok.String()}, nil
	case 'n':
		return node{kind: nullNode, text: "null"}, nil
	default:
		return node{kind: boolNode, text: tok.String()}, nil
	}
}

func jsonError(data []byte, err error) *Error {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	if !ok {
		return &Error{Problem: "the text has " + err.Error(), Repair: "write a policy or the policies of the three phases"}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return &Error{Problem: "the JSON text ends too early", Repair: "write it to its end", cause: io.ErrUnexpectedEOF}
	}
	return &Error{Problem: fmt.Sprintf("is not valid JSON%s: %v", position(data, syntax.ByteOffset), syntax.Err), Repair: "correct it there"}
}

// position returns the line and column of an offset, both from 1, the column in bytes.
func position(data []byte, offset int64) string {
	before := data[:min(int(offset), len(data))]
	return fmt.Sprintf(" at line %d, column %d", 1+bytes.Count(before, []byte("\n")), len(before)-bytes.LastIndexByte(before, '\n'))
}

// readYAML reads one YAML document of the JSON kind: no aliases, no merge keys, no types of its own.
func readYAML(data []byte) (node, *Error) {
	if err := tooLarge(len(data), MaxYAMLBytes, "YAML"); err != nil {
		return node{}, err
	}
	if !utf8.Valid(data) {
		return node{}, &Error{Problem: "the text is not valid UTF-8", Repair: "save it as UTF-8"}
	}
	d := yaml.NewDecoder(bytes.NewReader(data))
	var doc, next yaml.Node
	switch err := d.Decode(&doc); {
	case err == io.EOF:
		return node{}, errNoDocument()
	case err != nil:
		return node{}, yamlError(err)
	}
	switch err := d.Decode(&next); {
	case err == nil:
		return node{}, &Error{Problem: fmt.Sprintf("a second YAML document begins at line %d", next.Line), Repair: "keep one policy document in a file"}
	case err != io.EOF:
		return node{}, yamlError(err)
	}
	return yamlNode(doc.Content[0], 0)
}

// yamlLine is what of a YAML reader's message may be shown: the message itself can hold the text.
var yamlLine = regexp.MustCompile(`^yaml: line (\d+):`)

func yamlError(err error) *Error {
	where := ""
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
		where = " near line " + m[1]
	}
	return &Error{Problem: "is not valid YAML" + where,
		Repair: `correct it; a target that begins with "*" or "[" needs quotes, as in "*.example.com"`}
}

var yamlKinds = map[string]nodeKind{
	"!!str": stringNode, "!!int": numberNode, "!!float": numberNode, "!!bool": boolNode, "!!null": nullNode,
}

func yamlNode(y *yaml.Node, depth int) (node, *Error) {
	fail := func(problem, repair string) (node, *Error) {
		return node{}, &Error{Text: quote(y.Value), Problem: fmt.Sprintf("%s (line %d)", problem, y.Line), Repair: repair}
	}
	if depth > maxDepth {
		return fail("is nested deeper than a policy is", "write a policy or the policies of the three phases")
	}
	switch {
	case y.Kind == yaml.AliasNode:
		return fail("is a YAML alias", `write the value itself; a target that begins with "*" needs quotes`)
	case y.Kind == yaml.ScalarNode:
		kind, ok := yamlKinds[y.Tag]
		if ok && kind == nullNode {
			return node{kind: kind, text: "null"}, nil
		}
		if ok {
			return node{kind: kind, text: y.Value}, nil
		}
		return fail("is a YAML value of the type "+quote(y.Tag), "write a string in quotes or a number")
	case y.Kind == yaml.SequenceNode && y.Tag == "!!seq":
		n := node{kind: listNode, kids: make([]node, 0, len(y.Content))}
		for i, item := range y.Content {
			kid, err := yamlNode(item, depth+1)
			if err != nil {
				err.Pointer = string(jsontext.Pointer("").AppendToken(strconv.Itoa(i))) + err.Pointer
				return node{}, err
			}
			n.kids = append(n.kids, kid)
		}
		return n, nil
	case y.Kind == yaml.MappingNode && y.Tag == "!!map":
		n := node{kind: objectNode}
		for i := 0; i+1 < len(y.Content); i += 2 {
			key := y.Content[i]
			if key.Kind != yaml.ScalarNode || key.Tag != "!!str" {
				y = key
				return fail("is a YAML key that is not a string", "write a field name")
			}
			kid, err := yamlNode(y.Content[i+1], depth+1)
			if err != nil {
				err.Pointer = string(jsontext.Pointer("").AppendToken(token(key.Value))) + err.Pointer
				return node{}, err
			}
			n.names, n.kids = append(n.names, key.Value), append(n.kids, kid)
		}
		return n, nil
	}
	return fail("is a YAML value of the type "+quote(y.Tag), "write a plain object or list")
}
