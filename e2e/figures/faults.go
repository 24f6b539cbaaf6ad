package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"sluice/e2e/lab/internet"
)

const (
	// faultTries is how often each fault is made.
	faultTries = 10
	// beforeFault and afterFault are how long the container is used before and after it, at least.
	beforeFault, afterFault = 300 * time.Millisecond, time.Second
	// recoverLimit is how long it may take until everything that is allowed works again.
	recoverLimit = time.Minute
	// refusedEvery is how often something refused is tried.
	refusedEvery = time.Millisecond
)

// fault breaks something. repair, if it is not nil, does what an operator or a unit would do about it.
type fault struct {
	name           string
	break_, repair func(context.Context, *stage, *container) error
}

var faults = []fault{
	{"the sidecar is killed", signalSidecar(syscall.SIGKILL), nil},
	{"the sidecar hangs", signalSidecar(syscall.SIGSTOP), nil},
	{"the sidecar's memory is used up", starveSidecar, nil},
	{"the sidecar has no descriptors left for a second", limitSidecar, unlimitSidecar},
	{"the controller is killed and started again", killController, restartController},
	{"the controller has no descriptors left for a second", limitController, unlimitController},
	{"the controller is started again where its clock is three years ahead", killController, restartAhead},
	{"both are killed, the controller is started again", func(ctx context.Context, st *stage, c *container) error {
		return errors.Join(killController(ctx, st, c), signalSidecar(syscall.SIGKILL)(ctx, st, c))
	}, restartController},
	{"both are upgraded", func(ctx context.Context, st *stage, c *container) error {
		return errors.Join(st.newVersion(), st.endController(syscall.SIGTERM))
	}, upgraded},
	{"the disk with the state is full, for three switches and an attach", fillState, emptyState},
	{"the host's rules are deleted", func(ctx context.Context, st *stage, _ *container) error {
		return st.InEngineNamespace(func() error { return deleteTables(ctx) })
	}, nil},
	{"the engine hangs for a second", func(_ context.Context, st *stage, _ *container) error {
		return st.SignalEngine(syscall.SIGSTOP)
	}, func(_ context.Context, st *stage, _ *container) error {
		time.Sleep(time.Second)
		return st.SignalEngine(syscall.SIGCONT)
	}},
	{"the engine's events are cut while another container ends", cutEvents, eventsAgain},
	{"a second controller is started", func(_ context.Context, st *stage, _ *container) error {
		second := st.command()
		err := st.InEngineNamespace(second.Start)
		if err != nil {
			return err
		}
		if err := second.Wait(); err == nil {
			return errors.New("the second controller did not refuse")
		}
		return nil
	}, nil},
}

// deleteTables deletes every table of Sluice's in the calling thread's network namespace.
func deleteTables(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, "nft", "list", "tables").Output()
	if err != nil {
		return fmt.Errorf("nft list tables: %w", err)
	}
	var script strings.Builder
	for table := range strings.Lines(string(out)) {
		if strings.Contains(table, "sluice") {
			script.WriteString("delete " + table)
		}
	}
	if script.Len() == 0 {
		return errors.New("there are no tables of Sluice's")
	}
	if out, err := exec.CommandContext(ctx, "nft", script.String()).CombinedOutput(); err != nil {
		return fmt.Errorf("nft %q: %w: %s", &script, err, out)
	}
	return nil
}

func signalSidecar(s syscall.Signal) func(context.Context, *stage, *container) error {
	return func(_ context.Context, st *stage, _ *container) error {
		pid, err := st.sidecarPID()
		if err == nil && pid <= 1 {
			err = errors.New("there is no sidecar")
		}
		if err != nil {
			return err
		}
		return syscall.Kill(pid, s)
	}
}

func killController(_ context.Context, st *stage, _ *container) error {
	return st.endController(syscall.SIGKILL)
}

func restartController(_ context.Context, st *stage, _ *container) error { return st.startController() }

// faultFigures breaks one thing after the other under a container that is used meanwhile.
func faultFigures(ctx context.Context, st *stage) (err error) {
	if err := errors.Join(st.nameSoak(), st.stateOnSmallDisk()); err != nil {
		return err
	}
	c, err := st.start("faults", "bridge")
	if err != nil {
		return err
	}
	if err := st.attachForSoak(ctx, c.name); err != nil {
		return err
	}
	for _, f := range faults {
		if !strings.Contains(f.name, st.named) {
			continue
		}
		var all outcome
		for range faultTries {
			one, err := st.try(ctx, f, c)
			if err != nil {
				text, _ := os.ReadFile(filepath.Join(st.dir, "log"))
				return fmt.Errorf("%s: %w\nthe controller's log:\n%s", f.name, err, text)
			}
			all.add(one)
		}
		row(f.name, "%v", &all)
	}
	return errors.Join(st.api.Detach(ctx, c.name), st.remove(c))
}

// outcome is what became of a container's traffic.
type outcome struct {
	tries          int
	leaked         int64 // refused packets and connections that arrived
	refused        int64 // tries of those
	named, direct  int   // open flows that ended
	failed, opened int64 // new flows
	recovery       times
}

