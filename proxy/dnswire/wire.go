// Package dnswire reads DNS messages where they lie (RFC 1035 section 4), without allocating.
//
// Nothing here trusts its input: offsets are checked, names are bounded, compression pointers only go backwards.
package dnswire

import "encoding/binary"

// Sizes and limits in bytes (RFC 1035 sections 2.3.4 and 4.1.1).
const (
	HeaderLen = 12
	MaxName   = 255 // of a name on the wire, with its root label
	MaxLabel  = 63
	// MaxQuestion is the longest question: name, type and class.
	MaxQuestion = MaxName + 4
	// OPTLen is the length of an OPT record without options (RFC 6891 section 6.1.2).
	OPTLen = 11
)

// Types, classes, codes and flags that the proxy itself looks at.
const (
	TypeA     = 1
	TypeNS    = 2
	TypeCNAME = 5
	TypeSOA   = 6
	TypePTR   = 12
	TypeMX    = 15
	TypeTXT   = 16
	TypeAAAA  = 28
	TypeSRV   = 33
	TypeOPT   = 41
	TypeSVCB  = 64
	TypeHTTPS = 65
	TypeIXFR  = 251
	TypeAXFR  = 252

	ClassIN = 1

	RcodeNoError  = 0
	RcodeFormErr  = 1
	RcodeServFail = 2
	RcodeNXDomain = 3
	RcodeNotImp   = 4
	RcodeRefused  = 5
	RcodeBadVers  = 16 // RFC 6891 section 9: the upper eight bits stand in the OPT record

	// In the third byte of the header.
	FlagResponse  = 0x80
	OpcodeMask    = 0x78
	FlagAuthority = 0x04
	FlagTruncated = 0x02
	FlagRD        = 0x01
	// In the fourth.
	FlagRA    = 0x80
	FlagAD    = 0x20
	FlagCD    = 0x10
	RcodeMask = 0x0f
	// In the third byte of an OPT record's TTL.
	FlagDO = 0x80
)

// Count returns one of the four counts in the header of msg, which must hold a header: 0 questions, 1 answers,
// 2 authorities, 3 additional records.
func Count(msg []byte, section int) int { return int(binary.BigEndian.Uint16(msg[4+2*section:])) }

// SetCount sets what [Count] returns.
func SetCount(msg []byte, section, n int) { binary.BigEndian.PutUint16(msg[4+2*section:], uint16(n)) }

// Question is the only question of a message.
type Question struct {
	Type, Class uint16
	NameLen     int // on the wire, with the root label
	End         int // offset behind the question
}

// ReadQuestion reads the question of msg. It reports false unless there is exactly one and its name is whole,
// within the limits and not compressed.
func ReadQuestion(msg []byte) (Question, bool) {
	if len(msg) < HeaderLen || Count(msg, 0) != 1 {
		return Question{}, false
	}
	off := HeaderLen
	for {
		if off >= len(msg) {
			return Question{}, false
		}
		n := int(msg[off])
		off++
		if n == 0 {
			break
		}
		if n > MaxLabel {
			return Question{}, false
		}
		off += n
	}
	if off > HeaderLen+MaxName || off+4 > len(msg) {
		return Question{}, false
	}
	return Question{
		Type:    binary.BigEndian.Uint16(msg[off:]),
		Class:   binary.BigEndian.Uint16(msg[off+2:]),
		NameLen: off - HeaderLen,
		End:     off + 4,
	}, true
}

var lower = func() (t [256]byte) {
	for i := range t {
		t[i] = byte(i)
	}
	for c := 'A'; c <= 'Z'; c++ {
		t[c] = byte(c) + 'a' - 'A'
	}
	return t
}()

// AppendLower appends name, uncompressed and on the wire, with its letters in lower case. (Lengths are below 'A'.)
func AppendLower(dst, name []byte) []byte {
	for _, c := range name {
		dst = append(dst, lower[c])
	}
	return dst
}

