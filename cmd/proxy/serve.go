package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"sluice/cmd/internal/limits"
	"sluice/cmd/internal/steadylog"
	"sluice/control"
	"sluice/policy"
	"sluice/proxy"
	"sluice/proxy/audit"
)

// sessionID names the one session of a proxy that stands alone.
const sessionID = "default"

func newServe(sys system) *cobra.Command {
	o := defaults()
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve clients under the policy of a file",
		Long: `Serve is an HTTP proxy, and with --dns a DNS filter, under the policy in a file, JSON or YAML: one policy that holds in
every phase, or one for each phase, of which --phase is in force first.

The file is followed: whoever asks after it was written is judged by what was written, and connections that it refuses
are reset. While the file is empty or cut off, new connections wait for it, half a second at most. If it is wrong or
gone, everything is refused until it is good again.

Nobody reaches the proxy's own addresses through it. Who can connect to --metrics directly can read them, though: on
:9464 that is every workload beside the proxy, on 127.0.0.1:9464 none that has a network of its own.

SIGTERM or SIGINT drains: no more clients are taken, those that are there may go on for --drain, health fails, and what
is open then is reset. A second signal resets it at once, and so does the first one under a controller, who keeps the
listeners and starts the next proxy.

With --control and no --policy, a controller hands over listeners and policies in that directory.`,
		Example: "  sluice-proxy serve --policy policy.yaml --listen 127.0.0.1:8080",
		Args:    cobra.NoArgs,
	}
	o.add(cmd.Flags())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		phase, err := policy.ParsePhase(o.phase)
		if err != nil {
			return err
		}
		user, password, err := o.credentials(sys)
		if err != nil {
			return err
		}
		if o.policy == "" && o.control == "" {
			return errors.New("no policy: give --policy FILE, or SLUICE_POLICY; or --control DIR of a controller")
		}
		if o.policy == "" && user != "" {
			return errors.New("--user without --policy: under a controller, clients are known by where they connect")
		}
		log, end := steadylog.New(sys.stderr)
		defer end()
		warnUnknown(log, cmd.Root(), sys)
		return serve(cmd.Context(), log, deployment{
			switches: o.switches, listen: o.listen, user: user, password: password, phase: phase, path: o.policy,
			stdout: sys.stdout, hurry: sys.hurry,
			decode: func(data []byte) (loaded, error) {
				phases, err := decodePolicy(data)
				return loaded{phases: phases}, err
			},
			ready: func(addresses []string) error {
				log.Info("ready", "listen", strings.Join(addresses, ","), "policy", o.policy, "phase", phase)
				return nil
			},
		})
	}
	return cmd
}

// warnUnknown points to variables that look like settings and are none: a misspelt one must not pass unseen.
func warnUnknown(log *slog.Logger, root *cobra.Command, sys system) {
	known := map[string]bool{"SLUICE_PASSWORD": true}
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { known[variable(f.Name)] = true })
		for _, c := range cmd.Commands() {
			visit(c)
		}
	}
	visit(root)
	for _, one := range sys.environ {
		name, _, _ := strings.Cut(one, "=")
		if strings.HasPrefix(name, "SLUICE_") && !known[name] {
			log.Warn("a variable of the environment is no setting and is ignored", "variable", name)
		}
	}
}

// deployment is all that serve needs to know, whoever asked for it. Without a path, a controller says the rest.
type deployment struct {
	switches
	listen         []string
	user, password string
	phase          policy.Phase
	path           string
	decode         func([]byte) (loaded, error)
	personality    proxy.Personality
	largeHead      int // status; 0 is the proxy's own
	stdout         io.Writer
	hurry          <-chan struct{} // as in [system]
	// ready is called when clients are served, with the addresses where.
	ready func(addresses []string) error
}

// serve runs a proxy until ctx is done, and returns nil if that is what ended it.
func serve(ctx context.Context, log *slog.Logger, d deployment) error {
	if d.drain < 0 {
		return fmt.Errorf("--drain %v: give a time of 0 or more, as in 8s", d.drain)
	}
	if d.idle != 0 && d.idle < time.Second {
		return fmt.Errorf("--idle-timeout %v: give a time of at least 1s, as in 10m, or 0 for no limit", d.idle)
	}
	limits.Apply("/", 0)
	upstreams, err := parseUpstreams(d.upstreams)
	if err != nil && len(d.upstreams) > 0 {
		return err
	}
	if err != nil {
		// Policies of addresses need none, and neither does refusing.
		log.Warn("no DNS server, so no name can be looked up: give --upstream", "error", err)
	}
	judging, err := d.matcher()
	if err != nil {
		return err
	}
	var file *source // nil under a controller
	if d.path != "" {
		if file, err = openSource(ctx, log, d.path, d.decode); err != nil {
			return failed(err)
		}
	}
	records, err := openAudit(d.audit, d.stdout)
	if err != nil {
		return failed(err)
	}
	registry := prometheus.NewRegistry()
	var changed func() ([]netip.AddrPort, bool)
	if len(d.upstreams) == 0 {
		changed = (&resolvConf{path: resolvConfPath, log: log}).changed
	}
	server, err := proxy.New(proxy.Config{
		Upstreams: upstreams, UpstreamsChanged: changed, Matcher: judging, Audit: records, Logger: log, Registry: registry,
		Personality: d.personality, LargeHeadStatus: d.largeHead, Version: readBuild().Version, IdleTimeout: d.idle,
	})
	if err != nil {
		return failed(errors.Join(err, records.Close()))
	}
	if file != nil {
		err = d.run(ctx, log, server, file, registry, records)
	} else {
		err = d.manage(ctx, log, server, records)
	}
	server.Close()
	return failed(errors.Join(err, records.Close()))
}

