package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"sluice/controller"
	"sluice/controller/api"
)

const (
	// switchTimes is how often a container is switched away from what its flows need.
	switchTimes = 100
	// few and many are how many flows are cut by that.
	few, many = 20, 220
	// afterwards is the time that the last switch gets for what it leaves for after its answer.
	afterwards = 200 * time.Millisecond
	// sinkHost is a name of the sink, and sinkAddress an address of it that has no name.
	sinkHost, sinkAddress = "sink.figures.test", "203.0.113.240"
)

// switchFigures switches containers with policies of different sizes by turns.
func switchFigures(ctx context.Context, st *stage) error {
	if err := st.Internet.SetName(sinkHost, "A 203.0.113.241"); err != nil {
		return err
	}
	var held held
	stop := held.accept(st.sink)
	defer stop()
	sizes := []int{10, 1_000, 10_000}
	type measured struct {
		c               *container
		own, whole, cpu times
	}
	var all []*measured
	for _, targets := range sizes {
		c, err := st.start(fmt.Sprint("switch-", targets), "bridge")
		if err != nil {
			return err
		}
		policy := api.Attach{Container: c.name, Policy: document(targets, sinkHost, sinkAddress), Phase: "run"}
		if _, err := st.api.Attach(ctx, policy); err != nil {
			return err
		}
		all = append(all, &measured{c: c})
	}
	var more ratios // microseconds for each flow more
	for i := range switchTimes {
		for _, m := range all {
			one, err := st.switchOnce(ctx, m.c, few)
			if err != nil {
				return err
			}
			m.own, m.whole, m.cpu = append(m.own, one.own), append(m.whole, one.whole), append(m.cpu, one.cpu)
			if i%10 != 0 {
				continue
			}
			larger, err := st.switchOnce(ctx, m.c, many)
			if err != nil {
				return err
			}
			more = append(more, float64((larger.own-one.own).Microseconds())/(many-few))
		}
	}
	var hasty times
	for range 2 * switchTimes {
		for _, phase := range []string{"evaluation", "run"} {
			receipt, err := st.api.Phase(ctx, all[0].c.name, phase, 0)
			if err != nil {
				return err
			}
			hasty = append(hasty, time.Duration(receipt.Milliseconds*float64(time.Millisecond)))
		}
	}
	for i, m := range all {
		st.note(fmt.Sprintf("switch at %d", sizes[i]), m.own.at(0.5).Seconds()*1000)
		st.note(fmt.Sprintf("switch at %d p99", sizes[i]), m.own.at(0.99).Seconds()*1000)
		row(fmt.Sprintf("switch at %d targets, %d flows cut%s", sizes[i], few, st.besides()), "%v; with the call: %v; processor time %v", m.own, m.whole, m.cpu)
		if err := errors.Join(st.api.Detach(ctx, m.c.name), st.remove(m.c)); err != nil {
			return err
		}
	}
	row(fmt.Sprintf("switch without a pause after another, nothing to cut%s", st.besides()), "%v", hasty)
	st.note("each flow more", more.median())
	row("each flow more, of "+strconv.Itoa(many)+st.besides(), "%v µs", more)
	return nil
}

// switched is what one switch took: the controller by itself, with the caller's way there and back, and of the
// processors.
type switched struct{ own, whole, cpu time.Duration }

// switchOnce opens flows, half of each plane, switches to a phase that refuses them, and back.
func (st *stage) switchOnce(ctx context.Context, c *container, flows int) (s switched, err error) {
	conns := make([]net.Conn, 0, flows)
	defer func() {
		for _, conn := range conns {
			conn.Close()
		}
	}()
	port := strconv.Itoa(sinkPort)
	for i := range flows {
		conn, err := c.openFlow(i%2 == 0, port)
		if err != nil {
			return s, fmt.Errorf("open flow %d: %w", i, err)
		}
		conns = append(conns, conn)
	}
	time.Sleep(afterwards)
	var receipt api.Receipt
	s.cpu, err = st.used(func() (err error) {
		began := time.Now()
		receipt, err = st.api.Phase(ctx, c.name, "evaluation", 0)
		s.whole = time.Since(began)
		return err
	})
	if err != nil {
		return s, err
	}
	if receipt.FlowsCut != flows {
		return s, fmt.Errorf("the switch cut %d flows, want %d", receipt.FlowsCut, flows)
	}
	s.own = time.Duration(receipt.Milliseconds * float64(time.Millisecond))
	_, err = st.api.Phase(ctx, c.name, "run", 0)
	return s, err
}

// openFlow opens a flow of the name plane, or of the direct one.
func (c *container) openFlow(named bool, port string) (net.Conn, error) {
	if !named {
		return c.dial(net.JoinHostPort(sinkAddress, port))
	}
	conn, err := c.dial(controller.ExplicitProxy.String())
	if err != nil {
		return nil, err
	}
	return conn, connect(conn, net.JoinHostPort(sinkHost, port))
}

// errForbidden is a 403 of the proxy.
var errForbidden = errors.New("refused by policy")

// connect asks a proxy for a tunnel.
func connect(conn net.Conn, target string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", target); err != nil {
		return err
	}
	var head [4096]byte
	n, err := io.ReadAtLeast(conn, head[:], len("HTTP/1.1 200"))
	if err != nil {
		return fmt.Errorf("CONNECT %s: %q, %w", target, head[:n], err)
	}
	switch string(head[:12]) {
	case "HTTP/1.1 403":
		return errForbidden
	case "HTTP/1.1 200":
	default:
		return fmt.Errorf("CONNECT %s: %q", target, head[:n])
	}
	// Nothing comes behind the head before something was sent.
	for !bytes.HasSuffix(head[:n], []byte("\r\n\r\n")) {
		m, err := conn.Read(head[n:])
		if n += m; err != nil || n == len(head) {
			return fmt.Errorf("CONNECT %s: %q, %w", target, head[:n], err)
		}
	}
	return nil
}

// held are connections that nothing is done with.
type held struct {
	mu    sync.Mutex // guards conns
	conns []net.Conn
}

// accept takes connections of the sink and holds them open until they are ended by the other side. What it returns stops
// that.
func (h *held) accept(l net.Listener) (stop func()) {
	var serving sync.WaitGroup
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			h.conns = append(h.conns, conn)
			h.mu.Unlock()
			serving.Go(func() {
				io.Copy(io.Discard, conn)
				conn.Close()
			})
		}
	}()
	return func() {
		l.(*net.TCPListener).SetDeadline(time.Now())
		<-ended
		l.(*net.TCPListener).SetDeadline(time.Time{})
		h.mu.Lock()
		for _, conn := range h.conns {
			conn.Close()
		}
		h.mu.Unlock()
		serving.Wait()
	}
}
