package nft

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is a connection to the nftables of one network namespace, for one goroutine at a time. After an error there may
// be answers in it that nobody has read, and it is of no more use.
//
// It should be kept open between changes. To close a socket of this protocol waits until the kernel has taken apart
// what earlier changes have removed, some 15 ms, and holds up the next change for as long (nft_rcv_nl_event in
// net/netfilter/nf_tables_api.c).
type Conn struct {
	c    *nftables.Conn
	sock *netlink.Conn
	port uint32
	// Sizes of the socket's buffers.
	writes, reads int
}

// minBuffer is enough for most changes and answers.
const minBuffer = 1 << 18

// timeout bounds how long the kernel may take to answer.
const timeout = 30 * time.Second

// Dial opens a connection in the namespace of the calling thread, where it stays.
func Dial() (*Conn, error) {
	conn := new(Conn)
	c, err := nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(sock *netlink.Conn) error {
		conn.sock = sock
		return nil
	}))
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	conn.c = c
	if err := errors.Join(conn.room(minBuffer, minBuffer), conn.name()); err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink: %w", err), conn.Close())
	}
	return conn, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.c.CloseLasting() }

// PortID is what the kernel calls the connection where it tells others what has changed.
func (c *Conn) PortID() uint32 { return c.port }

func (c *Conn) name() error {
	raw, err := c.sock.SyscallConn()
	if err != nil {
		return err
	}
	var address unix.Sockaddr
	var nameErr error
	if err := raw.Control(func(fd uintptr) { address, nameErr = unix.Getsockname(int(fd)) }); err != nil {
		return err
	}
	if a, ok := address.(*unix.SockaddrNetlink); ok {
		c.port = a.Pid
	}
	return nameErr
}

// room makes the socket's buffers as large as what goes through them, and sets the time until which it must have.
func (c *Conn) room(write, read int) error {
	if write > c.writes {
		if err := c.sock.SetWriteBuffer(write); err != nil {
			return fmt.Errorf("set size of write buffer: %w", err)
		}
		c.writes = write
	}
	if read > c.reads {
		if err := c.sock.SetReadBuffer(read); err != nil {
			return fmt.Errorf("set size of read buffer: %w", err)
		}
		c.reads = read
	}
	return c.sock.SetDeadline(time.Now().Add(timeout))
}

// Send makes the changes of a batch, all or none.
func (c *Conn) Send(b *Batch) error {
	if b.err != nil {
		return b.err
	}
	if len(b.messages) == 0 {
		return nil
	}
	// In the kernel a batch takes more room than its bytes, by less than a half.
	if err := c.room(b.bytes+b.bytes/2, 0); err != nil {
		return err
	}
	if _, err := c.sock.SendMessages(b.whole()); err != nil {
		return fmt.Errorf("send %d changes to nftables: %w", len(b.messages), err)
	}
	// Of a batch that succeeds there is one answer, to its last message. Of one that fails there is one at least.
	answers, err := c.sock.Receive()
	if err != nil {
		return fmt.Errorf("nftables refused %d changes: %w", len(b.messages), err)
	}
	if len(answers) != 1 || answers[0].Header.Type != netlink.Error {
		return errors.New("nftables gave an unexpected answer")
	}
	return nil
}
