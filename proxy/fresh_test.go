package proxy

import (
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"sluice/control"
	"sluice/proxy/dnstest"
)

// written is a policy file that somebody has just written: nobody has noticed yet.
type written struct {
	pending atomic.Bool
	apply   func()
}

func (w *written) Unchanged() bool { return !w.pending.Load() }

func (w *written) Fresh() {
	if w.pending.Load() {
		w.apply()
		w.pending.Store(false)
	}
}

func (w *written) Status() control.Source { return control.Source{} }

// Whoever asks after a policy file was written is judged by what was written, however he asks.
func TestPolicyFileIsFresh(t *testing.T) {
	server := dnstest.New(t, func(q dnstest.Query) *dns.Msg {
		if q.Type != dns.TypeA {
			return q.Records()
		}
		return q.Records(q.Name + " 60 A 127.0.0.1")
	})
	port := origin(t)
	for name, ask := range map[string]func(r *rig, query string) (served bool){
		"connect": func(r *rig, _ string) bool {
			_, response := r.connect("ok.test:"+port, "")
			return response.StatusCode == http.StatusOK
		},
		"http": func(r *rig, _ string) bool {
			c := r.open()
			status, _ := c.ask(t, "GET http://ok.test:"+port+"/ HTTP/1.1\r\nHost: x\r\n\r\n")
			return status == http.StatusOK
		},
		"http-in-tunnel": nil,
		"dns": func(_ *rig, query string) bool {
			answer, err := dns.Exchange(new(dns.Msg).SetQuestion("ok.test.", dns.TypeA), query)
			if err != nil {
				t.Error(err)
			}
			return err == nil && answer.Rcode == dns.RcodeSuccess
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := start(t, allow("ok.test"), Config{Upstreams: []netip.AddrPort{server.Addr}})
			udp, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			r.session.ServeDNS(udp.(*net.UDPConn), nil)
			source := &written{apply: func() { r.apply(allow("other.test")) }}
			r.session.Follow(source)
			if ask == nil {
				tunnel, _ := r.connect("ok.test:"+port, "")
				ask = func(*rig, string) bool {
					if _, err := io.WriteString(tunnel.TCPConn, "GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n"); err != nil {
						return false
					}
					response, err := http.ReadResponse(tunnel.Reader, nil)
					if err != nil {
						return false
					}
					_, _ = io.Copy(io.Discard, response.Body)
					return response.StatusCode == http.StatusOK
				}
			}
			if !ask(r, udp.LocalAddr().String()) {
				t.Fatal("refused before")
			}
			time.Sleep(2 * freshTime)
			source.pending.Store(true)
			if ask(r, udp.LocalAddr().String()) {
				t.Error("served by the former policy")
			}
		})
	}
}
