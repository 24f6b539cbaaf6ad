package internet

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/net/ipv6"
)

// TestUDPEchoAnswersFromTheAddressThatWasAsked asks for an IPv4 address that the socket is not bound to.
func TestUDPEchoAnswersFromTheAddressThatWasAsked(t *testing.T) {
	echo, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := ipv6.NewPacketConn(echo).SetControlMessage(ipv6.FlagDst, true); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); serveUDPEcho(echo) }()
	defer func() { echo.Close(); <-ended }()

	client, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.SetDeadline(time.Now().Add(10 * time.Second))
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.5"), echo.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	if _, err := client.WriteToUDPAddrPort([]byte("text"), to); err != nil {
		t.Fatal(err)
	}
	var answer [16]byte
	n, from, err := client.ReadFromUDPAddrPort(answer[:])
	if err != nil || string(answer[:n]) != "text" || from != to {
		t.Errorf("answer %q from %v, %v; want %q from %v", answer[:n], from, err, "text", to)
	}
}
