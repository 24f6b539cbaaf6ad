package dnswire

import (
	"strings"
	"testing"
)

// message is a header with one question and an answer, then raw.
func message(raw string) []byte {
	return []byte("\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00" + raw)
}

func TestReadQuestion(t *testing.T) {
	label := "\x3f" + strings.Repeat("a", 63)
	tests := []struct {
		name, raw string
		nameLen   int // 0: refused
	}{
		{"plain", "\x02ok\x04test\x00\x00\x01\x00\x01", 9},
		{"root", "\x00\x00\x02\x00\x01", 1},
		{"longest", strings.Repeat(label, 3) + "\x3d" + strings.Repeat("a", 61) + "\x00\x00\x01\x00\x01", 255},
		{"too-long", strings.Repeat(label, 3) + "\x3e" + strings.Repeat("a", 62) + "\x00\x00\x01\x00\x01", 0},
		{"long-label", "\x40" + strings.Repeat("a", 64) + "\x00\x00\x01\x00\x01", 0},
		{"pointer", "\xc0\x0c\x00\x01\x00\x01", 0},
		{"cut-in-name", "\x02ok\x04te", 0},
		{"cut-before-type", "\x02ok\x00\x00\x01\x00", 0},
		{"empty", "", 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			msg := message(tt.raw)
			q, ok := ReadQuestion(msg)
			if ok != (tt.nameLen > 0) || ok && (q.NameLen != tt.nameLen || q.End != len(msg) || q.Class != ClassIN) {
				t.Errorf("got %+v, %v; want a name of %d bytes", q, ok, tt.nameLen)
			}
		})
	}
	two := message("\x00\x00\x02\x00\x01\x00\x00\x02\x00\x01")
	SetCount(two, 0, 2)
	if _, ok := ReadQuestion(two); ok {
		t.Error("two questions are read as one")
	}
}

func TestReadName(t *testing.T) {
	tests := []struct {
		name, raw string
		off       int // behind the header
		want      string
		ok        bool
	}{
		{"plain", "\x02OK\x04test\x00", 0, "ok.test", true},
		{"root", "\x00", 0, "", true},
		{"pointer", "\x04test\x00\x02ok\xc0\x0c", 6, "ok.test", true},
		{"pointer-to-itself", "\xc0\x0c", 0, "", false},
		{"pointer-loop", "\x01a\xc0\x10\x01b\xc0\x0c", 4, "", false},
		{"pointer-forwards", "\xc0\x0e\x00", 0, "", false},
		{"pointer-into-header", "\xc0\x00", 0, "", false},
		{"pointers-only", "\x00\xc0\x0c" + pointers(200), 401, "", false},
		{"pointer-cut", "\xc0", 0, "", false},
		{"dot-in-label", "\x04a.ok\x04test\x00", 0, "", false},
		{"nul-in-label", "\x03a\x00b\x00", 0, "", false},
		{"reserved-label", "\x80a\x00", 0, "", false},
		{"cut", "\x05ab", 0, "", false},
		{"no-end", "\x02ab", 0, "", false},
		{"too-long", strings.Repeat("\x3f"+strings.Repeat("a", 63), 4) + "\x00", 0, "", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := ReadName(nil, message(tt.raw), HeaderLen+tt.off)
			if ok != tt.ok || ok && string(got) != tt.want {
				t.Errorf("got %q, %v; want %q, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// pointers are n pointers, each to the one before; they begin at offset 15.
func pointers(n int) string {
	var b strings.Builder
	for i := range n {
		to := 13 + 2*i
		b.WriteByte(0xc0 | byte(to>>8))
		b.WriteByte(byte(to))
	}
	return b.String()
}

func TestSameQuestion(t *testing.T) {
	const want = "\x02ok\x04test\x00\x00\x41\x00\x01" // type 65: its low byte is the letter 'A'
	tests := []struct {
		name, got string
		same      bool
	}{
		{"same", want, true},
		{"case", "\x02oK\x04TeSt\x00\x00\x41\x00\x01", true},
		{"name", "\x02no\x04test\x00\x00\x41\x00\x01", false},
		{"type-is-not-folded", "\x02ok\x04test\x00\x00\x61\x00\x01", false},
		{"class", "\x02ok\x04test\x00\x00\x41\x00\x03", false},
		{"shorter", want[:len(want)-1], false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := SameQuestion([]byte(tt.got), []byte(want)); got != tt.same {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestReadRecord(t *testing.T) {
	const rr = "\xc0\x0c\x00\x01\x00\x01\x00\x00\x01\x2c\x00\x04\xc0\x00\x02\x01"
	msg := message("\x02ok\x00\x00\x01\x00\x01" + rr)
	const off = HeaderLen + 8
	r, ok := ReadRecord(msg, off)
	if !ok || r.Type != TypeA || r.Class != ClassIN || r.End != len(msg) || Seconds(msg, r) != 300 || msg[r.Data] != 192 {
		t.Errorf("got %+v, %v", r, ok)
	}
	msg[r.TTL] = 0x80
	if ttl := Seconds(msg, r); ttl != 0 {
		t.Errorf("a TTL with the top bit set counts as %d", ttl)
	}
	for cut := off; cut < len(msg); cut++ {
		if _, ok := ReadRecord(msg[:cut], off); ok {
			t.Errorf("a record cut at %d is read", cut)
		}
	}
}

func FuzzReadName(f *testing.F) {
	f.Add(message("\x04test\x00\x02ok\xc0\x0c"), 18)
	f.Add(message("\xc0\x0e\xc0\x0c"), 12)
	f.Fuzz(func(t *testing.T, msg []byte, off int) {
		if off < 0 {
			return
		}
		if name, ok := ReadName(nil, msg, off); ok && len(name) > MaxName-2 {
			t.Errorf("name of %d bytes", len(name))
		}
		if end, ok := SkipName(msg, off); ok && end > len(msg) {
			t.Errorf("end %d of %d", end, len(msg))
		}
		ReadRecord(msg, off)
		ReadQuestion(msg)
	})
}
