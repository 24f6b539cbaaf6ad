package e2e

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	core "sluice/controller"
	"sluice/dockernet/netns"
	"sluice/e2e/lab/internet"
)

const (
	// discard is a port on which the internet does not listen.
	discard = 9
	// proberTargets is how many addresses a prober has: one for each value of allowed.
	proberTargets = int(never) + 1
)

// prober tries one address after another, again and again, from one thread: those that a phase allows, and one that none
// does. So the numbers of its tries are the order in which they were made.
type prober struct {
	name string
	// base is the address allowed always; the others follow it.
	base netip.Addr
	// try makes one try; for a prober whose packets are not captured it reports whether the try went through.
	try func(number uint64, to allowed) bool
	// pause is made after a round, but during a switch.
	pause time.Duration

	tried atomic.Uint64 // the number of the last try
	hurry *atomic.Bool
	// seen are the numbers of tries that went through; not to be read before prober and capture have ended.
	seen []uint64
}

func (p *prober) address(a allowed) netip.Addr {
	b := p.base.As4()
	b[3] += byte(a)
	return netip.AddrFrom4(b)
}

func targetOf(number uint64) allowed { return allowed(number % uint64(proberTargets)) }

// run tries until stop is closed. prepare runs first on the same thread, in the container's namespace.
func (p *prober) run(ns *netns.Namespace, stop <-chan struct{}, prepare func() error) error {
	err := ns.Do(func() error {
		if err := prepare(); err != nil {
			return err
		}
		for {
			for range proberTargets {
				n := p.tried.Add(1)
				if p.try(n, targetOf(n)) {
					p.seen = append(p.seen, n)
				}
			}
			select {
			case <-stop:
				return nil
			default:
			}
			if !p.hurry.Load() {
				time.Sleep(p.pause)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("prober %s: %w", p.name, err)
	}
	return nil
}

// datagrams tries the direct plane: what the gate lets out.
func (p *prober) datagrams() func() error {
	return func() error {
		conn, err := net.ListenUDP("udp4", nil)
		if err != nil {
			return err
		}
		var payload [8]byte
		p.try = func(n uint64, to allowed) bool {
			binary.BigEndian.PutUint64(payload[:], n)
			conn.WriteToUDPAddrPort(payload[:], netip.AddrPortFrom(p.address(to), discard)) // what is refused fails
			return false
		}
		return nil
	}
}

// frames tries the guard alone: frames that no gate has seen.
func (p *prober) frames(from netip.Addr, gateway net.HardwareAddr) func() error {
	return func() error {
		eth0, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		to := &unix.SockaddrLinklayer{Ifindex: eth0.Index}
		p.try = func(n uint64, a allowed) bool {
			unix.Sendto(fd, datagram(gateway, eth0.HardwareAddr, from, p.address(a), n), 0, to)
			return false
		}
		return nil
	}
}

// datagram returns an Ethernet frame with a UDP datagram that has a number in it (RFC 791, RFC 768).
func datagram(to, from net.HardwareAddr, source, destination netip.Addr, number uint64) []byte {
	const payload = 8
	b := append(append(make([]byte, 0, 64), to...), from...)
	b = append(b, 8, 0) // IPv4
	header := len(b)
	b = append(b, 0x45, 0, 0, 20+8+payload, byte(number>>8), byte(number), 0x40, 0, 64, unix.IPPROTO_UDP, 0, 0)
	b = append(append(b, source.AsSlice()...), destination.AsSlice()...)
	sum := uint32(0)
	for i := header; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(b[header+10:], ^uint16(sum+sum>>16))
	b = binary.BigEndian.AppendUint16(b, 40_000)
	b = binary.BigEndian.AppendUint16(b, discard)
	b = append(b, 0, 8+payload, 0, 0) // a checksum of 0 means none
	return binary.BigEndian.AppendUint64(b, number)
}

// tunnels tries the name plane, by CONNECT and, where no phase allows it, to the bare address too.
func (p *prober) tunnels(limit time.Duration) func() error {
	return func() error {
		dialer := net.Dialer{Timeout: limit}
		dialer.SetMultipathTCP(false)
		p.try = func(n uint64, to allowed) bool {
			if to == never {
				if conn, err := dialer.Dial("tcp4", netip.AddrPortFrom(p.address(to), internet.PortEcho).String()); err == nil {
					conn.Write([]byte("none of this may arrive"))
					conn.Close()
				}
			}
			conn, err := dialer.Dial("tcp4", core.ExplicitProxy.String())
			if err != nil {
				return false
			}
			defer conn.Close()
			conn.SetDeadline(time.Now().Add(limit))
			return connect(conn, fmt.Sprintf("probe-%v.switch.test:%d", to, internet.PortEcho)) == nil
		}
		return nil
	}
}

// span is a switch as a prober knows it: what was tried from number began on and before number ended+1 may have met
// any moment of it.
type span struct {
	from, to     string // phases; "" means that nothing may pass
	began, ended uint64
}

// check compares what went through with what the phases allow: between two switches exactly that; during a switch
// nothing that neither of the two allows, everything that both do, and never something that only the old one allows
// after something that only the new one does. lenient leaves out that what is allowed goes through.
func (p *prober) check(t *testing.T, spans []span, first string, lenient bool) {
	t.Helper()
	last := p.tried.Load()
	through := make([]bool, last+1)
	for _, n := range p.seen {
		through[n] = true
	}
	phase, next := first, 0
	var newest uint64 // what only the new phase of a switch allows went through here
	wrong := 0
	report := func(n uint64, what string) {
		if wrong++; wrong <= 10 {
			t.Errorf("prober %s: try %d, at an address allowed %v, %s", p.name, n, targetOf(n), what)
		}
	}
	for n := uint64(1); n <= last; n++ {
		for next < len(spans) && n > spans[next].ended {
			phase, newest = spans[next].to, 0
			next++
		}
		a := targetOf(n)
		if next < len(spans) && n >= spans[next].began {
			s := spans[next]
			old, new := a.in(s.from), a.in(s.to)
			switch {
			case through[n] && !old && !new:
				report(n, fmt.Sprintf("went through during the switch from %q to %q", s.from, s.to))
			case through[n] && old && !new && newest != 0:
				report(n, fmt.Sprintf("went through during the switch from %q to %q, after try %d", s.from, s.to, newest))
			case through[n] && new && !old && newest == 0:
				newest = n
			case !through[n] && old && new && !lenient:
				report(n, fmt.Sprintf("did not go through during the switch from %q to %q", s.from, s.to))
			}
			continue
		}
		switch want := a.in(phase); {
		case through[n] && !want:
			report(n, fmt.Sprintf("went through in phase %q", phase))
		case !through[n] && want && !lenient:
			report(n, fmt.Sprintf("did not go through in phase %q", phase))
		}
	}
	if wrong > 10 {
		t.Errorf("prober %s: %d tries of %d went wrong in all", p.name, wrong, last)
	}
	if len(p.seen) == 0 {
		t.Errorf("prober %s: nothing went through", p.name)
	}
	t.Logf("prober %s: %d tries, %d went through", p.name, last, len(p.seen))
}
