package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"sluice/control"
	"sluice/proxy"
	"sluice/proxy/audit"
)

// redialTime is how long a proxy waits before it looks for its controller again.
const redialTime = 200 * time.Millisecond

// manage serves what the controller hands over on listeners.sock, until ctx is done. While the controller is away, what
// was handed over stays in service.
func (d *deployment) manage(ctx context.Context, log *slog.Logger, server *proxy.Server, records *audit.Writer) error {
	group, ctx := errgroup.WithContext(ctx)
	m := &managed{server: server, log: log, group: group, stop: map[string]context.CancelFunc{}}
	group.Go(func() error {
		path := filepath.Join(d.control, control.ListenersName)
		reported := ""
		for ctx.Err() == nil {
			err := m.receive(ctx, path)
			if text := fmt.Sprint(err); ctx.Err() == nil && text != reported {
				log.Warn("no controller: looking for it again, what is in force stays", "error", err)
				reported = text
			}
			select {
			case <-ctx.Done():
			case <-time.After(redialTime):
			}
		}
		return nil
	})
	group.Go(func() error { return reopenOnHangup(ctx, log, records) })
	return group.Wait()
}

// managed is what was handed over. It belongs to the goroutine that receives.
type managed struct {
	server *proxy.Server
	log    *slog.Logger
	group  *errgroup.Group
	// stop ends the service of the last descriptor of a kind that can be there only once.
	stop map[string]context.CancelFunc
}

// receive takes descriptors until the connection ends.
func (m *managed) receive(ctx context.Context, path string) error {
	c, err := (&net.Dialer{}).DialContext(ctx, "unixpacket", path)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	conn := c.(*net.UnixConn)
	if err := control.CheckPeer(conn); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	m.log.Info("connected to the controller", "path", path)
	for {
		r, err := control.ReceiveListener(conn)
		if err == io.EOF {
			return fmt.Errorf("%s: the controller closed the connection", path)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		refusal := m.take(ctx, r)
		r.File.Close() // what is in use is a duplicate
		if refusal != nil {
			m.log.Error("a descriptor from the controller is refused", "session", r.Session, "kind", r.Kind, "error", refusal)
		}
		if err := control.Acknowledge(conn, refusal); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
}

// take puts a descriptor to its use.
func (m *managed) take(ctx context.Context, r control.Descriptor) error {
	switch r.Kind {
	case control.KindControl:
		l, err := listener[*net.UnixListener](r.File)
		if err != nil {
			return err
		}
		m.serve(ctx, r.Kind, func(ctx context.Context) error {
			return control.Serve(ctx, control.OnlyPeers(l, m.log), m.server, m.log)
		})
		return nil
	case control.KindMetrics:
		l, err := listener[*net.TCPListener](r.File)
		if err != nil {
			return err
		}
		m.serve(ctx, r.Kind, func(ctx context.Context) error { return serveMetrics(ctx, l, m.server, m.log) })
		return nil
	}
	if err := control.CheckID(r.Session); err != nil {
		return err
	}
	switch r.Kind {
	case control.KindProxy, control.KindTCP:
		l, err := listener[*net.TCPListener](r.File)
		if err != nil {
			return err
		}
		session, err := m.server.Open(r.Session)
		if err != nil {
			l.Close()
			return err
		}
		session.Set(r.Set)
		if r.Kind == control.KindProxy {
			return session.ServeTCP(l)
		}
		return session.ServeRedirected(l, r.Explicit)
	case control.KindUDP:
		c, err := net.FilePacketConn(r.File)
		if err != nil {
			return err
		}
		udp, ok := c.(*net.UDPConn)
		if !ok {
			c.Close()
			return fmt.Errorf("a socket of type %T: want UDP", c)
		}
		session, err := m.server.Open(r.Session)
		if err != nil {
			udp.Close()
			return err
		}
		session.Set(r.Set)
		session.ServeDNS(udp, nil)
		return nil
	}
	return fmt.Errorf("unknown kind: this proxy is older than its controller")
}

// serve runs one service of a kind in place of the one before it, whose failure is no reason to end.
func (m *managed) serve(ctx context.Context, kind string, run func(context.Context) error) {
	if stop := m.stop[kind]; stop != nil {
		stop()
	}
	ctx, m.stop[kind] = context.WithCancel(ctx)
	m.group.Go(func() error {
		if err := run(ctx); err != nil {
			m.log.Error("a service has stopped, until the controller hands over another descriptor", "kind", kind, "error", err)
		}
		return nil
	})
}

// listener duplicates a descriptor as a listener of one type.
func listener[L net.Listener](f *os.File) (L, error) {
	var none L
	l, err := net.FileListener(f)
	if err != nil {
		return none, err
	}
	typed, ok := l.(L)
	if !ok {
		l.Close()
		return none, fmt.Errorf("a socket of type %T: want %T", l, none)
	}
	return typed, nil
}
