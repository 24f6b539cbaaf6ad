package proxy

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sluice/control"
	"sluice/matcher"
	"sluice/proxy/dns"
	"sluice/proxy/resolve"
)

// Surroundings are what a session has of its own, for its container sits in other networks than the proxy. They are not
// changed once they are in use.
type Surroundings struct {
	// Upstreams are the container's DNS servers; nil takes the proxy's.
	Upstreams []netip.AddrPort
	// Never are not dialled whatever the policy says, besides those of [matcher.Options].
	Never []netip.Prefix
	// Hosts are names that are answered without a server: siblings, aliases, extra hosts.
	Hosts map[string][]netip.Addr
	// Open are names that are answered whatever the policy says.
	Open map[string][]netip.Addr
	// NoRoute are the families that the proxy has no route for, nil where it has both.
	NoRoute *Families
}

// Families are those of IP.
type Families struct{ IPv4, IPv6 bool }

// with returns what s is after a change; nil fields of it keep what s has.
func (s *Surroundings) with(change *Surroundings) *Surroundings {
	if change == nil {
		return s
	}
	next := *s
	if change.Upstreams != nil {
		next.Upstreams = change.Upstreams
	}
	if change.Never != nil {
		next.Never = change.Never
	}
	if change.Hosts != nil {
		next.Hosts = change.Hosts
	}
	if change.Open != nil {
		next.Open = change.Open
	}
	if change.NoRoute != nil {
		next.NoRoute = change.NoRoute
	}
	return &next
}

// matcher returns the options for a session's policies.
func (s *Session) matcher(around *Surroundings) matcher.Options {
	o := s.server.config.Matcher
	o.Never = slices.Concat(o.Never, around.Never)
	return o
}

// surround puts other surroundings in force. The caller holds s.switching, and judges flows again if need be.
func (s *Session) surround(next *Surroundings) {
	former := s.around.Swap(next)
	upstreams := !slices.Equal(former.Upstreams, next.Upstreams)
	hosts := !maps.EqualFunc(former.Hosts, next.Hosts, slices.Equal)
	if !upstreams && !hosts {
		return
	}
	servers := s.upstreamsOf(next)
	if own := s.lookups.Load(); own != nil {
		own.replace(servers) // with an empty cache
	} else {
		own = newLookups(resolve.Options{Upstreams: servers, Hosts: s.hosts, Logger: s.server.log}, s.server.followUpstreams)
		s.lookups.Store(own)
		s.closing = append(s.closing, own.Close)
	}
	switch filter := s.dns.Load(); {
	case filter == nil:
	case upstreams:
		filter.SetUpstreams(servers)
	default:
		filter.Flush() // of what servers said of names that are local now
	}
}

// resolver is the session's own, or the proxy's.
func (s *Session) resolver() *lookups {
	if own := s.lookups.Load(); own != nil {
		return own
	}
	return s.server.resolver
}

// resolveName looks a name up that no client has chosen.
func (s *Session) resolveName(ctx context.Context, name string) (resolve.Answer, error) {
	return s.resolver().LookupIf(ctx, name, nil)
}

// hosts answers local names.
func (s *Session) hosts(name string) []netip.Addr {
	if known, ok := s.around.Load().Hosts[name]; ok {
		return known
	}
	if all := s.server.config.Hosts; all != nil {
		return all(name)
	}
	return nil
}

// localName is hosts for the DNS filter, which asks for every query: it allocates only where the proxy has hosts of its
// own.
func (s *Session) localName(name []byte) []netip.Addr {
	if known, ok := s.around.Load().Hosts[string(name)]; ok {
		return known
	}
	if all := s.server.config.Hosts; all != nil {
		return all(string(name))
	}
	return nil
}

// openName answers names that no policy refuses.
func (s *Session) openName(name []byte) []netip.Addr { return s.around.Load().Open[string(name)] }

// makeFilter puts a DNS filter in service. The caller holds s.switching.
func (s *Session) makeFilter() *dns.Server {
	filter := dns.New(dns.Options{
		Rules: func() dns.Rules {
			r := s.rules()
			now := dns.Rules{Ruleset: r.set, Options: r.policy.Options, Budget: r.budget, Generation: r.generation}
			if lacks := s.around.Load().NoRoute; lacks != nil {
				now.NoIPv4, now.NoIPv6 = lacks.IPv4, lacks.IPv6
			}
			return now
		},
		Fresh: s.freshen, Upstreams: s.upstreamsOf(s.around.Load()), Hosts: s.localName, Open: s.openName, Observe: s.observe, Learn: s.learn,
		Outgoing: s.server.config.Outgoing, Logger: s.server.log,
	})
	s.dns.Store(filter)
	s.closing = append(s.closing, filter.Close)
	return filter
}

// upstreamsOf returns the name servers of a session with these surroundings.
func (s *Session) upstreamsOf(around *Surroundings) []netip.AddrPort {
	if around.Upstreams != nil {
		return around.Upstreams
	}
	return s.server.upstreams()
}

