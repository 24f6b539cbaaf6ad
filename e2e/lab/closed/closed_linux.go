// Package closed makes the lab: a Docker engine and an internet of its own, each in a network namespace, joined to
// each other and to nothing else.
//
//	 engine                                  internet
//	┌──────────────────────────────┐  veth  ┌────────────────────────────────┐
//	│ dockerd, containerd          │────────│ every address of the plan      │
//	│ docker0, networks, containers│        │ DNS, HTTP, HTTPS, git, streams │
//	└──────────────────────────────┘        └────────────────────────────────┘
//
// No interface of either leads to the machine's own network, so no packet of a test can get out, whatever its
// address. The engine is reached by its unix socket alone. A lab needs root, Linux, dockerd and containerd, nft and
// git; several can run side by side. [Lab.Close] removes all of it, and [Start] removes what a killed run left.
package closed

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"sluice/dockernet/netns"
	"sluice/e2e/lab/internet"
)

// Lab is a running lab.
type Lab struct {
	// Internet is the far side: its names, its counters.
	Internet *internet.Internet

	name                 string // also the cgroup of its containers
	dir                  string
	lock                 *os.File
	engine               Engine
	mounts               string // the mount namespace of the engine, if it is not the host's
	engineNS, internetNS *netns.Namespace
	daemons              []*daemon
	stopped              []string // how dockerd was started, while it is stopped
	control              *http.Server
}

// Engine says which engine a lab has. The zero value is that of the machine, with what it takes by itself.
type Engine struct {
	// Dir has the programs dockerd, docker-proxy and runc, as scripts/engine builds them; "" for those of the machine.
	Dir string
	// Firewall is what the engine makes its own rules with, "iptables" or "nftables". Engines before 29 have no choice,
	// and start with "" alone.
	Firewall string
}

// EngineFlags defines the flags by which a program that starts labs is told their engine.
func EngineFlags() *Engine {
	e := new(Engine)
	flag.StringVar(&e.Dir, "engine", "", "a directory with dockerd, docker-proxy and runc for the lab, see scripts/engine; the machine's own if not given")
	flag.StringVar(&e.Firewall, "firewall", "", "what the lab's engine makes its rules with, iptables or nftables; for engines that have the choice")
	return e
}

// Options change what the lab is like.
type Options struct {
	Engine Engine
	// ResolvConf is the host's resolv.conf as the engine sees it, which is then told of no other name server.
	ResolvConf string
}

// Start makes a lab, which takes about two seconds. What earlier runs left when they were killed is removed first.
func Start(ctx context.Context) (*Lab, error) { return StartWith(ctx, Options{}) }

// StartWith makes a lab that is not like others.
func StartWith(ctx context.Context, o Options) (_ *Lab, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the lab makes network namespaces and starts a Docker engine: run it as root")
	}
	for _, program := range []string{"dockerd", "containerd", "nft", "iptables", "git"} {
		if _, err := o.Engine.look(program); err != nil {
			return nil, err
		}
	}
	l, err := takePlace()
	if err != nil {
		return nil, err
	}
	l.engine = o.Engine
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if err := l.makeNetwork(); err != nil {
		return nil, err
	}
	if l.Internet, err = internet.Start(l.dir, l.internetNS.Do); err != nil {
		return nil, err
	}
	if err := l.serveControl(); err != nil {
		return nil, err
	}
	if err := l.startEngine(ctx, o); err != nil {
		return nil, err
	}
	return l, nil
}

// DockerHost is the value of DOCKER_HOST for the lab's engine.
func (l *Lab) DockerHost() string { return "unix://" + l.socket() }

func (l *Lab) socket() string { return filepath.Join(l.dir, "docker.sock") }

// ControlSocket is where the internet's counters can be read, see [internet.Internet.Control].
func (l *Lab) ControlSocket() string { return filepath.Join(l.dir, "internet.sock") }

// InEngineNamespace runs f on a thread where the engine's bridges are, as a program on a Docker host would be.
func (l *Lab) InEngineNamespace(f func() error) error { return l.engineNS.Do(f) }

// Mounts is the path of the mount namespace that the engine runs in, where the files that stand for containers'
// namespaces are, or "" if that is the host's.
func (l *Lab) Mounts() string { return l.mounts }

// InInternetNamespace runs f on a thread on the far side, where the interface [LinkName] is the only way in.
func (l *Lab) InInternetNamespace(f func() error) error { return l.internetNS.Do(f) }

// The files in the lab's directory that stand for its namespaces; "nsenter --net=FILE" enters one.
const (
	engineNS   = "engine.netns"
	internetNS = "internet.netns"
)

func (l *Lab) path(file string) string { return filepath.Join(l.dir, file) }

// Close ends the engine with every container, and removes namespaces, mounts and files.
func (l *Lab) Close() error {
	var errs []error
	if l.control != nil {
		errs = append(errs, l.control.Close())
	}
	if l.Internet != nil {
		l.Internet.Close()
	}
	errs = append(errs, l.remove())
	for _, d := range l.daemons {
		<-d.ended
	}
	for _, ns := range []*netns.Namespace{l.engineNS, l.internetNS} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}

func (l *Lab) makeNetwork() (err error) {
	if l.engineNS, err = makeNamespace(l.path(engineNS)); err != nil {
		return err
	}
	if l.internetNS, err = makeNamespace(l.path(internetNS)); err != nil {
		return err
	}
	if err := l.join(); err != nil {
		return err
	}
	if err := l.internetNS.Do(func() error {
		// No route leads on from here: the engine masquerades, so answers go to its end of the link, and what is sent
		// to an address that nobody has is unreachable.
		if err := configure([]string{internet4, internet6}, nil); err != nil {
			return err
		}
		return ownAll(internet.Prefixes)
	}); err != nil {
		return fmt.Errorf("internet's namespace: %w", err)
	}
	if err := l.engineNS.Do(func() error {
		return configure([]string{engine4, engine6}, []string{internet4, internet6})
	}); err != nil {
		return fmt.Errorf("engine's namespace: %w", err)
	}
	return nil
}

func (l *Lab) serveControl() error {
	listener, err := net.Listen("unix", l.ControlSocket())
	if err != nil {
		return err
	}
	l.control = &http.Server{Handler: l.Internet.Control(), ReadHeaderTimeout: time.Minute}
	go l.control.Serve(listener)
	return nil
}
