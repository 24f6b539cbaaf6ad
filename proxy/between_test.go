package proxy

import (
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// arrivals is an upstream that reads nothing while it counts what has arrived.
type arrivals struct {
	*testing.T
	listener net.Listener
	mu       sync.Mutex // guards what follows
	came     []*net.TCPConn
}

func (a *arrivals) accept(c net.Conn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.came = append(a.came, c.(*net.TCPConn))
}

// mark makes a connection on each processor, whose packets come behind all that were sent there before (the queue of
// loopback is one for each), and returns how many connections had come by then, those of marks included.
func (a *arrivals) mark() (n int) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		a.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &may) }()
	for cpu := range len(may) * 64 {
		if !may.IsSet(cpu) {
			continue
		}
		var one unix.CPUSet
		one.Set(cpu)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			a.Fatal(err)
		}
		mark, err := net.Dial("tcp", a.listener.Addr().String())
		if err != nil {
			a.Fatal(err)
		}
		defer mark.Close()
		for n = 0; n == 0; {
			a.mu.Lock()
			for i, c := range a.came {
				if c.RemoteAddr().String() == mark.LocalAddr().String() {
					n = i + 1
				}
			}
			a.mu.Unlock()
			if n == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}
	return n
}

// waiting returns how many bytes wait in each of the first n connections.
func (a *arrivals) waiting(n int) (bytes []int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.came[:n] {
		raw, err := c.SyscallConn()
		if err != nil {
			a.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) {
			n, err := unix.IoctlGetInt(int(fd), unix.SIOCINQ)
			if err != nil {
				a.Error(err)
			}
			bytes = append(bytes, n)
		})
	}
	return bytes
}

// clear closes all connections.
func (a *arrivals) clear() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range a.came {
		_ = c.SetLinger(0)
		c.Close()
	}
	n = len(a.came)
	a.came = nil
	return n
}

// Between a receipt and the next change of a policy that refuses everything no connection and no byte arrives, while
// clients connect and send all the time.
func TestNothingArrivesBetweenReceipts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &arrivals{T: t, listener: l}
	accepting := make(chan struct{})
	go func() {
		defer close(accepting)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			a.accept(c)
		}
	}()
	defer func() {
		l.Close()
		<-accepting
		a.clear()
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	r := start(t, `"no-network"`, Config{Hosts: names{"ok.test": {"127.0.0.1"}}.hosts, Workers: 2})
	explicit := r.address
	r.redirect("127.0.0.1:" + port)
	hello := clientHello(t, "ok.test")
	upload := "Host: ok.test:" + port + "\r\nContent-Length: 100000000\r\n\r\n"
	kinds := []struct{ to, says string }{
		{r.address, hello},
		{r.address, "POST / HTTP/1.1\r\n" + upload},
		{explicit, "CONNECT ok.test:" + port + " HTTP/1.1\r\n\r\n" + hello},
		{explicit, "CONNECT ok.test:" + port + " HTTP/1.1\r\n\r\nPOST / HTTP/1.1\r\n" + upload},
		{explicit, "POST http://ok.test:" + port + "/ HTTP/1.1\r\n" + upload},
	}
	stop := make(chan struct{})
	var clients sync.WaitGroup
	for i := range 2 * len(kinds) {
		clients.Go(func() {
			kind, random := kinds[i/2], rand.New(rand.NewPCG(uint64(i), 1))
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.Dial("tcp", kind.to)
				if err != nil {
					continue // it was refused before it had said anything
				}
				_ = c.SetDeadline(time.Now().Add(time.Duration(1+random.IntN(20)) * time.Millisecond))
				more := strings.Repeat("x", 1<<random.IntN(17))
				for _, err = io.WriteString(c, kind.says); err == nil; _, err = io.WriteString(c, more) {
				}
				if random.IntN(2) == 0 {
					_ = c.(*net.TCPConn).SetLinger(0)
				}
				c.Close()
			}
		})
	}
	connections, bytes := 0, 0
	random := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))
	for end, round := time.Now().Add(*stressTime), 0; (time.Now().Before(end) || round < 10) && !t.Failed(); round++ {
		r.apply([]string{allow("ok.test"), `"public"`, allow("127.0.0.1")}[round%3])
		time.Sleep(time.Duration(random.IntN(8000)) * time.Microsecond)
		r.apply([]string{`"no-network"`, allow("other.test"), deny("127.0.0.1", "ok.test")}[round/3%3])
		n := a.mark()
		before := a.waiting(n)
		time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond)
		later := a.mark() - n - runtime.NumCPU()
		for i, had := range a.waiting(n) {
			if had > before[i] {
				t.Errorf("round %d: %d bytes arrived after the receipt", round, had-before[i])
			}
			bytes += had
		}
		if later != 0 {
			t.Errorf("round %d: %d connections arrived after the receipt", round, later)
		}
		connections += a.clear()
	}
	close(stop)
	clients.Wait()
	t.Logf("%d connections, %d bytes", connections, bytes)
	if bytes == 0 {
		t.Error("nothing arrived at all")
	}
	r.wantConnections(0)
}
