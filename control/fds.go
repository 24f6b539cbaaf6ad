package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
)

// Kinds of descriptors on listeners.sock.
const (
	KindControl = "control" // the listener of control.sock
	KindMetrics = "metrics" // a TCP listener on which metrics are served
	KindProxy   = "proxy"   // a TCP listener for HTTP proxy clients
	KindTCP     = "tcp"     // a TCP listener in a container's namespace, to which the kernel redirects
	KindUDP     = "udp"     // a UDP socket in a container's namespace, redirected DNS
)

// maxMessageBytes bounds the text beside a descriptor.
const maxMessageBytes = 4 << 10

// maxMessageFDs is how many descriptors can be received, and closed, with a message that should have one.
const maxMessageFDs = 16

// Received is a descriptor and what the sender says of it.
type Received struct {
	Session string `json:"session"` // empty where the descriptor belongs to none
	Kind    string `json:"kind"`
	// File is the receiver's to close. It is closed on exec.
	File *os.File `json:"-"`
}

// SendListener passes f to the other side of conn, a "unixpacket" connection: one message with {"session","kind"}.
// f stays the caller's, in the blocking mode that it had.
func SendListener(conn *net.UnixConn, session, kind string, f *os.File) error {
	text, err := json.Marshal(Received{Session: session, Kind: kind})
	if err != nil {
		return fmt.Errorf("send %s listener: %w", kind, err)
	}
	if len(text) > maxMessageBytes {
		return fmt.Errorf("send %s listener: session id of %d bytes is too long", kind, len(session))
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("send %s listener: %w", kind, err)
	}
	// Not f.Fd: that would make the socket blocking, and the mode is shared with everybody who has it.
	var writeErr error
	if err := raw.Control(func(fd uintptr) {
		var n int
		n, _, writeErr = conn.WriteMsgUnix(text, syscall.UnixRights(int(fd)), nil)
		if writeErr == nil && n != len(text) {
			writeErr = io.ErrShortWrite
		}
	}); err != nil {
		return fmt.Errorf("send %s listener: %w", kind, err)
	}
	if writeErr != nil {
		return fmt.Errorf("send %s listener: %w", kind, writeErr)
	}
	return nil
}

// ReceiveListener waits for one message of [SendListener]. Messages that are anything else are errors, and every
// descriptor that came with them is closed. At the end of the connection the error is [io.EOF].
func ReceiveListener(conn *net.UnixConn) (Received, error) {
	text := make([]byte, maxMessageBytes)
	control := make([]byte, syscall.CmsgSpace(4*maxMessageFDs))
	// The runtime asks for MSG_CMSG_CLOEXEC: no child can inherit a descriptor in between.
	n, controlLen, flags, _, err := conn.ReadMsgUnix(text, control)
	if err != nil && !errors.Is(err, io.EOF) {
		return Received{}, fmt.Errorf("receive listener: %w", err)
	}
	fds, err := descriptors(control[:controlLen])
	var r Received
	if err == nil {
		r, err = parseMessage(text[:n], flags, len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			syscall.Close(fd)
		}
		if err == io.EOF {
			return Received{}, io.EOF
		}
		return Received{}, fmt.Errorf("receive listener: %w", err)
	}
	r.File = os.NewFile(uintptr(fds[0]), r.Kind+" of "+r.Session)
	return r, nil
}

// parseMessage checks one message that came with so many descriptors.
func parseMessage(text []byte, flags, fds int) (r Received, err error) {
	switch {
	case len(text) == 0 && fds == 0:
		return r, io.EOF
	case flags&syscall.MSG_TRUNC != 0:
		return r, fmt.Errorf("message is longer than %d bytes", maxMessageBytes)
	case flags&syscall.MSG_CTRUNC != 0:
		return r, fmt.Errorf("more than %d descriptors in a message, or no descriptor left in this process", maxMessageFDs)
	case fds != 1:
		return r, fmt.Errorf("%d descriptors in a message: want 1", fds)
	}
	if err := Members(text, func(key string, value json.RawMessage) error {
		switch key {
		case "session":
			return json.Unmarshal(value, &r.Session)
		case "kind":
			return json.Unmarshal(value, &r.Kind)
		}
		return fmt.Errorf("unknown field")
	}); err != nil {
		return r, err
	}
	if r.Kind == "" {
		return r, fmt.Errorf("no kind")
	}
	return r, nil
}

// descriptors returns all that came in the control messages, also when some of these make no sense.
func descriptors(control []byte) ([]int, error) {
	messages, err := syscall.ParseSocketControlMessage(control)
	if err != nil {
		return nil, fmt.Errorf("control message: %w", err)
	}
	var fds []int
	for _, m := range messages {
		if m.Header.Level != syscall.SOL_SOCKET || m.Header.Type != syscall.SCM_RIGHTS {
			continue
		}
		got, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return fds, fmt.Errorf("control message: %w", err)
		}
		fds = append(fds, got...)
	}
	return fds, nil
}
