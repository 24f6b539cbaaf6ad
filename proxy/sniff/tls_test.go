package sniff

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// recorder is a connection on which nobody answers.
type recorder struct {
	net.Conn
	sent []byte
}

func (c *recorder) Write(b []byte) (int, error) {
	c.sent = append(c.sent, b...)
	return len(b), nil
}
func (c *recorder) Read([]byte) (int, error) { return 0, io.EOF }
func (c *recorder) Close() error             { return nil }

// capture returns what crypto/tls sends first.
func capture(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	config.InsecureSkipVerify = true
	var c recorder
	if err := tls.Client(&c, config).Handshake(); !errors.Is(err, io.EOF) {
		t.Fatalf("handshake without a server: %v", err)
	}
	return c.sent
}

// echConfigs is a list of one ECH configuration (RFC 9849 §4) for public.test with a fresh key.
func echConfigs(t testing.TB) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	contents := cat([]byte{7, 0, 0x20}, v16(key.PublicKey().Bytes()), v16([]byte{0, 1, 0, 1}), []byte{0},
		v8([]byte("public.test")), v16(nil))
	return v16(cat([]byte{0xfe, 0x0d}, v16(contents)))
}

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
func v8(b []byte) []byte         { return cat([]byte{byte(len(b))}, b) }
func v16(b []byte) []byte        { return cat([]byte{byte(len(b) >> 8), byte(len(b))}, b) }
func v24(b []byte) []byte        { return cat([]byte{byte(len(b) >> 16)}, v16(b)) }

func record(typ byte, data []byte) []byte { return cat([]byte{typ, 3, 1}, v16(data)) }
func ext(typ uint16, data []byte) []byte  { return cat([]byte{byte(typ >> 8), byte(typ)}, v16(data)) }
func sni(name string) []byte              { return ext(0, v16(cat([]byte{0}, v16([]byte(name))))) }

// message is a ClientHello with these extensions, without a record.
func message(extensions ...[]byte) []byte {
	return cat([]byte{1}, v24(cat(helloStart(32), v16(cat(extensions...)))))
}

func helloStart(session int) []byte {
	return cat([]byte{3, 3}, make([]byte, 32), v8(make([]byte, session)), v16([]byte{0x13, 1}), v8([]byte{0}))
}

// fragment puts a handshake message into records of the given size.
func fragment(msg []byte, size int) (b []byte) {
	for len(msg) > 0 {
		n := min(size, len(msg))
		b = append(b, record(22, msg[:n])...)
		msg = msg[n:]
	}
	return b
}

// feed gives b to a Sniffer byte by byte, as far as the answer says that it needs more.
func feed(t testing.TB, b []byte) Result {
	t.Helper()
	var s Sniffer
	var r Result
	for n := range len(b) + 1 {
		r = s.Classify(b[:n:n], false)
		if r.Kind != Incomplete {
			return r
		}
		if r.Need <= n || r.Need > MaxBytes {
			t.Fatalf("Need = %d with %d bytes", r.Need, n)
		}
	}
	return r
}

// check compares what matters to a judge.
func check(t testing.TB, got, want Result) {
	t.Helper()
	got.Need, want.Need = 0, 0
	got.Size, want.Size = 0, 0
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Fatalf("got %+v (%s)\nwant %+v (%s)", got, got.ServerName, want, want.ServerName)
	}
}

