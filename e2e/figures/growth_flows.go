package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"time"

	"sluice/controller/api"
)

// flowsOpened is how many flows are opened at a time.
const flowsOpened = 8

// namedMost is how many flows of the name plane are opened: with 20,000 descriptors the sidecar has 5,000 places, of
// which one session of several gets half.
const namedMost = 2_000

// growFlows measures a container while more and more flows of it are open, of one plane and of the other by turns; each
// of its switches cuts them all.
func (st *stage) growFlows(ctx context.Context, g *growth) error {
	far, err := st.startFar()
	if err != nil {
		return err
	}
	return errors.Join(st.growFlowsTo(ctx, g), far.Close())
}

func (st *stage) growFlowsTo(ctx context.Context, g *growth) error {
	if err := st.Internet.SetName(sinkHost, "A 203.0.113.241"); err != nil {
		return err
	}
	// There is another session, as there always is: one alone may have more places.
	_, beside, err := st.growthProbe(ctx, api.Attach{Container: "growing-beside", Policy: document(10)})
	if err != nil {
		return err
	}
	policy := document(10, sinkHost, sinkAddress, soakRun.name)
	probe, c, err := st.growthProbe(ctx, api.Attach{Container: "growing-flows", Policy: policy, Phase: soakRun.phase})
	if err != nil {
		return err
	}
	base, err := st.memoryAfter(settle)
	if err != nil {
		return err
	}
	planes := []struct {
		named bool
		name  string
		steps []int
	}{
		{true, ", by name", []int{1, 10, 100, 1_000, namedMost}},
		{false, ", direct", []int{1, 10, 100, 1_000, 10_000}},
	}
	for round := range growthRounds { // memory comes to rest before the last one
		for i := range planes[0].steps {
			for _, p := range planes {
				conns, err := c.openFlows(p.named, p.steps[i])
				if err == nil {
					err = st.growFlowsAt(ctx, g, probe, p.steps[i], p.name, base, round == growthRounds-1)
				}
				for _, conn := range conns {
					conn.Close()
				}
				if err != nil {
					return fmt.Errorf("%d flows%s: %w", p.steps[i], p.name, err)
				}
			}
		}
	}
	return st.end(ctx, c, beside)
}

// growFlowsAt measures while n flows are open, and cuts them.
func (st *stage) growFlowsAt(ctx context.Context, g *growth, probe *soaker, n int, plane string, base memory, last bool) error {
	const axis, weighty = "flows", 1_000 // fewer do not show in the memory of all
	if last && n >= weighty {
		if err := st.memoryPoint(g, axis, n, plane, base); err != nil {
			return err
		}
	}
	if err := probe.setUps(g, axis, n, "set-up"+plane, growthSetups/growthRounds); err != nil {
		return err
	}
	time.Sleep(afterwards)
	receipt, err := st.api.Phase(ctx, probe.id, soakEnd.phase, 0)
	if err != nil {
		return err
	}
	if receipt.FlowsCut < n {
		return fmt.Errorf("the switch cut %d flows, want %d", receipt.FlowsCut, n)
	}
	g.took(axis, n, "switch"+plane, own(receipt.Milliseconds))
	_, err = st.api.Phase(ctx, probe.id, soakRun.phase, 0)
	return err
}

// openFlows opens flows of one plane, some at a time. What it returns has to be closed even if there is an error.
func (c *container) openFlows(named bool, n int) ([]net.Conn, error) {
	var mu sync.Mutex
	var conns []net.Conn
	var errs []error
	var opening sync.WaitGroup
	for i := range min(n, flowsOpened) {
		opening.Go(func() {
			for j := i; j < n; j += flowsOpened {
				conn, err := c.openFlow(named, strconv.Itoa(farPort))
				mu.Lock()
				if conn != nil {
					conns = append(conns, conn)
				}
				if err != nil {
					errs = append(errs, err)
					mu.Unlock()
					return
				}
				mu.Unlock()
			}
		})
	}
	opening.Wait()
	return conns, errors.Join(errs...)
}

// farPort is where another process holds connections.
const farPort = 9101

// far is another process on the far side, for one alone has not enough descriptors for both ends of many flows.
type far struct {
	command *exec.Cmd
	stdin   io.Closer
}

// farArgument makes this program the far process.
const farArgument = "hold-connections"

func (st *stage) startFar() (*far, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	var listener net.Listener
	if err := st.InInternetNamespace(func() (err error) {
		listener, err = listen(":" + strconv.Itoa(farPort))
		return err
	}); err != nil {
		return nil, err
	}
	defer listener.Close()
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	f := &far{command: exec.Command(self, farArgument)}
	f.command.ExtraFiles, f.command.Stderr = []*os.File{file}, os.Stderr
	if f.stdin, err = f.command.StdinPipe(); err != nil {
		return nil, err
	}
	if err := f.command.Start(); err != nil {
		return nil, fmt.Errorf("start the far side: %w", err)
	}
	return f, nil
}

// Close ends it.
func (f *far) Close() error { return errors.Join(f.stdin.Close(), f.command.Wait()) }

// holdConnections is the far process: it holds what comes to the listener that is descriptor 3, until its input ends.
func holdConnections() error {
	listener, err := net.FileListener(os.NewFile(3, "listener"))
	if err != nil {
		return err
	}
	var held held
	stop := held.accept(listener)
	_, err = io.Copy(io.Discard, os.Stdin)
	stop()
	return err
}
