package sniff

import "encoding/binary"

// maxEarlyData is how much is let pass in search of a second ClientHello. Servers skip early data that they cannot
// read up to a limit of their own (16 KiB in OpenSSL and BoringSSL unless configured otherwise) and then give up.
const maxEarlyData = 1 << 20

// Second watches what a client sends behind its ClientHello for a second one, which a TLS 1.3 server asks for by a
// HelloRetryRequest (RFC 8446 §4.1.4). The two must name the same server, but OpenSSL serves the name of the second;
// whoever looks at the first alone lets a client through to any other name at that address.
//
// It is for connections with [Result.Retry]. Its zero value is ready once EarlyData is copied from the first
// hello's Result; it is for one connection and one goroutine at a time.
type Second struct {
	EarlyData bool

	skip   int // bytes of a record that is let pass, still to come
	passed int
	hello  Sniffer
	found  bool // b begins with the second hello
}

// Next judges b: the client's bytes behind the first hello that the caller has not forwarded yet. The first pass bytes
// may be forwarded now and must be left out of the next call's b. Of the rest, the result says:
//
//   - Incomplete: hold it back, read more, ask again
//   - TLS: a second hello, to be judged like the first; the watch is over
//   - Other: there is none and none can follow; forward everything; the watch is over
//
// In an ordinary handshake the client's next read decides: it is Other at the first byte of its Finished message.
func (t *Second) Next(b []byte, eof bool) (pass int, r Result) {
	for !t.found {
		if n := min(t.skip, len(b)-pass); n > 0 {
			pass += n
			t.skip -= n
			t.passed += n
		}
		rest := b[pass:]
		if t.passed > maxEarlyData || eof && len(rest) < recordHeader+1 {
			return pass, Result{Kind: Other}
		}
		if len(rest) == 0 {
			return pass, Result{Need: 1}
		}
		switch typ := rest[0]; {
		case typ == recordHandshake:
			if len(rest) < recordHeader+1 {
				return pass, Result{Need: recordHeader + 1}
			}
			if binary.BigEndian.Uint16(rest[3:]) == 0 {
				return pass, malformedTLS // OpenSSL goes on to the next record
			}
			if rest[recordHeader] != clientHello {
				return pass, Result{Kind: Other}
			}
			t.found = true
		case typ == recordFirst, typ == recordAlert, typ == recordData && t.EarlyData:
			if len(rest) < recordHeader {
				return pass, Result{Need: recordHeader}
			}
			t.skip = recordHeader + int(binary.BigEndian.Uint16(rest[3:]))
		default:
			return pass, Result{Kind: Other}
		}
	}
	return pass, t.hello.Classify(b[pass:], eof)
}
