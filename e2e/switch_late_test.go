package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"sluice/controller/api"
	"sluice/dockernet/netns"
	"sluice/e2e/lab/client"
)

// TestSwitchLateAnswers asks a neighbour and the host, who answer when a switch is over. That is no connection into the
// container, which could be answered in every mode: nothing goes on. The gate refuses it, and without the gate the guard.
func TestSwitchLateAnswers(t *testing.T) {
	if !*runDocker {
		t.Skip("needs root and Docker: go test ./e2e -run-docker")
	}
	if err := theController.start(); err != nil {
		t.Fatal(err)
	}
	c := api.Client{Socket: theController.socket()}
	const network = "late-net"
	must := func(args ...string) string {
		t.Helper()
		out, err := docker(args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	must("network", "create", network)
	t.Cleanup(func() { must("network", "rm", network) })
	start := func(name string) (*netns.Namespace, netip.Addr) {
		t.Helper()
		must("run", "--detach", "--name", name, "--network", network, client.Tag, "sleep", "infinity")
		t.Cleanup(func() { must("rm", "--force", name) })
		var pid int
		var own string
		shown := must("inspect", "--format", "{{.State.Pid}} {{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}", name)
		if _, err := fmt.Sscan(shown, &pid, &own); err != nil {
			t.Fatalf("%q: %v", shown, err)
		}
		ns, err := netns.Open(fmt.Sprintf("/proc/%d/ns/net", pid), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		return ns, netip.MustParseAddr(own)
	}
	sibling, siblingAddress := start("late-sibling")
	witness, _ := start("late-witness")
	app, _ := start("late-app")
	gateway := netip.MustParseAddr(strings.TrimSpace(must("network", "inspect", "--format", "{{range .IPAM.Config}}{{.Gateway}}{{end}}", network)))

	_, err := c.Attach(t.Context(), api.Attach{Container: "late-app", Phase: "baseline", Policy: json.RawMessage(`{
		"baseline_network_policy": "public", "run_network_policy": "no-network", "evaluation_network_policy": "public"}`)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Detach(context.Background(), "late-app"); err != nil {
			t.Error(err)
		}
	})
	open := func(enter func(func() error) error, at netip.AddrPort) *net.UDPConn {
		t.Helper()
		var u *net.UDPConn
		if err := enter(func() (err error) {
			u, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { u.Close() })
		return u
	}
	send := func(u *net.UDPConn, what string, to netip.AddrPort) {
		t.Helper()
		if _, err := u.WriteToUDPAddrPort([]byte(what), to); err != nil {
			t.Fatalf("%s to %v: %v", what, to, err)
		}
	}
	next := func(u *net.UDPConn) (string, netip.AddrPort) {
		t.Helper()
		if err := u.SetReadDeadline(time.Now().Add(waitLimit)); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 64)
		n, from, err := u.ReadFromUDPAddrPort(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n]), from
	}
	type asked struct {
		far, near *net.UDPConn
		at        netip.AddrPort
		by        netip.AddrPort
	}
	var all []*asked
	for name, far := range map[string]*asked{
		"sibling": {far: open(sibling.Do, netip.AddrPortFrom(siblingAddress, 9000)), at: netip.AddrPortFrom(siblingAddress, 9000)},
		"host":    {far: open(lab.InEngineNamespace, netip.AddrPortFrom(gateway, 9000)), at: netip.AddrPortFrom(gateway, 9000)},
	} {
		far.near = open(app.Do, netip.AddrPort{})
		send(far.near, "ask", far.at)
		var got string
		if got, far.by = next(far.far); got != "ask" {
			t.Fatalf("%s has got %q", name, got)
		}
		all = append(all, far)
	}
	if _, err := c.Phase(t.Context(), "late-app", "run", 0); err != nil {
		t.Fatal(err)
	}
	end := open(witness.Do, netip.AddrPort{})
	for _, gone := range []string{"", "gate"} {
		if gone != "" {
			if err := app.Do(func() error {
				out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput()
				if err != nil {
					return fmt.Errorf("nft: %w: %s", err, out)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		for _, a := range all {
			send(a.far, "late", a.by)
			if got, _ := next(a.near); got != "late" {
				t.Fatalf("the answer is %q", got)
			}
			if _, err := a.near.WriteToUDPAddrPort([]byte("more"), a.at); err == nil && gone == "" {
				t.Errorf("LEAK: the gate lets more out to %v", a.at)
			}
			for range 3 { // what the container has sent before has been looked at by the last of them
				send(end, "end", a.at)
				if got, from := next(a.far); got != "end" {
					t.Errorf("LEAK: without %q %q has come from %v to %v", gone, got, from, a.at)
				}
			}
		}
	}
}
