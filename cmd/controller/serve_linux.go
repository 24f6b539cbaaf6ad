package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker/client"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/netutil"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"sluice/control"
	"sluice/controller"
	"sluice/controller/api"
	"sluice/controller/host"
	"sluice/controller/sidecar"
	"sluice/controller/ui"
	"sluice/dockernet/engine"
	"sluice/matcher"
)

// serve looks after containers until ctx is done.
func serve(ctx context.Context, log *slog.Logger, s settings) (err error) {
	upstreams, err := parseUpstreams(s.upstreams)
	if err != nil {
		return err
	}
	if err := hostProblems(log); err != nil {
		return err
	}
	var subnet6 netip.Prefix
	if s.allowIPv6 != "" {
		if subnet6, err = netip.ParsePrefix(s.allowIPv6); err != nil {
			return fmt.Errorf("--proxy-subnet6: %w", err)
		}
	}
	// The group and the sidecar's user have to reach what is made for them, with the modes that the code says.
	unix.Umask(0o022)
	unlock, err := lockDir(ctx, filepath.Dir(s.socket))
	if err != nil {
		return err
	}
	defer unlock()
	listener, err := listen(s.socket)
	if err != nil {
		return err
	}
	defer listener.Close()
	gid, group, err := openTo(s.socket, groupName)
	if err != nil {
		return err
	}
	peers := control.OnlyPeers(listener, log)
	if group {
		peers = control.OnlyGroup(listener, log, gid)
	}

	docker, err := client.NewClientWithOpts(client.FromEnv, client.WithAPIVersionNegotiation())
	if err != nil {
		return fmt.Errorf("engine client: %w", err)
	}
	defer docker.Close()
	asked, err := engine.Dial("")
	if err != nil {
		return err
	}
	defer asked.Close()
	if len(upstreams) == 0 {
		if upstreams, err = host.NameServers(); err != nil {
			return err
		}
	}

	var closed []netip.AddrPort
	metrics, err := listenAt(ctx, "--metrics", s.metrics, &closed)
	if err != nil {
		return err
	}
	proxyMetrics, err := listenAt(ctx, "--proxy-metrics", s.proxyMetrics, &closed)
	if err != nil {
		return err
	}
	page, err := listenAt(ctx, "--ui", s.ui, &closed)
	if err != nil {
		return err
	}
	dir := filepath.Dir(s.socket)
	var flags []string
	if !s.floor {
		flags = append(flags, "--floor=false")
	}
	for _, z := range s.privateZones {
		flags = append(flags, "--private-zone="+z)
	}
	var kernel *host.Host
	options := sidecar.Options{
		Docker: docker, Binary: s.proxy, Dir: filepath.Join(dir, "proxy"), Logger: log, Flags: flags, Upstreams: upstreams,
		Metrics: proxyMetrics, Subnet6: subnet6, MTU: asked.MTU, Explicit: []netip.AddrPort{controller.ExplicitProxy},
		Prepare: func(_ context.Context, n sidecar.Network) error {
			return kernel.CloseToSidecar(n.Bridge, addressesOf(upstreams))
		},
	}
	proxy, err := sidecar.New(options)
	if err != nil {
		return err
	}
	var c *controller.Controller
	kernel, err = host.Open(host.Options{Client: asked, Closed: closed, Upstreams: upstreams, IPv6: subnet6.IsValid(), Logger: log, Kept: s.kept,
		Uncovered: func(namespace string, gap time.Duration) { c.Uncovered(namespace, gap) }})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kernel.Close()) }()
	containers := &host.Engine{Client: asked, Docker: docker, Sockets: []string{s.socket, filepath.Join(dir, "state"), filepath.Join(dir, "proxy")}, Routes: engine.Routes,
		EarlyRules: s.kept != "", Adopt: s.adopt != ""}
	c, err = controller.New(controller.Config{
		Engine: containers, Host: kernel, Sidecar: proxy, Dir: filepath.Join(dir, "state"),
		Matcher: matcher.Options{PrivateZones: s.privateZones, NoFloor: !s.floor}, Adopt: s.adopt != "", Logger: log, Version: readBuild().Version,
		Collectors: []prometheus.Collector{proxy, host.Tables{}},
	})
	if err != nil {
		return err
	}
	containers.Attached = c.Attached
	defer func() { err = errors.Join(err, c.Close()) }()
	takeBack := func(ctx context.Context) error {
		return errors.Join(c.Clear(ctx), kernel.Clear(sidecar.BridgeName(options.Dir)), sidecar.Remove(ctx, options))
	}
	if s.clear {
		return takeBack(ctx)
	}
	idle := errors.New("idle")
	caller := ctx
	tasks, ctx := errgroup.WithContext(ctx)
	// What a change needs outlasts it: one that lost its sidecar half way would end in a quarantine.
	below, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(changeLimit, end) })()
	tasks.Go(func() error { return proxy.Run(below) })
	tasks.Go(func() error { return kernel.Run(below) })
	tasks.Go(func() error {
		defer end()
		changing, ctx := errgroup.WithContext(ctx)
		changing.Go(func() error { return c.Run(ctx) })
		changing.Go(func() error { return control.ServeHTTP(ctx, peers, api.Handler(c), log) })
		return changing.Wait()
	})
	readers := http.NewServeMux()
	readers.Handle("GET /metrics", c.Metrics())
	if page != nil {
		lookers := readers
		if metrics == nil || metrics.Addr().String() != page.Addr().String() { // at one address either listener may be asked for both
			lookers = http.NewServeMux()
		}
		shown := ui.New(c, readBuild().Version)
		lookers.Handle("/", shown)
		tasks.Go(func() error { return shown.Run(ctx) })
		tasks.Go(func() error { return serveAt(ctx, page, lookers, log) })
	}
	if metrics != nil {
		tasks.Go(func() error { return serveAt(ctx, metrics, readers, log) })
	}
	if s.untilIdle {
		tasks.Go(func() error {
			if c.Idle(ctx) {
				return idle
			}
			return nil
		})
	}
	if err := tellReady(); err != nil {
		log.Warn("whoever has started this was not told that it is ready", "error", err)
	}
	log.Info("ready", "socket", s.socket, "engine", docker.DaemonHost())
	if err := tasks.Wait(); !errors.Is(err, idle) {
		return err
	}
	log.Info("the last container is gone")
	return takeBack(context.WithoutCancel(caller))
}

