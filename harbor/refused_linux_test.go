package harbor

import (
	"encoding/hex"
	"strings"
	"testing"

	"sluice/dockernet/nflog"
)

// A record of a packet says why the policy in force refuses it.
func TestRefusedPacket(t *testing.T) {
	f := new(fake)
	s := begun(t, f, refuseAll())
	s.do("allow", "a.test", "203.0.113.9")
	for _, row := range []struct{ prefix, packet, protocol, target, reason, rule string }{
		{"sluice run", "4500001c 00004000 40010000 0a000002 cb007142 08000000", "icmp", "203.0.113.66", "not-listed", ""},
		{"sluice run", "4500001c 00004000 40110000 0a000002 cb007109 c000007b", "udp", "203.0.113.9", "not-direct", ""},
		{"sluice run", "4500001c 00004000 40060000 0a000002 a9fea9fe c0000050", "tcp", "169.254.169.254", "floor", ""},
		{"sluice gate", "4500001c 00004000 402f0000 0a000002 cb007109 c000007b", "47", "203.0.113.9", "never", "gate"},
		{"sluice gate", "0001", "0", "", "never", "gate"},
	} {
		b, err := hex.DecodeString(strings.ReplaceAll(row.packet, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		r := s.refused(&nflog.Message{Prefix: row.prefix, Payload: b})
		if r.Protocol != row.protocol || r.Target != row.target || r.Reason != row.reason || r.Rule != row.rule ||
			r.Verdict != "refuse" || r.Generation != 2 || r.Decision == "" || r.Phase != "run" {
			t.Errorf("%+v; want %+v", r, row)
		}
	}
	var early Sidecar
	if r := early.refused(&nflog.Message{Prefix: "sluice run"}); r.Verdict != "refuse" || r.Reason != "never" {
		t.Errorf("before there is a policy: %+v", r)
	}
}
