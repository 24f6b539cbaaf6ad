package e2e

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"golang.org/x/sys/unix"

	"sluice/dockernet/netns"
	"sluice/e2e/harbor"
	"sluice/e2e/lab/attempts"
	"sluice/e2e/lab/closed"
	"sluice/e2e/lab/tap"
)

// TestHarborAttempts lets a service beside the sidecar try everything of package attempts under the modes that refuse,
// and at last without any rules, where it has to arrive.
func TestHarborAttempts(t *testing.T) {
	h := newHarbor(t)
	h.up(t)
	a := h.attacker(t)
	flows := a.hold(t)
	for _, p := range attempts.Policies {
		switch p.Name {
		case "public":
			h.policy(t, "allow-all")
		case "no-network":
			h.policy(t, "deny-all")
		case attempts.Allowlist.Name:
			h.policy(t, "allow", "203.0.113.40", "2001:db8::40", "web.test")
		default:
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			p := p.Shared()
			passing := flows.check(t, p)
			a.check(t, p, true)
			passing(t)
			a.checkLate(t)
		})
	}
	t.Run("without", func(t *testing.T) {
		a.removeRules(t)
		a.tryWithout(t)
	})
}

// attacker is the service of that name.
func (h *harborTask) attacker(t *testing.T) *attacker {
	t.Helper()
	engine, err := lab.Engine()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	if err := lab.LeaveBridgesAlone(); err != nil {
		t.Fatal(err)
	}
	w := &isolation{prefix: h.Project + "_", engine: engine, peers: map[string]*inhabitant{}}
	inspect := func(service string) *inhabitant {
		c, err := engine.ContainerInspect(t.Context(), h.Project+"-"+service+"-1")
		if err != nil {
			t.Fatal(err)
		}
		return &inhabitant{InspectResponse: c}
	}
	enter := func(c *inhabitant) *inhabitant {
		ns, err := netns.Open(c.NetworkSettings.SandboxKey, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ns.Close() })
		c.ns = ns
		return c
	}
	network := w.prefix + "default"
	peer, sidecar := enter(inspect("apart")), enter(inspect(harbor.Sidecar))
	w.peers[network] = peer
	w.tap(t, func() (*tap.Tap, error) {
		return tap.Interface("the internet", lab.InInternetNamespace, closed.LinkName)
	})
	w.tap(t, func() (*tap.Tap, error) { return tap.Delivered("the host", lab.InEngineNamespace, closed.LinkName) })
	w.tap(t, func() (*tap.Tap, error) { return tap.Interface("the peer", peer.ns.Do, "eth0") })
	base := *sidecar.ContainerJSONBase
	base.ID = inspect("attacker").ID // which acts, in the sidecar's network
	a := &attacker{isolation: w, sharesNetwork: true, inhabitant: &inhabitant{ns: sidecar.ns,
		InspectResponse: container.InspectResponse{ContainerJSONBase: &base, NetworkSettings: sidecar.NetworkSettings}}}
	a.around.Host = hostAddresses
	a.around.Ringless = labEngine.Dir != ""
	a.around.Links = []attempts.Link{a.link(t, network, 0)}
	return a
}

// TestHarborLaterNetwork connects the sidecar with a further network: the policy holds there too, for frames as well.
func TestHarborLaterNetwork(t *testing.T) {
	h := newHarbor(t)
	h.Mode = "no-network"
	h.up(t)
	const network = "harbor-later"
	if out, err := docker("network", "create", network); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := docker("network", "rm", network); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	sidecar := h.Project + "-" + harbor.Sidecar + "-1"
	if out, err := docker("network", "connect", network, sidecar); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := docker("network", "disconnect", "--force", network, sidecar); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	a := h.attacker(t)
	for _, name := range []string{"eth0", "eth1"} {
		var err error
		for deadline := time.Now().Add(waitLimit); !errors.Is(err, unix.ENOBUFS); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("a frame on %s: %v, want it refused", name, err)
			}
			err = a.ns.Do(func() error { return sendFrame(name) })
		}
	}
	if out := h.policy(t, "show"); strings.Contains(out, "generation: 1\n") {
		t.Errorf("the policy was not brought in force anew: %s", out)
	}
	h.fails(t, "ping -c 1 -W 1 203.0.113.66")
}

// sendFrame sends one of an unknown kind to whoever is on the link.
func sendFrame(device string) error {
	link, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Sendto(fd, make([]byte, 64), 0, &unix.SockaddrLinklayer{Ifindex: link.Index, Protocol: 0xb588, Halen: 6,
		Addr: [8]byte{255, 255, 255, 255, 255, 255}})
}
