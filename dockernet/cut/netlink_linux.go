package cut

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"os"

	"golang.org/x/sys/unix"
)

// conn is a netlink socket (netlink(7)) of one goroutine. Unlike those of the libraries in use it does not hold a dump
// in memory, which may be of a million entries, and asks many questions in one call.
type conn struct {
	fd  int
	seq uint32
	buf []byte
}

const (
	// bufferBytes is as long as the longest datagram of a dump (netlink_dump in af_netlink.c).
	bufferBytes = 32 << 10
	// batchMessages go to the kernel in one call. The socket's buffer holds their answers, of a page each.
	batchMessages = 128
	receiveBytes  = 4 << 20
	// answerSeconds bounds the wait for an answer. The kernel gives it within the call that asks.
	answerSeconds = 10
)

// dial opens a socket in the namespace of the calling thread. It stays in it, on whatever thread it is used.
func dial(protocol int) (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	c := &conn{fd: fd, buf: make([]byte, bufferBytes)}
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBytes)
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerSeconds})
	}
	if err == nil {
		// Then nobody but the kernel, which is port 0, can send to it.
		err = unix.Connect(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("set up netlink socket: %w", err)
	}
	return c, nil
}

func (c *conn) close() { unix.Close(c.fd) }

// append adds a message to b and returns its sequence number.
func (c *conn) append(b []byte, kind, flags uint16, payload []byte) []byte {
	c.seq++
	native := binary.NativeEndian
	length := unix.SizeofNlMsghdr + len(payload)
	b = native.AppendUint32(b, uint32(length))
	b = native.AppendUint16(b, kind)
	b = native.AppendUint16(b, unix.NLM_F_REQUEST|flags)
	b = native.AppendUint32(b, c.seq)
	b = native.AppendUint32(b, 0)
	b = append(b, payload...)
	return append(b, make([]byte, aligned(length)-length)...)
}

func (c *conn) send(b []byte) error {
	_, err := unix.Write(c.fd, b)
	return os.NewSyscallError("write", err)
}

// answer is one message of the kernel's.
type answer struct {
	seq   uint32
	done  bool       // the end of a dump, or an acknowledgement
	errno unix.Errno // 0 for success
	body  []byte     // valid until the next call of receive
}

var errShort = errors.New("the kernel's answer is cut short")

// receive waits for one datagram and iterates over its messages.
func (c *conn) receive() (iter.Seq2[answer, error], error) {
	n, err := unix.Read(c.fd, c.buf)
	for err == unix.EINTR {
		n, err = unix.Read(c.fd, c.buf)
	}
	if err != nil {
		return nil, os.NewSyscallError("read", err)
	}
	return func(yield func(answer, error) bool) {
		native := binary.NativeEndian
		for b := c.buf[:n]; len(b) > 0; {
			if len(b) < unix.SizeofNlMsghdr {
				yield(answer{}, errShort)
				return
			}
			length := int(native.Uint32(b))
			if length < unix.SizeofNlMsghdr || length > len(b) {
				yield(answer{}, errShort)
				return
			}
			a := answer{seq: native.Uint32(b[8:]), body: b[unix.SizeofNlMsghdr:length]}
			switch kind := native.Uint16(b[4:]); {
			case native.Uint16(b[6:])&unix.NLM_F_DUMP_INTR != 0:
				yield(answer{}, errors.New("the kernel's list has changed while it was read"))
				return
			case kind == unix.NLMSG_DONE || kind == unix.NLMSG_ERROR:
				a.done = true
				if len(a.body) >= 4 {
					a.errno = unix.Errno(-int32(native.Uint32(a.body)))
				} else if kind == unix.NLMSG_ERROR {
					yield(answer{}, errShort)
					return
				}
			}
			if !yield(a, nil) {
				return
			}
			b = b[min(aligned(length), len(b)):]
		}
	}, nil
}

