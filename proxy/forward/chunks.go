package forward

import "errors"

// errChunk is what reading a body ends with whose chunks break RFC 9112 section 7.1.
var errChunk = errors.New("malformed chunked body")

// Limits of what stands between the data of a chunked body.
const (
	maxExtension  = 1 << 10 // bytes of the extensions of a chunk
	maxTrailer    = 4 << 10 // bytes of the trailer section; net/http has the same limit
	maxSizeDigits = 15      // more might not fit an int64
)

// chunks finds the end of a chunked body. It accepts less than net/http, which reads the same bytes behind it: no
// white space round sizes, and CRLF at every end of line, because proxies and servers that disagree about a lone LF
// see different requests in the same bytes. Its zero value is at the start of a body.
type chunks struct {
	at     chunkState
	size   int64 // of the chunk, or what is left of it
	digits int
	extra  int  // bytes of this chunk's extensions, or of the trailer section
	blank  bool // nothing has come on this line of the trailer section
}

type chunkState uint8

const (
	inSize chunkState = iota
	inExtension
	atSizeEnd // LF
	inData
	atDataEnd // CR
	atDataEndLF
	inTrailer
	atTrailerEnd // LF
	finished
)

// scan looks at b, the next bytes, and returns how many of them belong to the body.
func (c *chunks) scan(b []byte) (n int, err error) {
	for n < len(b) && c.at != finished {
		if c.at == inData {
			step := min(c.size, int64(len(b)-n))
			n += int(step)
			if c.size -= step; c.size == 0 {
				c.at = atDataEnd
			}
			continue
		}
		if !c.step(b[n]) {
			return n, errChunk
		}
		n++
	}
	return n, nil
}

// step takes one byte outside of data, and reports whether it may stand there; else nothing has changed.
func (c *chunks) step(b byte) bool {
	switch c.at {
	case inSize:
		digit, ok := hexDigit(b)
		switch {
		case ok && c.digits < maxSizeDigits:
			c.size = c.size<<4 | digit
			c.digits++
		case b == ';' && c.digits > 0:
			c.at = inExtension
		case b == '\r' && c.digits > 0:
			c.at = atSizeEnd
		default:
			return false
		}
	case inExtension:
		if b == '\r' {
			c.at = atSizeEnd
			return true
		}
		if c.extra == maxExtension || !isFieldByte(b) {
			return false
		}
		c.extra++
	case atSizeEnd:
		if b != '\n' {
			return false
		}
		c.at, c.blank = inData, true
		if c.size == 0 {
			c.at = inTrailer
		}
		c.digits, c.extra = 0, 0
	case atDataEnd:
		if b != '\r' {
			return false
		}
		c.at = atDataEndLF
	case atDataEndLF:
		if b != '\n' {
			return false
		}
		c.at = inSize
	case inTrailer:
		if b == '\r' {
			c.at = atTrailerEnd
			return true
		}
		if c.extra == maxTrailer || !isFieldByte(b) {
			return false
		}
		c.blank = false
		c.extra++
	case atTrailerEnd:
		if b != '\n' {
			return false
		}
		c.at = inTrailer
		if c.blank {
			c.at = finished
		}
		c.blank = true
	}
	return true
}

func hexDigit(b byte) (int64, bool) {
	switch {
	case b >= '0' && b <= '9':
		return int64(b - '0'), true
	case b|0x20 >= 'a' && b|0x20 <= 'f':
		return int64(b|0x20-'a') + 10, true
	}
	return 0, false
}
