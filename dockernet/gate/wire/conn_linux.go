package wire

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Conn is a connection to the nftables of one namespace, for one goroutine at a time.
//
// Keep it open between changes. To close a socket of this protocol waits until the kernel has taken apart what earlier
// changes have removed, which takes the grace period of RCU, some 15 ms, and holds up the next change for as long
// (nft_rcv_nl_event in net/netfilter/nf_tables_api.c).
//
// After an error of any of its methods, or of the library's, close it: there may be answers in it that nobody has read.
type Conn struct {
	library *nftables.Conn
	socket  *netlink.Conn // the same
	buffer  int           // bytes that it can send at once
}

// minBuffer is enough for most changes.
const minBuffer = 1 << 18

// timeout bounds how long the kernel may take to answer.
const timeout = 30 * time.Second

// Dial opens a connection to the namespace.
func Dial(ns *netns.Namespace) (*Conn, error) {
	c := new(Conn)
	err := ns.Do(func() (err error) {
		c.library, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(s *netlink.Conn) error {
			c.socket = s
			return nil
		}))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open netlink to nftables: %w", err)
	}
	// Texts beside error numbers, where the kernel has some.
	_ = c.socket.SetOption(netlink.ExtendedAcknowledge, true)
	return c, nil
}

// Close closes the connection, which may take a while, see [Conn].
func (c *Conn) Close() { _ = c.library.CloseLasting() }

// Read returns the library's connection, for what it lists. Its calls end within half a minute from now.
func (c *Conn) Read() (*nftables.Conn, error) {
	if err := c.socket.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, fmt.Errorf("use netlink to nftables: %w", err)
	}
	return c.library, nil
}

// Send makes the changes of the batch, all or none.
func (c *Conn) Send(b *Batch) error {
	if b.err != nil {
		return b.err
	}
	if len(b.messages) == 0 {
		return nil
	}
	if need := max(minBuffer, b.bytes); need > c.buffer {
		// In the kernel the batch takes more room than its bytes (SKB_DATA_ALIGN), by less than a half.
		if err := c.socket.SetWriteBuffer(need + need/2); err != nil {
			return fmt.Errorf("enlarge netlink buffer to %d bytes: %w", need, err)
		}
		c.buffer = need
	}
	if err := c.socket.SetDeadline(time.Now().Add(timeout)); err != nil {
		return fmt.Errorf("use netlink to nftables: %w", err)
	}
	if _, err := c.socket.SendMessages(b.whole()); err != nil {
		return fmt.Errorf("send %d changes to nftables: %w", len(b.messages), err)
	}
	// Of a batch that succeeds there is one answer, to its last message. Of one that fails there is one at least.
	answers, err := c.socket.Receive()
	if err != nil {
		return fmt.Errorf("nftables refused %d changes: %w", len(b.messages), err)
	}
	if len(answers) != 1 || answers[0].Header.Type != netlink.Error {
		return errors.New("nftables gave an unexpected answer")
	}
	return nil
}

// whole returns the messages of the batch between those that begin and end it.
func (b *Batch) whole() []netlink.Message {
	mark := func(kind netlink.HeaderType) netlink.Message {
		return netlink.Message{
			Header: netlink.Header{Type: kind, Flags: netlink.Request},
			Data:   header(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES),
		}
	}
	all := make([]netlink.Message, 0, len(b.messages)+2)
	all = append(append(all, mark(unix.NFNL_MSG_BATCH_BEGIN)), b.messages...)
	all[len(all)-1].Header.Flags |= netlink.Acknowledge
	return append(all, mark(unix.NFNL_MSG_BATCH_END))
}
