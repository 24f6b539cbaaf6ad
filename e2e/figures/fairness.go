package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"

	"sluice/controller"
	"sluice/dockernet/netns"
	"sluice/e2e/lab/internet"
)

const (
	// fairnessCrowd is how many containers there are, of which one floods.
	fairnessCrowd = 20
	// fairnessTime is how long the others' rate is measured, with and without a flood.
	fairnessTime = 8 * time.Second
	// othersRate is how many tunnels the others open in a second, and how many names they look up. It leaves the processors
	// time: what is measured is what the sidecar gives to whom, not how fast the machine is.
	othersRate = 100
	// flooders is how many flood at a time.
	flooders = 8
	// heldMost is how many connections a flood holds: more than the sidecar has places for one session.
	heldMost = 4_000
	// leastShare is what the others have to keep of their rate.
	leastShare = 0.9
	// inTime is how soon what the others ask for has to be there to count.
	inTime = time.Second
)

// floodZone has a name for whatever is asked below it, and is allowed: a flood of names needs names that are.
const floodZone = "any.test"

// fairnessFigures measures how much all others lose while one container asks for all that it can get.
func fairnessFigures(ctx context.Context, st *stage) error {
	if err := st.nameSoak(); err != nil {
		return err
	}
	crowd, err := st.simulate(ctx, fairnessCrowd)
	if err != nil {
		return err
	}
	st.closers = append(st.closers, closer(crowd.close))
	var users []*soaker
	for _, m := range crowd.members {
		if err := st.attachForSoak(ctx, m.id); err != nil {
			return err
		}
		ns, err := netns.Open(m.sandbox, nil)
		if err != nil {
			return err
		}
		st.closers = append(st.closers, ns)
		users = append(users, &soaker{stage: st, id: m.id, ns: ns, sandbox: m.sandbox, now: &soakRun})
	}
	return st.fairness(ctx, users)
}

// fairness lets the first of the containers flood in every way.
func (st *stage) fairness(ctx context.Context, users []*soaker) error {
	var unfair []error
	for i, kind := range floods {
		if !strings.Contains(kind.name, st.named) {
			continue
		}
		alone, err := askFor(ctx, users[1:])
		if err != nil {
			return err
		}
		f, err := startFlood(users[0], i)
		if err != nil {
			return err
		}
		var beside *others
		cpu, err := st.used(func() (err error) {
			beside, err = askFor(ctx, users[1:])
			return err
		})
		tries, failed := f.stop()
		if err := errors.Join(err, failed); err != nil {
			return err
		}
		tunnels, names := beside.tunnels.rate()/alone.tunnels.rate(), beside.names.rate()/alone.names.rate()
		row("one container floods with "+kind.name+fmt.Sprintf(", %.0f/s", float64(tries)/fairnessTime.Seconds()),
			"the others keep %.0f %% of their tunnels, %.0f %% of their look-ups; p50 of a tunnel %s, alone %s; p99 %s, alone %s; of a look-up p50 %s, alone %s; sidecar and controller use %.0f %% of a processor; first error: %v",
			100*tunnels, 100*names, milliseconds(beside.tunnels.took.at(0.5)), milliseconds(alone.tunnels.took.at(0.5)),
			milliseconds(beside.tunnels.took.at(0.99)), milliseconds(alone.tunnels.took.at(0.99)),
			milliseconds(beside.names.took.at(0.5)), milliseconds(alone.names.took.at(0.5)),
			100*cpu.Seconds()/fairnessTime.Seconds(), errors.Join(beside.tunnels.err, beside.names.err))
		if min(tunnels, names) < leastShare {
			unfair = append(unfair, fmt.Errorf("a flood of %s leaves the others %.0f %% of their tunnels and %.0f %% of their look-ups, want %.0f %%",
				kind.name, 100*tunnels, 100*names, 100*leastShare))
		}
	}
	return errors.Join(unfair...)
}

// asked is what became of one kind of things that the others asked for. It may be used at the same time.
type asked struct {
	mu   sync.Mutex // guards what follows
	all  int
	took times // of what was there in time
	err  error // the first
}

func (a *asked) do(what func() error) {
	began := time.Now()
	err := what()
	took := time.Since(began)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all++
	switch {
	case err == nil && took <= inTime:
		a.took = append(a.took, took)
	case a.err == nil && err == nil:
		a.err = fmt.Errorf("it took %v", took.Round(time.Millisecond))
	case a.err == nil:
		a.err = err
	}
}

// rate is how much of what was asked for was there in time.
func (a *asked) rate() float64 { return float64(len(a.took)) / float64(max(1, a.all)) }

// others is what all containers but the flooding one got.
type others struct{ tunnels, names asked }

// askFor asks for tunnels and names at a steady rate, by turns for each container, whether the last ones are there or not.
func askFor(ctx context.Context, users []*soaker) (*others, error) {
	var all others
	var asking sync.WaitGroup
	defer asking.Wait()
	tick := time.NewTicker(time.Second / othersRate)
	defer tick.Stop()
	end := time.After(fairnessTime)
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-end:
			asking.Wait()
			return &all, nil
		case <-tick.C:
		}
		user := users[n%len(users)]
		asking.Go(func() { all.tunnels.do(func() error { return user.allowedTunnel(ctx) }) })
		asking.Go(func() { all.names.do(func() error { return user.lookUp(user.now.name, dns.RcodeSuccess) }) })
	}
}