// dump asks for a list and calls each with every message of it. The argument of each is valid during the call.
func (c *conn) dump(kind uint16, payload []byte, each func([]byte) error) error {
	if err := c.send(c.append(nil, kind, unix.NLM_F_DUMP, payload)); err != nil {
		return err
	}
	for {
		answers, err := c.receive()
		if err != nil {
			return err
		}
		for a, err := range answers {
			switch {
			case err != nil:
				return err
			case a.seq != c.seq:
				continue // of a dump that was given up
			case a.done && a.errno != 0:
				return a.errno
			case a.done:
				return nil
			}
			if err := each(a.body); err != nil {
				return err
			}
		}
	}
}

// ask sends requests that are answered by one message each, and calls each with the index of a request and its answer,
// which is valid during the call.
func (c *conn) ask(kind, flags uint16, requests [][]byte, each func(int, answer) error) error {
	return c.batches(kind, requests, func(int, int) uint16 { return flags }, func(start, count int) error {
		for answered := 0; answered < count; {
			err := c.answers(count, func(i int, a answer) error {
				answered++
				return each(start+i, a)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// batches sends requests, some at a time, and calls receive with the number of the first of them and how many they are.
func (c *conn) batches(kind uint16, requests [][]byte, flags func(i, count int) uint16, receive func(start, count int) error) error {
	var b []byte
	for start := 0; start < len(requests); start += batchMessages {
		some := requests[start:min(start+batchMessages, len(requests))]
		b = b[:0]
		for i, r := range some {
			b = c.append(b, kind, flags(i, len(some)), r)
		}
		if err := c.send(b); err != nil {
			return err
		}
		if err := receive(start, len(some)); err != nil {
			return err
		}
	}
	return nil
}

// answers waits for one datagram and calls each with the answers in it to the last requests, of which there are count.
func (c *conn) answers(count int, each func(int, answer) error) error {
	answers, err := c.receive()
	if err != nil {
		return err
	}
	first := c.seq - uint32(count) + 1
	for a, err := range answers {
		if err != nil {
			return err
		}
		if i := int(a.seq - first); i >= 0 && i < count {
			if err := each(i, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// perform sends requests that say nothing but whether they succeeded, and returns for how many that is. Those whose
// object is gone have not. An error is the first one; the other requests have been tried all the same.
//
// Of those that succeed only the last one of each batch says so, which comes after what others have failed with.
func (c *conn) perform(kind uint16, requests [][]byte) (done int, err error) {
	var failed error
	flags := func(i, count int) uint16 {
		if i == count-1 {
			return unix.NLM_F_ACK
		}
		return 0
	}
	err = c.batches(kind, requests, flags, func(_, count int) error {
		done += count
		for last := false; !last; {
			err := c.answers(count, func(i int, a answer) error {
				last = i == count-1
				if a.errno != 0 {
					done--
				}
				if a.errno != 0 && a.errno != unix.ENOENT && failed == nil {
					failed = a.errno
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	return done, cmp.Or(err, failed)
}

func aligned(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// attributes iterates over type and value of netlink attributes, without the flags of the types.
func attributes(b []byte) iter.Seq2[uint16, []byte] {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= unix.SizeofNlAttr {
			length := int(binary.NativeEndian.Uint16(b))
			if length < unix.SizeofNlAttr || length > len(b) {
				return
			}
			kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(kind, b[unix.SizeofNlAttr:length]) {
				return
			}
			b = b[min(aligned(length), len(b)):]
		}
	}
}

// attribute adds one to b.
func attribute(b []byte, kind uint16, value []byte) []byte {
	length := unix.SizeofNlAttr + len(value)
	b = binary.NativeEndian.AppendUint16(b, uint16(length))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, aligned(length)-length)...)
}

func nested(b []byte, kind uint16, value []byte) []byte {
	return attribute(b, kind|unix.NLA_F_NESTED, value)
}
