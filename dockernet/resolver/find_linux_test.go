package resolver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"

	"sluice/dockernet/netns/netnstest"
	"sluice/dockernet/nft/nfttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The servers of these tests, in a namespace of their own: two that answer, two that do not, and one that nobody can
// reach.
const (
	first, second = "192.0.2.53", "192.0.2.54"
	mute, mute2   = "192.0.2.55", "192.0.2.56"
	six           = "2001:db8::53"
	nowhere, stub = "203.0.113.53", "127.0.0.53"
	engineDied    = "dead" // in place of a server: the engine gives no answer
)

// tracking makes conntrack look at what leaves, as the engine's own rules for its resolver do.
const tracking = `
table inet track {
	chain output {
		type filter hook output priority 0
		ct state new counter
	}
}`

// street is a container's namespace and that of the servers.
type street struct {
	inside, outside *netnstest.Namespace

	mu    sync.Mutex
	asked []string // names, by anybody
}

func newStreet(t *testing.T) *street {
	s := &street{inside: netnstest.New(t), outside: netnstest.New(t)}
	netnstest.Link(t,
		netnstest.End{In: s.inside, Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24"), netip.MustParsePrefix("2001:db8::2/64")}},
		netnstest.End{In: s.outside, Name: "eth0", Addresses: []netip.Prefix{
			netip.MustParsePrefix(first + "/24"), netip.MustParsePrefix(second + "/24"), netip.MustParsePrefix(mute + "/24"),
			netip.MustParsePrefix(mute2 + "/24"), netip.MustParsePrefix(six + "/64")}})
	nfttest.Run(t, s.inside, tracking, "-f", "-")
	for _, a := range []string{first, second, six} {
		s.serve(t, s.outside, a, func(m *dns.Msg) *dns.Msg { return new(dns.Msg).SetRcode(m, dns.RcodeNameError) })
	}
	for _, a := range []string{mute, mute2} {
		s.serve(t, s.outside, a, func(*dns.Msg) *dns.Msg { return nil })
	}
	return s
}

// serve answers at port 53 of an address until the test ends.
func (s *street) serve(t *testing.T, ns *netnstest.Namespace, at string, answer func(*dns.Msg) *dns.Msg) {
	t.Helper()
	var c net.PacketConn
	ns.Run(t, func() (err error) {
		c, err = net.ListenPacket("udp", netip.AddrPortFrom(netip.MustParseAddr(at), port).String())
		return err
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, dns.MaxMsgSize)
		for {
			n, from, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			m := new(dns.Msg)
			if m.Unpack(buffer[:n]) != nil {
				continue
			}
			s.mu.Lock()
			s.asked = append(s.asked, m.Question[0].Name)
			s.mu.Unlock()
			if a := answer(m); a != nil {
				if packet, err := a.Pack(); err == nil {
					_, _ = c.WriteTo(packet, from)
				}
			}
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
}

// engine answers inside as the engine does: it asks one server after the other, from one of the namespaces.
func (s *street) engine(t *testing.T, from *netnstest.Namespace, servers ...string) {
	s.serve(t, s.inside, Address.String(), func(m *dns.Msg) *dns.Msg {
		for _, server := range servers {
			if server == engineDied {
				return nil
			}
			var c net.Conn
			err := from.Do(func() (err error) {
				c, err = net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr(server), port).String())
				return err
			})
			if err != nil {
				continue
			}
			answer, _, err := (&dns.Client{Timeout: 200 * time.Millisecond}).ExchangeWithConn(m, &dns.Conn{Conn: c})
			c.Close()
			if err == nil {
				return answer
			}
		}
		return new(dns.Msg).SetRcode(m, dns.RcodeServerFailure)
	})
}

func resolvConf(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func addresses(servers []netip.AddrPort) (list []string) {
	for _, s := range servers {
		if s.Port() != port {
			list = append(list, s.String())
			continue
		}
		list = append(list, s.Addr().String())
	}
	return list
}

// What the engine asks from inside is seen; and it is known when it asks from elsewhere.
func TestFindByAsking(t *testing.T) {
	for _, tt := range []struct {
		name    string
		outside bool // the engine asks from outside
		servers []string
		want    []string
	}{
		{"one", false, []string{first, second}, []string{first}},
		{"ipv6", false, []string{six}, []string{six}},
		{"behind_a_mute_one", false, []string{mute, second}, []string{second, mute}},
		{"all_mute", false, []string{mute, mute2}, []string{mute, mute2}},
		{"from_the_host", true, []string{first}, []string{"127.0.0.11"}},
		{"nobody_to_ask", false, nil, []string{"127.0.0.11"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := newStreet(t)
			from := s.inside
			if tt.outside {
				from = s.outside
			}
			s.engine(t, from, tt.servers...)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			got, err := Find(ctx, s.inside.Namespace, resolvConf(t, "nameserver 127.0.0.11\noptions ndots:0\n"))
			if err != nil {
				t.Fatal(err)
			}
			// Whoever looks late sees all of them at once.
			if !slices.Equal(slices.Sorted(slices.Values(addresses(got))), tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}

// What was asked before, by whomever, is no server of the engine's.
func TestFindNothingFormer(t *testing.T) {
	s := newStreet(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := ask(ctx, s.inside.Namespace, netip.AddrPortFrom(netip.MustParseAddr(second), port)); err != nil {
		t.Fatal(err)
	}
	s.engine(t, s.inside, first)
	got, err := Find(ctx, s.inside.Namespace, resolvConf(t, "nameserver 127.0.0.11\n"))
	if err != nil || !slices.Equal(addresses(got), []string{first}) {
		t.Errorf("got %v, %v, want %s", got, err, first)
	}
	// No name is asked for twice but by those who pass it on.
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make(map[string]int)
	for _, n := range s.asked {
		names[n]++
	}
	if len(names) != 2 {
		t.Errorf("asked for %v", names)
	}
}

// An engine that says nothing leaves nobody to ask.
func TestFindSilence(t *testing.T) {
	for name, mute := range map[string]bool{"mute": true, "absent": false} {
		t.Run(name, func(t *testing.T) {
			s := newStreet(t)
			if mute {
				s.engine(t, s.inside, engineDied)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
			defer cancel()
			if got, err := Find(ctx, s.inside.Namespace, resolvConf(t, "nameserver 127.0.0.11\n")); err == nil {
				t.Errorf("got %v, want an error", got)
			}
		})
	}
	s := newStreet(t)
	if _, err := Find(t.Context(), s.inside.Namespace, filepath.Join(t.TempDir(), "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a file: error %v", err)
	}
}

// Newer engines say whom they ask. Of those that they ask from the host, the namespace asks those that answer it.
func TestFindWhatIsTold(t *testing.T) {
	s := newStreet(t)
	if err := s.inside.Handle(t).RouteAdd(&netlink.Route{Gw: net.ParseIP(first)}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, told string
		want       []string
	}{
		{"inside", first + " " + six, []string{first, six}},
		{"inside_and_mute", mute + " " + first, []string{mute, first}}, // the engine asks it from there too
		{"host", "host(" + second + ")", []string{second}},
		{"host_and_mute", "host(" + mute + ") host(" + second + ")", []string{second}},
		{"host_unreachable", "host(" + nowhere + ")", []string{"127.0.0.11"}},
		{"host_stub", "host(" + stub + ")", []string{"127.0.0.11"}},
		{"stub_inside", stub, []string{"127.0.0.11"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := Find(t.Context(), s.inside.Namespace, resolvConf(t, "nameserver 127.0.0.11\n\n# ExtServers: ["+tt.told+"]\n"))
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(addresses(got), tt.want) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
