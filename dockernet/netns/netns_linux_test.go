package netns_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
	"sluice/dockernet/netns/netnstest"
)

func TestOpenRefuses(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, path, want string
	}{
		{"own", "/proc/self/ns/net", "host's own network namespace"},
		{"other_kind", "/proc/self/ns/mnt", "not of the network"},
		{"file", "/proc/self/status", "not a namespace"},
		{"fifo", fifo, "not a namespace"},
		{"missing", "/proc/self/ns/none", "no such file"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns, err := netns.Open(tt.path, nil)
			if err == nil {
				ns.Close()
				t.Fatal("was opened")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.path) {
				t.Errorf("error %q: want %q and the path", err, tt.want)
			}
		})
	}
	if _, err := netns.Open("/proc/self/ns/net", nil); !errors.Is(err, netns.ErrHost) {
		t.Errorf("own namespace: error %v, want ErrHost", err)
	}
}

func TestOpenChecksAgain(t *testing.T) {
	ns := netnstest.New(t)
	before := descriptors(t)
	gone := errors.New("another container")
	if _, err := netns.Open(ns.Path, func() error { return gone }); !errors.Is(err, gone) {
		t.Errorf("error %v, want that of the check", err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

func TestCheck(t *testing.T) {
	a, b := netnstest.New(t), netnstest.New(t)
	if a.ID() == b.ID() {
		t.Fatalf("two namespaces have the ID %v", a.ID())
	}
	if err := a.Check(a.Path); err != nil {
		t.Error(err)
	}
	for _, path := range []string{b.Path, "/proc/self/ns/none"} {
		if err := a.Check(path); !errors.Is(err, netns.ErrChanged) {
			t.Errorf("path %s: error %v, want ErrChanged", path, err)
		}
	}
}

// Whatever runs at the same time, functions are inside the namespace and everything else is not, the main thread least
// of all.
func TestDo(t *testing.T) {
	ns := netnstest.New(t)
	host := inode(t, "/proc/self/ns/net")
	const goroutines, rounds = 8, 50
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for range rounds {
				err := ns.Do(func() error {
					if unix.Gettid() == unix.Getpid() {
						return errors.New("runs on the main thread")
					}
					if got := inode(t, "/proc/thread-self/ns/net"); got != ns.ID().Inode {
						return fmt.Errorf("runs in namespace %d, want %d", got, ns.ID().Inode)
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if got := inode(t, "/proc/thread-self/ns/net"); got != host {
					t.Errorf("a thread was left in namespace %d, host is %d", got, host)
				}
			}
		})
	}
	all.Wait()
	if got := inode(t, "/proc/self/ns/net"); got != host {
		t.Errorf("the main thread is in namespace %d, host is %d", got, host)
	}
}

func TestDoReturns(t *testing.T) {
	ns := netnstest.New(t)
	want := errors.New("of the function")
	if err := ns.Do(func() error { return want }); err != want {
		t.Errorf("error %v, want the function's own", err)
	}
	if err := ns.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("a function that ends its goroutine gives no error")
	}
	ns.Close()
	if err := ns.Do(func() error { t.Error("runs in a closed namespace"); return nil }); err == nil {
		t.Error("no error from a closed namespace")
	}
}

// A locked thread ends with its function: none of them stay behind in the namespace.
func TestDoLeavesNoThread(t *testing.T) {
	ns := netnstest.New(t)
	for range 20 {
		ns.Run(t, func() error { return nil })
	}
	deadline := time.Now().Add(10 * time.Second)
	for {
		inside := 0
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range tasks {
			var st unix.Stat_t
			if unix.Stat(task, &st) == nil && st.Ino == ns.ID().Inode {
				inside++
			}
		}
		if inside == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d threads are still inside", inside)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestListen(t *testing.T) {
	ns := netnstest.New(t)
	if c, err := net.Dial("udp", "127.0.0.1:9"); err == nil {
		c.Close() // Go's poller has descriptors of its own from now on
	}
	before := descriptors(t)
	s, err := ns.Listen()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		network, host string
		socket        netns.Socket
	}{
		{"tcp", "127.0.0.1", s.TCP4},
		{"tcp", "::1", s.TCP6},
		{"udp", "127.0.0.1", s.UDP4},
		{"udp", "::1", s.UDP6},
	} {
		t.Run(tt.network+"_"+tt.host, func(t *testing.T) {
			if mode := fcntl(t, tt.socket.File, unix.F_GETFL); mode&unix.O_NONBLOCK == 0 {
				t.Error("is blocking")
			}
			if flags := fcntl(t, tt.socket.File, unix.F_GETFD); flags&unix.FD_CLOEXEC == 0 {
				t.Error("stays open on exec")
			}
			address := net.JoinHostPort(tt.host, fmt.Sprint(tt.socket.Port))
			echo(t, ns, tt.network, address, tt.socket.File)
			if tt.network == "udp" {
				return
			}
			if c, err := net.Dial(tt.network, address); err == nil {
				c.Close()
				t.Error("can be reached from outside of the namespace")
			}
		})
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

func TestListenPassesOptionsOn(t *testing.T) {
	ns := netnstest.New(t)
	s, err := ns.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var client net.Conn
	ns.Run(t, func() error {
		client, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", s.TCP4.Port))
		return err
	})
	defer client.Close()
	fd, _, err := unix.Accept(int(s.TCP4.File.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, o := range map[string]struct{ level, name, want int }{
		"nodelay":   {unix.IPPROTO_TCP, unix.TCP_NODELAY, 1},
		"keepalive": {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		"idle":      {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 60},
		"interval":  {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
		"probes":    {unix.IPPROTO_TCP, unix.TCP_KEEPCNT, 4},
	} {
		if got, err := unix.GetsockoptInt(fd, o.level, o.name); err != nil || got != o.want {
			t.Errorf("%s is %d (%v), want %d", name, got, err, o.want)
		}
	}
}

// Where IPv6 is switched off there are no sockets for it, and that is no error.
func TestListenWithoutIPv6(t *testing.T) {
	ns := netnstest.New(t)
	ns.Run(t, func() error {
		return os.WriteFile("/proc/sys/net/ipv6/conf/all/disable_ipv6", []byte("1"), 0)
	})
	s, err := ns.Listen()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.TCP4.Port == 0 || s.UDP4.Port == 0 || s.TCP6 != (netns.Socket{}) || s.UDP6 != (netns.Socket{}) {
		t.Errorf("got %+v, want sockets for IPv4 only", s)
	}
}

// echo sends a message from inside the namespace to the listener, and one back.
func echo(t *testing.T, ns *netnstest.Namespace, network, address string, listener *os.File) {
	t.Helper()
	var client net.Conn
	ns.Run(t, func() (err error) {
		client, err = net.Dial(network, address)
		return err
	})
	defer client.Close()
	if _, err := client.Write([]byte("there")); err != nil {
		t.Fatal(err)
	}
	fd := int(listener.Fd())
	if network == "tcp" {
		accepted, _, err := unix.Accept(fd)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(accepted)
		fd = accepted
	}
	buffer := make([]byte, 16)
	n, from, err := unix.Recvfrom(fd, buffer, 0)
	if err != nil || string(buffer[:n]) != "there" {
		t.Fatalf("listener got %q, %v", buffer[:n], err)
	}
	if network == "tcp" {
		from = nil
	}
	if err := unix.Sendto(fd, []byte("back"), 0, from); err != nil {
		t.Fatal(err)
	}
	if n, err := client.Read(buffer); err != nil || string(buffer[:n]) != "back" {
		t.Errorf("client got %q, %v", buffer[:n], err)
	}
}

func fcntl(t *testing.T, f *os.File, command int) int {
	t.Helper()
	got, err := unix.FcntlInt(f.Fd(), command, 0)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// A shared socket is open until everybody has closed it.
func TestSharedSocket(t *testing.T) {
	s, err := netnstest.New(t).Listen()
	if err != nil {
		t.Fatal(err)
	}
	other := s.TCP4.Share()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if port, err := unix.Getsockname(int(other.File.Fd())); err != nil || port.(*unix.SockaddrInet4).Port != int(other.Port) {
		t.Errorf("after one of two has closed it: %v, %v", port, err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := other.File.Close(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after both have closed it, closing the file says %v", err)
	}
}
