package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
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

// Descriptor is one that is passed, and what the sender says of it.
type Descriptor struct {
	Session string `json:"session"` // empty where the descriptor belongs to none
	Kind    string `json:"kind"`
	// Set tells the listeners of a session that were handed over together from those before and after. Numbers grow.
	Set uint64 `json:"set,omitempty"`
	// Explicit is, for [KindTCP], the loopback address in the container that is redirected to the listener for clients
	// that are told of a proxy.
	Explicit netip.AddrPort `json:"explicit,omitzero"`
	// File is the receiver's to close. It is closed on exec.
	File *os.File `json:"-"`
}

// SendListener passes a descriptor to the other side of conn, a "unixpacket" connection: one message with the text in
// JSON, which the receiver answers by [Acknowledge]. The file stays the caller's, in the blocking mode that it had.
func SendListener(conn *net.UnixConn, d Descriptor) error {
	kind, f := d.Kind, d.File
	text, err := json.Marshal(d)
	if err != nil {
		return fmt.Errorf("send %s listener: %w", kind, err)
	}
	if len(text) > maxMessageBytes {
		return fmt.Errorf("send %s listener: session id of %d bytes is too long", kind, len(d.Session))
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
func ReceiveListener(conn *net.UnixConn) (Descriptor, error) {
	text := make([]byte, maxMessageBytes)
	control := make([]byte, syscall.CmsgSpace(4*maxMessageFDs))
	// The runtime asks for MSG_CMSG_CLOEXEC: no child can inherit a descriptor in between.
	n, controlLen, flags, _, err := conn.ReadMsgUnix(text, control)
	if err != nil && !errors.Is(err, io.EOF) {
		return Descriptor{}, fmt.Errorf("receive listener: %w", err)
	}
	fds, err := descriptors(control[:controlLen])
	var r Descriptor
	if err == nil {
		r, err = parseMessage(text[:n], flags, len(fds))
	}
	if err != nil {
		for _, fd := range fds {
			syscall.Close(fd)
		}
		if err == io.EOF {
			return Descriptor{}, io.EOF
		}
		return Descriptor{}, fmt.Errorf("receive listener: %w", err)
	}
	r.File = os.NewFile(uintptr(fds[0]), r.Kind+" of "+r.Session)
	return r, nil
}

// parseMessage checks one message that came with so many descriptors.
func parseMessage(text []byte, flags, fds int) (r Descriptor, err error) {
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
		case "set":
			return json.Unmarshal(value, &r.Set)
		case "explicit":
			return json.Unmarshal(value, &r.Explicit)
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

// acknowledgement answers a message of [SendListener].
type acknowledgement struct {
	Error string `json:"error,omitempty"`
}

// Acknowledge tells the sender of a descriptor that it is in use, or why not. Every message gets one answer, in order.
func Acknowledge(conn *net.UnixConn, failure error) error {
	var a acknowledgement
	if failure != nil {
		a.Error = failure.Error()
	}
	text, err := json.Marshal(a)
	if err == nil && len(text) > maxMessageBytes {
		text, err = json.Marshal(acknowledgement{Error: "refused; the reason is in the log of the proxy"})
	}
	if err == nil {
		_, err = conn.Write(text)
	}
	if err != nil {
		return fmt.Errorf("acknowledge a listener: %w", err)
	}
	return nil
}

// ErrNotTaken is what the other side said of a descriptor that it does not take.
var ErrNotTaken = errors.New("the proxy refuses the descriptor")

// ReadAcknowledgement waits for the answer to the oldest message of [SendListener] that has none yet. At the end of the
// connection the error is [io.EOF].
func ReadAcknowledgement(conn *net.UnixConn) error {
	text := make([]byte, maxMessageBytes)
	n, err := conn.Read(text)
	if n == 0 && err == nil || errors.Is(err, io.EOF) {
		return io.EOF // an empty message is the end of a "unixpacket" connection
	}
	if err != nil {
		return fmt.Errorf("wait for acknowledgement: %w", err)
	}
	var a acknowledgement
	if err := json.Unmarshal(text[:n], &a); err != nil {
		return fmt.Errorf("acknowledgement: %w", err)
	}
	if a.Error != "" {
		return fmt.Errorf("%w: %s", ErrNotTaken, a.Error)
	}
	return nil
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
