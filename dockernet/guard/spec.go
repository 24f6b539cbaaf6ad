package guard

import (
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"sluice/dockernet/direct"
	"sluice/dockernet/nft"
)

// Spec says what the rules of one veth shall mean.
type Spec struct {
	direct.Spec

	// Interface and Index name the host's end of the veth.
	Interface string
	Index     int

	// Hardware and Addresses are the container's own on this link, those of IPv6 with the link-local one. Frames with
	// other sources are dropped; without addresses of a family all of that family is.
	Hardware  nft.Hardware
	Addresses []netip.Addr
	// OnLink are the networks of this link, a subset of Networks.
	OnLink []netip.Prefix
	// Routers are the hardware addresses that packets to anywhere else go to, that of the bridge as a rule, and
	// Gateways the addresses they have on the link. Without routers nothing goes anywhere else.
	Routers  []nft.Hardware
	Gateways []netip.Addr
}

// check finds what cannot be turned into rules.
func (s *Spec) check() error {
	if err := s.Spec.Check(); err != nil {
		return err
	}
	switch {
	case s.Interface == "" || len(s.Interface) > 15:
		return fmt.Errorf("%q is no name of an interface", s.Interface)
	case s.Index <= 0:
		return fmt.Errorf("interface %s has index %d", s.Interface, s.Index)
	case len(s.Addresses) == 0:
		return fmt.Errorf("interface %s: the container has no address on this link", s.Interface)
	}
	for _, h := range append([]nft.Hardware{s.Hardware}, s.Routers...) {
		if h == (nft.Hardware{}) || h[0]&1 != 0 {
			return fmt.Errorf("interface %s: %v is no hardware address of one station", s.Interface, h)
		}
	}
	for _, a := range append(slices.Clone(s.Addresses), s.Gateways...) {
		if !direct.Plain(a) || a.IsUnspecified() || a.IsMulticast() || a.IsLoopback() {
			return fmt.Errorf("interface %s: %v is no address of one station", s.Interface, a)
		}
	}
	for _, p := range s.OnLink {
		if !p.IsValid() || p.Addr().Is4In6() {
			return fmt.Errorf("interface %s: %v is no network of one family", s.Interface, p)
		}
	}
	return nil
}

// clone returns a copy that shares nothing that changes.
func (s *Spec) clone() *Spec {
	c := *s
	for i := range c.Phases {
		c.Phases[i].Named = slices.Clone(c.Phases[i].Named)
	}
	c.Networks, c.Spec.Direct, c.Host = slices.Clone(s.Networks), slices.Clone(s.Spec.Direct), slices.Clone(s.Host)
	c.Closed, c.Open = slices.Clone(s.Closed), slices.Clone(s.Open)
	c.Addresses, c.OnLink = slices.Clone(s.Addresses), slices.Clone(s.OnLink)
	c.Routers, c.Gateways = slices.Clone(s.Routers), slices.Clone(s.Gateways)
	return &c
}

// families that the container has addresses of on this link.
func (s *Spec) families() []nft.Kind {
	if slices.ContainsFunc(s.Addresses, netip.Addr.Is6) {
		return []nft.Kind{nft.IPv4, nft.IPv6}
	}
	return []nft.Kind{nft.IPv4}
}

func of[T any](list []T, f nft.Kind, address func(T) netip.Addr) (found []T) {
	for _, x := range list {
		if address(x).Is4() == (f == nft.IPv4) {
			found = append(found, x)
		}
	}
	return found
}

func itself(a netip.Addr) netip.Addr { return a }

// Mark is where in the mark of a packet the guard keeps what it has found: two bits, the lower of which says that new
// connections are allowed and the higher that those are that conntrack knows, in their reply direction only if the
// lower one is not set. The guard touches no other bits.
type Mark uint32

// DefaultMark are bits that no widely used software for container networks uses.
const DefaultMark Mark = 0x3000

func (m Mark) check() error {
	if bits.OnesCount32(uint32(m)) != 2 {
		return errors.New("the mark needs exactly two bits")
	}
	return nil
}

func (m Mark) allowed() uint32 { return uint32(m) & -uint32(m) }
func (m Mark) replies() uint32 { return uint32(m) &^ m.allowed() }
func (m Mark) open() uint32    { return uint32(m) }