// changeLimit is how long the changes under way may take when the controller is told to end. A sidecar that hangs takes 3 s.
const changeLimit = 5 * time.Second

// endLimit is how long a controller may take to end after it has closed its socket.
const endLimit = 10 * time.Second

// lockDir makes this process the only controller whose socket and state are in a directory. One that is about to end is
// waited for: it closes its socket first, and what it has open last.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("directory of the socket: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_CLOEXEC|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the directory of the socket: %w", err)
	}
	for deadline := time.Now().Add(endLimit); ; {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w: another controller uses it: stop that one, or give this one another --socket", dir, err)
	}
	return func() { f.Close() }, nil
}

// tellReady tells systemd, if that has started this process, that the rules are in force (sd_notify(3)).
func tellReady() error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	if strings.HasPrefix(path, "@") {
		path = "\x00" + path[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		return err
	}
	_, err = c.Write([]byte("READY=1"))
	return errors.Join(err, c.Close())
}

// hostProblems says what is wrong with this machine, and returns as an error what stands in the way. The engine may
// come later.
func hostProblems(log *slog.Logger) error {
	var errs []error
	for _, p := range engine.HostProblems() {
		if p.Warning {
			log.Warn(p.What, "check", p.Check, "repair", p.Repair)
			continue
		}
		errs = append(errs, errors.New(p.String()))
	}
	return errors.Join(errs...)
}

func addressesOf(list []netip.AddrPort) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, a.Addr())
	}
	return all
}

// listenAt opens a listener at addr, unless that is empty, in a way that lets the next controller open it too. It adds
// the address to those that containers must not reach. An error names the flag that addr is from.
func listenAt(ctx context.Context, flag, addr string, closed *[]netip.AddrPort) (*net.TCPListener, error) {
	if addr == "" {
		return nil, nil
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var inner error
		err := raw.Control(func(fd uintptr) { inner = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		return errors.Join(err, inner)
	}}
	l, err := config.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	tcp := l.(*net.TCPListener)
	at := tcp.Addr().(*net.TCPAddr).AddrPort()
	*closed = append(*closed, netip.AddrPortFrom(at.Addr().Unmap(), at.Port()))
	return tcp, nil
}

// maxReaders is how many connections may be open at once to an address of those who only read.
const maxReaders = 64

// serveAt answers those who only read, Prometheus or a browser, until ctx is done. At a loopback address no name but this
// machine's own is answered to.
func serveAt(ctx context.Context, l net.Listener, handler http.Handler, log *slog.Logger) error {
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
		handler = ui.Guard(handler)
	}
	server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(netutil.LimitListener(l, maxReaders)); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", l.Addr(), err)
	}
	return nil
}
