package probe

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Link is where a container's frames come to the host: its end of a veth pair, and the bridge that this is a port of.
type Link struct{ Port, Bridge int }

const (
	// arrivalLimit is how long is waited for a frame that was sent. It is there at once.
	arrivalLimit = time.Second
	// passLimit is how long one that has arrived may take to be refused, or not: a few µs, in one go.
	passLimit = 20 * time.Millisecond
	watchStep = time.Millisecond
)

// SendWatched is [Send], and looks out for the probe on the host's side of the container's links, where guards have not
// seen it yet, and behind these on the bridges. The calling thread must be in the bridges' namespace. Of kinds that
// connect it sees nothing.
func SendWatched(ctx context.Context, in func(func() error) error, p Probe, links []Link) Answer {
	kind, at, ok := where(&p)
	if !ok {
		return Send(ctx, in, p)
	}
	_, _ = rand.Read(p.nonce[:]) // never fails
	p.nonce = nonce(p.nonce.nowhere())
	var arrivals, passages taps
	defer func() { arrivals.close(); passages.close() }()
	var errs []error
	for _, l := range links {
		errs = append(errs, arrivals.open(l.Port, false, kind, at, p.nonce))
		if !slices.ContainsFunc(passages, func(t *tap) bool { return t.index == l.Bridge }) {
			errs = append(errs, passages.open(l.Bridge, true, kind, at, p.nonce))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return Answer{Outcome: Failed, Detail: err.Error()}
	}
	a := Send(ctx, in, p)
	wait := func(limit time.Duration, done func() bool) {
		for end := time.Now().Add(limit); !done() && time.Now().Before(end) && ctx.Err() == nil; {
			time.Sleep(watchStep)
		}
	}
	if a.Outcome == Silent && p.Kind >= RawSource {
		want := a.Sent - a.Stopped
		if p.Kind == RawSource {
			want = min(1, len(links))
		}
		wait(arrivalLimit, func() bool { return arrivals.seen() >= want })
	}
	if a.Arrived = arrivals.seen(); a.Arrived > 0 {
		wait(passLimit, func() bool { return passages.seen() > 0 })
	}
	a.Passed = passages.seen()
	return a
}

// where says which ethertype the frame of a probe has, and where in it its nonce begins. Frames of its own making have it
// for their destination, so that there is nothing else about them for rules to refuse; false if it has none.
func where(p *Probe) (kind uint16, at uint32, ok bool) {
	const ether, ip4, ip6, header = 14, 20, 40, 8
	switch {
	case p.Kind == ARP:
		return unix.ETH_P_ARP, 0, true
	case p.Kind == Frame:
		return unix.ETH_P_IP, 0, true
	case p.Kind != UDP && p.Kind != Echo && p.Kind != RawSource:
		return 0, 0, false
	case p.To.Addr().Is4():
		return unix.ETH_P_IP, ether + ip4 + header, true
	}
	return unix.ETH_P_IPV6, ether + ip6 + header, true
}

// tap takes the frames with a nonce that come in by an interface.
type tap struct {
	fd, index int
	came      bool
}

type taps []*tap

// open adds one. With all set it also takes frames that are for other stations.
func (t *taps) open(index int, all bool, kind uint16, at uint32, n nonce) error {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0) // nothing comes before it is bound
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	*t = append(*t, &tap{fd: fd, index: index})
	filter := filterFor(kind, at, n)
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err == nil && all {
		err = unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &unix.PacketMreq{Ifindex: int32(index), Type: unix.PACKET_MR_PROMISC})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_ALL), Ifindex: index})
	}
	if err != nil {
		return fmt.Errorf("watch interface %d: %w", index, err)
	}
	return nil
}

func bigEndian(n uint16) uint16 { return n<<8 | n>>8 }

// filterFor is a program (bpf(4) of BSD) that takes frames of a kind with a nonce at a place.
func filterFor(kind uint16, at uint32, n nonce) []unix.SockFilter {
	const (
		half, word, same, end = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, unix.BPF_LD | unix.BPF_W | unix.BPF_ABS,
			unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, unix.BPF_RET | unix.BPF_K
		ethertype, whole = 12, 1 << 16
	)
	return []unix.SockFilter{
		{Code: half, K: ethertype},
		{Code: same, K: uint32(kind), Jf: 5},
		{Code: word, K: at},
		{Code: same, K: binary.BigEndian.Uint32(n[:]), Jf: 3},
		{Code: half, K: at + 4},
		{Code: same, K: uint32(binary.BigEndian.Uint16(n[4:])), Jf: 1},
		{Code: end, K: whole},
		{Code: end, K: 0},
	}
}

// seen is on how many interfaces a frame has come in.
func (t taps) seen() (n int) {
	for _, one := range t {
		for b := make([]byte, 1); !one.came; {
			_, from, err := unix.Recvfrom(one.fd, b, 0)
			if err != nil {
				break
			}
			l, ok := from.(*unix.SockaddrLinklayer)
			one.came = ok && l.Pkttype != unix.PACKET_OUTGOING
		}
		if one.came {
			n++
		}
	}
	return n
}

func (t taps) close() {
	for _, one := range t {
		unix.Close(one.fd)
	}
}
