package refusal

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"sluice/matcher"
)

func TestAppendResponse(t *testing.T) {
	tests := []struct {
		name    string
		refusal Refusal
		want    string
	}{
		{"denied", Refusal{Status: 403, Reason: matcher.NotListed, Target: "api.test:443", Decision: "d1", Text: "Add it."}, `HTTP/1.1 403 Forbidden
Content-Type: text/plain; charset=utf-8
Cache-Control: no-store
Proxy-Status: sluice; error=http_request_denied; details="not-listed: api.test:443"
Sluice-Decision: d1
Content-Length: 54
Connection: close

sluice: api.test:443: not-listed
Add it.
decision: d1
`},
		{"credentials", Refusal{Status: 407, Reason: "authentication", Decision: "d2", Realm: `a"b\c`}, `HTTP/1.1 407 Proxy Authentication Required
Content-Type: text/plain; charset=utf-8
Cache-Control: no-store
Proxy-Status: sluice; error=http_request_denied; details="authentication"
Sluice-Decision: d2
Proxy-Authenticate: Basic realm="a\"b\\c"
Content-Length: 36
Connection: close

sluice: authentication
decision: d2
`},
		{"no-body", Refusal{Status: 504, Reason: "dial-timeout", Target: "[2001:db8::1]:80", Decision: "d3", Text: "Wait.", NoBody: true}, `HTTP/1.1 504 Gateway Timeout
Content-Type: text/plain; charset=utf-8
Cache-Control: no-store
Proxy-Status: sluice; error=connection_timeout; details="dial-timeout: [2001:db8::1]:80"
Sluice-Decision: d3
Content-Length: 0
Connection: close

`},
		{"zero", Refusal{}, `HTTP/1.1 403 Forbidden
Content-Type: text/plain; charset=utf-8
Cache-Control: no-store
Proxy-Status: sluice; error=http_request_denied; details=""
Sluice-Decision: ` + `
Content-Length: 20
Connection: close

sluice: ` + `
decision: ` + `
`},
		{"hostile", Refusal{Status: 200, Kind: DNSError, Reason: "x", Target: "a\"\\\r\nX: é\x1b[0m", Decision: "d\r\nY: 1", Text: "a\r\nb"}, `HTTP/1.1 403 Forbidden
Content-Type: text/plain; charset=utf-8
Cache-Control: no-store
Proxy-Status: sluice; error=dns_error; details="x: a\"\\??X: ???[0m"
Sluice-Decision: d??Y: 1
Content-Length: 49
Connection: close

sluice: a"\??X: ???[0m: x
a??b
decision: d??Y: 1
`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got := string(test.refusal.AppendResponse([]byte("before ")))
			head, body, _ := strings.Cut(got, "\r\n\r\n")
			got = strings.ReplaceAll(head, "\r\n", "\n") + "\n\n" + body
			if diff := cmp.Diff("before "+test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The three ways to send a refusal say the same.
func TestFormsAgree(t *testing.T) {
	r := &Refusal{Status: 407, Reason: matcher.Floor, Target: "a.test:80", Decision: "d", Text: "No.", Realm: "r"}
	raw, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(r.AppendResponse(nil))), nil)
	if err != nil {
		t.Fatal(err)
	}
	recorder := httptest.NewRecorder()
	r.Respond(recorder)
	type form struct {
		Status int
		Header http.Header
		Body   string
	}
	var forms []form
	for _, resp := range []*http.Response{raw, recorder.Result(), r.Response(nil)} {
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		forms = append(forms, form{resp.StatusCode, resp.Header, string(body)})
	}
	for _, f := range forms[1:] {
		if diff := cmp.Diff(forms[0], f); diff != "" {
			t.Error(diff)
		}
	}
}

func TestKindFollowsStatus(t *testing.T) {
	for status, want := range map[int]Kind{
		400: BadRequest, 403: Denied, 407: Denied, 408: BadRequest, 413: BadRequest, 417: BadRequest, 431: BadRequest,
		500: InternalError, 501: InternalError, 502: Unavailable, 503: LimitReached, 504: ConnectTimeout,
	} {
		if got := kindOf(status); got != want {
			t.Errorf("%d is %q, want %q", status, got, want)
		}
	}
}

func TestError(t *testing.T) {
	r := &Refusal{Reason: matcher.NotListed, Target: "a.test:80\n", Decision: "d"}
	if got, want := r.Error(), "refused a.test:80?: not-listed (decision d)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestNewDecisionID(t *testing.T) {
	const many = 100_000
	seen := make(map[string]bool, many)
	var letters [16]map[byte]bool
	for range many {
		id := NewDecisionID()
		if len(id) != 16 || strings.Trim(id, crockford) != "" {
			t.Fatalf("got %q", id)
		}
		seen[id] = true
		for i := range letters {
			if letters[i] == nil {
				letters[i] = make(map[byte]bool)
			}
			letters[i][id[i]] = true
		}
	}
	if len(seen) != many {
		t.Errorf("%d of %d ids are new", len(seen), many)
	}
	for i, l := range letters {
		if len(l) != len(crockford) {
			t.Errorf("place %d only has %d letters", i, len(l))
		}
	}
}

func TestAllocs(t *testing.T) {
	r := &Refusal{Status: 403, Reason: matcher.NotListed, Target: "api.test:443", Text: "Add it.", Decision: NewDecisionID()}
	buf := make([]byte, 0, 2048)
	if n := testing.AllocsPerRun(100, func() { buf = r.AppendResponse(buf[:0]) }); n != 0 {
		t.Errorf("AppendResponse allocates %v times", n)
	}
	// The id itself.
	if n := testing.AllocsPerRun(100, func() { r.Decision = NewDecisionID() }); n > 1 {
		t.Errorf("NewDecisionID allocates %v times", n)
	}
}

func BenchmarkRefusal(b *testing.B) {
	buf := make([]byte, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		r := Refusal{Status: 403, Reason: matcher.NotListed, Target: "api.test:443", Text: "Add it.", Decision: NewDecisionID()}
		buf = r.AppendResponse(buf[:0])
	}
}
