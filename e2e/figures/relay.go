package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"sluice/dockernet/netns"
)

// relay is a sidecar by itself on the loopback device, to be compared with the one between container and server.
type relay struct {
	serve *exec.Cmd
	from  *container // the namespace that it is in
	at    string
}

// startRelay starts one beside the servers of the internet, of which it allows the sink.
func (st *stage) startRelay() (_ *relay, err error) {
	policy := filepath.Join(st.dir, "relay.yaml")
	text := fmt.Sprintf("network_mode: allowlist\nallowed_hosts: [%q]\n", net.JoinHostPort("127.0.0.1", strconv.Itoa(sinkPort)))
	if err := os.WriteFile(policy, []byte(text), 0o600); err != nil {
		return nil, err
	}
	r := &relay{at: net.JoinHostPort("127.0.0.1", strconv.Itoa(sinkPort+1))}
	r.serve = exec.Command(filepath.Join(st.bin, "sluice-proxy"), "serve", "--policy", policy, "--listen", r.at, "--audit", "none")
	if err := st.Internet.Enter(r.serve.Start); err != nil {
		return nil, fmt.Errorf("start the relay: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	r.from = &container{name: "relay"}
	if r.from.ns, err = netns.Open(fmt.Sprintf("/proc/%d/ns/net", r.serve.Process.Pid), nil); err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(startLimit); ; time.Sleep(20 * time.Millisecond) {
		conn, err := r.from.dial(r.at)
		if err == nil {
			return r, conn.Close()
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("the relay was not there within %v: %w", startLimit, err)
		}
	}
}

func (r *relay) close() error {
	err := r.serve.Process.Kill()
	_ = r.serve.Wait() // it was killed
	if r.from != nil && r.from.ns != nil {
		r.from.ns.Close()
	}
	return err
}

// way is the one through the relay.
func (r *relay) way(sink net.Listener) way {
	return way{from: r.from, to: r.at, via: net.JoinHostPort("127.0.0.1", strconv.Itoa(sinkPort)), sink: sink, through: r.serve.Process.Pid}
}
