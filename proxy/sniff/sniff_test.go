package sniff

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"testing"
)

// player is a connection whose peer has sent these bytes and takes whatever is answered.
type player struct {
	net.Conn
	rest []byte
}

func (c *player) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
func (c *player) Write(b []byte) (int, error) { return len(b), nil }
func (c *player) Close() error                { return nil }

// cryptoTLS returns the name that a crypto/tls server takes from b, if it takes b for a ClientHello.
func cryptoTLS(b []byte) (name string, accepted bool) {
	config := &tls.Config{MinVersion: tls.VersionTLS10, GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		name, accepted = hello.ServerName, true
		return nil, errors.New("seen enough")
	}}
	_ = tls.Server(&player{rest: b}, config).Handshake()
	return name, accepted
}

// FuzzClassify checks that cutting the input changes nothing, that what follows a decision changes nothing, and that a
// crypto/tls server never takes a name from bytes for which we gave another answer than that name or Malformed.
func FuzzClassify(f *testing.F) {
	hello := capture(f, &tls.Config{ServerName: "ok.test"})
	small := message(sni("ok.test"))
	for _, seed := range [][]byte{
		hello,
		capture(f, &tls.Config{ServerName: "ok.test", MaxVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}),
		capture(f, &tls.Config{}),
		record(22, small),
		fragment(small, 1),
		fragment(small, 40),
		cat(record(21, []byte{1, 0}), hello),  // a warning first, which crypto/tls skips
		cat([]byte{22, 0, 0}, hello[3:]),      // a version that crypto/tls takes
		cat(record(22, nil), hello),           // an empty record
		record(22, cat(small, small)),         // two hellos in one record
		record(22, message(sni("192.0.2.1"))), // no host name
		record(22, message(sni("ok.test"), sni("evil.test"))),
		record(22, message(ext(0, v16(cat([]byte{0}, v16([]byte("ok.test")), []byte{1}, v16([]byte("x"))))))),
		record(22, message(sni("ok.test"), ext(0xfe0d, make([]byte, 50)), ext(43, []byte{2, 3, 4}), ext(42, nil))),
		{0x80, 0x2e, 1, 3, 1, 0, 21},
		[]byte(preface),
		[]byte("\r\n get http://ok.test/ http/1.1\r\n"),
		[]byte("GET /x\r\n"),
		[]byte("SSH-2.0-OpenSSH_9.6\r\n"),
		[]byte("SSH-2.0-x / HTTP/1.1\r\n"),
		[]byte("EHLO ok.test\r\n"),
		[]byte("PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n"),
		[]byte("\r\n\r\n\x00\r\nQUIT\n"),
		[]byte("\x30\x0c\x02\x01\x01"),
	} {
		f.Add(seed, uint16(7))
	}
	f.Fuzz(func(t *testing.T, b []byte, cut uint16) {
		whole := Classify(b, false)
		stepped := feed(t, b)
		check(t, stepped, whole)
		if stepped.Size != whole.Size {
			t.Fatalf("Size %d, fed by bytes %d", whole.Size, stepped.Size)
		}

		var s Sniffer
		n := int(cut) % (len(b) + 1)
		if r := s.Classify(b[:n:n], false); r.Kind == Incomplete {
			r = s.Classify(b, false)
			check(t, r, whole)
		} else {
			check(t, r, whole)
		}

		if whole.Kind == Incomplete {
			if r := Classify(b, true); r.Kind == Incomplete {
				t.Fatal("incomplete at the end of input")
			}
		}
		if whole.HasSNI && (whole.Kind != TLS || !isHostName(whole.ServerName)) {
			t.Fatalf("%+v", whole)
		}
		if name, ok := cryptoTLS(b); ok && !(whole.Kind == TLS && (whole.Malformed || string(whole.ServerName) == name)) {
			t.Fatalf("crypto/tls takes %q, we say %+v (%s)", name, whole, whole.ServerName)
		}
	})
}

// FuzzSecond checks that cutting the input changes nothing.
func FuzzSecond(f *testing.F) {
	hello := record(22, message(sni("ok.test")))
	f.Add(hello, false)
	f.Add(cat(record(20, []byte{1}), hello), false)
	f.Add(cat(record(23, []byte("early")), hello), true)
	f.Add(record(22, []byte{16, 0, 0, 0}), false)
	f.Fuzz(func(t *testing.T, b []byte, early bool) {
		passed, whole := watch(t, Result{EarlyData: early}, b, max(len(b), 1))
		steppedPassed, stepped := watch(t, Result{EarlyData: early}, b, 1)
		check(t, stepped, whole)
		if passed != steppedPassed {
			t.Fatalf("passed %d, in steps %d", passed, steppedPassed)
		}
	})
}

func TestNoAllocations(t *testing.T) {
	hello := capture(t, &tls.Config{ServerName: "ok.test"})
	request := []byte("GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n")
	banner := []byte("SSH-2.0-OpenSSH_9.6\r\n")
	greeting := []byte("EHLO ok.test\r\n")
	if n := testing.AllocsPerRun(100, func() {
		var s Sniffer
		s.Classify(hello[:600], false)
		s.Classify(hello, false)
		Classify(request, false)
		Classify(banner, false)
		Classify(greeting, false)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkClassify(b *testing.B) {
	hello := capture(b, &tls.Config{ServerName: "ok.test"})
	for _, row := range []struct {
		name string
		b    []byte
	}{
		{"hello", hello},
		{"hello-of-3-records", fragment(hello[recordHeader:], 600)},
		{"request", []byte("GET /some/path/that/is/not/short?with=a&query=string HTTP/1.1\r\nHost: ok.test\r\n\r\n")},
		{"ssh", []byte("SSH-2.0-OpenSSH_9.6 Debian-1\r\n")},
		{"postgres", []byte("\x00\x00\x00\x08\x04\xd2\x16\x2f")},
	} {
		b.Run(row.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				Classify(row.b, false)
			}
		})
	}
}

// The worst that a client can make of a connection: one call a byte, one record a byte.
func BenchmarkByteByByte(b *testing.B) {
	records := fragment(message(sni("ok.test"), ext(21, make([]byte, 13<<10))), 1)
	records = records[:len(records)-1]
	b.SetBytes(int64(len(records)))
	b.ReportAllocs()
	for b.Loop() {
		var s Sniffer
		for n := range records {
			s.Classify(records[:n], false)
		}
	}
}
