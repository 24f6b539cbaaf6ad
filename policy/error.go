package policy

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxErrors    = 100 // errors of one document that are kept
	maxTextBytes = 80  // offending text that an error shows
)

// Error is one thing that is wrong with a policy. Its texts are made for people and safe to log: user info and
// queries of URLs are left out, unprintable and non-ASCII characters are escaped, and long text is cut.
type Error struct {
	// Pointer leads to the value (RFC 6901); "" is the whole document, or a text that is in no document.
	Pointer string `json:"pointer"`
	// Text is what stands there, strings in quotes; "" if there is nothing to show.
	Text string `json:"text"`
	// Problem says what is wrong with it, Repair what to write instead.
	Problem string `json:"problem"`
	Repair  string `json:"repair"`

	cause error
}

func (e *Error) Error() string {
	var b strings.Builder
	for _, part := range []string{e.Pointer, e.Text} {
		if part != "" {
			b.WriteString(part + ": ")
		}
	}
	b.WriteString(e.Problem)
	if e.Repair != "" {
		b.WriteString("; " + e.Repair)
	}
	return b.String()
}

// Unwrap returns the reason behind the error if it has one: io.ErrUnexpectedEOF where the document is empty or is
// JSON that ends too early, as a reader sees it while somebody else is still writing the file.
func (e *Error) Unwrap() error { return e.cause }

// Errors is everything that is wrong with a document. Errors.As finds the first [Error] in it as well.
type Errors struct {
	All     []*Error // 1 to 100
	Omitted int      // errors beyond those
}

func (e *Errors) Error() string {
	lines := make([]string, 0, len(e.All)+1)
	for _, one := range e.All {
		lines = append(lines, one.Error())
	}
	if e.Omitted > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", e.Omitted))
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns every kept error.
func (e *Errors) Unwrap() []error {
	errs := make([]error, len(e.All))
	for i, one := range e.All {
		errs[i] = one
	}
	return errs
}

func (e *Errors) add(at jsontext.Pointer, err *Error) {
	if len(e.All) == maxErrors {
		e.Omitted++
		return
	}
	err.Pointer = string(at) + err.Pointer
	e.All = append(e.All, err)
}

// err returns e as an error, nil if there is nothing in it.
func (e *Errors) err() error {
	if len(e.All) == 0 {
		return nil
	}
	return e
}

// token is a name as it may stand in a pointer: [jsontext.Pointer.AppendToken] escapes the rest.
func token(name string) string {
	q := quote(name)
	return q[1 : len(q)-1]
}

// quote returns s as an error may show it, in quotes.
func quote(s string) string {
	s = redact(s)
	if len(s) <= maxTextBytes {
		return strconv.QuoteToASCII(s)
	}
	cut := maxTextBytes
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.QuoteToASCII(s[:cut] + "...")
}

// redact takes out what may be a secret when somebody took a URL for a target: everything before the last "@" (a
// password may hold any character) but the scheme, and everything behind "?" or "#".
func redact(s string) string {
	if at := strings.LastIndexByte(s, '@'); at >= 0 {
		scheme := ""
		if i := strings.Index(s[:at], "://"); i >= 0 {
			scheme = s[:i+len("://")]
		}
		s = scheme + "xxxxx" + s[at:]
	}
	if i := strings.IndexAny(s, "?#"); i >= 0 && i+1 < len(s) {
		s = s[:i+1] + "xxxxx"
	}
	return s
}
