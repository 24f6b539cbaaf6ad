package sniff

import (
	"bytes"
	"encoding/binary"
)

// RFC 8446 §5.1 and §4, IANA "TLS ExtensionType Values".
const (
	recordFirst     = 0x14 // change_cipher_spec
	recordAlert     = 0x15
	recordHandshake = 0x16
	recordData      = 0x17
	recordLast      = 0x18 // heartbeat

	v2First = 0x80 // high byte of a record's length in SSLv2, which has this bit set
	v2Last  = 0xc0 // the same, of the longest that OpenSSL accepts

	recordHeader    = 5
	maxPlaintext    = 1 << 14
	maxCiphertext   = maxPlaintext + 2048 // RFC 5246 §6.2.3
	handshakeHeader = 4
	clientHello     = 1

	extServerName        = 0
	extEarlyData         = 42
	extSupportedVersions = 43
	extECH               = 0xfe0d
	extESNI              = 0xffce // drafts of ECH before its name
)

var malformedTLS = Result{Kind: TLS, Malformed: true}

// records walks the records from s.pos on until they hold a whole ClientHello.
func (s *Sniffer) records(b []byte, eof bool) Result {
	if r, ok := firstRecord(b); !ok {
		if r.Kind == Incomplete && eof {
			r = truncatedTLS(b)
		}
		return r
	}
	for {
		if end := s.pos + recordHeader; len(b) < end {
			return incompleteTLS(end, eof)
		}
		header, data := b[s.pos:s.pos+recordHeader], b[s.pos+recordHeader:]
		size := int(binary.BigEndian.Uint16(header[3:]))
		if header[0] != recordHandshake || header[1] != 3 || size == 0 || size > maxPlaintext {
			return malformedTLS
		}
		data = data[:min(size, len(data))]

		length := s.helloLen
		for i := s.handshake; i < handshakeHeader && i-s.handshake < len(data); i++ {
			c := data[i-s.handshake]
			if i == 0 {
				if c != clientHello {
					return malformedTLS
				}
				continue
			}
			length = length<<8 | int(c)
		}
		missing := handshakeHeader - s.handshake // of the message, at the start of this record
		known := s.handshake+len(data) >= handshakeHeader
		if known {
			missing += length
		}
		end := s.pos + recordHeader + min(size, missing)
		switch {
		case end > MaxBytes, known && length > MaxHello-handshakeHeader:
			return malformedTLS
		case known && missing < size: // nothing may follow a hello before the server has answered
			return malformedTLS
		case len(data) < size:
			return incompleteTLS(end, eof)
		case known && missing == size:
			r := s.hello(b, data)
			if !r.Malformed {
				r.Size = end
			}
			return r
		}
		s.pos += recordHeader + size
		s.handshake += size
		s.helloLen = length
	}
}

// firstRecord looks at what the beginning alone shows. It is not ok if that decides or if more bytes are needed.
func firstRecord(b []byte) (r Result, ok bool) {
	typ := b[0]
	if len(b) < 2 {
		return Result{Need: 2}, false
	}
	// crypto/tls takes a handshake or warning alert of any version below 16.0 for a start.
	major := b[1]
	lenient := major < 0x10 && (typ == recordHandshake || typ == recordAlert)
	if major != 3 && !lenient {
		return Result{Kind: Other}, false
	}
	if typ == recordHandshake && major == 3 {
		return Result{}, true
	}
	need := recordHeader
	if typ == recordHandshake {
		need++
	}
	if len(b) < need {
		return Result{Need: need}, false
	}
	size := binary.BigEndian.Uint16(b[3:])
	switch {
	case major == 3 && size <= maxCiphertext,
		typ == recordAlert && size == 2,
		typ == recordHandshake && b[5] == clientHello:
		return malformedTLS, false
	}
	return Result{Kind: Other}, false
}

// incompleteTLS asks for need bytes, if they can still come.
func incompleteTLS(need int, eof bool) Result {
	if eof || need > MaxBytes {
		return malformedTLS
	}
	return Result{Need: need}
}

// truncatedTLS judges a connection that ended within its first record header.
func truncatedTLS(b []byte) Result {
	if len(b) > 1 && b[1] == 3 {
		return malformedTLS
	}
	return Result{Kind: Other}
}

