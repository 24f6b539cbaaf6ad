package xdp

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Queues are those of one namespace that are kept. The zero value has none. Its methods may be called by any number of
// goroutines.
type Queues struct {
	// Patience is how long to wait for a queue that somebody else has. A controller that was killed lets those of many
	// containers go one after another, each some 10 ms later. 0 stands for 20 s.
	Patience time.Duration

	mu   sync.Mutex
	kept map[int][]int // sockets, by the index of the interface
}

// ErrTaken is in the error for a queue on which somebody else has a socket.
var ErrTaken = errors.New("a program has a socket of AF_XDP on it, whose frames pass no rule inside: end that program, or create the container with --cap-drop NET_RAW")

const (
	mostQueues = 4096
	patience   = 20 * time.Second
	pause      = 10 * time.Millisecond
)

// Keep keeps the queues of all interfaces of the namespace, those too that have come since the last call. Where the
// kernel has no such sockets, or this process may not open any, it keeps none.
func (q *Queues) Keep(ns *netns.Namespace) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return ns.Do(func() error {
		interfaces, err := net.Interfaces()
		if err != nil {
			return fmt.Errorf("list interfaces: %w", err)
		}
		there := make(map[int]bool)
		for _, i := range interfaces {
			if i.Flags&net.FlagLoopback != 0 {
				continue
			}
			there[i.Index] = true
			if _, kept := q.kept[i.Index]; kept {
				continue
			}
			sockets, err := keep(i.Index, cmp.Or(q.Patience, patience))
			if err != nil {
				return fmt.Errorf("queues of interface %s: %w", i.Name, err)
			}
			if q.kept == nil {
				q.kept = make(map[int][]int)
			}
			q.kept[i.Index] = sockets
		}
		for index, sockets := range q.kept {
			if !there[index] {
				closeAll(sockets)
				delete(q.kept, index)
			}
		}
		return nil
	})
}

// Close lets go of all. The kernel takes some 10 ms for it, and as long for many at once.
func (q *Queues) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, sockets := range q.kept {
		closeAll(sockets)
	}
	q.kept = nil
}

func closeAll(sockets []int) {
	for _, fd := range sockets {
		_ = unix.Close(fd)
	}
}

// keep opens a socket on each queue of an interface.
func keep(index int, patience time.Duration) (sockets []int, err error) {
	for n := range uint32(mostQueues) {
		fd, err := open(index, n)
		for until := time.Now().Add(patience); errors.Is(err, unix.EBUSY) && time.Now().Before(until); fd, err = open(index, n) {
			time.Sleep(pause)
		}
		switch {
		case err == nil:
			sockets = append(sockets, fd)
		case errors.Is(err, unix.EBUSY):
			closeAll(sockets)
			return nil, ErrTaken
		default:
			// There is no further queue (EINVAL), the interface has gone (ENODEV), there are no such sockets
			// (EAFNOSUPPORT, or EOPNOTSUPP of the interface), or none for us (EPERM, ENOBUFS).
			return sockets, nil
		}
	}
	return sockets, nil
}

// area is what all sockets have for frames, of which there are none.
var area = sync.OnceValues(func() ([]byte, error) {
	return unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
})

// open opens a socket on a queue, as AF_XDP of the kernel's documentation says: with an area for frames, two rings for
// it, and one to transmit, each as small as can be.
func open(index int, queue uint32) (fd int, err error) {
	frames, err := area()
	if err != nil {
		return -1, err
	}
	fd, err = unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
			fd = -1
		}
	}()
	about := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&frames[0]))), Len: uint64(len(frames)), Size: uint32(len(frames))}
	if _, _, failed := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, unix.XDP_UMEM_REG,
		uintptr(unsafe.Pointer(&about)), unsafe.Sizeof(about), 0); failed != 0 {
		return fd, failed
	}
	for _, ring := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, ring, 1); err != nil {
			return fd, err
		}
	}
	return fd, unix.Bind(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(index), QueueID: queue})
}
