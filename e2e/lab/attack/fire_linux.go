package attack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxAtOnce bounds the attempts that run at the same time.
const maxAtOnce = 64

// Fire makes all attempts, many at a time, and returns their results in the same order.
func Fire(ctx context.Context, attempts []Attempt) []Result {
	results := make([]Result, len(attempts))
	turns := make(chan struct{}, maxAtOnce)
	var all sync.WaitGroup
	for i := range attempts {
		turns <- struct{}{}
		all.Go(func() {
			defer func() { <-turns }()
			results[i] = attempts[i].fire(ctx)
		})
	}
	all.Wait()
	return results
}

func (a *Attempt) fire(ctx context.Context) (r Result) {
	r.Token = a.Token
	var err error
	switch a.Network {
	case "frame":
		r.Sent, err = a.frames()
	case "packet":
		r.Sent, err = a.packets()
	case "socket":
		r.Sent, err = a.socket()
	case "ring":
		r.Sent, err = a.ring()
	default:
		err = a.talk(ctx, &r)
	}
	if err != nil {
		r.Error = err.Error()
		r.TimedOut = errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded)
	}
	return r
}

// talk connects, sends and reads what is answered.
func (a *Attempt) talk(ctx context.Context, r *Result) error {
	conn, err := a.Dial(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer := make([]byte, 4096)
	for i, message := range a.Send {
		if _, err := conn.Write(message); err != nil {
			return err
		}
		r.Sent++
		if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		n, err := conn.Read(answer)
		r.Got = append(r.Got, answer[:n]...)
		if err != nil && (i == len(a.Send)-1 || !errors.Is(err, os.ErrDeadlineExceeded)) { // of a part, nothing may come
			return err
		}
	}
	return nil
}

// Dial opens the attempt's connection, which may be one without a peer.
func (a *Attempt) Dial(ctx context.Context) (net.Conn, error) {
	network, multipath := a.Network, false
	if network == "mptcp" {
		network, multipath = "tcp", true
	}
	d := net.Dialer{Timeout: patience, FallbackDelay: -1, Control: a.options}
	d.SetMultipathTCP(multipath)
	if a.From != "" {
		from, err := netip.ParseAddr(a.From)
		if err != nil {
			return nil, err
		}
		switch {
		case strings.HasPrefix(network, "udp"):
			d.LocalAddr = &net.UDPAddr{IP: from.AsSlice(), Zone: from.Zone()}
		case strings.HasPrefix(network, "tcp"):
			d.LocalAddr = &net.TCPAddr{IP: from.AsSlice(), Zone: from.Zone()}
		default:
			d.LocalAddr = &net.IPAddr{IP: from.AsSlice(), Zone: from.Zone()}
		}
	}
	return d.DialContext(ctx, network, a.To)
}

// options sets what the attempt asks for before the socket is bound. What needs a right that is not there fails the
// attempt.
func (a *Attempt) options(network, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(func(d uintptr) {
		fd := int(d)
		if a.Mark != 0 {
			failed = errors.Join(failed, option("SO_MARK", unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, a.Mark)))
		}
		if a.Device != "" {
			failed = errors.Join(failed, option("SO_BINDTODEVICE", unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, a.Device)))
		}
		failed = errors.Join(failed, a.setOptions(fd))
		if a.From != "" {
			level, name := unix.IPPROTO_IP, unix.IP_TRANSPARENT
			if strings.HasSuffix(network, "6") {
				level, name = unix.IPPROTO_IPV6, unix.IPV6_TRANSPARENT
			}
			failed = errors.Join(failed, option("IP_TRANSPARENT", unix.SetsockoptInt(fd, level, name, 1)))
		}
	})
	return errors.Join(err, failed)
}

func option(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func address(to netip.AddrPort) unix.Sockaddr {
	if to.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())}
	}
	return &unix.SockaddrInet6{Addr: to.Addr().As16(), Port: int(to.Port())}
}

func (a *Attempt) setOptions(fd int) error {
	for _, o := range a.Options {
		if err := unix.SetsockoptString(fd, o.Level, o.Name, string(o.Value)); err != nil {
			return option(fmt.Sprintf("option %d of level %d", o.Name, o.Level), err)
		}
	}
	return nil
}

// socket sends by a socket of any kind.
func (a *Attempt) socket() (sent int, err error) {
	to, err := netip.ParseAddrPort(a.To)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(a.Socket[0], a.Socket[1]|unix.SOCK_CLOEXEC, a.Socket[2])
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	wait := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return 0, option("SO_SNDTIMEO", err)
	}
	if err := a.setOptions(fd); err != nil {
		return 0, err
	}
	if a.Socket[0] == unix.AF_INET6 && to.Addr().Is4() {
		to = netip.AddrPortFrom(netip.AddrFrom16(to.Addr().As16()), to.Port())
	}
	peer := address(to)
	if a.Socket[1] == unix.SOCK_STREAM {
		if err := unix.Connect(fd, peer); err != nil {
			return 0, err
		}
		peer = nil
	}
	flags := unix.MSG_NOSIGNAL
	if a.Urgent {
		flags |= unix.MSG_OOB
	}
	for _, message := range a.Send {
		if err := unix.Sendto(fd, message, flags, peer); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

// packets sends IP packets whose headers are ours, raw(7).
func (a *Attempt) packets() (sent int, err error) {
	to, err := netip.ParseAddr(a.To)
	if err != nil {
		return 0, err
	}
	family := familyOf(to)
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if a.NoDefrag {
		const noDefrag = 22 // IP_NODEFRAG, ip(7)
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IP, noDefrag, 1); err != nil {
			return 0, option("IP_NODEFRAG", err)
		}
	}
	if a.Device != "" {
		if err := unix.SetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, a.Device); err != nil {
			return 0, option("SO_BINDTODEVICE", err)
		}
	}
	for _, packet := range a.Send {
		if err := unix.Sendto(fd, packet, 0, address(netip.AddrPortFrom(to, 0))); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}

// frames sends Ethernet frames whose headers are ours, packet(7). They meet no rule of the container's own.
func (a *Attempt) frames() (sent int, err error) {
	device, err := net.InterfaceByName(a.Device)
	if err != nil {
		return 0, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if a.Bypass {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1); err != nil {
			return 0, option("PACKET_QDISC_BYPASS", err)
		}
	}
	send := unix.Sendto
	if a.Ring {
		ring, err := newFrameRing(fd)
		if err != nil {
			return 0, err
		}
		defer ring.close()
		send = ring.send
	}
	for _, frame := range a.Send {
		if a.OwnHardware {
			frame = bytes.Clone(frame)
			copy(frame[6:], device.HardwareAddr)
		}
		if err := send(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: device.Index}); err != nil {
			return sent, err
		}
		sent++
	}
	return sent, nil
}
