package proxy

import (
	"encoding/binary"
	"errors"
	"strings"

	"golang.org/x/net/http2/hpack"
)

// streams reads what an HTTP/2 client sends without TLS, so that the authority of each request is known before the
// request is passed on (RFC 9113). The bytes themselves are passed on unchanged.
type streams struct {
	decoder   *hpack.Decoder
	preface   int    // bytes of the connection preface, still to come
	skip      int    // bytes of a frame that may pass, still to come
	began     bool   // the first frame was there
	last      uint32 // the highest stream that was opened
	authority string // of the request being read
	host      string // its Host field
	named     [2]int // how many of each it has
	pseudo    bool   // it has fields that only a request's first header block may have
	judging   int    // bytes of a request's head that wait for [streams.accept]
}

const (
	prefaceBytes     = 24 // RFC 9113 section 3.4
	frameHeaderBytes = 9  // section 4.1
	// maxHeadBytes bounds a request's head, frames included: the same as for HTTP/1.
	maxHeadBytes = 64 << 10
	// maxSettingsBytes bounds a client's first frame: what every server takes (section 4.2).
	maxSettingsBytes = 16 << 10
	// maxTableBytes is the largest dynamic table that a client may use, if the server offers it so much.
	maxTableBytes = 64 << 10
)

// Frame types and flags of RFC 9113 section 6.
const (
	frameHeaders      = 0x1
	frameSettings     = 0x4
	framePushPromise  = 0x5
	frameContinuation = 0x9

	flagEndHeaders = 0x4
	flagPadded     = 0x8
	flagPriority   = 0x20
)

var errStreams = errors.New("malformed HTTP/2")

// newStreams reads from the preface on, of which passed bytes have passed.
func newStreams(passed int) *streams {
	s := &streams{preface: max(0, prefaceBytes-passed)}
	s.decoder = hpack.NewDecoder(4096, s.field)
	s.decoder.SetAllowedMaxDynamicTableSize(maxTableBytes)
	s.decoder.SetMaxStringLength(maxHeadBytes)
	return s
}

func (s *streams) field(f hpack.HeaderField) {
	s.pseudo = s.pseudo || strings.HasPrefix(f.Name, ":")
	switch { // names in upper case are wrong, and may be forgiven
	case strings.EqualFold(f.Name, ":authority"):
		s.authority = f.Value
		s.named[0]++
	case strings.EqualFold(f.Name, "host"):
		s.host = f.Value
		s.named[1]++
	}
}

// next looks at b, the client's bytes that have not passed yet, of which the first pass bytes may pass now. If a
// request follows them, its authority is returned: it passes after [streams.accept].
func (s *streams) next(b []byte) (pass int, authority string, err error) {
	for {
		if n := min(s.preface+s.skip, len(b)-pass); n > 0 {
			pass += n
			fromPreface := min(n, s.preface)
			s.preface -= fromPreface
			s.skip -= n - fromPreface
		}
		rest := b[pass:]
		if s.judging > 0 || len(rest) < frameHeaderBytes {
			return pass, "", nil
		}
		size, kind := int(rest[0])<<16|int(rest[1])<<8|int(rest[2]), rest[3]
		if !s.began {
			// The client's preface ends with its settings (section 3.4). Text in their place is for a server that does not
			// speak HTTP/2, and would pass as the payload of a frame.
			if kind != frameSettings || size > maxSettingsBytes || binary.BigEndian.Uint32(rest[5:])&^(1<<31) != 0 {
				return pass, "", errStreams
			}
			s.began = true
		}
		switch kind {
		case frameHeaders:
			authority, whole, err := s.head(rest)
			if err != nil || !whole || authority != "" {
				return pass, authority, err
			}
			s.accept() // trailers
		case framePushPromise, frameContinuation:
			return pass, "", errStreams // not a client's to send, or not here
		default:
			s.skip = frameHeaderBytes + size
		}
	}
}

// accept lets the request pass that next has returned.
func (s *streams) accept() { s.skip, s.judging = s.judging, 0 }

// head reads a header block, which may take several frames, from the start of b, and reports whether it is whole.
// Trailers have no authority.
func (s *streams) head(b []byte) (authority string, whole bool, err error) {
	var block []byte
	stream, off := binary.BigEndian.Uint32(b[5:])&^(1<<31), 0
	for first := true; ; first = false {
		rest := b[off:]
		if len(rest) < frameHeaderBytes {
			return "", false, nil
		}
		size, kind, flags := int(rest[0])<<16|int(rest[1])<<8|int(rest[2]), rest[3], rest[4]
		if off+size > maxHeadBytes || !first && kind != frameContinuation ||
			binary.BigEndian.Uint32(rest[5:])&^(1<<31) != stream {
			return "", false, errStreams
		}
		if len(rest) < frameHeaderBytes+size {
			return "", false, nil
		}
		payload := rest[frameHeaderBytes : frameHeaderBytes+size]
		if first {
			if payload, err = fragment(payload, flags); err != nil {
				return "", false, err
			}
		}
		block = append(block, payload...)
		off += frameHeaderBytes + size
		if flags&flagEndHeaders != 0 {
			break
		}
	}
	s.authority, s.host, s.named, s.pseudo, s.judging = "", "", [2]int{}, false, off
	if _, err := s.decoder.Write(block); err != nil {
		return "", false, errStreams
	}
	if err := s.decoder.Close(); err != nil {
		return "", false, errStreams
	}
	if stream <= s.last { // of a stream that is open or was: trailers
		if s.pseudo || s.named != [2]int{} || stream == 0 {
			return "", false, errStreams // a request, for servers that take one with such a number
		}
		return "", true, nil
	}
	s.last = stream
	switch {
	case s.authority == "":
		s.authority = s.host
	case s.host != "" && !strings.EqualFold(s.host, s.authority):
		return "", false, errStreams // which of the two the server goes by cannot be known
	}
	if s.authority == "" || s.named[0] > 1 || s.named[1] > 1 {
		return "", false, errStreams
	}
	return s.authority, true, nil
}

// fragment takes padding and priority off the payload of HEADERS (section 6.2).
func fragment(payload []byte, flags byte) ([]byte, error) {
	padding := 0
	if flags&flagPadded != 0 {
		if len(payload) == 0 {
			return nil, errStreams
		}
		padding, payload = int(payload[0]), payload[1:]
	}
	if flags&flagPriority != 0 {
		if len(payload) < 5 {
			return nil, errStreams
		}
		payload = payload[5:]
	}
	if padding > len(payload) {
		return nil, errStreams
	}
	return payload[:len(payload)-padding], nil
}
