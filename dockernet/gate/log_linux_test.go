package gate

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice/matcher"
	"sluice/policy"
)

// Of nfnetlink_log.h.
const (
	logSubsystem              = 4
	logPacket, logConfig      = 0, 1
	configCommand, configMode = 1, 2
	attributePayload          = 9
	attributePrefix           = 10
)

// subscribe opens a connection in the workload's namespace that gets the messages of a group.
func (l *lab) subscribe(t *testing.T, group uint16) *netlink.Conn {
	t.Helper()
	var c *netlink.Conn
	l.workload.Run(t, func() (err error) {
		if c, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		// Bind to the group; copy packets whole.
		for _, a := range []netlink.Attribute{
			{Type: configCommand, Data: []byte{1}},
			{Type: configMode, Data: []byte{0, 0, 0xff, 0xff, 2, 0}},
		} {
			data, err := netlink.MarshalAttributes([]netlink.Attribute{a})
			if err != nil {
				return err
			}
			head := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, group)
			m := netlink.Message{Header: netlink.Header{Type: logSubsystem<<8 | logConfig, Flags: netlink.Request | netlink.Acknowledge}, Data: append(head, data...)}
			if _, err := c.Execute(m); err != nil {
				return err
			}
		}
		return c.SetReadDeadline(time.Now().Add(patience))
	})
	t.Cleanup(func() { c.Close() })
	return c
}

// What is refused is told by NFLOG in the namespace: who has refused it, and the packet. So is what goes straight in a
// phase that only observes.
func TestRefusalsAreLogged(t *testing.T) {
	l := newLab(t, false)
	s := l.spec(t, l.listen(t), phaseOf(t, "no-network"), phaseOf(t, "allowlist", "192.0.2.10"))
	observing, err := matcher.Compile(policy.Policy{Options: policy.Options{Observe: true}}, matcher.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Phases[policy.Evaluation].Rules = observing
	s.LogGroup = 42
	if err := l.gate.Install(s, policy.Baseline); err != nil {
		t.Fatal(err)
	}
	log := l.subscribe(t, 42)
	for _, tt := range []struct {
		phase        policy.Phase
		protocol, to string
		prefix       string
	}{
		{policy.Baseline, "udp", "192.0.2.10:80", "sluice baseline"},
		{policy.Baseline, "tcp", "[2001:db8:2::10]:81", "sluice baseline"},
		{policy.Run, "udp", "192.0.2.40:82", "sluice run"},
		{policy.Run, "ping", "127.0.0.11", "sluice gate"},
		{policy.Evaluation, "udp", "192.0.2.40:83", "sluice evaluation observed"},
		{policy.Evaluation, "udp", "[2001:db8:2::10]:84", "sluice evaluation observed"},
		{policy.Evaluation, "udp", "169.254.169.254:85", "sluice gate"},
	} {
		if err := l.gate.Switch(tt.phase); err != nil {
			t.Fatal(err)
		}
		if got := l.probe(t, tt.protocol, tt.to); (got == "refused") == strings.HasSuffix(tt.prefix, Observed) {
			t.Fatalf("%s to %s: got %s", tt.protocol, tt.to, got)
		}
		messages, err := log.Receive()
		if err != nil {
			t.Fatalf("%s to %s: %v", tt.protocol, tt.to, err)
		}
		m := messages[0]
		if m.Header.Type != logSubsystem<<8|logPacket {
			t.Fatalf("message of type %v", m.Header.Type)
		}
		attributes, err := netlink.UnmarshalAttributes(m.Data[4:])
		if err != nil {
			t.Fatal(err)
		}
		var prefix string
		var payload []byte
		for _, a := range attributes {
			switch a.Type {
			case attributePrefix:
				prefix = strings.TrimRight(string(a.Data), "\x00")
			case attributePayload:
				payload = a.Data
			}
		}
		if prefix != tt.prefix {
			t.Errorf("%s to %s: prefix %q, want %q", tt.protocol, tt.to, prefix, tt.prefix)
		}
		if got := destination(payload); !strings.HasPrefix(tt.to, got.String()) && !strings.HasPrefix(tt.to, "["+got.String()) {
			t.Errorf("%s to %s: the packet logged is for %v", tt.protocol, tt.to, got)
		}
	}
}

// destination reads the address of an IP packet.
func destination(packet []byte) netip.Addr {
	if len(packet) < 40 && (len(packet) < 20 || packet[0]>>4 == 6) {
		return netip.Addr{}
	}
	if packet[0]>>4 == 6 {
		return netip.AddrFrom16([16]byte(packet[24:40]))
	}
	return netip.AddrFrom4([4]byte(packet[16:20]))
}
