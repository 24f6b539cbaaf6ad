package gate

import (
	"errors"
	"fmt"
	"net/netip"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// Spec says what the rules in one container's namespace shall mean. It is read only while a function has it.
type Spec struct {
	direct.Spec

	// Listeners are where connections are redirected to.
	Listeners Listeners
	// Explicit are loopback addresses and ports that lead to the TCP listener of their family, for clients that
	// are told of a proxy. Nothing else listens there.
	Explicit []netip.AddrPort
	// NoRoute4 and NoRoute6 say that the sidecar has no route for the family: what would go through the proxy is
	// refused, so that clients fall back to the other family.
	NoRoute4, NoRoute6 bool

	// LogGroup is the NFLOG group, in the container's namespace, that gets the first packets of what is refused.
	LogGroup uint16

	// Shared is set if the sidecar lives in the same namespace.
	Shared *Shared

	// noLinks6 is set if IPv6 is off on all links, as the engine leaves it where no network has it.
	noLinks6 bool
}

// Listeners are the ports of the session's sockets on the container's loopback addresses. The IPv6 ones are 0 where
// the namespace has no ::1; there all IPv6 is refused.
type Listeners struct {
	TCP4, UDP4, TCP6, UDP6 uint16
}

// check finds what cannot be turned into rules.
func (s *Spec) check() error {
	if err := s.Check(); err != nil {
		return err
	}
	for _, a := range s.Explicit {
		if !direct.Plain(a.Addr()) || a.Port() == 0 {
			return fmt.Errorf("%v: want an address without a zone, and a port", a)
		}
		if !a.Addr().IsLoopback() || a.Addr() == engineResolver {
			return fmt.Errorf("explicit proxy %v: want a loopback address other than %v", a, engineResolver)
		}
	}
	return errors.Join(s.Shared.check(), s.Listeners.check())
}

func (l Listeners) check() error {
	if l.TCP4 == 0 || l.UDP4 == 0 || (l.TCP6 == 0) != (l.UDP6 == 0) {
		return errors.New("a listener is missing: want TCP and UDP on 127.0.0.1, and on ::1 both or none")
	}
	return nil
}

// engineResolver is where the engine answers DNS inside of a container, on port 53 and on random ports.
var engineResolver = netip.AddrFrom4([4]byte{127, 0, 0, 11})

// families that there are listeners for, and links. All of another one is refused, but for the workload's own loopback.
func (s *Spec) families() []nft.Kind {
	if s.Listeners.TCP6 != 0 && !s.noLinks6 {
		return []nft.Kind{nft.IPv4, nft.IPv6}
	}
	return []nft.Kind{nft.IPv4}
}

// routes tells whether the sidecar has a route for the family.
func (s *Spec) routes(f nft.Kind) bool {
	if f == nft.IPv4 {
		return !s.NoRoute4
	}
	return !s.NoRoute6
}

// restricted reports whether a phase refuses connections into the container.
func (s *Spec) restricted(n policy.Phase) bool { return s.inbound(n) != policy.InboundAll }
