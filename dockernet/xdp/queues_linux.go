package xdp

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
)

// Queues are those of one namespace that are kept. The zero value has none. Its methods may be called by any number of
// goroutines.
type Queues struct {
	// Patience is how long [Queues.Keep] waits in all for queues that somebody else has. 0 stands for a second, in which
	// those that this process has closed are let go, or until the process has run for 20 s: an earlier one that was killed
	// lets those of many containers go one after another, each some 10 ms later. It is no more, for others may have to
	// wait for whoever waits, and a workload that takes its queue can have that as often as it is started.
	Patience time.Duration

	mu   sync.Mutex
	kept map[int][]int // sockets, by the index of the interface
}

const (
	mostQueues  = 4096
	patience    = time.Second
	inheritance = 20 * time.Second
	pause       = 10 * time.Millisecond
)

var began = time.Now()

// deadline is until when a call that begins now waits.
func (q *Queues) deadline(now time.Time) time.Time {
	until := now.Add(cmp.Or(q.Patience, patience))
	if inherited := began.Add(inheritance); q.Patience == 0 && until.Before(inherited) {
		return inherited
	}
	return until
}

// Keep keeps the queues of all interfaces of the namespace, those too that have come since the last call. Where the
// kernel has no such sockets it keeps none. If this process cannot open them although the kernel has them, that is an
// error: a workload may be able to.
func (q *Queues) Keep(ns *netns.Namespace) error { return q.keep(ns, q.deadline(time.Now())) }

// Add is Keep where the former queues are kept already. On those that have come, nobody but a workload can be, so it waits
// for none.
func (q *Queues) Add(ns *netns.Namespace) error { return q.keep(ns, time.Time{}) }

func (q *Queues) keep(ns *netns.Namespace, until time.Time) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return ns.Do(func() error {
		interfaces, err := netns.Interfaces()
		if err != nil {
			return err
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
			sockets, err := keep(func(queue uint32) (int, error) { return open(i.Index, queue) }, until)
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

// keep calls open for each queue of an interface.
func keep(open func(queue uint32) (fd int, err error), until time.Time) (sockets []int, err error) {
	for n := range uint32(mostQueues) {
		fd, err := open(n)
		for ; errors.Is(err, unix.EBUSY) && time.Now().Before(until); fd, err = open(n) {
			time.Sleep(pause)
		}
		switch {
		case err == nil:
			sockets = append(sockets, fd)
			continue
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENODEV), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EAFNOSUPPORT):
			// There is no further queue, the interface has gone, it has no such sockets, or the kernel has none.
			return sockets, nil
		}
		closeAll(sockets)
		switch {
		case errors.Is(err, unix.EBUSY):
			return nil, ErrTaken
		case errors.Is(err, unix.ENOBUFS):
			// All processes of a user are counted together, a workload's among them.
			return nil, fmt.Errorf("%w: root has locked as much memory as it may: raise that limit (memlock), or give the controller CAP_IPC_LOCK", err)
		case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
			return nil, fmt.Errorf("%w: the controller may open no socket of AF_XDP: give it CAP_NET_RAW", err)
		}
		return nil, err
	}
	return sockets, nil
}

// errFiltered is the error where a filter says what the kernel says that has no such sockets.
var errFiltered = errors.New("the kernel has sockets of AF_XDP, but the controller may open none: allow it this address family, " +
	"by RestrictAddressFamilies= of its unit or by its seccomp profile")

// unsupported says what it means that there are no such sockets, by the kernel's list of protocols.
func unsupported(protocols []byte, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("find out whether the kernel has sockets of AF_XDP: %w", err)
	case bytes.Contains(protocols, []byte("\nXDP ")):
		return errFiltered
	}
	return unix.EAFNOSUPPORT
}

// area is what all sockets have for frames, of which there are none.
var area = sync.OnceValues(func() ([]byte, error) {
	// Without CAP_IPC_LOCK what others of this user have locked counts too. It fails where this process may not: then
	// there may be room all the same.
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
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
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return -1, unsupported(os.ReadFile("/proc/net/protocols"))
	}
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