func TestRealHellos(t *testing.T) {
	long := make([]string, 200)
	for i := range long {
		long[i] = fmt.Sprintf("%0200d", i)
	}
	named := Result{Kind: TLS, HasSNI: true, Retry: true, ServerName: []byte("ok.test")} // crypto/tls always names versions
	for _, row := range []struct {
		name   string
		config *tls.Config
		want   Result
	}{
		{"tls13", &tls.Config{ServerName: "ok.test"}, named},
		{"tls12", &tls.Config{ServerName: "ok.test", MaxVersion: tls.VersionTLS12}, named},
		{"tls10", &tls.Config{ServerName: "ok.test", MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS10}, named},
		{"alpn", &tls.Config{ServerName: "ok.test", NextProtos: []string{"h2", "http/1.1"}}, named},
		{"upper-case", &tls.Config{ServerName: "OK.test"}, Result{Kind: TLS, HasSNI: true, Retry: true, ServerName: []byte("OK.test")}},
		{"no-name", &tls.Config{}, Result{Kind: TLS, Retry: true}},
		{"address", &tls.Config{ServerName: "192.0.2.1"}, Result{Kind: TLS, Retry: true}},
		{"three-records", &tls.Config{ServerName: "ok.test", NextProtos: long}, named},
		{"ech", &tls.Config{ServerName: "secret.test", MinVersion: tls.VersionTLS13, EncryptedClientHelloConfigList: echConfigs(t)},
			Result{Kind: TLS, HasSNI: true, ECH: true, Retry: true, ServerName: []byte("public.test")}},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := capture(t, row.config)
			whole := Classify(b, false)
			check(t, whole, row.want)
			if whole.Size != len(b) {
				t.Errorf("Size = %d of %d", whole.Size, len(b))
			}
			check(t, feed(t, b), row.want)
			for n := range b {
				if r := Classify(b[:n:n], false); r.Kind != Incomplete {
					t.Fatalf("%d of %d bytes: %+v", n, len(b), r)
				}
				r := Classify(b[:n:n], true)
				want := Result{Kind: TLS, Malformed: true}
				if n < 2 {
					want = Result{Kind: Other}
				}
				check(t, r, want)
			}
		})
	}
}

func TestRefragmented(t *testing.T) {
	b := capture(t, &tls.Config{ServerName: "ok.test"})
	msg := b[recordHeader:]
	want := Result{Kind: TLS, HasSNI: true, Retry: true, ServerName: []byte("ok.test")}
	for at := 1; at < len(msg); at++ {
		split := cat(record(22, msg[:at]), record(22, msg[at:]))
		check(t, Classify(split, false), want)
		check(t, feed(t, split), want)
	}
	for size := 1; size <= 64; size++ {
		records := fragment(msg, size)
		check(t, Classify(records, false), want)
		r := feed(t, records)
		check(t, r, want)
		if r.Size != len(records) {
			t.Fatalf("records of %d: Size = %d of %d", size, r.Size, len(records))
		}
	}
}

// The name of a hello in one record is the buffer's; of others it is a copy that outlives the buffer.
func TestServerNameMemory(t *testing.T) {
	msg := message(sni("ok.test"))
	one, many := record(22, msg), fragment(msg, 10)
	aliased, copied := Classify(one, false).ServerName, Classify(many, false).ServerName
	clear(one)
	clear(many)
	if string(aliased) == "ok.test" || string(copied) != "ok.test" {
		t.Errorf("after clearing the buffers: %q, %q", aliased, copied)
	}
	if cap(copied) > 64 {
		t.Errorf("the copy keeps %d bytes", cap(copied))
	}
}

func TestCaps(t *testing.T) {
	padding := func(total int) []byte { // a message of that size
		empty := len(message(sni("ok.test"), ext(21, nil)))
		return message(sni("ok.test"), ext(21, make([]byte, total-empty)))
	}
	ok := Result{Kind: TLS, HasSNI: true, ServerName: []byte("ok.test")}
	bad := Result{Kind: TLS, Malformed: true}
	for _, row := range []struct {
		name string
		b    []byte
		want Result
	}{
		{"largest", fragment(padding(MaxHello), maxPlaintext), ok},
		{"larger", record(22, cat([]byte{1, 0, 0xff, 0xfd}, make([]byte, 16))), bad},
		{"16KiB-record", fragment(padding(maxPlaintext), maxPlaintext), ok},
		{"larger-record", record(22, padding(maxPlaintext+1)), bad},
		{"13KiB-of-one-byte-records", fragment(padding(13<<10), 1), ok},
		{"12KiB-of-one-byte-records-then-8KiB", cat(fragment(padding(20 << 10)[:12<<10], 1), record(22, padding(20 << 10)[12<<10:])), bad},
		{"14KiB-of-one-byte-records", fragment(padding(14<<10), 1), bad},
	} {
		t.Run(row.name, func(t *testing.T) {
			check(t, Classify(row.b, false), row.want)
			check(t, feed(t, row.b), row.want)
		})
	}
}

