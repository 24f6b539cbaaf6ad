package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"sluice/controller/ui"
	"sluice/proxy/agentcompass"
)

// settings of serve.
type settings struct {
	socket       string
	metrics      string
	proxyMetrics string
	ui           string
	proxy        string
	upstreams    []string
	privateZones []string
	floor        bool
	kept         string
	clear        bool
	untilIdle    bool
	allowIPv6    string
	adopt        string
}

func newServe(g *globals) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Look after the containers of an engine",
		Long: `Serve is the controller: it starts the proxy's container, and puts containers of the engine that DOCKER_HOST names
under policies as it is told on its socket, by the other commands for instance. It needs root.

What is in force stays in force when it ends, and the next one takes it up without a connection being cut. The
directory of the socket has its state. Root may use the socket, and the group "sluice" if there is one.`,
		Example: "  sluice serve --metrics 127.0.0.1:9465",
		Args:    cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&s.metrics, "metrics", "", "serve Prometheus the controller's metrics on `ADDR`")
	flags.StringVar(&s.proxyMetrics, "proxy-metrics", "", "let the proxy serve its metrics on the host's `ADDR`")
	flags.StringVar(&s.ui, "ui", "", "serve a page on the loopback `ADDR` that shows what happens, to whoever can connect")
	flags.StringVar(&s.proxy, "proxy", "", "the `PATH` of sluice-proxy (default: beside this program)")
	flags.StringSliceVar(&s.upstreams, "upstream", nil, "ask the DNS server `ADDR` for containers that have none (default: the host's)")
	flags.StringSliceVar(&s.privateZones, "private-zone", nil, "let names under `DOMAIN` have private addresses in wildcards")
	flags.BoolVar(&s.floor, "floor", true, "refuse loopback, link-local and metadata addresses unless a target names them")
	flags.StringVar(&s.allowIPv6, "proxy-subnet6", "", "give the proxy IPv6, with addresses of `PREFIX`")
	flags.StringVar(&s.kept, "keep-bridges", "",
		"keep the names of managed networks' bridges in the `FILE`, for their rules to be there before the engine is when the host has started")
	flags.StringVar(&s.adopt, "adopt", "",
		"attach the containers that the Docker provider of `HARNESS`, which is agentcompass, starts, and follow its policy files")
	flags.BoolVar(&s.clear, "clear", false, "do not serve: take all policies away, remove the proxy, and end")
	flags.BoolVar(&s.untilIdle, "until-idle", false, "end with the last container, and leave nothing")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s.socket = g.socket
		if !filepath.IsAbs(s.socket) {
			return errors.New("--socket: give an absolute path")
		}
		if s.adopt != "" && s.adopt != agentcompass.User {
			return fmt.Errorf("--adopt %q: the only harness that can be adopted is agentcompass", s.adopt)
		}
		if s.ui != "" {
			if err := ui.Loopback(s.ui); err != nil {
				return fmt.Errorf("--ui: %w", err)
			}
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
		if err := serve(ctx, log, s); err != nil {
			return failed(err)
		}
		return nil
	}
	return cmd
}

// parseUpstreams reads addresses of DNS servers, with or without a port.
func parseUpstreams(list []string) (all []netip.AddrPort, err error) {
	for _, s := range list {
		if a, err := netip.ParseAddr(s); err == nil {
			all = append(all, netip.AddrPortFrom(a, 53))
			continue
		}
		a, err := netip.ParseAddrPort(s)
		if err != nil {
			return nil, fmt.Errorf("--upstream %q: give an address, or an address and a port", s)
		}
		all = append(all, a)
	}
	return all, nil
}

// groupName is the group whose members may use the socket.
const groupName = "sluice"

// openTo lets a group use a socket, and reports its id; ok is false if there is no such group.
func openTo(socket, group string) (gid uint32, ok bool, err error) {
	g, err := user.LookupGroup(group)
	if errors.As(err, new(user.UnknownGroupError)) || errors.Is(err, fs.ErrNotExist) { // an image need not have /etc/group
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("group %s: %w", group, err)
	}
	id, err := strconv.ParseUint(g.Gid, 10, 32)
	if err != nil {
		return 0, false, fmt.Errorf("group %s: %w", group, err)
	}
	for _, path := range []string{filepath.Dir(socket), socket} {
		if err := os.Chown(path, -1, int(id)); err != nil {
			return 0, false, fmt.Errorf("let group %s use the socket: %w", group, err)
		}
	}
	return uint32(id), true, nil
}