func (o *outcome) add(one outcome) {
	o.tries++
	o.leaked += one.leaked
	o.refused += one.refused
	o.named += one.named
	o.direct += one.direct
	o.failed += one.failed
	o.opened += one.opened
	o.recovery = append(o.recovery, one.recovery...)
}

func (o *outcome) String() string {
	return fmt.Sprintf("%d tries: %d of %d refused packets arrived; of open flows %d tunnels and %d direct ones ended; of new tunnels %d of %d failed; all works again after p50 %s, at most %s",
		o.tries, o.leaked, o.refused, o.named, o.direct, o.failed, o.failed+o.opened, milliseconds(o.recovery.at(0.5)), milliseconds(o.recovery.at(1)))
}

// try makes a fault once, while a tunnel and a direct flow are open, new tunnels are opened all the time, and what is
// refused is tried all the time.
func (st *stage) try(ctx context.Context, f fault, c *container) (o outcome, err error) {
	s := &soaker{stage: st, id: c.name, ns: c.ns, now: &soakRun}
	tunnel, err := s.tunnel(s.now.name)
	if err != nil {
		return o, err
	}
	defer tunnel.Close()
	straight, err := s.dial("tcp4", netip.AddrPortFrom(s.now.bare, internet.PortEcho).String())
	if err != nil {
		return o, err
	}
	defer straight.Close()
	for _, open := range []net.Conn{tunnel, straight} {
		open.SetDeadline(time.Now().Add(recoverLimit * 2))
		if err := exchange(open); err != nil {
			return o, err
		}
	}
	var leaked, refused, failed, opened atomic.Int64
	capture, err := st.Internet.Capture(func(p *internet.Packet) {
		if a := p.To.Addr(); a == soakEnd.bare || a == soakEnd.named {
			leaked.Add(1)
		}
	})
	if err != nil {
		return o, err
	}
	stop := make(chan struct{})
	var using sync.WaitGroup
	using.Go(func() { s.tryRefused(stop, &refused) })
	using.Go(func() {
		for !done(stop) {
			if s.allowedTunnel(ctx) == nil {
				opened.Add(1)
			} else {
				failed.Add(1)
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
	time.Sleep(beforeFault)
	err = f.break_(ctx, st, c)
	began := time.Now()
	if err == nil && f.repair != nil {
		err = f.repair(ctx, st, c)
	}
	if err == nil {
		err = s.works(ctx, began.Add(recoverLimit))
		o.recovery = times{time.Since(began)}
		time.Sleep(afterFault)
	}
	close(stop)
	using.Wait()
	err = errors.Join(err, capture.Close())
	o.leaked, o.refused, o.failed, o.opened = leaked.Load(), refused.Load(), failed.Load(), opened.Load()
	for ended, open := range map[*int]net.Conn{&o.named: tunnel, &o.direct: straight} {
		open.SetDeadline(time.Now().Add(soakLimit))
		if exchange(open) != nil {
			*ended = 1
		}
	}
	return o, err
}

func done(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

// works waits until a tunnel, a direct flow, a look-up and the controller itself work.
func (s *soaker) works(ctx context.Context, deadline time.Time) error {
	for ; ; time.Sleep(5 * time.Millisecond) {
		_, err := s.api.Status(ctx, s.id)
		for _, step := range []func(context.Context) error{
			s.allowedTunnel,
			func(context.Context) error { return s.echo("tcp4", s.now.bare) },
			func(context.Context) error { return s.lookUp(s.now.name, 0) },
		} {
			if err == nil {
				err = step(ctx)
			}
		}
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// tryRefused sends datagrams and opens connections to what only the other phase allows, until it is told to stop.
func (s *soaker) tryRefused(stop <-chan struct{}, tries *atomic.Int64) {
	var sending sync.WaitGroup
	defer sending.Wait()
	sending.Go(func() { s.sendTo(soakEnd.bare, stop, tries) })
	for ; !done(stop); time.Sleep(20 * refusedEvery) {
		if conn, err := s.dial("tcp4", net.JoinHostPort(soakEnd.named.String(), strconv.Itoa(internet.PortEcho))); err == nil {
			conn.Close()
		}
		tries.Add(1)
	}
}

// sendTo sends datagrams to what is refused, until it is told to stop.
func (s *soaker) sendTo(refused netip.Addr, stop <-chan struct{}, tries *atomic.Int64) {
	var socket net.PacketConn
	if err := s.ns.Do(func() (err error) {
		socket, err = net.ListenPacket("udp4", ":0")
		return err
	}); err != nil {
		return // nothing is tried, which shows
	}
	defer socket.Close()
	to := net.UDPAddrFromAddrPort(netip.AddrPortFrom(refused, internet.PortEcho))
	for ; !done(stop); time.Sleep(refusedEvery) {
		socket.WriteTo([]byte("refused"), to) // the answers to those before come as errors
		tries.Add(1)
	}
}