// SameQuestion reports whether question, as it came, asks for what lowered asks for; lowered has a name in lower
// case. Case does not count (RFC 4343).
func SameQuestion(question, lowered []byte) bool {
	if len(question) != len(lowered) || len(lowered) < 4 {
		return false
	}
	name := len(lowered) - 4
	for i, c := range question[:name] {
		if lower[c] != lowered[i] {
			return false
		}
	}
	return string(question[name:]) == string(lowered[name:])
}

// AppendDotted appends name, uncompressed and on the wire in lower case, with dots between the labels and none at
// the end. It reports false for a name that cannot be written so without doubt, because a label holds a dot or a
// NUL.
func AppendDotted(dst, name []byte) ([]byte, bool) {
	plain := true
	for off := 0; off < len(name); {
		n := int(name[off])
		if n == 0 {
			break
		}
		if off > 0 {
			dst = append(dst, '.')
		}
		for _, c := range name[off+1 : off+1+n] {
			if c == '.' || c == 0 {
				plain = false
			}
			dst = append(dst, c)
		}
		off += 1 + n
	}
	return dst, plain
}

// SkipName returns the offset behind the name at off.
func SkipName(msg []byte, off int) (int, bool) {
	for off < len(msg) {
		n := int(msg[off])
		switch {
		case n == 0:
			return off + 1, true
		case n <= MaxLabel:
			off += 1 + n
		case n >= 0xc0:
			return off + 2, off+2 <= len(msg)
		default:
			return 0, false // 01 and 10 are reserved
		}
	}
	return 0, false
}

// ReadName appends the name at off to dst as [AppendDotted] does, but in lower case and with compression pointers
// followed. It reports false for names that are malformed, too long or cannot be written so.
func ReadName(dst, msg []byte, off int) ([]byte, bool) {
	start, limit, length := len(dst), off, 1 // a pointer goes before limit, so that there is no loop
	pointers := 0
	for off < len(msg) {
		n := int(msg[off])
		switch {
		case n == 0:
			return dst, true
		case n <= MaxLabel:
			if length += 1 + n; length > MaxName || off+1+n > len(msg) {
				return dst, false
			}
			if len(dst) > start {
				dst = append(dst, '.')
			}
			for _, c := range msg[off+1 : off+1+n] {
				if c == '.' || c == 0 {
					return dst, false
				}
				dst = append(dst, lower[c])
			}
			off += 1 + n
		case n >= 0xc0 && off+1 < len(msg):
			to := (n&0x3f)<<8 | int(msg[off+1])
			// A name has at most 127 labels, and no use for more pointers.
			if pointers++; to >= limit || to < HeaderLen || pointers > MaxName/2 {
				return dst, false
			}
			off, limit = to, to
		default:
			return dst, false
		}
	}
	return dst, false
}

// Record is one resource record of a message, as offsets into it.
type Record struct {
	Type, Class uint16
	Name        int // where its owner's name begins
	TTL         int // where its TTL, four bytes, is
	Data        int // where its data begin
	End         int // behind its data
}

// ReadRecord reads the record at off.
func ReadRecord(msg []byte, off int) (Record, bool) {
	at, ok := SkipName(msg, off)
	if !ok || at+10 > len(msg) {
		return Record{}, false
	}
	r := Record{
		Type:  binary.BigEndian.Uint16(msg[at:]),
		Class: binary.BigEndian.Uint16(msg[at+2:]),
		Name:  off,
		TTL:   at + 4,
		Data:  at + 10,
	}
	r.End = r.Data + int(binary.BigEndian.Uint16(msg[at+8:]))
	return r, r.End <= len(msg)
}

// Seconds returns the TTL of a record; one with the top bit set counts as zero (RFC 2181 section 8).
func Seconds(msg []byte, r Record) uint32 {
	ttl := binary.BigEndian.Uint32(msg[r.TTL:])
	if ttl > 1<<31-1 {
		return 0
	}
	return ttl
}
