package e2e

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"golang.org/x/net/websocket"

	core "sluice/controller"
	"sluice/dockernet/netns"
	"sluice/e2e/lab/internet"
)

// Who allows a flow of the load, and an address of the probers.
type allowed int

const (
	always allowed = iota // both phases
	inRun                 // phase run alone
	inEvaluation
	never
)

func (a allowed) String() string { return [...]string{"always", "run", "evaluation", "never"}[a] }

// in reports whether a phase lets it through.
func (a allowed) in(phase string) bool {
	return a == always || a != never && a.String() == phase
}

// How a flow of the load goes.
type kind int

const (
	byConnect kind = iota // an explicit CONNECT, by name
	byTLS                 // TLS to an address, redirected to the proxy and judged by its server name
	byTCP                 // an address rule
	byUDP                 // an address rule
	inbound               // a connection into the container
	kinds
)

func (k kind) String() string { return [...]string{"connect", "tls", "tcp", "udp", "inbound"}[k] }

const (
	// perKind is how many flows of a kind are open for each of those that allow them.
	perKind = 25
	// frame is what a flow sends at a time, in bytes; it begins with the frame's number.
	frame = 64
	// frameEvery is how often it does.
	frameEvery = 25 * time.Millisecond
)

// address is that of a flow's far end; each flow that the container opens has one of its own.
func address(k kind, a allowed, i int) netip.Addr {
	n := (int(k)%2)*3*perKind + int(a)*perKind + i + 100
	switch {
	case k >= byTCP && i%2 == 1:
		return netip.MustParseAddr(fmt.Sprintf("2001:db8:5:%d::%d", k, n))
	case k < byTCP:
		return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)})
	}
	return netip.AddrFrom4([4]byte{198, 51, 100, byte(n)})
}

func name(k kind, a allowed, i int) string { return fmt.Sprintf("%v-%v-%d.switch.test", k, a, i) }

// flow is one connection of the load. Its workload's end sends all the time, and checks what the far end sends back.
type flow struct {
	kind    kind
	allowed allowed
	to      netip.AddrPort // invalid if inbound
	conn    net.Conn
	stream  io.ReadWriter // what the bytes go through; conn, or a layer above it
	far     net.Conn      // of an inbound connection
	echoed  atomic.Int64  // frames
	ended   chan struct{}
	err     error // why it ended, once ended is closed
}

func (f *flow) String() string {
	return fmt.Sprintf("%v flow to %v, allowed %v", f.kind, f.to, f.allowed)
}

// start lets the flow send until its connection is closed or reset.
func (f *flow) start() {
	f.ended = make(chan struct{})
	failed := make(chan error, 2)
	go func() { failed <- f.send() }()
	go func() { failed <- f.receive() }()
	go func() {
		f.err = <-failed
		f.conn.Close()
		<-failed
		if f.far != nil {
			f.far.Close()
		}
		close(f.ended)
	}()
}

func (f *flow) send() error {
	var out [frame]byte
	for n := uint64(1); ; n++ {
		binary.BigEndian.PutUint64(out[:], n)
		if _, err := f.stream.Write(out[:]); err != nil {
			return err
		}
		time.Sleep(frameEvery)
	}
}

func (f *flow) receive() error {
	var in [frame]byte
	for last := uint64(0); ; {
		if f.kind == byUDP {
			if _, err := f.stream.Read(in[:]); err != nil {
				return err
			}
		} else if _, err := io.ReadFull(f.stream, in[:]); err != nil {
			return err
		}
		n := binary.BigEndian.Uint64(in[:])
		if n != last+1 && (f.kind != byUDP || n <= last) {
			return fmt.Errorf("frame %d came back behind frame %d", n, last)
		}
		last = n
		f.echoed.Add(1)
	}
}

// hasEnded reports whether the flow has ended.
func (f *flow) hasEnded() bool {
	select {
	case <-f.ended:
		return true
	default:
		return false
	}
}

// workload opens flows of a container.
type workload struct {
	ns        *netns.Namespace
	roots     *x509.CertPool
	listener  net.Listener             // of inbound connections
	published netip.AddrPort           // where the internet reaches listener
	direct    netip.AddrPort           // where the host does
	arrived   map[string]chan net.Conn // inbound connections by the line they begin with; written before any use
	ports     atomic.Int32             // the next local UDP port: none is used twice, so that no two flows look alike
}

const dialLimit = 20 * time.Second

