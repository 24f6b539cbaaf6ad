// Package sniff tells from a client's first bytes which protocol it speaks and, for TLS, which name it asks for.
//
// It does no I/O. The caller collects what the client sends in one buffer and asks after every read. While the answer
// is [Incomplete], it holds back what may become a ClientHello; text it may pass on as it comes, but for what
// [Result.Hold] says, because no server acts on a request whose first line has not ended. The answer depends on the shortest prefix that decides: neither the
// way the bytes were cut into reads nor what follows that prefix changes it. Bytes that can become neither TLS
// nor HTTP are [Other] at the first byte that shows it.
//
// What a lenient server would still take for TLS or HTTP must not come out as Other, because Other is judged more
// loosely. Where such input is not worth serving, the answer is TLS or HTTP1 with [Result.Malformed], and the
// caller refuses. See [Sniffer.Classify] for what that means byte by byte.
package sniff

// Kind is what the first bytes are. Its zero value is [Incomplete].
type Kind uint8

const (
	Incomplete Kind = iota // more bytes are needed
	TLS                    // a TLS ClientHello, or an attempt at one
	HTTP1                  // a request line, or an attempt at one; the requests themselves are not checked here
	HTTP2                  // the connection preface of RFC 9113 §3.4 ("prior knowledge")
	SSH                    // an identification string, RFC 4253 §4.2
	Other                  // nothing of these
)

// String returns the kind as logs and metrics show it.
func (k Kind) String() string {
	switch k {
	case TLS:
		return "tls"
	case HTTP1:
		return "http"
	case HTTP2:
		return "http2"
	case SSH:
		return "ssh"
	case Other:
		return "other"
	default:
		return "incomplete"
	}
}

// Limits of what is looked at. Beyond them the answer is never Incomplete.
const (
	// MaxHello is the largest ClientHello, in bytes of handshake message. It is what crypto/tls accepts; hellos
	// with post-quantum key shares have some 2 KiB, or 18 KiB with the largest parameters in use.
	MaxHello = 64 << 10
	// MaxBytes is the size at which a buffer always suffices: MaxHello and room for record headers. A hello
	// in records of one byte each takes six times its size, so at most some 13 KiB of that kind are accepted.
	MaxBytes = 80 << 10
	// MaxLine is how far the end of an HTTP request line is looked for, blank lines before it included. A longer
	// line is HTTP1 without having been seen whole; the parser of requests has its own limit.
	MaxLine = 8 << 10
)

// Result is what is known of a connection. Its zero value asks for more bytes.
type Result struct {
	Kind Kind
	// Malformed marks TLS or HTTP1 that breaks its protocol in a way a lenient server may forgive. It must be refused.
	Malformed bool
	// HasSNI is set when ServerName is; TLS that is neither this nor Malformed names no server.
	HasSNI bool
	// ECH is set when the ClientHello carries an Encrypted Client Hello (RFC 9849), its ESNI forerunner, or a GREASE of
	// it, which looks the same. ServerName is then the outer, public one.
	ECH bool
	// Retry is set when the ClientHello offers TLS 1.3, whose servers may ask for a second one: see [Second].
	Retry bool
	// EarlyData is set when the client announces data behind the ClientHello, before the server's answer.
	EarlyData bool
	// ProxyHeader marks Other bytes that begin a PROXY protocol header (version 1 or 2), by which a client could
	// tell a server that believes it any source address, and hide the protocol of what follows.
	ProxyHeader bool
	// ServerName is the host name as sent: letters, digits, "-", "_" and dots, labels of 1 to 63 bytes, at most 253 in
	// all, not an address, no dot at the end, case unchanged. It aliases the input, or is a copy if records cut it.
	ServerName []byte
	// Size is how many bytes a ClientHello takes with its record headers; 0 if it is of SSLv2 or Malformed.
	Size int
	// Hold is set with Incomplete if the last byte must wait although it is text: it may be all that ends a request
	// line.
	Hold bool
	// Need is set with Incomplete, to at most MaxBytes: asking again with fewer bytes in the buffer gains nothing.
	Need int
}

// Classify judges b, all bytes so far, at once. It is [Sniffer.Classify] on a new Sniffer.
func Classify(b []byte, eof bool) Result {
	var s Sniffer
	return s.Classify(b, eof)
}

// Sniffer remembers how far it has looked, so that the cost of all calls for a connection together is linear in
// its bytes, however they arrive. Its zero value is ready; it is for one connection and one goroutine at a time.
type Sniffer struct {
	pos   int // everything before was looked at; in TLS the start of a record
	start int // where the line begins, once a byte that is not white space was seen
	text  textState
	bare  bool // there was a CR in the line without LF behind it
	// In TLS, what the records before pos held: bytes of handshake, and the length field as far as it is known.
	handshake, helloLen int
}

// Classify judges b: all bytes of the connection so far, so each call's b begins with that of the call before.
// eof says that no more will come; the answer is then never Incomplete. Once it is not Incomplete, it is final.
//
// The first byte separates the three families:
//
//   - 0x14..0x18 may be a TLS record. Any number of records up to MaxBytes may carry the hello. Malformed are: a first
//     record or message of another type, empty and oversized records, a major version other than 3 (crypto/tls
//     accepts those), wrong lengths anywhere, more bytes in the hello's last record, and a server name that is
//     repeated, of an unknown type, or not as [Result.ServerName] says.
//   - 0x80..0xc0 may be an SSLv2-compatible ClientHello (RFC 5246 appendix E.2), which is TLS without a server name.
//   - White space or a character of a method may begin a request line. White space before it is skipped, and any white
//     space separates words, as RFC 9112 §3 lets servers do. The line is HTTP1 if a word after the first begins with
//     "HTTP/" in any case, so an SMTP greeting or Redis command is Other at its line feed. A line whose second word
//     is a path or an http URL without that is Malformed: it is what HTTP/0.9 looks like. A control byte in the line
//     is Malformed after a method of three or more letters and Other after anything else.
//
// Everything else is Other. A client that sends white space only, or a single word without a line feed, and waits
// for an answer, stays Incomplete.
func (s *Sniffer) Classify(b []byte, eof bool) Result {
	if len(b) == 0 {
		if eof {
			return Result{Kind: Other}
		}
		return Result{Need: 1}
	}
	switch c := b[0]; {
	case c >= recordFirst && c <= recordLast:
		return s.records(b, eof)
	case c >= v2First && c <= v2Last:
		return v2Hello(b, eof)
	default:
		return s.line(b, eof)
	}
}
