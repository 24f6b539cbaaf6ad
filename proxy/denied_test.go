package proxy

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/policy"
	"sluice/proxy/dnstest"
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

// A flow to a bare address that turns out to be a denied host's is cut, whether the switch knew it or not.
func TestDeniedHostIsFollowed(t *testing.T) {
	port := listen(t, echo)
	switched := make(chan struct{})
	server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		if strings.HasPrefix(q.Name, "evil") {
			<-switched
		}
		if q.Type != dns.TypeA {
			return q.Records()
		}
		return q.Records(q.Name + " 60 A 127.0.0.1")
	})
	r := start(t, `"public"`, Config{Upstreams: []netip.AddrPort{server.Addr}})
	address, _ := r.connect("127.0.0.1:"+port, "")
	wantEcho(t, address, "\x00")
	named, _ := r.connect("ok.test:"+port, "")
	wantEcho(t, named, "\x00")
	if receipt := r.apply(deny("evil.test")); receipt.FlowsKept != 2 {
		t.Errorf("receipt %+v; want two kept", receipt)
	}
	close(switched)
	wantReset(t, address)
	wantEcho(t, named, "goes on")
}

// The denied hosts of a phase are known before it comes into force, so that the switch cuts what is theirs.
func TestDeniedHostsOfStagedPhase(t *testing.T) {
	port := listen(t, echo)
	r := start(t, `"public"`, Config{Hosts: names{"evil.test": {"127.0.0.1"}}.hosts})
	public, err := policy.ParsePolicy([]byte(`"public"`))
	if err != nil {
		t.Fatal(err)
	}
	denied, err := policy.ParsePolicy([]byte(deny("evil.test")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.session.Apply(t.Context(), Change{Policies: &policy.Phases{public, denied, public}}); err != nil {
		t.Fatal(err)
	}
	r.session.switching.Lock()
	hosts := r.session.staged[policy.Run].denied
	r.session.switching.Unlock()
	for deadline := time.Now().Add(10 * time.Second); hosts.known.Load() == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the denied host was not looked up")
		}
	}
	c, _ := r.connect("127.0.0.1:"+port, "")
	wantEcho(t, c, "\x00")
	run := policy.Run
	receipt, err := r.session.Apply(t.Context(), Change{Phase: &run})
	if err != nil || receipt.FlowsCut != 1 {
		t.Errorf("%+v, %v; want one cut", receipt, err)
	}
	wantReset(t, c)
}
