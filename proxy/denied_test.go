package proxy

import (
	"testing"
	"time"
)

// Cases I-10 and I-66: the address of a denied host, with no name shown, and an alias of it.
func TestDeniedHostByAddress(t *testing.T) {
	port := listen(t, echo)
	known := names{"evil.test": {"127.0.0.1"}, "ok.test": {"127.0.0.1"}}
	r := start(t, deny("evil.test"), Config{Hosts: known.hosts})
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		_, response := r.connect("127.0.0.1:"+port, "")
		if response.StatusCode == 403 { // once the host has been looked up
			wantRefused(t, response, 403, reasonDeniedHost)
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the address of a denied host stays open")
		}
	}
	c, response := r.connect("ok.test:"+port, "") // another name on the same address
	if response.StatusCode != 200 {
		t.Fatal(response.Status)
	}
	wantEcho(t, c, "\x00fine")
	r.apply(`"public"`)
	if _, response := r.connect("127.0.0.1:"+port, ""); response.StatusCode != 200 {
		t.Errorf("public: %s, want 200", response.Status)
	}
}
