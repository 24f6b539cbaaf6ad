package resolve

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestUpstreams(t *testing.T) {
	const absent = "-"
	tests := []struct {
		name         string
		conf, behind string // "-": there is no such file
		want         string // or a part of the error
	}{
		{"two", "# comment\nsearch a.test\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n", absent, "[192.0.2.53:53 [2001:db8::53]:53]"},
		{"twice-the-same", "nameserver 192.0.2.53\nnameserver ::ffff:192.0.2.53\n", absent, "[192.0.2.53:53]"},
		{"zone", "nameserver fe80::1%eth0\n", absent, "[[fe80::1%eth0]:53]"},
		{"of-a-container", "nameserver 127.0.0.11\noptions ndots:0\n", absent, "[127.0.0.11:53]"},
		{"stub", "nameserver 127.0.0.53\n", "nameserver 192.0.2.53\n", "[192.0.2.53:53]"},
		{"stub-v6", "nameserver ::1\n", "nameserver 192.0.2.53\n", "[192.0.2.53:53]"},
		{"stub-and-other", "nameserver 127.0.0.1\nnameserver 192.0.2.1\n", absent, "[192.0.2.1:53]"},
		{"stub-behind-stub", "nameserver 127.0.0.53\n", "nameserver 127.0.0.1\n", "names only 127.0.0.53"},
		{"stub-alone", "nameserver 127.0.0.53\n", absent, "give the upstream name servers to the proxy"},
		{"bad-file-behind-stub", "nameserver 127.0.0.53\n", "nameserver x\n", `line 1: "x" is not an IP address`},
		{"empty", "", absent, "names no server"},
		{"no-address", "nameserver\n", absent, "names no server"},
		{"name-for-an-address", "nameserver 192.0.2.1\nnameserver dns.test\n", absent, `line 2: "dns.test" is not an IP address`},
		{"no-file", absent, absent, "no such file"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			conf, behind := filepath.Join(dir, "resolv.conf"), filepath.Join(dir, "behind.conf")
			for path, text := range map[string]string{conf: tt.conf, behind: tt.behind} {
				if text == absent {
					continue
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			list, err := upstreams(conf, behind)
			if got := fmt.Sprint(list); strings.HasPrefix(tt.want, "[") && (got != tt.want || err != nil) {
				t.Errorf("got %s, %v; want %s", got, err, tt.want)
			}
			if !strings.HasPrefix(tt.want, "[") && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
		})
	}
}