// upstreams are the proxy's own name servers.
func (s *Server) upstreams() []netip.AddrPort {
	if now := s.servers.Load(); now != nil {
		return *now
	}
	return s.config.Upstreams
}

// followUpstreams asks the proxy's own name servers of this moment from now on.
func (s *Server) followUpstreams() {
	if s.config.UpstreamsChanged == nil || !s.following.TryLock() {
		return
	}
	defer s.following.Unlock()
	servers, ok := s.config.UpstreamsChanged()
	if !ok || slices.Equal(servers, s.upstreams()) {
		return
	}
	s.servers.Store(&servers)
	s.resolver.replace(servers)
	for _, session := range s.list() {
		session.renewUpstreams()
	}
}

// renewUpstreams makes the session ask the proxy's own name servers of this moment, unless it has some of its own.
func (s *Session) renewUpstreams() {
	s.switching.Lock()
	defer s.switching.Unlock()
	if s.ended || s.around.Load().Upstreams != nil {
		return
	}
	if own := s.lookups.Load(); own != nil {
		own.replace(s.server.upstreams())
	}
	if filter := s.dns.Load(); filter != nil {
		filter.SetUpstreams(s.server.upstreams())
	}
}

// describe adds s to a status.
func (s *Surroundings) describe(status *control.SessionStatus) {
	for _, u := range s.Upstreams {
		status.Upstreams = append(status.Upstreams, u.String())
	}
	for _, n := range s.Never {
		status.Never = append(status.Never, n.String())
	}
	if s.NoRoute != nil && s.NoRoute.IPv4 {
		status.NoRoute = append(status.NoRoute, familyIPv4)
	}
	if s.NoRoute != nil && s.NoRoute.IPv6 {
		status.NoRoute = append(status.NoRoute, familyIPv6)
	}
	status.Hosts, status.Open = describeHosts(s.Hosts), describeHosts(s.Open)
}

func describeHosts(hosts map[string][]netip.Addr) map[string][]string {
	if len(hosts) == 0 {
		return nil
	}
	described := make(map[string][]string, len(hosts))
	for name, addresses := range hosts {
		for _, a := range addresses {
			described[name] = append(described[name], a.String())
		}
	}
	return described
}

// surroundings reads those of a spec. Fields that are absent there are nil.
func surroundings(spec *control.SessionSpec) (*Surroundings, error) {
	if spec.Upstreams == nil && spec.Never == nil && spec.Hosts == nil && spec.Open == nil && spec.NoRoute == nil {
		return nil, nil
	}
	s := new(Surroundings)
	if spec.Upstreams != nil {
		s.Upstreams = make([]netip.AddrPort, 0, len(spec.Upstreams))
	}
	for _, text := range spec.Upstreams {
		server, err := parseServer(text)
		if err != nil {
			return nil, err
		}
		s.Upstreams = append(s.Upstreams, server)
	}
	if spec.Never != nil {
		s.Never = make([]netip.Prefix, 0, len(spec.Never))
	}
	for _, text := range spec.Never {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("never: %q is no network: write 192.0.2.0/24, or 192.0.2.1/32 for one address", text)
		}
		s.Never = append(s.Never, p.Masked())
	}
	if spec.NoRoute != nil {
		s.NoRoute = new(Families)
	}
	for _, family := range spec.NoRoute {
		switch family {
		case familyIPv4:
			s.NoRoute.IPv4 = true
		case familyIPv6:
			s.NoRoute.IPv6 = true
		default:
			return nil, fmt.Errorf("no_route: %q is no family: write %q or %q", family, familyIPv4, familyIPv6)
		}
	}
	var err error
	if s.Hosts, err = readHosts("hosts", spec.Hosts); err != nil {
		return nil, err
	}
	s.Open, err = readHosts("open", spec.Open)
	return s, err
}

// readHosts reads names with addresses; nil is nil.
func readHosts(field string, spec map[string][]string) (map[string][]netip.Addr, error) {
	if spec == nil {
		return nil, nil
	}
	hosts := make(map[string][]netip.Addr, len(spec))
	for name, addresses := range spec {
		key := strings.ToLower(strings.TrimSuffix(name, "."))
		for _, text := range addresses {
			a, err := netip.ParseAddr(text)
			if err != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%s: %q of %s is no address without a zone", field, text, name)
			}
			hosts[key] = append(hosts[key], a.Unmap())
		}
	}
	return hosts, nil
}

// Words for families on the wire.
const familyIPv4, familyIPv6 = "ipv4", "ipv6"

// parseServer reads the address of a DNS server; without a port it is 53.
func parseServer(text string) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, 53), nil
	}
	server, err := netip.ParseAddrPort(text)
	if err != nil || server.Port() == 0 {
		return server, fmt.Errorf("upstreams: %q is no DNS server: write 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53", text)
	}
	return server, nil
}
