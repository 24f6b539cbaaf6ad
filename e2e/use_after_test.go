package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	"sluice/e2e/lab/internet"
)

// learnedName looks an address up by a name, and goes on when the policy does not have the name any more (I-63).
func (u *user) learnedName(t *testing.T) {
	const name, address = "learned.use.test", "203.0.113.89"
	if err := lab.Internet.SetName(name, "1 A "+address); err != nil {
		t.Fatal(err)
	}
	set := func(targets string) {
		t.Helper()
		if _, err := u.api.Set(t.Context(), u.name, allowlist(t, targets), 0); err != nil {
			t.Fatal(err)
		}
	}
	arrived := func() int { return counts(t).PacketsTo(netip.MustParseAddr(address)) }
	const byAddress = "serverfirst " + address + " 2525"

	set(name + ":2525")
	if out, code := u.exec(useLimit, "getent ahostsv4 "+name+" && "+byAddress); code != 0 {
		t.Fatalf("the name is allowed: exit code %d:\n%s", code, out)
	}
	set("web.test")
	before := arrived()
	for when, command := range map[string]string{"at once": byAddress, "after its lifetime": "sleep 2; " + byAddress} {
		if out, code := u.exec(refusalLimit, command); code == 0 || code == 124 {
			t.Errorf("the name is gone, %s: exit code %d; want a refusal:\n%s", when, code, out)
		}
	}
	if n := arrived() - before; n > 0 {
		t.Errorf("LEAK: %d packets have come to the address of the name that is gone", n)
	}
	set(name + ":2525")
	if out, code := u.exec(useLimit, byAddress); code != 0 {
		t.Errorf("the name is allowed again: exit code %d:\n%s", code, out)
	}
}

// trackingFull lets one container fill the host's table of connections with packets that its policy allows. Another one
// works as before, and is held as before (L-44).
func (u *user) trackingFull(t *testing.T) {
	const flooder, hole, refused = "use-idle", "203.0.113.98", "203.0.113.90"
	if _, err := u.api.Set(t.Context(), flooder, json.RawMessage(`"public"`), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := u.api.Set(t.Context(), u.name, allowlist(t, "web.test 203.0.113.60"), 0); err != nil {
		t.Fatal(err)
	}
	number := func(file string) (n int) {
		t.Helper()
		if err := lab.InEngineNamespace(func() error {
			text, err := os.ReadFile("/proc/sys/net/netfilter/" + file)
			if err == nil {
				n, err = strconv.Atoi(string(bytes.TrimSpace(text)))
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	most := number("nf_conntrack_max")
	u.keepTracking(lab.InEngineNamespace, "udp_timeout", 300)
	if _, err := docker("exec", "--detach", flooder, "use", "flood", hole); err != nil {
		t.Fatal(err)
	}
	u.wait("the table is not full", func() bool { return number("nf_conntrack_count") > most*19/20 })

	// Half of the tries are by name, through the proxy.
	const tries = 40
	out, code := u.exec(useLimit, fmt.Sprintf(`for i in $(seq %d); do
		curl -fsS -m 10 https://web.test/ && echo worked; curl -fsS -m 10 http://203.0.113.60/ && echo worked; curl -fsS -m 10 http://%s/ && echo leak
		done 2>&1`, tries/2, refused))
	worked := strings.Count(out, "worked\n")
	t.Logf("%d of %d tries worked, with %d of %d places taken", worked, tries, number("nf_conntrack_count"), most)
	if code == 124 || worked < tries*19/20 || strings.Contains(out, "leak") {
		t.Errorf("exit code %d, %d of %d tries worked:\n%s", code, worked, tries, out)
	}
	if n := counts(t).PacketsTo(netip.MustParseAddr(refused)); n > 0 {
		t.Errorf("LEAK: %d packets have come to %s", n, refused)
	}
	receipt, err := u.api.Set(t.Context(), flooder, json.RawMessage(`"no-network"`), 0)
	if err != nil {
		t.Errorf("the one that floods is not stopped: %v", err)
	}
	t.Logf("it was stopped in %.0f ms, %d flows cut", receipt.Milliseconds, receipt.FlowsCut)
	before := counts(t).PacketsTo(netip.MustParseAddr(hole))
	if out, code := u.exec(useLimit, "curl -sS -m 20 http://203.0.113.60/"); code != 0 {
		t.Errorf("after it was stopped: exit code %d:\n%s", code, out)
	}
	if n := counts(t).PacketsTo(netip.MustParseAddr(hole)) - before; n > 0 {
		t.Errorf("LEAK: %d packets of the one that floods have come since it was stopped", n)
	}
}

func counts(t *testing.T) internet.Counts {
	t.Helper()
	c, err := lab.Internet.Counts()
	if err != nil {
		t.Fatal(err)
	}
	return c
}