func TestBrokenTLS(t *testing.T) {
	good := record(22, message(sni("ok.test")))
	bad := Result{Kind: TLS, Malformed: true}
	other := Result{Kind: Other}
	ok := Result{Kind: TLS, HasSNI: true, ServerName: []byte("ok.test")}
	with := func(at int, c byte) []byte {
		b := bytes.Clone(good)
		b[at] = c
		return b
	}
	entry := func(typ byte, name string) []byte { return cat([]byte{typ}, v16([]byte(name))) }
	hello := func(body ...[]byte) []byte { return record(22, cat([]byte{1}, v24(cat(body...)))) }
	for _, row := range []struct {
		name string
		b    []byte
		want Result
	}{
		{"record-3.0", with(2, 0), ok},
		{"record-3.4", with(2, 4), ok},
		{"record-2.1-crypto-tls-takes-it", with(1, 2), bad},
		{"record-0.1-crypto-tls-takes-it", with(1, 0), bad},
		{"record-16.1", with(1, 16), other},
		{"hello-2.3", with(9, 2), bad},
		{"type-server-hello", with(5, 2), bad},
		{"type-hello-request", with(5, 0), bad},
		{"length-short", with(8, good[8]-1), bad},
		{"length-long-then-alert", cat(with(8, good[8]+1), record(21, []byte{1, 0})), bad},
		{"second-message-in-record", record(22, cat(good[5:], good[5:])), bad},
		{"second-message-in-last-record", cat(record(22, good[5:20]), record(22, cat(good[20:], good[5:]))), bad},
		{"empty-record-first", cat(record(22, nil), good), bad},
		{"empty-record-within", cat(record(22, good[5:20]), record(22, nil), record(22, good[20:])), bad},
		{"ccs-within", cat(record(22, good[5:20]), record(20, []byte{1}), record(22, good[20:])), bad},
		{"version-within", cat(record(22, good[5:20]), []byte{22, 2, 1}, v16(good[20:])), bad},
		{"alert-first", cat(record(21, []byte{1, 0}), good), bad},
		{"alert-of-version-0", []byte{21, 0, 0, 0, 2, 1, 0}, bad},
		{"not-an-alert", []byte{21, 0, 0, 0, 3, 1, 0, 0}, other},
		{"ccs-first", cat(record(20, []byte{1}), good), bad},
		{"data-first", record(23, []byte("data")), bad},
		{"heartbeat-first", record(24, []byte{1, 0, 1, 0}), bad},
		{"oversized-alert", []byte{21, 3, 1, 0xff, 0xff}, other},
		{"no-extensions", hello(helloStart(0)), Result{Kind: TLS}},
		{"empty-extensions", record(22, message()), Result{Kind: TLS}},
		{"byte-behind-extensions", hello(helloStart(0), v16(nil), []byte{0}), bad},
		{"half-extension", hello(helloStart(0), v16([]byte{0, 0, 0})), bad},
		{"extension-too-long", hello(helloStart(0), v16([]byte{0, 5, 0, 1})), bad},
		{"session-33", hello(helloStart(33)), bad},
		{"odd-ciphers", hello([]byte{3, 3}, make([]byte, 32), []byte{0}, v16([]byte{1, 2, 3}), v8([]byte{0})), bad},
		{"no-ciphers", hello([]byte{3, 3}, make([]byte, 32), []byte{0}, v16(nil), v8([]byte{0})), bad},
		{"no-compression", hello([]byte{3, 3}, make([]byte, 32), []byte{0}, v16([]byte{0, 1}), v8(nil)), bad},
		{"empty-hello", hello(), bad},
		{"sni-twice", record(22, message(sni("ok.test"), sni("ok.test"))), bad},
		{"sni-two-entries", record(22, message(ext(0, v16(cat(entry(0, "ok.test"), entry(0, "evil.test")))))), bad},
		{"sni-other-type", record(22, message(ext(0, v16(entry(1, "ok.test"))))), bad},
		{"sni-other-type-first", record(22, message(ext(0, v16(cat(entry(1, "x"), entry(0, "ok.test")))))), bad},
		{"sni-empty-list", record(22, message(ext(0, v16(nil)))), bad},
		{"sni-empty-extension", record(22, message(ext(0, nil))), bad},
		{"sni-byte-behind", record(22, message(ext(0, cat(v16(entry(0, "ok.test")), []byte{0})))), bad},
		{"sni-list-too-long", record(22, message(ext(0, []byte{0, 9, 0, 0, 2, 'o', 'k'}))), bad},
		{"esni", record(22, message(ext(0xffce, nil))), Result{Kind: TLS, ECH: true}},
		{"grease-ech", record(22, message(sni("ok.test"), ext(0xfe0d, make([]byte, 200)))),
			Result{Kind: TLS, HasSNI: true, ECH: true, ServerName: ok.ServerName}},
		{"early-data", record(22, message(sni("ok.test"), ext(42, nil), ext(43, []byte{2, 3, 4}))),
			Result{Kind: TLS, HasSNI: true, Retry: true, EarlyData: true, ServerName: ok.ServerName}},
		{"sslv2-hello-for-ssl2", []byte{0x80, 0x2e, 1, 0, 2, 0, 21}, Result{Kind: TLS}},
		{"sslv2-hello-for-tls", []byte{0x80, 0x2e, 1, 3, 1, 0, 21}, Result{Kind: TLS}},
		{"sslv2-hello-for-0.3", []byte{0x80, 0x2e, 1, 0, 3}, other},
		{"sslv2-server-hello", []byte{0x80, 0x2e, 4, 0, 2}, other},
	} {
		t.Run(row.name, func(t *testing.T) {
			check(t, Classify(row.b, false), row.want)
			check(t, feed(t, row.b), row.want)
		})
	}
}

