package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"sync"

	"sluice/dockernet/nft"
)

// plainArgument makes this program a relay to an address, for what comes to the listener that is descriptor 3.
const plainArgument = "relay"

// plain is a relay that judges nothing, with the same two legs as the sidecar: connections are redirected to its listener
// on the loopback of a container, and it dials from a container on a bridge of its own. What it costs more than on the
// loopback device is the kernel's.
type plain struct {
	command *exec.Cmd
	to      string
}

// redirected is an address that a container's packets to are redirected from.
const redirected = "203.0.113.242"

// startPlain starts one for a container, in another one.
func (st *stage) startPlain(of, in *container) (_ *plain, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa(sinkPort)
	var listener *os.File
	if err := of.ns.Do(func() error {
		l, err := listen("127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		if listener, err = l.(*net.TCPListener).File(); err != nil {
			return err
		}
		return redirect(netip.MustParseAddr(redirected), uint16(l.Addr().(*net.TCPAddr).Port))
	}); err != nil {
		return nil, fmt.Errorf("listen for the plain relay: %w", err)
	}
	defer listener.Close()
	p := &plain{command: exec.Command(self, plainArgument, net.JoinHostPort(sinkAddress, port)), to: net.JoinHostPort(redirected, port)}
	p.command.Stderr, p.command.ExtraFiles = os.Stderr, []*os.File{listener}
	if err := in.ns.Do(p.command.Start); err != nil {
		return nil, fmt.Errorf("start the plain relay: %w", err)
	}
	return p, nil
}

// redirect leads connections to a port of the loopback, in the namespace of the calling thread.
func redirect(from netip.Addr, to uint16) error {
	c, err := nft.Dial()
	if err != nil {
		return err
	}
	defer c.Close()
	t := nft.Table{ID: nft.ID{Family: "inet", Name: "figures"}, Chains: []nft.Chain{{
		Name: "output", Hook: &nft.Hook{Type: "nat", At: "output", Priority: -110, Accept: true},
		Rules: []nft.Rule{{nft.Is(nft.IPDestination, nft.Single(from)), nft.Is(nft.Protocol, nft.Word("tcp")), nft.Redirect{Port: to}}},
	}}}
	b := new(nft.Batch)
	b.AddTable(t.ID)
	b.AddChains(t.ID, t.Chains...)
	b.AddRules(t.ID, t.Chains...)
	return c.Send(b)
}

func (p *plain) close() error {
	err := p.command.Process.Kill()
	_ = p.command.Wait() // it was killed
	return err
}

// way is the one through the relay.
func (p *plain) way(from *container, sink net.Listener) way {
	return way{from: from, to: p.to, sink: sink, through: p.command.Process.Pid}
}

// relayPlainly is the relay's process. io.Copy moves bytes by splice(2), as the sidecar does.
func relayPlainly(to string) error {
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	for {
		near, err := listener.Accept()
		if err != nil {
			return err
		}
		var dialer net.Dialer
		dialer.SetMultipathTCP(false)
		far, err := dialer.Dial("tcp4", to)
		if err != nil {
			return errors.Join(err, near.Close())
		}
		go func() {
			var both sync.WaitGroup
			for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
				both.Go(func() {
					io.Copy(way[1], way[0]) // whoever sends and receives sees what is missing
					way[1].(*net.TCPConn).CloseWrite()
				})
			}
			both.Wait()
			near.Close()
			far.Close()
		}()
	}
}
