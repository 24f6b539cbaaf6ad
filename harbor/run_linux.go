package harbor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/dockernet/direct"
	"sluice/dockernet/gate"
	"sluice/dockernet/netns"
	"sluice/dockernet/resolver"
	"sluice/policy"
	"sluice/proxy"
	"sluice/proxy/outgoing"
	"sluice/proxy/resolve"
)

// sessionID names the one session.
const sessionID = "harbor"

// Run keeps the network namespace of this process under a policy until ctx is done. Nothing passes then: the rules stay,
// and refuse everything. That is so too when Run fails after it has begun to make rules.
func Run(ctx context.Context, c Config) (err error) {
	defer func() { err = rights(err) }()
	if err := os.Remove(c.Ready); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("ready file: %w", err)
	}
	p, err := initial(c.Mode, c.Hosts)
	if err != nil {
		return err
	}
	ns, err := netns.Current()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ns.Close()) }()
	if err := ofContainer(ns); err != nil {
		return err
	}
	known, err := networkOf(ns)
	if err != nil {
		return err
	}
	upstreams := nameServers(ctx, ns, c)
	group, err := secretGroup(syscall.Setgid)
	if err != nil {
		return err
	}
	k := &kernel{ns: ns, gate: gate.New(ns), mark: secretNumber(), group: group}
	defer k.close()
	own := gate.NewOwn(ns)
	defer own.Close()
	// What a client may reach on its own loopback is its own business; that of the engine's resolver is the DNS filter's.
	k.judging.Never = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	server, err := proxy.New(proxy.Config{
		Upstreams: upstreams, Matcher: k.judging, Audit: c.Audit, Logger: c.Log, Version: c.Version,
		Outgoing: &outgoing.Sockets{Announcer: own, Mark: k.mark},
	})
	if err != nil {
		return err
	}
	defer server.Close()
	session, err := server.Open(sessionID)
	if err != nil {
		return err
	}
	if k.listeners, err = listen(ns, session); err != nil {
		return err
	}
	asked, err := listenAt(c.Socket) // who asks early waits
	if err != nil {
		return err
	}
	defer asked.Close()
	s := &Sidecar{kernel: k, proxy: proxied{session, k}, log: c.Log, holds: func(ok bool) error { return mark(c.Ready, ok) }}
	defer tellRefusals(ns, s, c.Audit, c.Log)()
	if err := s.begin(ctx, p); err != nil {
		return errors.Join(err, s.end(k.installed))
	}
	defer func() { err = errors.Join(err, s.end(true)) }()
	c.Log.Info("ready", "mode", p.Mode, "targets", len(p.Targets))
	// Without either, nobody keeps to the policy.
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error { return watch(ctx, ns, known, func() { s.refresh(ctx) }) })
	both.Go(func() error { return serve(ctx, asked, s.Do) })
	return both.Wait()
}

// rights tells what the sidecar's container needs if it is that what is missing.
func rights(err error) error {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) {
		return err
	}
	return fmt.Errorf("%w\nthe sidecar's container needs the capabilities NET_ADMIN and NET_RAW, which Harbor's compose file adds, "+
		"and SETGID, which the engine gives it unless told otherwise", err)
}

// resolverTime is how long it may take to find out whom the engine's resolver asks.
const resolverTime = 5 * time.Second

// nameServers are those that the proxy asks; none if it must ask none, or knows of none. Then names are refused, and the
// rest works.
func nameServers(ctx context.Context, ns *netns.Namespace, c Config) []netip.AddrPort {
	engine := netip.AddrPortFrom(resolver.Address, 53)
	servers, err := resolve.Upstreams(c.ResolvConf)
	if err == nil && slices.Contains(servers, engine) {
		ctx, cancel := context.WithTimeout(ctx, resolverTime)
		defer cancel()
		servers, err = resolver.Find(ctx, ns, c.ResolvConf)
	}
	switch {
	case err != nil:
		c.Log.Error("no DNS server can be asked, so no name can be looked up", "error", err)
		return nil
	case slices.Contains(servers, engine):
		c.Log.Warn("names are asked of the engine's resolver, whose answers root of the task can forge: "+
			"give the engine name servers of its own (--dns) that are not on this host's loopback", "resolver", engine)
	}
	return servers
}

// secretNumber is one that nobody can guess, and not 0.
func secretNumber() uint32 {
	var b [4]byte
	for {
		_, _ = rand.Read(b[:]) // never fails
		if m := binary.NativeEndian.Uint32(b[:]); m != 0 {
			return m
		}
	}
}

// secretGroup makes a secret number the group of this process, by the given setgid(2), so that all its sockets have that
// from now on. User namespaces that an engine makes (userns-remap) know 65,536 groups, the last of which stands for those
// that they do not know.
func secretGroup(setgid func(int) error) (group uint32, err error) {
	for _, most := range []uint32{math.MaxInt32, 1<<16 - 3} {
		group = 1 + secretNumber()%most
		if err = setgid(int(group)); !errors.Is(err, unix.EINVAL) {
			break
		}
	}
	if err != nil {
		return 0, fmt.Errorf("take a group that nobody else has, by which the rules know the sidecar: %w", err)
	}
	return group, nil
}

// mark makes or removes the ready file.
func mark(ready string, ok bool) error {
	if ok {
		return os.WriteFile(ready, nil, 0o644)
	}
	if err := os.Remove(ready); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// listen opens the session's sockets in the namespace.
func listen(ns *netns.Namespace, session *proxy.Session) (l gate.Listeners, err error) {
	sockets, err := ns.Listen()
	if err != nil {
		return l, err
	}
	defer func() { err = errors.Join(err, sockets.Close()) }() // what is in use are duplicates
	for _, s := range []struct{ tcp, udp netns.Socket }{{sockets.TCP4, sockets.UDP4}, {sockets.TCP6, sockets.UDP6}} {
		if s.tcp.File == nil {
			continue
		}
		tcp, err := net.FileListener(s.tcp.File)
		if err != nil {
			return l, err
		}
		if err := session.ServeRedirected(tcp.(*net.TCPListener), direct.ExplicitProxy); err != nil {
			return l, err
		}
		udp, err := net.FilePacketConn(s.udp.File)
		if err != nil {
			return l, err
		}
		session.ServeDNS(udp.(*net.UDPConn), nil)
	}
	return gate.Listeners{TCP4: sockets.TCP4.Port, UDP4: sockets.UDP4.Port, TCP6: sockets.TCP6.Port, UDP6: sockets.UDP6.Port}, nil
}

// proxied is the proxy's session.
type proxied struct {
	*proxy.Session
	kernel *kernel
}

// Apply implements [Proxy].
func (s proxied) Apply(ctx context.Context, p policy.Policy) (control.Receipt, error) {
	four, six, err := s.kernel.families()
	if err != nil {
		return control.Receipt{}, err
	}
	phase := always
	return s.Session.Apply(ctx, proxy.Change{
		Policies: &policy.Phases{p, p, p}, Phase: &phase,
		Around: &proxy.Surroundings{NoRoute: &proxy.Families{IPv4: !four, IPv6: !six}},
	})
}