// floodProcess is another process, of the least priority, that floods: its own use of the processors is not what is
// measured.
type floodProcess struct {
	command *exec.Cmd
	stdin   io.Closer
	stdout  bytes.Buffer
}

// floodArgument makes this program that process, with the number of the flood and the path of the namespace.
const floodArgument = "flood"

func startFlood(s *soaker, kind int) (*floodProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	f := &floodProcess{command: exec.Command("nice", "-n", "19", self, floodArgument, strconv.Itoa(kind), s.sandbox)}
	f.command.Stdout, f.command.Stderr = &f.stdout, os.Stderr
	if f.stdin, err = f.command.StdinPipe(); err != nil {
		return nil, err
	}
	return f, f.command.Start()
}

// stop ends it, and returns how often it has tried.
func (f *floodProcess) stop() (int64, error) {
	if err := errors.Join(f.stdin.Close(), f.command.Wait()); err != nil {
		return 0, fmt.Errorf("the flood: %w", err)
	}
	return strconv.ParseInt(f.stdout.String(), 10, 64)
}

// floodMain floods until its input ends, and prints how often it has tried.
func floodMain(kind, namespace string) error {
	i, err := strconv.Atoi(kind)
	if err != nil || i < 0 || i >= len(floods) {
		return fmt.Errorf("there is no flood %q", kind)
	}
	ns, err := netns.Open(namespace, nil)
	if err != nil {
		return err
	}
	defer ns.Close()
	f := &flood{soaker: &soaker{ns: ns, now: &soakRun}}
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range flooders {
		all.Go(func() {
			for ctx.Err() == nil {
				floods[i].do(f)
				f.tries.Add(1)
			}
		})
	}
	all.Go(func() { f.drip(ctx) })
	_, err = io.Copy(io.Discard, os.Stdin)
	cancel()
	all.Wait()
	f.close()
	fmt.Print(f.tries.Load())
	return err
}

// flood is one container asking for all that it can get.
type flood struct {
	soaker *soaker
	tries  atomic.Int64

	mu   sync.Mutex // guards held
	held []net.Conn
}

// drip sends a byte a second on each connection that is held, which is slow enough for anybody.
func (f *flood) drip(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
		f.mu.Lock()
		all := slices.Clone(f.held)
		f.mu.Unlock()
		for _, conn := range all {
			conn.Write([]byte{'a'}) // most are closed by now
		}
	}
}

// close lets go what it holds.
func (f *flood) close() {
	for _, conn := range f.held {
		conn.Close()
	}
}

// hold opens a connection, sends the beginning of a head, and keeps it open; the oldest one goes when there are too
// many.
func (f *flood) hold(address, head string) {
	conn, err := f.soaker.dial("tcp4", address)
	if err != nil {
		return
	}
	io.WriteString(conn, head)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held = append(f.held, conn); len(f.held) > heldMost {
		f.held[0].Close()
		f.held = f.held[1:]
	}
}

// tunnel opens one and closes it.
func (f *flood) tunnel(name string) {
	if conn, err := f.soaker.tunnel(name); err == nil {
		conn.Close()
	}
}

// ask sends a question and does not wait for the answer.
func (f *flood) ask(conn net.Conn, name string) {
	packet, err := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA).Pack()
	if err == nil {
		conn.Write(packet)
	}
}

var (
	explicit = controller.ExplicitProxy.String()
	hugeHead = "GET http://a/ HTTP/1.1\r\nX: " + strings.Repeat("x", 1<<20)
)

// floods are what one container may try to take from the others.
var floods = []struct {
	name string
	do   func(*flood)
}{
	{"tunnels", func(f *flood) { f.tunnel(soakRun.name) }},
	{"refused tries", func(f *flood) { f.tunnel(soakEnd.name) }},
	{"connections that say nothing", func(f *flood) { f.hold(explicit, "") }},
	{"redirected connections that say nothing", func(f *flood) {
		f.hold(netip.AddrPortFrom(soakRun.named, internet.PortHTTPS).String(), "")
	}},
	{"heads that never end", func(f *flood) { f.hold(explicit, "CONNECT a") }},
	{"requests that never end", func(f *flood) {
		f.hold(explicit, "POST http://"+soakRun.name+"/ HTTP/1.1\r\nContent-Length: 100000\r\nHost: a\r\nX: ")
	}},
	{"heads of 1 MiB", func(f *flood) {
		if conn, err := f.soaker.dial("tcp4", explicit); err == nil {
			io.WriteString(conn, hugeHead)
			conn.Close()
		}
	}},
	{"refused names", func(f *flood) {
		f.soaker.lookUp(strconv.FormatInt(time.Now().UnixNano(), 36)+".refused.test", dns.RcodeNameError)
	}},
	{"allowed names, each a new one", func(f *flood) {
		f.soaker.lookUp(strconv.FormatInt(time.Now().UnixNano(), 36)+"."+floodZone, dns.RcodeSuccess)
	}},
	{"new names without waiting for answers", func(f *flood) {
		conn, err := f.soaker.dial("udp4", netip.AddrPortFrom(internet.Resolver, 53).String())
		if err != nil {
			return
		}
		defer conn.Close()
		const burst = 100
		for i := range burst {
			f.ask(conn, fmt.Sprintf("%d-%s.%s", i, strconv.FormatInt(time.Now().UnixNano(), 36), floodZone))
		}
	}},
}