func TestServerNames(t *testing.T) {
	label := strings.Repeat("a", 63)
	for _, row := range []struct {
		name string
		ok   bool
	}{
		{"ok.test", true},
		{"OK.Test", true},
		{"db", true},
		{"a_b.test", true},
		{"xn--bcher-kva.test", true},
		{"1.2.3.test", true},
		{"3com", true},
		{"a.-b-", true},
		{label + ".test", true},
		{strings.Repeat("a.", 126) + "a", true},
		{"", false},
		{".", false},
		{"ok.test.", false},
		{".ok.test", false},
		{"ok..test", false},
		{"ok.test\x00", false},
		{"ok.test\x00evil.test", false},
		{"b\u00fccher.test", false},
		{"ok\xff.test", false},
		{"ok test", false},
		{"ok.test:443", false},
		{"ok.test/", false},
		{"*.test", false},
		{"192.0.2.1", false},
		{"2001:db8::1", false},
		{"[2001:db8::1]", false},
		{"ok.1", false},
		{"1", false},
		{"a" + label + ".test", false},
		{strings.Repeat("a.", 126) + "aa", false},
	} {
		t.Run(strings.ReplaceAll(row.name, " ", "_"), func(t *testing.T) {
			want := Result{Kind: TLS, Malformed: true}
			if row.ok {
				want = Result{Kind: TLS, HasSNI: true, ServerName: []byte(row.name)}
			}
			check(t, Classify(record(22, message(sni(row.name))), false), want)
		})
	}
}
