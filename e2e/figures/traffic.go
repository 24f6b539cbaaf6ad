package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"time"

	"sluice/controller"
	"sluice/controller/api"
)

// volume is how many bytes a round of traffic carries.
const volume = 96 << 20

// way is one of the ways that traffic goes.
type way struct {
	from *container
	to   string
	via  string       // a target that an explicit proxy is asked for, if not empty
	sink net.Listener // where it arrives

	through int // a process whose own work is measured, if not 0
}

// flow is what one round has cost.
type flow struct {
	cpu  time.Duration // of both ends and of the kernel's work between them, without the sidecar's
	took time.Duration
	own  time.Duration // of the process in between
}

// trafficFigures carries the same bytes with and without Sluice by turns.
func trafficFigures(ctx context.Context, st *stage) error {
	if err := st.Internet.SetName(sinkHost, "A 203.0.113.241"); err != nil {
		return err
	}
	network := "traffic"
	if _, err := st.docker("network", "create", network); err != nil {
		return err
	}
	const alongside = "relays" // a bridge for the plain relay alone, as the sidecar has one
	if _, err := st.docker("network", "create", alongside); err != nil {
		return err
	}
	var containers []*container
	for _, name := range []string{"free", "held", "sibling", "control", alongside} {
		on := network
		if name == alongside {
			on = alongside
		}
		c, err := st.start(name, on)
		if err != nil {
			return err
		}
		containers = append(containers, c)
	}
	free, bound, sibling, control, relays := containers[0], containers[1], containers[2], containers[3], containers[4]
	var inSibling net.Listener
	if err := sibling.ns.Do(func() (err error) {
		inSibling, err = listen(":" + strconv.Itoa(sinkPort))
		return err
	}); err != nil {
		return err
	}
	defer inSibling.Close()
	allowed := document(100, sinkHost, sinkAddress, sibling.ip)
	if _, err := st.api.Attach(ctx, api.Attach{Container: bound.name, Policy: allowed, Phase: "run"}); err != nil {
		return err
	}
	alone, err := st.startRelay()
	if err != nil {
		return err
	}
	defer alone.close()
	plain, err := st.startPlain(control, relays)
	if err != nil {
		return err
	}
	defer plain.close()
	port := strconv.Itoa(sinkPort)
	routed, beside := net.JoinHostPort(sinkAddress, port), net.JoinHostPort(sibling.ip, port)
	ways := []way{
		{from: free, to: routed, sink: st.sink},
		{from: bound, to: routed, sink: st.sink},
		{from: bound, to: controller.ExplicitProxy.String(), via: net.JoinHostPort(sinkHost, port), sink: st.sink, through: st.sidecar},
		{from: free, to: beside, sink: inSibling},
		{from: bound, to: beside, sink: inSibling},
		alone.way(st.sink),
		{from: control, to: routed, sink: st.sink},
		plain.way(control, st.sink),
	}
	var direct, named, near, directRate, nearRate, own, same, floor, ours, floorRate ratios
	for i := range st.rounds + 1 {
		costs := make([]flow, len(ways))
		// What comes before a way is felt in it: the caches it has left, and sockets that are still being closed.
		for _, j := range rand.Perm(len(ways)) {
			var err error
			if costs[j], err = ways[j].carry(i%4 < 2); err != nil {
				return fmt.Errorf("traffic by way %d: %w", j, err)
			}
		}
		if i == 0 || ctx.Err() != nil { // the first round warms up
			continue
		}
		direct = append(direct, float64(costs[1].cpu)/float64(costs[0].cpu))
		directRate = append(directRate, float64(costs[0].took)/float64(costs[1].took))
		named = append(named, float64(costs[0].took)/float64(costs[2].took))
		own = append(own, float64(costs[2].own)/float64(costs[5].own))
		floor = append(floor, float64(costs[7].own)/float64(costs[5].own))
		floorRate = append(floorRate, float64(costs[0].took)/float64(costs[7].took))
		ours = append(ours, float64(costs[2].own)/float64(costs[7].own))
		same = append(same, float64(costs[6].cpu)/float64(costs[0].cpu))
		near = append(near, float64(costs[4].cpu)/float64(costs[3].cpu))
		nearRate = append(nearRate, float64(costs[3].took)/float64(costs[4].took))
	}
	st.note("direct plane", direct.median())
	st.note("name plane", named.median())
	st.note("name plane CPU", own.median())
	row("direct plane, routed: CPU a byte, to the same without Sluice", "%v; rate %v (%d rounds of %d MiB)", direct, directRate, len(direct), volume>>20)
	row("routed without Sluice in another container: the same, which shows how far to trust it", "%v", same)
	row("direct plane, between siblings: the same", "%v; rate %v", near, nearRate)
	row("name plane: rate, to the routed way without Sluice", "%v", named)
	row("name plane: CPU a byte of the sidecar, to its own on the loopback device", "%v", own)
	row("the same of io.Copy between the same legs, without Sluice", "%v; rate %v", floor, floorRate)
	row("name plane: CPU a byte of the sidecar, to io.Copy between the same legs", "%v", ours)
	errs := []error{st.api.Detach(ctx, bound.name)}
	for _, c := range containers {
		errs = append(errs, st.remove(c))
	}
	_, err = st.docker("network", "rm", network, alongside)
	return errors.Join(append(errs, err)...)
}

// carry opens a connection and sends the volume through it, out of the container or into it.
func (w *way) carry(out bool) (flow, error) {
	conn, err := w.from.dial(w.to)
	if err != nil {
		return flow{}, err
	}
	defer conn.Close()
	if w.via != "" {
		if err := connect(conn, w.via); err != nil {
			return flow{}, err
		}
	}
	far, err := w.sink.Accept()
	if err != nil {
		return flow{}, err
	}
	defer far.Close()
	source, drain := conn, far
	if !out {
		source, drain = far, conn
	}
	used, err := cpu()
	if err != nil {
		return flow{}, err
	}
	before, err := w.work()
	if err != nil {
		return flow{}, err
	}
	began := time.Now()
	sent := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(plainWriter{source}, io.LimitReader(zeros{}, volume), make([]byte, 128<<10))
		sent <- err
	}()
	n, err := io.CopyBuffer(discard{}, io.LimitReader(drain, volume), make([]byte, 128<<10))
	f := flow{took: time.Since(began)}
	if err := errors.Join(err, <-sent); err != nil || n != volume {
		return flow{}, fmt.Errorf("%d of %d bytes arrived: %w", n, volume, err)
	}
	until, err := cpu()
	f.cpu = until - used
	if err != nil {
		return f, err
	}
	after, err := w.work()
	f.own = after - before
	return f, err
}

// work is what the process in between has used so far.
func (w *way) work() (time.Duration, error) {
	if w.through == 0 {
		return 0, nil
	}
	return cpuOf(w.through)
}

// zeros never ends.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// plainWriter has no ReadFrom, so that the buffer is used.
type plainWriter struct{ io.Writer }

// discard has none either.
type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