// open opens the flows of who allows them. Those of one kind are opened side by side.
func (w *workload) open(a allowed) ([]*flow, error) {
	type result struct {
		flows []*flow
		err   error
	}
	results := make(chan result, kinds)
	var all []*flow
	var errs []error
	for k := range kinds {
		go func() {
			var r result
			for i := range perKind {
				if k == inbound && a == inEvaluation {
					break // phase run lets in everything
				}
				f, err := w.openOne(k, a, i)
				if err != nil {
					r.err = fmt.Errorf("open %v flow %d, allowed %v: %w", k, i, a, err)
					break
				}
				r.flows = append(r.flows, f)
			}
			results <- r
		}()
	}
	for range kinds {
		r := <-results
		all, errs = append(all, r.flows...), append(errs, r.err)
	}
	for _, f := range all {
		f.start()
	}
	return all, errors.Join(errs...)
}

func (w *workload) openOne(k kind, a allowed, i int) (f *flow, err error) {
	f = &flow{kind: k, allowed: a}
	if k == inbound {
		return f, w.openInbound(f, i)
	}
	f.to = netip.AddrPortFrom(address(k, a, i), internet.PortEcho)
	dialled, network := f.to, "tcp"
	var local net.Addr
	switch k {
	case byConnect:
		dialled = core.ExplicitProxy
	case byTLS:
		f.to = netip.AddrPortFrom(f.to.Addr(), internet.PortHTTPS)
		dialled = f.to
	case byUDP:
		network, local = "udp", &net.UDPAddr{Port: int(w.ports.Add(1))}
	}
	err = w.ns.Do(func() error {
		dialer := net.Dialer{Timeout: dialLimit, LocalAddr: local}
		dialer.SetMultipathTCP(false)
		f.conn, err = dialer.Dial(network, dialled.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	f.conn.SetDeadline(time.Now().Add(dialLimit))
	f.stream = f.conn
	switch k {
	case byConnect:
		err = connect(f.conn, net.JoinHostPort(name(k, a, i), fmt.Sprint(internet.PortEcho)))
	case byTLS:
		f.stream, err = w.webSocket(f.conn, name(k, a, i))
	}
	if err != nil {
		return nil, errors.Join(err, f.conn.Close())
	}
	f.conn.SetDeadline(time.Time{})
	return f, nil
}

// connect asks a proxy for a tunnel.
func connect(conn net.Conn, target string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target); err != nil {
		return err
	}
	var head []byte
	for one := [1]byte{}; len(head) < 4096; {
		if _, err := io.ReadFull(conn, one[:]); err != nil {
			return err
		}
		if head = append(head, one[0]); len(head) >= 4 && string(head[len(head)-4:]) == "\r\n\r\n" {
			break
		}
	}
	var status int
	if _, err := fmt.Sscanf(string(head), "HTTP/1.1 %d", &status); err != nil || status != 200 {
		return fmt.Errorf("CONNECT %s: %q", target, head)
	}
	return nil
}

// webSocket opens a WebSocket in TLS, whose server sends back what it gets.
func (w *workload) webSocket(conn net.Conn, host string) (io.ReadWriter, error) {
	config, err := websocket.NewConfig("wss://"+host+"/ws", "https://"+host+"/")
	if err != nil {
		return nil, err
	}
	ws, err := websocket.NewClient(config, tls.Client(conn, &tls.Config{RootCAs: w.roots, ServerName: host}))
	if err != nil {
		return nil, err
	}
	ws.PayloadType = websocket.BinaryFrame
	return ws, nil
}

// openInbound opens a connection into the container: from the host, which both phases let in, or from the internet.
func (w *workload) openInbound(f *flow, i int) error {
	dial := func(to netip.AddrPort) func() error {
		return func() (err error) {
			f.far, err = net.DialTimeout("tcp", to.String(), dialLimit)
			return err
		}
	}
	var err error
	if f.allowed == always {
		err = lab.InEngineNamespace(dial(w.direct))
	} else {
		err = lab.Internet.Enter(dial(w.published))
	}
	if err != nil {
		return err
	}
	id := fmt.Sprintf("%v %d", f.allowed, i)
	if _, err := fmt.Fprintln(f.far, id); err != nil {
		return errors.Join(err, f.far.Close())
	}
	select {
	case f.conn = <-w.arrived[id]:
	case <-time.After(dialLimit):
		return errors.Join(errors.New("it did not reach the container"), f.far.Close())
	}
	f.stream = f.conn
	go io.Copy(f.far, f.far)
	return nil
}

// accept takes connections into the container until the listener is closed.
func (w *workload) accept() {
	for {
		conn, err := w.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			conn.SetDeadline(time.Now().Add(dialLimit))
			// Nothing comes behind the line until the other end of the flow sends.
			line, _, err := bufio.NewReaderSize(conn, 64).ReadLine()
			waiting := w.arrived[string(line)]
			if err != nil || waiting == nil {
				conn.Close()
				return
			}
			conn.SetDeadline(time.Time{})
			waiting <- conn
		}()
	}
}
