// Package audit writes a line of JSON for every decision, without ever holding up whoever decided.
package audit

import (
	"net/netip"
	"strconv"
	"time"
	"unicode/utf8"
)

// Record is one decision: a connection when it is refused or ends, or a DNS query. Fields with their zero value
// are left out of the line, but for Time.
type Record struct {
	Time        time.Time // when the decision was made
	Container   string    // name, empty when the proxy stands alone
	ContainerID string
	Phase       string
	Generation  uint64 // of the rule set that decided
	Protocol    string // "connect", "http", "dns", …
	Target      string // host name or address as asked for; it may be hostile
	Port        uint16
	Address     netip.Addr // what was dialled, if anything was
	Verdict     string
	Reason      string
	Rule        string // the target of the policy that decided
	Decision    string // the id that the refused client was told
	BytesIn     uint64 // from the network to the client
	BytesOut    uint64 // from the client to the network
	Took        time.Duration
}

// maxText is how many bytes of a field are written; more than any valid host name, rule or id has.
const maxText = 512

// AppendJSON appends the record as one JSON object without a line end. The output is printable ASCII, whatever the
// fields hold: other characters are escaped, invalid UTF-8 becomes U+FFFD, and a field is cut after 512 bytes.
func (r *Record) AppendJSON(b []byte) []byte {
	b = append(b, `{"time":"`...)
	b = r.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, '"')
	b = appendText(b, `,"container":"`, r.Container)
	b = appendText(b, `,"container_id":"`, r.ContainerID)
	b = appendText(b, `,"phase":"`, r.Phase)
	b = appendNumber(b, `,"generation":`, r.Generation)
	b = appendText(b, `,"protocol":"`, r.Protocol)
	b = appendText(b, `,"target":"`, r.Target)
	b = appendNumber(b, `,"port":`, uint64(r.Port))
	if r.Address.IsValid() {
		b = append(b, `,"address":"`...)
		b = r.Address.WithZone("").AppendTo(b)
		b = append(b, '"')
	}
	b = appendText(b, `,"verdict":"`, r.Verdict)
	b = appendText(b, `,"reason":"`, r.Reason)
	b = appendText(b, `,"rule":"`, r.Rule)
	b = appendText(b, `,"decision":"`, r.Decision)
	b = appendNumber(b, `,"bytes_in":`, r.BytesIn)
	b = appendNumber(b, `,"bytes_out":`, r.BytesOut)
	if us := r.Took.Microseconds(); us > 0 {
		b = strconv.AppendInt(append(b, `,"ms":`...), us/1000, 10)
		if us %= 1000; us > 0 {
			b = append(b, '.', byte('0'+us/100), byte('0'+us/10%10), byte('0'+us%10))
		}
	}
	return append(b, '}')
}

// appendLost appends the object that stands for n records that were lost before it.
func appendLost(b []byte, now time.Time, n uint64) []byte {
	b = append(b, `{"time":"`...)
	b = now.UTC().AppendFormat(b, time.RFC3339Nano)
	b = appendNumber(append(b, '"'), `,"lost":`, n)
	return append(b, '}')
}

func appendNumber(b []byte, key string, n uint64) []byte {
	if n == 0 {
		return b
	}
	return strconv.AppendUint(append(b, key...), n, 10)
}

// appendText appends key, which ends in a quote, and s with the closing one.
func appendText(b []byte, key, s string) []byte {
	if s == "" {
		return b
	}
	b = append(b, key...)
	s = s[:min(len(s), maxText)]
	clean := 0 // s[:clean] needs no escape
	for clean < len(s) && isPlain(s[clean]) {
		clean++
	}
	b = append(b, s[:clean]...)
	for s = s[clean:]; s != ""; {
		if isPlain(s[0]) {
			b = append(b, s[0])
			s = s[1:]
			continue
		}
		c, size := utf8.DecodeRuneInString(s)
		s = s[size:]
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', byte(c))
		case c > 0xffff: // as a surrogate pair
			c -= 0x10000
			b = appendEscape(b, 0xd800+c>>10)
			b = appendEscape(b, 0xdc00+c&0x3ff)
		default:
			b = appendEscape(b, c)
		}
	}
	return append(b, '"')
}

func isPlain(c byte) bool { return c >= ' ' && c < 0x7f && c != '"' && c != '\\' }

func appendEscape(b []byte, c rune) []byte {
	const hex = "0123456789abcdef"
	return append(b, '\\', 'u', hex[c>>12], hex[c>>8&15], hex[c>>4&15], hex[c&15])
}
