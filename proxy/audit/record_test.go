package audit

import (
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

var full = Record{
	Time: time.Date(2026, 1, 2, 3, 4, 5, 678900000, time.FixedZone("", 3600)), Container: "web", ContainerID: "0123abcd",
	Phase: "run", Generation: 3, Protocol: "connect", Target: "ok.test", Port: 443,
	Address: netip.MustParseAddr("203.0.113.9"), Verdict: "allow", Reason: "name-rule", Rule: "*.test", Decision: "d-1",
	BytesIn: 1 << 40, BytesOut: 12, Took: 1234567 * time.Nanosecond,
}

func TestAppendJSON(t *testing.T) {
	for _, row := range []struct {
		name   string
		record Record
		want   string
	}{
		{"full", full, `{"time":"2026-01-02T02:04:05.6789Z","container":"web","container_id":"0123abcd","phase":"run",` +
			`"generation":3,"protocol":"connect","target":"ok.test","port":443,"address":"203.0.113.9","verdict":"allow",` +
			`"reason":"name-rule","rule":"*.test","decision":"d-1","bytes_in":1099511627776,"bytes_out":12,"ms":1.234}`},
		{"nothing-but-time", Record{Time: full.Time}, `{"time":"2026-01-02T02:04:05.6789Z"}`},
		{"ipv6", Record{Address: netip.MustParseAddr("2001:db8::1")}, `{"time":"0001-01-01T00:00:00Z","address":"2001:db8::1"}`},
		{"zone", Record{Address: netip.MustParseAddr("fe80::1").WithZone("\"\n")}, `{"time":"0001-01-01T00:00:00Z","address":"fe80::1"}`},
		{"whole-ms", Record{Took: 2 * time.Second}, `{"time":"0001-01-01T00:00:00Z","ms":2000}`},
		{"part-of-a-ms", Record{Took: 50 * time.Microsecond}, `{"time":"0001-01-01T00:00:00Z","ms":0.050}`},
		{"negative-ms", Record{Took: -1}, `{"time":"0001-01-01T00:00:00Z"}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := string(row.record.AppendJSON(nil)); got != row.want {
				t.Errorf("got  %s\nwant %s", got, row.want)
			}
		})
	}
}

func TestHostileText(t *testing.T) {
	for _, row := range []struct{ name, text, want string }{
		{"quote", `a"b\c`, `a\"b\\c`},
		{"line-end", "a\r\nb", `a\u000d\u000ab`},
		{"nul", "a\x00", `a\u0000`},
		{"del", "a\x7f", `a\u007f`},
		{"escape-sequence", "\x1b[2J", `\u001b[2J`},
		{"c1-control", "\u009b2J", `\u009b2J`},
		{"line-separator", "\u2028\u2029", `\u2028\u2029`},
		{"right-to-left-override", "\u202etset", `\u202etset`},
		{"invalid-utf8", "a\xff\xc3b", `a\ufffd\ufffdb`},
		{"surrogate-in-utf8", "\xed\xa0\x80", `\ufffd\ufffd\ufffd`},
		{"beyond-bmp", "\U0001f600", `\ud83d\ude00`},
		{"html", "<&>", `<&>`},
		{"long", strings.Repeat("a", 513), strings.Repeat("a", 512)},
		{"cut-within-a-character", strings.Repeat("a", 511) + "\u00e9", strings.Repeat("a", 511) + `\ufffd`},
	} {
		t.Run(row.name, func(t *testing.T) {
			got := string((&Record{Target: row.text}).AppendJSON(nil))
			if want := `{"time":"0001-01-01T00:00:00Z","target":"` + row.want + `"}`; got != want {
				t.Errorf("got  %s\nwant %s", got, want)
			}
		})
	}
}

// line is what encoding/json makes of a Record.
type line struct {
	Time        time.Time   `json:"time"`
	Container   string      `json:"container,omitempty"`
	ContainerID string      `json:"container_id,omitempty"`
	Phase       string      `json:"phase,omitempty"`
	Generation  uint64      `json:"generation,omitempty"`
	Protocol    string      `json:"protocol,omitempty"`
	Target      string      `json:"target,omitempty"`
	Port        uint16      `json:"port,omitempty"`
	Address     *netip.Addr `json:"address,omitempty"`
	Verdict     string      `json:"verdict,omitempty"`
	Reason      string      `json:"reason,omitempty"`
	Rule        string      `json:"rule,omitempty"`
	Decision    string      `json:"decision,omitempty"`
	BytesIn     uint64      `json:"bytes_in,omitempty"`
	BytesOut    uint64      `json:"bytes_out,omitempty"`
	MS          float64     `json:"ms,omitempty"`
}

// FuzzAppendJSON compares with encoding/json: the same keys in the same order, and the same values when read back.
func FuzzAppendJSON(f *testing.F) {
	f.Add("web", "ok.test", "*.test", []byte{203, 0, 113, 9}, uint16(443), uint64(1), int64(time.Second))
	f.Add("", "a\"\\\x00\x1b\u2028\xff\u202e\U0001f600<", "\xed\xa0\x80", []byte(nil), uint16(0), uint64(math.MaxUint64), int64(-1))
	f.Add(strings.Repeat("\u00e9", 300), "", "", make([]byte, 16), uint16(1), uint64(0), int64(1001))
	f.Fuzz(func(t *testing.T, container, target, rule string, addr []byte, port uint16, n uint64, took int64) {
		r := Record{Time: full.Time, Container: container, Target: target, Rule: rule, Port: port, Generation: n, BytesIn: n / 2, Took: time.Duration(took)}
		cut := func(s string) string { return s[:min(len(s), maxText)] }
		want := line{Time: r.Time.UTC(), Container: cut(container), Target: cut(target), Rule: cut(rule), Port: port,
			Generation: n, BytesIn: n / 2, MS: max(0, float64(r.Took.Microseconds())/1000)}
		if a, ok := netip.AddrFromSlice(addr); ok {
			r.Address, want.Address = a, &a
		}
		got := r.AppendJSON(nil)
		for _, c := range got {
			if c < ' ' || c > '~' {
				t.Fatalf("byte %#x in %q", c, got)
			}
		}
		theirs, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var a, b line
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("%s: %v", got, err)
		}
		if err := json.Unmarshal(theirs, &b); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(a, b) {
			t.Fatalf("ours   %s\ntheirs %s", got, theirs)
		}
		if !reflect.DeepEqual(keys(t, got), keys(t, theirs)) {
			t.Fatalf("ours   %s\ntheirs %s", got, theirs)
		}
	})
}

// keys returns the keys of a JSON object in the order in which they stand.
func keys(t *testing.T, object []byte) (keys []string) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(string(object)))
	for {
		token, err := d.Token()
		if err != nil {
			return keys
		}
		if _, ok := token.(json.Delim); ok {
			continue
		}
		keys = append(keys, token.(string))
		if _, err := d.Token(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNoAllocations(t *testing.T) {
	b := make([]byte, 0, 4096)
	r := full
	r.Target = "a\x00\u2028\xff"
	if n := testing.AllocsPerRun(100, func() { r.AppendJSON(b) }); n != 0 {
		t.Errorf("AppendJSON: %v allocations", n)
	}
	w := New(&memory{})
	w.waiting = make([]Record, 0, maxRecords)
	if n := testing.AllocsPerRun(100, func() {
		r := full
		w.Write(&r)
	}); n != 0 {
		t.Errorf("Write: %v allocations", n)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkAppendJSON(b *testing.B) {
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		full.AppendJSON(buf)
	}
}
