package sniff

import (
	"bytes"
	"strings"
)

// textState is the part of the first line that a [Sniffer] is in.
type textState uint8

const (
	beforeLine textState = iota // white space so far
	inMethod                    // the first word
	inLine                      // behind it
	inPreface                   // behind the line that an HTTP/2 preface begins with
)

// preface is what an HTTP/2 client sends first, RFC 9113 §3.4; its first line is that of no HTTP/1 request.
const (
	preface     = prefaceLine + "\r\nSM\r\n\r\n"
	prefaceLine = "PRI * HTTP/2.0\r\n"
)

// proxyV2 is as much of the signature of a PROXY protocol version 2 header as no other protocol begins with.
const proxyV2 = "\r\n\r\n\x00"

// maxBanner is the length of an SSH identification string with its line end, RFC 4253 §4.2.
const maxBanner = 255

// Classes of bytes.
const (
	classToken   = 1 << iota // RFC 9110 §5.6.2: what a method consists of
	classSpace               // separates words, or comes before the first line
	classControl             // in no request line: the other control bytes
	classLetter
	classDigit
	classLabel // in a host name, digits included
)

var class = func() (class [256]uint8) {
	for c := range 256 {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z':
			class[c] = classToken | classLetter | classLabel
		case c >= '0' && c <= '9':
			class[c] = classToken | classDigit | classLabel
		case c == '-', c == '_':
			class[c] = classToken | classLabel
		case strings.IndexByte("!#$%&'*+.^`|~", byte(c)) >= 0:
			class[c] = classToken
		case c == ' ', c >= '\t' && c <= '\r':
			class[c] = classSpace
		case c < ' ', c == 0x7f:
			class[c] = classControl
		}
	}
	return class
}()

var malformedHTTP = Result{Kind: HTTP1, Malformed: true}

// line goes on from s.pos to the end of the first line that is not blank.
func (s *Sniffer) line(b []byte, eof bool) Result {
	seen := b[:min(len(b), MaxLine)]
	i := s.pos
	switch s.text {
	case beforeLine:
		for i < len(seen) && class[seen[i]]&classSpace != 0 {
			i++
		}
		if s.pos = i; i == len(seen) {
			break
		}
		if class[seen[i]]&classToken == 0 {
			return Result{Kind: Other, ProxyHeader: string(seen[:i+1]) == proxyV2}
		}
		s.start = i
		s.text = inMethod
		fallthrough
	case inMethod:
		for i < len(seen) && class[seen[i]]&classToken != 0 {
			i++
		}
		if s.pos = i; i == len(seen) {
			break
		}
		if class[seen[i]]&classSpace == 0 {
			return Result{Kind: Other}
		}
		s.text = inLine
		fallthrough
	case inLine:
		for i < len(seen) && seen[i] != '\n' && class[seen[i]]&classControl == 0 {
			// A CR alone ends a line for some servers (RFC 9112 §2.2). Behind the first one, what is a request line for
			// them is not sought any more: they would have found none.
			if seen[i] == '\r' && !s.bare {
				last := i+1 == len(seen)
				switch {
				case !last && seen[i+1] == '\n', judgeLine(seen[s.start:i], false).Kind != HTTP1:
				case !last:
					return malformedHTTP
				case !eof && i+1 < MaxLine:
					s.pos = i
					return Result{Need: len(b) + 1, Hold: true}
				}
				s.bare = true
			}
			i++
		}
		if s.pos = i; i == len(seen) {
			break
		}
		if seen[i] != '\n' {
			if looksLikeMethod(seen[s.start:]) {
				return malformedHTTP
			}
			return Result{Kind: Other}
		}
		if string(seen[:i+1]) != prefaceLine {
			return judgeLine(seen[s.start:i], s.start == 0)
		}
		s.text = inPreface
		fallthrough
	default:
		n := min(len(b), len(preface))
		switch {
		case string(b[:n]) != preface[:n]:
			return malformedHTTP
		case n == len(preface):
			return Result{Kind: HTTP2}
		}
	}

	switch full := len(seen) == MaxLine; {
	case full && s.text == inLine:
		return Result{Kind: HTTP1}
	case full, eof && s.text == inPreface:
		return malformedHTTP
	case eof && s.text == beforeLine:
		return Result{Kind: Other}
	case eof:
		return judgeLine(seen[s.start:], s.start == 0)
	}
	return Result{Need: len(b) + 1}
}

// looksLikeMethod reports whether line begins with a word of three or more letters.
func looksLikeMethod(line []byte) bool {
	n := 0
	for class[line[n]]&classLetter != 0 {
		n++
	}
	return n >= 3 && class[line[n]]&classSpace != 0
}

// judgeLine tells from a line without its line feed, beginning with a token, what it is. atStart says that nothing
// came before it.
func judgeLine(line []byte, atStart bool) Result {
	first, rest := cutWord(line)
	second, rest := cutWord(rest)
	for word := second; len(word) > 0; word, rest = cutWord(rest) {
		if hasPrefixFold(word, "HTTP/") {
			return Result{Kind: HTTP1}
		}
	}
	switch {
	case isRequestTarget(second):
		return malformedHTTP
	case atStart && isBanner(line):
		return Result{Kind: SSH}
	}
	proxy := string(first) == "PROXY" &&
		(string(second) == "TCP4" || string(second) == "TCP6" || string(second) == "UNKNOWN")
	return Result{Kind: Other, ProxyHeader: proxy}
}

// cutWord splits off the first word of b; it is empty if there is none.
func cutWord(b []byte) (word, rest []byte) {
	for len(b) > 0 && class[b[0]]&classSpace != 0 {
		b = b[1:]
	}
	n := 0
	for n < len(b) && class[b[n]]&classSpace == 0 {
		n++
	}
	return b[:n], b[n:]
}

// isRequestTarget reports whether word can be nothing else than what a request asks for, RFC 9112 §3.2.
func isRequestTarget(word []byte) bool {
	if len(word) > 0 && word[0] == '/' {
		return true
	}
	return hasPrefixFold(word, "http://") || hasPrefixFold(word, "https://") ||
		hasPrefixFold(word, "ws://") || hasPrefixFold(word, "wss://")
}

// isBanner reports whether line, without its line feed, is an SSH identification string.
func isBanner(line []byte) bool {
	return len(line) < maxBanner &&
		(bytes.HasPrefix(line, []byte("SSH-2.0-")) || bytes.HasPrefix(line, []byte("SSH-1.")))
}

// hasPrefixFold is [bytes.HasPrefix] without regard to the case of ASCII letters.
func hasPrefixFold(b []byte, prefix string) bool {
	return len(b) >= len(prefix) && bytes.EqualFold(b[:len(prefix)], []byte(prefix))
}
