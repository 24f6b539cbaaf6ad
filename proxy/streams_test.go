package proxy

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// session2 writes what an HTTP/2 client sends.
type session2 struct {
	bytes.Buffer
	framer  *http2.Framer
	encoder *hpack.Encoder
	block   bytes.Buffer
}

func newSession2() *session2 {
	s := new(session2)
	s.WriteString(http2.ClientPreface)
	s.framer = http2.NewFramer(&s.Buffer, nil)
	s.framer.AllowIllegalWrites = true
	s.encoder = hpack.NewEncoder(&s.block)
	_ = s.framer.WriteSettings()
	return s
}

func (s *session2) fields(fields ...string) []byte {
	s.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = s.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return bytes.Clone(s.block.Bytes())
}

func (s *session2) request(stream uint32, authority string) {
	_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, EndHeaders: true, PadLength: 3,
		Priority:      http2.PriorityParam{Weight: 5},
		BlockFragment: s.fields(":method", "GET", ":scheme", "http", ":path", "/", ":authority", authority)})
}

// http2Request is all that a client of HTTP/2 sends for a request.
func http2Request(authority string) string {
	s := newSession2()
	s.request(1, authority)
	return s.String()
}

// readStreams feeds b to a reader, so many bytes at a time, and returns the authorities and the bytes that passed.
func readStreams(b []byte, step int) (authorities []string, passed []byte, err error) {
	s := newStreams(0)
	var waiting []byte
	for len(b) > 0 || len(waiting) > 0 {
		n := min(step, len(b))
		waiting, b = append(waiting, b[:n]...), b[n:]
		for {
			pass, authority, err := s.next(waiting)
			passed = append(passed, waiting[:pass]...)
			waiting = waiting[pass:]
			if err != nil {
				return authorities, passed, err
			}
			if authority == "" {
				break
			}
			authorities = append(authorities, authority)
			s.accept()
		}
		if n == 0 {
			break
		}
	}
	return authorities, passed, nil
}

func TestStreams(t *testing.T) {
	s := newSession2()
	s.request(1, "a.test")
	_ = s.framer.WriteData(1, false, bytes.Repeat([]byte("x"), 20000))
	_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true, BlockFragment: s.fields("trailer", "y")})
	_ = s.framer.WritePing(false, [8]byte{})
	s.request(3, "b.test:8080") // from the dynamic table
	block := s.fields(":method", "POST", ":scheme", "http", ":path", "/long", ":authority", "c.test", "x", strings.Repeat("z", 5000))
	_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: block[:10]})
	_ = s.framer.WriteContinuation(5, false, block[10:20])
	_ = s.framer.WriteContinuation(5, true, block[20:])
	_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 7, EndHeaders: true,
		BlockFragment: s.fields(":method", "GET", ":scheme", "http", ":path", "/", "host", "d.test")})
	_ = s.framer.WriteGoAway(0, http2.ErrCodeNo, nil)
	all := bytes.Clone(s.Bytes())
	for _, step := range []int{1, 2, 9, 10, 100, len(all)} {
		got, passed, err := readStreams(all, step)
		if want := []string{"a.test", "b.test:8080", "c.test", "d.test"}; err != nil || !slices.Equal(got, want) {
			t.Errorf("by %d bytes: %q, %v; want %q", step, got, err, want)
		}
		if !bytes.Equal(passed, all) {
			t.Errorf("by %d bytes: %d of %d bytes passed, or others", step, len(passed), len(all))
		}
	}
}

// Nothing of a request passes before it is accepted.
func TestStreamsHoldRequestBack(t *testing.T) {
	s := newSession2()
	before := s.Len()
	s.request(1, "a.test")
	_ = s.framer.WriteData(1, true, []byte("body"))
	reader := newStreams(0)
	pass, authority, err := reader.next(s.Bytes())
	if pass != before || authority != "a.test" || err != nil {
		t.Fatalf("%d, %q, %v; want %d and the authority", pass, authority, err, before)
	}
	if pass, authority, err := reader.next(s.Bytes()[before:]); pass != 0 || authority != "" || err != nil {
		t.Errorf("unaccepted: %d, %q, %v", pass, authority, err)
	}
	reader.accept()
	if pass, _, err := reader.next(s.Bytes()[before:]); pass != s.Len()-before || err != nil {
		t.Errorf("accepted: %d, %v; want %d", pass, err, s.Len()-before)
	}
}

