package attempts

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"sluice/e2e/lab/tap"
)

// proxies tries to use the proxy against the policy, and to show it an allowed address with another name (I-23, I-25,
// I-27, I-40).
func (m *maker) proxies() {
	web := webAddresses[m.family]
	m.add("server-name", outside, named, "tcp", netip.AddrPortFrom(web, 443), func(token []byte) []byte {
		return clientHello(string(token) + ".any.test")
	})
	m.add("no-server-name", outside, named, "tcp", netip.AddrPortFrom(web, 443), func(token []byte) []byte { return clientHello("", string(token)) })
	m.add("host-field", outside, named, "tcp", netip.AddrPortFrom(web, 80), func(token []byte) []byte {
		return fmt.Appendf(nil, "GET /%s HTTP/1.1\r\nHost: %s.any.test\r\n\r\n", token, token)
	})
	a := m.add("second-host-field", outside, named, "tcp", netip.AddrPortFrom(web, 80), func([]byte) []byte {
		return []byte("GET / HTTP/1.1\r\nHost: web.test\r\n\r\n")
	})
	a.Send = append(a.Send, fmt.Appendf(nil, "GET /%s HTTP/1.1\r\nHost: %s.any.test\r\n\r\n", a.Token, a.Token))
	m.add("neither-tls-nor-http", outside, named, "tcp", netip.AddrPortFrom(web, 443), noText)

	const proxy = "127.0.0.12:3128"
	ask := func(name string, to Target, dest netip.AddrPort) {
		a := m.add("proxy/"+name, to, explicit, "tcp", proxy, func([]byte) []byte {
			return fmt.Appendf(nil, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", dest, dest)
		})
		a.Send = append(a.Send, noText([]byte(a.Token)))
		a.Flow = tap.Flow("tcp", dest)
	}
	for to, name := range map[Target]string{outside: "outside", allowed: "allowed", denied: "denied", sibling: "sibling", host: "host"} {
		ask(name, to, netip.AddrPortFrom(m.addressOf(to), port()))
	}
	if a := m.Host[m.family]; a.IsValid() {
		ask("other-address-of-host", host, netip.AddrPortFrom(a, port()))
	}
	for name, a := range map[string]netip.Addr{
		"foreign": m.Foreign[m.family], "sidecar": m.Sidecar[m.family],
		"metadata": netip.MustParseAddr([]string{"169.254.169.254", "fd00:ec2::254"}[m.family]),
		"loopback": []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}[m.family],
	} {
		if a.IsValid() {
			ask(name, nobody, netip.AddrPortFrom(a, port()))
		}
	}
	if m.Closed != 0 {
		ask("controller", nobody, netip.AddrPortFrom(m.Host[m.family], m.Closed))
	}
	if m.family == 0 {
		m.add("proxy/name", outside, explicit, "tcp", proxy, func(token []byte) []byte {
			return fmt.Appendf(nil, "CONNECT %s.any.test:443 HTTP/1.1\r\nHost: x\r\n\r\n", token)
		})
		m.add("proxy/url", outside, explicit, "tcp", proxy, func(token []byte) []byte {
			return fmt.Appendf(nil, "GET http://%s.any.test/%s HTTP/1.1\r\nHost: %s.any.test\r\n\r\n", token, token, token)
		})
		// Fronting: an allowed name for the proxy, another one for the server behind it.
		for name, hello := range map[string]func(token []byte) []byte{
			"443": func(token []byte) []byte { return clientHello(string(token) + ".any.test") },
			"80": func(token []byte) []byte {
				return fmt.Appendf(nil, "GET / HTTP/1.1\r\nHost: %s.any.test\r\n\r\n", token)
			},
		} {
			a := m.add("proxy/fronted-"+name, outside, explicit, "tcp", proxy, func([]byte) []byte {
				return fmt.Appendf(nil, "CONNECT web.test:%s HTTP/1.1\r\nHost: web.test:%[1]s\r\n\r\n", name)
			})
			a.Send = append(a.Send, hello([]byte(a.Token)))
		}
		m.add("proxy/other-host-field", outside, explicit, "tcp", proxy, func(token []byte) []byte {
			return fmt.Appendf(nil, "GET http://web.test/ HTTP/1.1\r\nHost: %s.any.test\r\n\r\n", token)
		}).Blind = true // the proxy writes a field of its own
		for i, listener := range m.Listeners {
			m.add(fmt.Sprint("listener-itself-", i), outside, unasked, "tcp", listener, func(token []byte) []byte {
				return fmt.Appendf(nil, "CONNECT %s.any.test:443 HTTP/1.1\r\nHost: x\r\n\r\n", token)
			})
		}
	}
}

// clientHello is what a TLS client says first.
func clientHello(name string, protocols ...string) []byte {
	client, server := net.Pipe()
	defer server.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		defer client.Close()
		_ = tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: protocols}).HandshakeContext(ctx) // it gets no answer
	}()
	var hello bytes.Buffer
	head := make([]byte, 5)
	if _, err := server.Read(head); err != nil {
		panic(err)
	}
	hello.Write(head)
	rest := make([]byte, binary.BigEndian.Uint16(head[3:]))
	for n := 0; n < len(rest); {
		k, err := server.Read(rest[n:])
		if err != nil {
			panic(err)
		}
		n += k
	}
	hello.Write(rest)
	return hello.Bytes()
}
