// Package pyjson reads JSON and writes it as Python's json module does, for what has to equal the bytes that a Python
// program would make of the same input.
package pyjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
)

// Limits of what is read.
const (
	MaxBytes  = 256 << 20
	MaxValues = 8_000_000
	maxDepth  = 200
	// maxDigits is how long a whole number may be that Python reads.
	maxDigits = 4300
)

// Kind is the kind of a value.
type Kind uint8

const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Object
)

// Value is a JSON value. The zero Value is null.
type Value struct {
	Kind Kind
	// Text is a string's value, or the spelling of a number or a bool.
	Text string
	// Names are those of an object's members, each once, in the order in which they came first.
	Names []string
	// Values are an object's members, or the items of a list.
	Values []Value
}

// Text makes a string of a text.
func Text(s string) Value { return Value{Kind: String, Text: s} }

// Texts makes an object of names and strings, one after the other.
func Texts(pairs ...string) Value {
	v := Value{Kind: Object}
	for i := 0; i+1 < len(pairs); i += 2 {
		v.Set(pairs[i], Text(pairs[i+1]))
	}
	return v
}

// Member returns a member of an object, nil if there is none or v is no object.
func (v *Value) Member(name string) *Value {
	if v == nil || v.Kind != Object {
		return nil
	}
	if i := slices.Index(v.Names, name); i >= 0 {
		return &v.Values[i]
	}
	return nil
}

// Set gives an object's member a value; a new one comes last.
func (v *Value) Set(name string, value Value) {
	if m := v.Member(name); m != nil {
		*m = value
		return
	}
	v.Names, v.Values = append(v.Names, name), append(v.Values, value)
}

// Parse reads one JSON value (RFC 8259, valid UTF-8). Of members with the same name the last one counts, as in Python.
func Parse(data []byte) (Value, error) {
	if len(data) > MaxBytes {
		return Value{}, fmt.Errorf("the text has %d bytes, more than %d", len(data), MaxBytes)
	}
	r := reader{Decoder: jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))}
	v, err := r.value(0)
	if err == nil {
		if _, err = r.ReadToken(); err == io.EOF {
			return v, nil
		}
		err = errors.New("something follows the JSON value")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return Value{}, fmt.Errorf("the JSON text ends too early: %w", io.ErrUnexpectedEOF)
	}
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok { // its text may hold the value
		return Value{}, fmt.Errorf("is not valid JSON at byte %d: %w", syntax.ByteOffset, syntax.Err)
	}
	return Value{}, err
}

type reader struct {
	*jsontext.Decoder
	values int
}

func (r *reader) value(depth int) (Value, error) {
	r.values++
	if r.values > MaxValues || depth > maxDepth {
		return Value{}, errors.New("has more values, or deeper ones, than are read")
	}
	tok, err := r.ReadToken()
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return Value{}, err
	}
	switch tok.Kind() {
	case '{':
		v := Value{Kind: Object}
		first := map[string]int{}
		for r.PeekKind() != '}' {
			tok, err := r.ReadToken()
			if err != nil {
				return Value{}, err
			}
			name := tok.String() // a token is void after the next read
			member, err := r.value(depth + 1)
			if err != nil {
				return Value{}, err
			}
			if at, again := first[name]; again {
				v.Values[at] = member
				continue
			}
			first[name] = len(v.Names)
			v.Names, v.Values = append(v.Names, name), append(v.Values, member)
		}
		_, err := r.ReadToken()
		return v, err
	case '[':
		v := Value{Kind: List}
		for r.PeekKind() != ']' {
			item, err := r.value(depth + 1)
			if err != nil {
				return Value{}, err
			}
			v.Values = append(v.Values, item)
		}
		_, err := r.ReadToken()
		return v, err
	case '"':
		return Text(tok.String()), nil
	case '0':
		return Value{Kind: Number, Text: tok.String()}, nil
	case 'n':
		return Value{}, nil
	}
	return Value{Kind: Bool, Text: tok.String()}, nil
}

