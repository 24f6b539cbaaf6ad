package internet

import "net/netip"

// The addresses of the lab's internet. What has a name stands in test.zone.
var (
	// Resolver answers for .test; the engine and its containers are pointed at it.
	Resolver  = netip.MustParseAddr("198.51.100.53")
	Resolver6 = netip.MustParseAddr("2001:db8::53")

	// Prefixes are local to the internet as a whole: every address in them answers.
	Prefixes = []netip.Prefix{
		netip.MustParsePrefix("192.0.2.0/24"),
		netip.MustParsePrefix("198.51.100.0/24"),
		netip.MustParsePrefix("203.0.113.0/24"),
		netip.MustParsePrefix("2001:db8::/32"),
		netip.MustParsePrefix("10.1.2.0/24"),
		// What nobody should reach by accident: public resolvers, metadata services.
		netip.MustParsePrefix("8.8.8.8/32"),
		netip.MustParsePrefix("8.8.4.4/32"),
		netip.MustParsePrefix("1.1.1.1/32"),
		netip.MustParsePrefix("9.9.9.9/32"),
		netip.MustParsePrefix("2001:4860:4860::8888/128"),
		netip.MustParsePrefix("2606:4700:4700::1111/128"),
		netip.MustParsePrefix("169.254.169.254/32"),
		netip.MustParsePrefix("169.254.170.2/32"),
		netip.MustParsePrefix("100.100.100.200/32"),
		netip.MustParsePrefix("168.63.129.16/32"),
		netip.MustParsePrefix("fd00:ec2::254/128"),
	}

	// Holes drop everything that is sent to them.
	Holes = []netip.Prefix{
		netip.MustParsePrefix("203.0.113.98/32"),
		netip.MustParsePrefix("2001:db8:dead::/48"),
	}
)

// The ports on which every address of the internet listens, beside 53 (DNS, UDP and TCP).
const (
	PortEcho  = 7    // TCP and UDP: sends back what it gets
	PortSSH   = 22   // git's upload-pack on the repository, for everybody
	PortHTTP  = 80   // HTTP/1.1, and HTTP/2 by prior knowledge
	PortHTTPS = 443  // HTTP/1.1 and HTTP/2, a certificate for whatever name is asked for
	PortAlt   = 8443 // as 443
	PortFirst = 2525 // the server speaks first: "220 ready", then as echo
	PortLater = 5432 // PostgreSQL's way to TLS, then as echo
	PortTicks = 7000 // the client sends a line, the stream's id; a line "id number" comes back every 20 ms
)