// hello parses the ClientHello that ends with data, the current record's.
func (s *Sniffer) hello(b, data []byte) Result {
	if s.handshake == 0 { // all in one record, as nearly every client sends it
		return parseHello(data[handshakeHeader:])
	}
	message := make([]byte, 0, s.handshake+len(data))
	for pos := 0; pos < s.pos; {
		size := int(binary.BigEndian.Uint16(b[pos+3:]))
		pos += recordHeader
		message = append(message, b[pos:pos+size]...)
		pos += size
	}
	message = append(message, data...)
	r := parseHello(message[handshakeHeader:])
	r.ServerName = bytes.Clone(r.ServerName) // let go of the message
	return r
}

// parseHello reads the body of a ClientHello, RFC 8446 §4.1.2.
func parseHello(body []byte) Result {
	p := parser{body}
	version, ok1 := p.take(2)
	_, ok2 := p.take(32) // random
	session, ok3 := p.vector8()
	ciphers, ok4 := p.vector16()
	compression, ok5 := p.vector8()
	if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 ||
		version[0] != 3 || len(session) > 32 || len(ciphers) == 0 || len(ciphers)%2 != 0 || len(compression) == 0 {
		return malformedTLS
	}
	r := Result{Kind: TLS}
	if len(p.rest) == 0 {
		return r // before TLS 1.2 there need not be extensions
	}
	extensions, ok := p.vector16()
	if !ok || len(p.rest) != 0 {
		return malformedTLS
	}
	p.rest = extensions
	for len(p.rest) > 0 {
		typ, ok1 := p.take(2)
		data, ok2 := p.vector16()
		if !ok1 || !ok2 {
			return malformedTLS
		}
		switch binary.BigEndian.Uint16(typ) {
		case extServerName:
			if r.HasSNI {
				return malformedTLS
			}
			r.ServerName, r.HasSNI = serverName(data)
			if !r.HasSNI {
				return malformedTLS
			}
		case extECH, extESNI:
			r.ECH = true
		case extSupportedVersions:
			r.Retry = true
		case extEarlyData:
			r.EarlyData = true
		}
	}
	return r
}

// serverName reads a server_name extension, RFC 6066 §3. It accepts exactly one entry, a host name.
func serverName(data []byte) (name []byte, ok bool) {
	p := parser{data}
	list, ok := p.vector16()
	if !ok || len(p.rest) != 0 || len(list) == 0 || list[0] != 0 {
		return nil, false
	}
	p.rest = list[1:]
	name, ok = p.vector16()
	return name, ok && len(p.rest) == 0 && isHostName(name)
}

// isHostName reports whether name is as [Result.ServerName] says.
func isHostName(name []byte) bool {
	if len(name) > 253 {
		return false
	}
	label, digits := 0, true
	for _, c := range name {
		switch class[c] & (classLabel | classDigit) {
		case classLabel:
			digits = false
			label++
		case classLabel | classDigit:
			label++
		default:
			if c != '.' || label == 0 {
				return false
			}
			label, digits = 0, true
		}
		if label > 63 {
			return false
		}
	}
	return label > 0 && !digits // a last label of digits makes an IPv4 address
}

// v2Hello judges bytes that may be an SSLv2-compatible ClientHello: a two-byte header with the length, the message
// type and the version asked for, 3.x or 0.2. OpenSSL answers those still.
func v2Hello(b []byte, eof bool) Result {
	switch {
	case len(b) > 2 && b[2] != clientHello,
		len(b) > 3 && b[3] != 3 && b[3] != 0,
		len(b) > 4 && b[3] == 0 && b[4] != 2:
		return Result{Kind: Other}
	case len(b) > 4:
		return Result{Kind: TLS}
	case eof:
		return Result{Kind: Other}
	}
	return Result{Need: len(b) + 1}
}

// parser takes fields off the front of rest. A field that is longer than rest leaves it as it is.
type parser struct{ rest []byte }

func (p *parser) take(n int) (field []byte, ok bool) {
	if len(p.rest) < n {
		return nil, false
	}
	field, p.rest = p.rest[:n], p.rest[n:]
	return field, true
}

// vector8 takes a field that follows its length in one byte.
func (p *parser) vector8() (field []byte, ok bool) {
	n, ok := p.take(1)
	if !ok {
		return nil, false
	}
	return p.take(int(n[0]))
}

// vector16 takes a field that follows its length in two bytes.
func (p *parser) vector16() (field []byte, ok bool) {
	n, ok := p.take(2)
	if !ok {
		return nil, false
	}
	return p.take(int(binary.BigEndian.Uint16(n)))
}