// Readable reports whether Python reads all numbers of v: it refuses whole ones of more than 4,300 digits.
func (v *Value) Readable() bool {
	if v.Kind == Number && len(strings.TrimPrefix(v.Text, "-")) > maxDigits && !strings.ContainsAny(v.Text, ".eE") {
		return false
	}
	return !slices.ContainsFunc(v.Values, func(item Value) bool { return !item.Readable() })
}

// AppendCompact appends v as JSON without spaces, with numbers as they were spelt.
func (v *Value) AppendCompact(b []byte) []byte { return v.append(b, compact) }

// AppendDump appends v as json.dumps writes it with ensure_ascii=False.
func (v *Value) AppendDump(b []byte) []byte { return v.append(b, dump) }

// Str returns what str returns for the value that Python makes of v.
func (v *Value) Str() string {
	if v.Kind == String {
		return v.Text
	}
	return string(v.append(nil, repr))
}

// style is a way to write values.
type style struct {
	comma, colon          string
	null, isTrue, isFalse string
	number                func(string) string
	text                  func(b []byte, s string) []byte
}

var (
	compact = style{",", ":", "null", "true", "false", func(s string) string { return s }, quoteJSON}
	dump    = style{", ", ": ", "null", "true", "false", func(s string) string { return number(s, "Infinity") }, quoteJSON}
	repr    = style{", ", ": ", "None", "True", "False", func(s string) string { return number(s, "inf") }, quoteRepr}
)

func (v *Value) append(b []byte, s style) []byte {
	switch v.Kind {
	case Null:
		return append(b, s.null...)
	case Bool:
		if v.Text == "true" {
			return append(b, s.isTrue...)
		}
		return append(b, s.isFalse...)
	case Number:
		return append(b, s.number(v.Text)...)
	case String:
		return s.text(b, v.Text)
	}
	brackets := "[]"
	if v.Kind == Object {
		brackets = "{}"
	}
	b = append(b, brackets[0])
	for i := range v.Values {
		if i > 0 {
			b = append(b, s.comma...)
		}
		if v.Kind == Object {
			b = append(s.text(b, v.Names[i]), s.colon...)
		}
		b = v.Values[i].append(b, s)
	}
	return append(b, brackets[1])
}

// quoteJSON quotes s. The error of AppendQuote only says that invalid UTF-8 was replaced, which no parsed value holds.
func quoteJSON(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// quoteRepr quotes s as repr does.
func quoteRepr(b []byte, s string) []byte {
	quote := byte('\'')
	if strings.Contains(s, "'") && !strings.Contains(s, `"`) {
		quote = '"'
	}
	b = append(b, quote)
	for _, r := range s {
		switch {
		case r == rune(quote) || r == '\\':
			b = append(b, '\\', byte(r))
		case r == '\n':
			b = append(b, `\n`...)
		case r == '\r':
			b = append(b, `\r`...)
		case r == '\t':
			b = append(b, `\t`...)
		case unicode.IsPrint(r):
			b = append(b, string(r)...)
		case r < 0x100:
			b = fmt.Appendf(b, `\x%02x`, r)
		case r < 0x10000:
			b = fmt.Appendf(b, `\u%04x`, r)
		default:
			b = fmt.Appendf(b, `\U%08x`, r)
		}
	}
	return append(b, quote)
}

// number is what Python makes of a number: whole ones of any size, others as the shortest text of a double.
func number(s, infinity string) string {
	if !strings.ContainsAny(s, ".eE") {
		if s == "-0" {
			return "0"
		}
		return s
	}
	f, _ := strconv.ParseFloat(s, 64) // infinite if it is too large, as in Python
	if math.IsInf(f, 0) {
		return s[:len(s)-len(strings.TrimPrefix(s, "-"))] + infinity
	}
	text := strconv.FormatFloat(f, 'e', -1, 64)
	_, exponent, _ := strings.Cut(text, "e")
	if e, _ := strconv.Atoi(exponent); f != 0 && (e < -4 || e >= 16) {
		return text
	}
	text = strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(text, ".") {
		text += ".0"
	}
	return text
}

// IsSpace reports whether r is white space to Python.
func IsSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// IsWord reports whether r is part of a word to Python's regular expressions.
func IsWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }
