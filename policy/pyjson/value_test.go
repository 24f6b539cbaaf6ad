package pyjson

import (
	"errors"
	"io"
	"strings"
	"testing"
)

// TestAsPython compares with what json.dumps(json.loads(x), ensure_ascii=False) and str(json.loads(x)) return in
// Python 3.11.
func TestAsPython(t *testing.T) {
	for _, row := range []struct{ in, dump, str string }{
		{`{"a":[1,-0,-0.0,1.0,1e5,1E400,-1e999,1e16,1.5e-5],"b":null,"c":true,"d":false,"b":"x"}`,
			`{"a": [1, 0, -0.0, 1.0, 100000.0, Infinity, -Infinity, 1e+16, 1.5e-05], "b": "x", "c": true, "d": false}`,
			`{'a': [1, 0, -0.0, 1.0, 100000.0, inf, -inf, 1e+16, 1.5e-05], 'b': 'x', 'c': True, 'd': False}`},
		{`"it's"`, `"it's"`, `it's`},
		{`["it's","say \"x\"","both ' \""]`, `["it's", "say \"x\"", "both ' \""]`, `["it's", 'say "x"', 'both \' "']`},
		{`["\u0007\u007f\u00ad\u2028\ud83d\ude00\\\n\t\r\u00e9\u3000"]`,
			"[\"\\u0007\u007f\u00ad\u2028\U0001f600\\\\\\n\\t\\r\u00e9\u3000\"]",
			`['\x07\x7f\xad\u2028` + "\U0001f600" + `\\\n\t\ré\u3000']`},
		{`{"\u0001":{}}`, `{"\u0001": {}}`, `{'\x01': {}}`},
		{` [ ] `, `[]`, `[]`},
		{`12345678901234567890123`, `12345678901234567890123`, `12345678901234567890123`},
		{`null`, `null`, `None`},
	} {
		v, err := Parse([]byte(row.in))
		if err != nil {
			t.Errorf("%s: %v", row.in, err)
			continue
		}
		if dump := string(v.AppendDump(nil)); dump != row.dump {
			t.Errorf("%s:\n got %s\nwant %s", row.in, dump, row.dump)
		}
		if str := v.Str(); str != row.str {
			t.Errorf("%s:\n got %s\nwant %s", row.in, str, row.str)
		}
	}
}

func TestCompact(t *testing.T) {
	const in = `{"a":[1.50,1E3,-0],"b":"é\n","c":null,"d":true}`
	v, err := Parse([]byte(" " + strings.ReplaceAll(in, ",", " , ")))
	if err != nil || string(v.AppendCompact(nil)) != in {
		t.Errorf("got %s, %v", v.AppendCompact(nil), err)
	}
}

func TestParseErrors(t *testing.T) {
	for _, in := range []string{"", "{", `{"a"`, "[1,", `"x`} {
		if _, err := Parse([]byte(in)); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%s: got %v", in, err)
		}
	}
	for _, in := range []string{"{} x", "1 2", "NaN", `{"a" 1}`, "\"\xff\"", strings.Repeat("[", 300) + strings.Repeat("]", 300)} {
		if _, err := Parse([]byte(in)); err == nil || errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%.20s: got %v", in, err)
		}
	}
	v, err := Parse([]byte("[" + strings.Repeat("1", maxDigits+1) + "]"))
	if err != nil || v.Readable() {
		t.Errorf("a long number: %v", err)
	}
}