func TestStreamsRefuse(t *testing.T) {
	for name, write := range map[string]func(s *session2){
		"no-authority": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, BlockFragment: s.fields(":method", "GET")})
		},
		"two-authorities": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true,
				BlockFragment: s.fields(":authority", "a.test", ":authority", "a.test", "host", "a.test")})
		},
		"two-authorities-no-host": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true,
				BlockFragment: s.fields(":authority", "b.test", ":authority", "a.test")})
		},
		"two-hosts": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true,
				BlockFragment: s.fields("host", "b.test", "host", "a.test")})
		},
		"authority-and-other-host-in-upper-case": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true,
				BlockFragment: s.fields(":authority", "a.test", "Host", "b.test")})
		},
		"authority-and-other-host": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true,
				BlockFragment: s.fields(":authority", "a.test", "host", "b.test")})
		},
		"text-behind-the-preface": func(s *session2) {
			s.Truncate(len(http2.ClientPreface))
			s.WriteString("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		},
		"blank-lines-behind-the-preface": func(s *session2) {
			s.Truncate(len(http2.ClientPreface))
			s.WriteString("\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n")
		},
		"no-settings": func(s *session2) {
			s.Truncate(len(http2.ClientPreface))
			s.request(1, "a.test")
		},
		"request-as-trailers": func(s *session2) {
			s.request(3, "ok.test")
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true,
				BlockFragment: s.fields(":method", "GET", ":scheme", "http", ":path", "/")})
		},
		"no-stream": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 0, EndHeaders: true, BlockFragment: s.fields("x", "y")})
		},
		"authority-in-trailers": func(s *session2) {
			s.request(1, "a.test")
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, BlockFragment: s.fields(":authority", "b.test")})
		},
		"stray-continuation": func(s *session2) { _ = s.framer.WriteContinuation(1, true, s.fields(":authority", "a.test")) },
		"other-frame-in-block": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.fields(":authority", "a.test")})
			_ = s.framer.WritePing(false, [8]byte{})
		},
		"other-stream-in-block": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: s.fields(":authority", "a.test")})
			_ = s.framer.WriteContinuation(3, true, s.fields("x", "y"))
		},
		"push": func(s *session2) {
			_ = s.framer.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true, BlockFragment: s.fields(":authority", "a.test")})
		},
		"bad-block": func(s *session2) {
			_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}})
		},
		"too-large": func(s *session2) {
			for i := range 6 {
				if i == 0 {
					_ = s.framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: make([]byte, 16000)})
				}
				_ = s.framer.WriteContinuation(1, false, make([]byte, 16000))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSession2()
			write(s)
			for _, step := range []int{7, s.Len()} {
				if got, _, err := readStreams(s.Bytes(), step); err == nil {
					t.Errorf("accepted, with authorities %q", got)
				}
			}
		})
	}
}

// However the bytes come, the same authorities are seen, nothing passes twice, and nothing panics.
func FuzzStreams(f *testing.F) {
	s := newSession2()
	s.request(1, "a.test")
	_ = s.framer.WriteData(1, true, []byte("body"))
	s.request(3, "b.test")
	f.Add(bytes.Clone(s.Bytes()), 3)
	f.Add([]byte(http2.ClientPreface), 1)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		if step < 1 || step > len(b) {
			return
		}
		whole, passedWhole, errWhole := readStreams(b, max(len(b), 1))
		parts, passedParts, errParts := readStreams(b, step)
		if errWhole == nil && errParts == nil && (!slices.Equal(whole, parts) || !bytes.Equal(passedWhole, passedParts)) {
			t.Errorf("whole: %q and %d bytes; by %d: %q and %d", whole, len(passedWhole), step, parts, len(passedParts))
		}
		if (errWhole == nil) != (errParts == nil) {
			t.Errorf("whole: %v; by %d: %v", errWhole, step, errParts)
		}
		if !bytes.HasPrefix(b, passedWhole) {
			t.Error("other bytes passed than came")
		}
	})
}
