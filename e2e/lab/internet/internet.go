// Package internet is the far side of the lab: the servers that a workload under test talks to, and a record of
// everything that reached them.
//
// All of it listens in a network namespace that leads nowhere, so the addresses can be any. [Start] opens the sockets
// from a thread in that namespace; the goroutines that serve them need not be there.
package internet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/net/ipv6"
)

// Internet is a running internet. Its methods may be called from any goroutine.
type Internet struct {
	enter  func(func() error) error
	record *recorder
	zone   *zone
	ca     *authority
	git    *gitOrigin

	servers []*http.Server
	names   []*dns.Server
	closers []io.Closer
	serving sync.WaitGroup

	mu    sync.Mutex // guards conns
	conns map[net.Conn]bool
	done  bool
}

// Start opens every server of the plan. enter runs a function on a thread inside the internet's network namespace,
// where the addresses must already be. The files it serves are made in dir, which the caller removes.
func Start(dir string, enter func(func() error) error) (_ *Internet, err error) {
	n := &Internet{enter: enter, record: newRecorder(), conns: map[net.Conn]bool{}}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	n.zone = newZone(n.record.question)
	if n.ca, err = newAuthority(); err != nil {
		return nil, fmt.Errorf("test CA: %w", err)
	}
	if n.git, err = newGitOrigin(dir); err != nil {
		return nil, err
	}
	if err := enter(n.open); err != nil {
		return nil, fmt.Errorf("start the lab's internet: %w", err)
	}
	return n, nil
}

// CA returns the certificate, in PEM, that clients have to trust.
func (n *Internet) CA() []byte { return n.ca.pem() }

// SetName replaces what a name answers with: records in zone-file form without the name, such as "A 203.0.113.5" or
// "5 AAAA 2001:db8::5". Without records the name is gone.
func (n *Internet) SetName(name string, records ...string) error { return n.zone.set(name, records) }

// Counts returns what has arrived so far.
func (n *Internet) Counts() (Counts, error) {
	counts := n.record.counts()
	err := n.enter(func() (err error) {
		counts.Packets, err = readPackets()
		return err
	})
	return counts, err
}

// Control serves Counts and SetName to programs: GET /v1/counts, PUT /v1/names/NAME with a record a line.
func (n *Internet) Control() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/counts", func(w http.ResponseWriter, r *http.Request) {
		counts, err := n.Counts()
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		encoder.Encode(counts)
	})
	mux.HandleFunc("PUT /v1/names/{name}", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<10))
		if err == nil {
			err = n.SetName(r.PathValue("name"), strings.FieldsFunc(string(body), func(c rune) bool { return c == '\n' })...)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	return mux
}

// Close ends every server and every connection, and waits for them.
func (n *Internet) Close() {
	n.mu.Lock()
	n.done = true
	for conn := range n.conns {
		conn.Close()
	}
	n.mu.Unlock()
	for _, s := range n.servers {
		s.Close()
	}
	for _, s := range n.names {
		s.Shutdown()
	}
	for _, c := range n.closers {
		c.Close()
	}
	n.serving.Wait()
}

// open runs in the namespace.
func (n *Internet) open() error {
	if err := countPackets(); err != nil {
		return err
	}
	quiet := log.New(io.Discard, "", 0) // a client that gives up is no news
	tlsConfig := &tls.Config{GetCertificate: n.ca.certificate, MinVersion: tls.VersionTLS10}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	for _, port := range []int{PortHTTP, PortHTTPS, PortAlt} {
		listener, err := n.listen(port)
		if err != nil {
			return err
		}
		server := &http.Server{
			Handler: n.webHandler(), ErrorLog: quiet, TLSConfig: tlsConfig.Clone(), Protocols: protocols,
			ReadHeaderTimeout: time.Minute,
		}
		n.servers = append(n.servers, server)
		n.serving.Go(func() {
			if port == PortHTTP {
				server.Serve(listener)
			} else {
				server.ServeTLS(listener, "", "")
			}
		})
	}
	config, err := sshConfig()
	if err != nil {
		return err
	}
	for port, serve := range map[int]func(net.Conn){
		PortEcho:  serveEcho,
		PortSSH:   func(conn net.Conn) { n.git.serveSSH(conn, config) },
		PortFirst: serveFirst,
		PortLater: n.serveLater,
		PortTicks: n.serveTicks,
	} {
		listener, err := n.listen(port)
		if err != nil {
			return err
		}
		n.closers = append(n.closers, listener)
		n.serving.Go(func() { n.serveTCP(listener, serve) })
	}
	return n.openUDP()
}

func (n *Internet) openUDP() error {
	echo, err := net.ListenUDP("udp", &net.UDPAddr{Port: PortEcho})
	if err != nil {
		return err
	}
	n.closers = append(n.closers, echo)
	if err := ipv6.NewPacketConn(echo).SetControlMessage(ipv6.FlagDst, true); err != nil {
		return fmt.Errorf("UDP echo: %w", err)
	}
	n.serving.Go(func() { serveUDPEcho(echo) })

	udp, err := net.ListenPacket("udp", hostPort(53))
	if err != nil {
		return err
	}
	n.closers = append(n.closers, udp)
	tcp, err := n.listen(53)
	if err != nil {
		return err
	}
	n.closers = append(n.closers, tcp)
	for _, server := range []*dns.Server{{PacketConn: udp, Handler: n.zone}, {Listener: tcp, Handler: n.zone}} {
		n.names = append(n.names, server)
		started := make(chan struct{})
		server.NotifyStartedFunc = func() { close(started) }
		ended := make(chan struct{})
		n.serving.Go(func() {
			defer close(ended)
			server.ActivateAndServe()
		})
		select { // Shutdown of a server that has not started does nothing
		case <-started:
		case <-ended:
			return errors.New("DNS server ended at once")
		}
	}
	return nil
}

func hostPort(port int) string { return net.JoinHostPort("", strconv.Itoa(port)) }

// listen opens a TCP port on every address of the namespace and counts what is accepted there.
func (n *Internet) listen(port int) (net.Listener, error) {
	// Plain TCP, so that resets and counts are what they seem; and what is idle is really idle.
	config := net.ListenConfig{KeepAlive: -1}
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp", hostPort(port))
	if err != nil {
		return nil, err
	}
	return countingListener{l, n.record}, nil
}

type countingListener struct {
	net.Listener
	record *recorder
}

func (l countingListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err == nil {
		l.record.connection(conn.LocalAddr())
	}
	return conn, err
}

// serveTCP serves connections until the listener is closed, then waits for them.
func (n *Internet) serveTCP(listener net.Listener, serve func(net.Conn)) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		if !n.track(conn) {
			conn.Close()
			return
		}
		n.serving.Go(func() {
			defer n.forget(conn)
			serve(conn)
		})
	}
}

func (n *Internet) track(conn net.Conn) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.done {
		n.conns[conn] = true
	}
	return !n.done
}

func (n *Internet) forget(conn net.Conn) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.conns, conn)
}