// run puts the policy in force, opens what clients connect to, and waits for the end.
// When asked is done, it lets what is open end first.
func (d *deployment) run(asked context.Context, log *slog.Logger, server *proxy.Server, source *source, registry *prometheus.Registry, records *audit.Writer) error {
	session, err := server.Open(sessionID)
	if err != nil {
		return err
	}
	if d.user != "" {
		session.SetAuth(d.user, d.password)
	}
	if err := source.attach(asked, session, d.phase); err != nil {
		return err
	}
	if err := registry.Register(source.metrics()); err != nil {
		return err
	}
	// All services go on while the server drains: the policy may change, and health and metrics tell of it.
	ctx, cancel := context.WithCancel(context.WithoutCancel(asked))
	group, ctx := errgroup.WithContext(ctx)
	defer func() { // for what was started before something failed
		cancel()
		group.Wait()
	}()
	group.Go(func() error { return source.file.Run(ctx) })
	if d.control != "" {
		l, err := control.Listen("unix", filepath.Join(d.control, control.SocketName))
		if err != nil {
			return err
		}
		group.Go(func() error { return control.Serve(ctx, control.OnlyPeers(l, log), server, log) })
	}
	if d.metrics != "" {
		l, err := bind("metrics", d.metrics)
		if err != nil {
			return err
		}
		server.AddOwn(l.Addr())
		log.Info("serving metrics", "address", l.Addr())
		group.Go(func() error { return serveMetrics(ctx, l, server, log) })
	}
	if d.dns != "" {
		address, err := serveDNS(session, d.dns)
		if err != nil {
			return err
		}
		log.Info("filtering DNS", "address", address)
	}
	var addresses []string
	for _, address := range d.listen {
		l, err := bind("listen", address)
		if err != nil {
			return err
		}
		addresses = append(addresses, l.Addr().String())
		if err := session.ServeTCP(l.(*net.TCPListener)); err != nil {
			return err
		}
	}
	group.Go(func() error { return reopenOnHangup(ctx, log, records) })
	group.Go(func() error {
		defer cancel()
		select {
		case <-asked.Done():
			d.drainClients(ctx, log, server)
		case <-ctx.Done():
		}
		return nil
	})
	if err := d.ready(addresses); err != nil {
		return err
	}
	return group.Wait()
}

// drainClients lets what is open end, as long as that may take.
func (d *deployment) drainClients(ctx context.Context, log *slog.Logger, server *proxy.Server) {
	if d.drain == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, d.drain)
	var waiting sync.WaitGroup
	defer waiting.Wait()
	defer cancel()
	waiting.Go(func() {
		select {
		case <-d.hurry:
			cancel()
		case <-ctx.Done():
		}
	})
	log.Info("draining: no new clients are served; a second signal ends those that are there", "limit", d.drain)
	if left := server.Drain(ctx); left > 0 {
		log.Warn("connections that have not ended are reset", "connections", left)
	}
}

func openAudit(where string, stdout io.Writer) (*audit.Writer, error) {
	switch where {
	case "-":
		if stdout != os.Stdout {
			return audit.New(stdout), nil // a test's
		}
	case "none":
		where = ""
	}
	w, err := audit.Open(where)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return w, nil
}

// reopenOnHangup lets a log be rotated: rename it, then send SIGHUP.
func reopenOnHangup(ctx context.Context, log *slog.Logger, records *audit.Writer) error {
	hangup := make(chan os.Signal, 1)
	signal.Notify(hangup, syscall.SIGHUP)
	defer signal.Stop(hangup)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-hangup:
			if err := records.Reopen(); err != nil {
				log.Error("audit file cannot be opened again: writing to the old one goes on", "error", err)
			}
		}
	}
}

// serveDNS binds both transports to one port and returns the address.
func serveDNS(session *proxy.Session, address string) (net.Addr, error) {
	tcp, err := bind("dns", address)
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenPacket("udp", tcp.Addr().String())
	if err != nil {
		return nil, errors.Join(bindError("dns", address, err), tcp.Close())
	}
	session.ServeDNS(udp.(*net.UDPConn), tcp.(*net.TCPListener))
	return tcp.Addr(), nil
}

// serveMetrics answers GET /metrics, and GET /health with 200 or 503, on l until ctx is done.
func serveMetrics(ctx context.Context, l net.Listener, server *proxy.Server, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", server.Metrics())
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, r *http.Request) {
		if err := server.Works(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	s := &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("metrics: %w", err)
	}
	return nil
}
