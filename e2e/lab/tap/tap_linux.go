package tap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// bufferSize is what a socket keeps while its reader waits for a CPU, in bytes.
const bufferSize = 16 << 20

// Interface listens to all frames that come in by an interface; frames that leave by it are not counted. enter runs a
// function in the network namespace of the interface.
func Interface(name string, enter func(func() error) error, device string) (*Tap, error) {
	t := newTap(name)
	var fd int
	err := enter(func() (err error) {
		index, err := net.InterfaceByName(device)
		if err != nil {
			return err
		}
		all := unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8 // in network order
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		limit := unix.NsecToTimeval(closeLimit.Nanoseconds())
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, bufferSize),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(all), Ifindex: index.Index}))
	})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", name, err)
	}
	end := make(chan struct{})
	t.close = func() error { close(end); return nil }
	go func() {
		defer close(t.ended)
		defer unix.Close(fd)
		t.readFrames(fd, end)
	}()
	return t, nil
}

func (t *Tap) readFrames(fd int, end <-chan struct{}) {
	const ethernet = 14
	buffer := make([]byte, 1<<17)
	for {
		select {
		case <-end:
			if s, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil && s.Drops > 0 {
				t.lose(fmt.Errorf("%d frames were too fast", s.Drops))
			}
			return
		default:
		}
		n, from, err := unix.Recvfrom(fd, buffer, 0)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
			continue
		case err != nil:
			t.lose(err)
			return
		}
		if a, ok := from.(*unix.SockaddrLinklayer); ok && a.Pkttype == unix.PACKET_OUTGOING || n < ethernet {
			continue
		}
		t.packet(buffer[ethernet:n])
	}
}

// logGroup is the NFLOG group that [Delivered] uses.
const logGroup = 4711

// deliveredRules tell of each packet that no rule has kept from the sockets of the namespace. An interface is missing.
const deliveredRules = `table inet sluice_lab_tap {
	chain input {
		type filter hook input priority 1000; policy accept;
		iifname != { "lo", "%s" } log group 4711 snaplen 2048
	}
}
`

// Delivered listens to all packets that a network namespace takes for its own, after all rules, but for those that come
// by its loopback or by the interface uplink. There can be one of it in a namespace. enter runs a function there.
func Delivered(name string, enter func(func() error) error, uplink string) (*Tap, error) {
	t := newTap(name)
	var c *netlink.Conn
	err := enter(func() (err error) {
		if c, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
			return err
		}
		rules := exec.Command("nft", "-f", "-")
		rules.Stdin = strings.NewReader(fmt.Sprintf(deliveredRules, uplink))
		if out, err := rules.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		return nil
	})
	if err == nil {
		err = errors.Join(c.SetReadBuffer(bufferSize), bindLog(c))
	}
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", name, err)
	}
	end := make(chan struct{})
	t.close = func() error {
		close(end)
		return enter(func() error {
			if out, err := exec.Command("nft", "delete", "table", "inet", "sluice_lab_tap").CombinedOutput(); err != nil {
				return fmt.Errorf("nft: %w: %s", err, out)
			}
			return nil
		})
	}
	go func() {
		defer close(t.ended)
		defer c.Close()
		t.readLog(c, end)
	}()
	return t, nil
}

// Of linux/netfilter/nfnetlink_log.h.
const (
	logPacket, logConfig                       = 0, 1
	configCommand, configMode, configThreshold = 1, 2, 5
	commandBind, copyPacket                    = 1, 2
	attributePayload                           = 9
)

func bindLog(c *netlink.Conn) error {
	for _, a := range []netlink.Attribute{
		{Type: configCommand, Data: []byte{commandBind}},
		{Type: configMode, Data: append(binary.BigEndian.AppendUint32(nil, 0xffff), copyPacket, 0)},
		{Type: configThreshold, Data: binary.BigEndian.AppendUint32(nil, 1)},
	} {
		data, err := netlink.MarshalAttributes([]netlink.Attribute{a})
		if err != nil {
			return err
		}
		header := binary.BigEndian.AppendUint16([]byte{unix.AF_UNSPEC, 0}, logGroup)
		if _, err := c.Execute(netlink.Message{
			Header: netlink.Header{Type: unix.NFNL_SUBSYS_ULOG<<8 | logConfig, Flags: netlink.Request | netlink.Acknowledge},
			Data:   append(header, data...),
		}); err != nil {
			return fmt.Errorf("NFLOG: %w", err)
		}
	}
	return nil
}

func (t *Tap) readLog(c *netlink.Conn, end <-chan struct{}) {
	for {
		select {
		case <-end:
			return
		default:
		}
		if err := c.SetReadDeadline(time.Now().Add(closeLimit)); err != nil {
			t.lose(err)
			return
		}
		messages, err := c.Receive()
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			continue
		}
		if err != nil {
			t.lose(err)
			return
		}
		for _, m := range messages {
			if m.Header.Type != unix.NFNL_SUBSYS_ULOG<<8|logPacket || len(m.Data) < 4 {
				continue
			}
			attributes, err := netlink.UnmarshalAttributes(m.Data[4:])
			if err != nil {
				t.lose(err)
				continue
			}
			for _, a := range attributes {
				if a.Type == attributePayload {
					t.packet(a.Data)
				}
			}
		}
	}
}
