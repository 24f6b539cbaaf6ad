package resolver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

const (
	port = 53
	// resolvConfBytes bounds what is read of the container's resolv.conf.
	resolvConfBytes = 64 << 10
	// directTime is how long a server has to answer somebody else than the engine. Most take some milliseconds.
	directTime = 2 * time.Second
	// again is after how long a question is asked once more, and listTime how often conntrack is.
	again, listTime = 500 * time.Millisecond, 5 * time.Millisecond
)

// Find returns the name servers that the engine's resolver in a container's namespace asks, in its order, as far as that is
// seen and the namespace can ask them itself. If they cannot be found, or only the host can reach them, it is the engine's resolver
// alone.
//
// Newer engines write the servers into resolvConf, the container's /etc/resolv.conf. Of others it finds those that were
// needed to answer one question, for a name that does not exist: by conntrack, which takes the engine's rules for its
// resolver, as networks have them that were made by users. So there must be no workload yet, and no rules that lead
// questions elsewhere. The error tells that the engine has not answered before ctx was done, in which nobody may be asked
// by its resolver either: its own questions could come back to whoever filters DNS, again and again.
func Find(ctx context.Context, ns *netns.Namespace, resolvConf string) ([]netip.AddrPort, error) {
	text, err := head(resolvConf)
	if err != nil {
		return nil, fmt.Errorf("find the servers behind the engine's resolver: %w", err)
	}
	if told := Forwarders(text); len(told) > 0 {
		return reachable(ctx, ns, told), nil
	}
	servers, err := observe(ctx, ns)
	if err != nil {
		return nil, fmt.Errorf("find the servers behind the engine's resolver: %w", err)
	}
	return servers, nil
}

func head(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, resolvConfBytes))
	return string(text), err
}

// theEngine is what is left where no server can be asked directly.
func theEngine() []netip.AddrPort { return []netip.AddrPort{netip.AddrPortFrom(Address, port)} }

// reachable are the servers that the namespace can ask. Those that the engine asks from there are, whether they answer now
// or not.
func reachable(ctx context.Context, ns *netns.Namespace, told []Forwarder) (servers []netip.AddrPort) {
	ctx, cancel := context.WithTimeout(ctx, directTime)
	defer cancel()
	answers := make([]chan bool, len(told))
	for i, f := range told {
		answers[i] = make(chan bool, 1)
		switch {
		case !f.FromHost:
			answers[i] <- !f.Addr.IsLoopback()
		case f.Addr.IsLoopback():
			answers[i] <- false
		default:
			go func() { answers[i] <- ask(ctx, ns, netip.AddrPortFrom(f.Addr, port)) == nil }()
		}
	}
	for i, f := range told {
		if <-answers[i] {
			servers = append(servers, netip.AddrPortFrom(f.Addr, port))
		}
	}
	if servers == nil {
		return theEngine()
	}
	return servers
}

// observe asks the engine and looks at whom it asks.
func observe(ctx context.Context, ns *netns.Namespace) ([]netip.AddrPort, error) {
	before, err := asked(ns)
	if err != nil {
		return nil, err
	}
	answered := make(chan error, 1)
	go func() { answered <- ask(ctx, ns, netip.AddrPortFrom(Address, port)) }()
	var servers []netip.AddrPort
	look := func() error {
		now, err := asked(ns)
		for _, f := range now {
			if !slices.Contains(before, f) && !slices.Contains(servers, f.to) {
				servers = append(servers, f.to)
			}
		}
		return err
	}
	tick := time.NewTicker(listTime)
	defer tick.Stop()
	for {
		select {
		case failed := <-answered:
			switch err := look(); {
			case err != nil:
				return nil, err
			case servers != nil:
				return servers, nil
			case failed != nil:
				return nil, failed
			}
			return theEngine(), nil
		case <-tick.C:
			if err := look(); err != nil {
				<-answered
				return nil, err
			}
		}
	}
}

// question is one that conntrack knows of.
type question struct {
	from, to netip.AddrPort
}

// asked are the namespace's questions to servers elsewhere.
func asked(ns *netns.Namespace) (all []question, err error) {
	err = ns.Do(func() error {
		for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
			flows, err := netns.Whole(func() ([]*netlink.ConntrackFlow, error) {
				return netlink.ConntrackTableList(netlink.ConntrackTable, family)
			})
			if err != nil {
				return fmt.Errorf("list conntrack entries: %w", err)
			}
			for _, f := range flows {
				from, ok := netip.AddrFromSlice(f.Forward.SrcIP)
				to, ok2 := netip.AddrFromSlice(f.Forward.DstIP)
				to = to.Unmap()
				if !ok || !ok2 || f.Forward.Protocol != unix.IPPROTO_UDP || f.Forward.DstPort != port || to.IsLoopback() {
					continue
				}
				all = append(all, question{netip.AddrPortFrom(from.Unmap(), f.Forward.SrcPort), netip.AddrPortFrom(to, port)})
			}
		}
		return nil
	})
	return all, err
}

// errSilent is the error for a server that does not answer.
var errSilent = errors.New("no answer")

// ask asks a server from the namespace for a name that nobody has asked for before and that does not exist (RFC 6761
// §6.4), and waits for whatever answer there is.
func ask(ctx context.Context, ns *netns.Namespace, server netip.AddrPort) error {
	m := new(dns.Msg).SetQuestion(strings.ToLower(rand.Text())+".invalid.", dns.TypeA)
	packet, err := m.Pack()
	if err != nil {
		return err
	}
	var c *net.UDPConn
	if err := ns.Do(func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(server))
		return err
	}); err != nil {
		return fmt.Errorf("ask %v: %w", server, err)
	}
	defer c.Close()
	buffer := make([]byte, dns.MaxMsgSize)
	for ctx.Err() == nil {
		if _, err := c.Write(packet); err != nil {
			return fmt.Errorf("ask %v: %w", server, err)
		}
		until := time.Now().Add(again)
		if end, ok := ctx.Deadline(); ok && end.Before(until) {
			until = end
		}
		if err := c.SetReadDeadline(until); err != nil {
			return err
		}
		for {
			n, err := c.Read(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return fmt.Errorf("ask %v: %w", server, err)
			}
			answer := new(dns.Msg)
			if answer.Unpack(buffer[:n]) == nil && answer.Response && answer.Id == m.Id {
				return nil
			}
		}
	}
	return fmt.Errorf("ask %v: %w: %w", server, errSilent, context.Cause(ctx))
}
