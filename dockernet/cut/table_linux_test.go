package cut

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestParseLine(t *testing.T) {
	flowOf := func(source, destination string) flow {
		return flow{netip.MustParseAddrPort(source), netip.MustParseAddrPort(destination)}
	}
	for _, tt := range []struct {
		name, line string
		want       entry
	}{
		{"udp", "ipv4     2 udp      17 29 src=192.0.2.1 dst=192.0.2.2 sport=1 dport=2 [UNREPLIED] src=192.0.2.2 dst=192.0.2.1 sport=2 dport=1 mark=0 zone=0 use=2",
			entry{protocol: 17, original: flowOf("192.0.2.1:1", "192.0.2.2:2"), reply: flowOf("192.0.2.2:2", "192.0.2.1:1")}},
		{"redirected_tcp", "ipv4     2 tcp      6 431999 ESTABLISHED src=192.0.2.1 dst=192.0.2.2 sport=1 dport=443 packets=5 bytes=300 src=127.0.0.1 dst=192.0.2.1 sport=999 dport=1 packets=5 bytes=300 [ASSURED] mark=81 use=1",
			entry{mark: 81, protocol: 6, original: flowOf("192.0.2.1:1", "192.0.2.2:443"), reply: flowOf("127.0.0.1:999", "192.0.2.1:1")}},
		{"ipv6", "ipv6     10 udp      17 29 src=2001:0db8:0000:0000:0000:0000:0000:0001 dst=2001:0db8:0000:0000:0000:0000:0000:0002 sport=1 dport=2 src=2001:0db8:0000:0000:0000:0000:0000:0002 dst=2001:0db8:0000:0000:0000:0000:0000:0001 sport=2 dport=1 [OFFLOAD] use=3",
			entry{protocol: 17, original: flowOf("[2001:db8::1]:1", "[2001:db8::2]:2"), reply: flowOf("[2001:db8::2]:2", "[2001:db8::1]:1")}},
		{"icmp", "ipv4     2 icmp     1 29 src=192.0.2.1 dst=192.0.2.2 type=8 code=0 id=7 src=192.0.2.2 dst=192.0.2.1 type=0 code=0 id=7 use=1",
			entry{protocol: 1, original: flowOf("192.0.2.1:0", "192.0.2.2:0"), reply: flowOf("192.0.2.2:0", "192.0.2.1:0")}},
		{"unknown", "ipv4     2 unknown  99 500 src=192.0.2.1 dst=192.0.2.2 [UNREPLIED] src=192.0.2.2 dst=192.0.2.1 use=1",
			entry{protocol: 99, original: flowOf("192.0.2.1:0", "192.0.2.2:0"), reply: flowOf("192.0.2.2:0", "192.0.2.1:0")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseLine(tt.line)
			if err != nil {
				t.Fatal(err)
			}
			if got.protocol != tt.want.protocol || got.original != tt.want.original || got.reply != tt.want.reply || got.mark != tt.want.mark {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
	// What is not understood could be something that has to go.
	for _, line := range []string{
		"", "ipv4 2 udp 17", "ipv4 2 udp x 29 src=192.0.2.1", "ipv4 2 udp 17 29 src=192.0.2.1 dst=192.0.2.2 sport=1 dport=2",
		"ipv4 2 udp 17 29 src=192.0.2 dst=192.0.2.2 sport=1 dport=2 src=192.0.2.2 dst=192.0.2.1 sport=2 dport=1",
		"ipv4 2 udp 17 29 src=192.0.2.1 dst=192.0.2.2 sport=1 dport=70000 src=192.0.2.2 dst=192.0.2.1 sport=2 dport=1",
		"ipv4 2 udp 17 29 src=192.0.2.1 dst=192.0.2.2 sport=1 dport=2 src=192.0.2.2 dst=192.0.2.1 sport=2 dport=1 mark=x",
		"ipv4 2 udp 17 29 src=192.0.2.1 sport=1 dport=2 src=192.0.2.2 dst=192.0.2.1 sport=2 dport=1",
	} {
		if e, err := parseLine(line); err == nil {
			t.Errorf("%q was understood as %+v", line, e)
		}
	}
}

// The kernel says the same by text and by netlink, and takes both to look entries up.
func TestTextAndNetlinkAgree(t *testing.T) {
	w := newWorld(t)
	nft(t, w.inside, gateRules)
	nft(t, w.inside, "add rule inet gate output udp dport 8080 ct mark set 7")
	serve(t, w.outside, servicePort, beyond...)
	serve(t, w.inside, listenerPort, loopback...)
	serve(t, w.inside, servicePort, own...)
	for i := range own {
		for _, network := range []string{"tcp", "udp"} {
			connect(t, w.inside, network, allowed[i], servicePort)
			connect(t, w.inside, network, refused[i], proxiedPort)
			connect(t, w.host, network, own[i], servicePort)
		}
		w.inside.Run(t, func() error {
			c, err := net.Dial([]string{"ip4:icmp", "ip6:ipv6-icmp"}[i], allowed[i].String())
			if err != nil {
				return err
			}
			defer c.Close()
			_, err = c.Write([][]byte{{8, 0, 0xf7, 0xf7, 0, 7, 0, 1}, {128, 0, 0, 0, 0, 7, 0, 1}}[i])
			return err
		})
	}
	w.inside.Run(t, func() error {
		c, err := dial(unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer c.close()
		type plain struct {
			protocol        uint8
			original, reply flow
			mark            uint32
		}
		var byNetlink, byText []plain
		if err := c.all(func(e entry) {
			byNetlink = append(byNetlink, plain{e.protocol, e.original, e.reply, e.mark})
		}); err != nil {
			return err
		}
		text, err := os.ReadFile("/proc/thread-self/net/nf_conntrack")
		if err != nil {
			return err
		}
		var requests [][]byte
		marked := false
		for line := range strings.Lines(string(text)) {
			e, err := parseLine(line)
			if err != nil {
				return err
			}
			byText = append(byText, plain{e.protocol, e.original, e.reply, e.mark})
			marked = marked || e.mark == 7
			requests = append(requests, e.answers())
		}
		if !marked {
			t.Error("no entry has its mark")
		}
		if len(byText) < 14 {
			t.Fatalf("only %d entries", len(byText))
		}
		for _, p := range byText {
			if !slices.ContainsFunc(byNetlink, func(o plain) bool { return o == p }) {
				t.Errorf("netlink has no %+v", p)
			}
		}
		n, err := c.remove(requests)
		if n != len(requests) || len(byText) != len(byNetlink) {
			t.Errorf("%d of %d entries were found again; netlink has %d", n, len(requests), len(byNetlink))
		}
		return err
	})
}

func FuzzParseLine(f *testing.F) {
	f.Add("ipv4     2 icmp     1 29 src=192.0.2.1 dst=192.0.2.2 type=8 code=0 id=7 src=192.0.2.2 dst=192.0.2.1 type=0 code=0 id=7 use=1")
	f.Add("ipv6 10 tcp 6 1 SYN_SENT src=2001:db8::1 dst=::1 sport=1 dport=2 [UNREPLIED] src=::1 dst=2001:db8::1 sport=2 dport=1")
	f.Fuzz(func(t *testing.T, line string) {
		e, err := parseLine(line)
		if err == nil && (!e.original.source.Addr().IsValid() || !e.reply.destination.Addr().IsValid() || len(e.exact()) == 0) {
			t.Errorf("%q was understood as %+v", line, e)
		}
	})
}
