package proxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// tunnelEcho opens a tunnel on a connection and sends texts, each of which must come back.
func tunnelEcho(c net.Conn, target string, texts ...string) error {
	if _, err := fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\n\r\n", target); err != nil {
		return err
	}
	want := string(established)
	for i := 0; ; i++ {
		got := make([]byte, len(want))
		if n, err := io.ReadFull(c, got); err != nil || string(got) != want {
			return fmt.Errorf("got %q, %v; want %q", got[:n], err, want)
		}
		if i == len(texts) {
			return nil
		}
		if want = texts[i]; want != "" {
			if _, err := io.WriteString(c, want); err != nil {
				return err
			}
		}
	}
}

// Case L-45: what clients name is in no series, however much they name.
func TestSeriesStayFew(t *testing.T) {
	const hosts = 50_000
	r := start(t, allow("ok.test"), Config{})
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.session.ServeDNS(udp.(*net.UDPConn), nil)
	series := func() (n int) {
		w := httptest.NewRecorder()
		r.server.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
		for line := range strings.Lines(w.Body.String()) {
			if !strings.HasPrefix(line, "#") {
				n++
			}
			if strings.Contains(line, "evil") {
				t.Fatalf("a series names what a client chose: %s", line)
			}
		}
		return n
	}
	// deny has some hosts refused, by every way of asking.
	deny := func(first, count int) error {
		web, err := net.Dial("tcp", r.address)
		if err != nil {
			return err
		}
		defer web.Close()
		_ = web.SetDeadline(time.Now().Add(time.Minute))
		answers, requests, waiting := bufio.NewReader(web), bufio.NewWriter(web), 0
		collect := func() error {
			if err := requests.Flush(); err != nil {
				return err
			}
			for ; waiting > 0; waiting-- {
				answer, err := http.ReadResponse(answers, nil)
				if err != nil || answer.StatusCode != http.StatusForbidden {
					return fmt.Errorf("%v, %v", answer, err)
				}
				_, _ = io.Copy(io.Discard, answer.Body)
			}
			return nil
		}
		for i := first; i < first+count; i++ {
			host := fmt.Sprintf("h%d.evil.test", i)
			switch i % 50 {
			case 0:
				if err := deniedTunnel(r.address, host); err != nil {
					return err
				}
			case 1:
				answer, err := dns.Exchange(new(dns.Msg).SetQuestion(host+".", dns.TypeA), udp.LocalAddr().String())
				if err != nil || answer.Rcode != dns.RcodeNameError {
					return fmt.Errorf("%s: %v, %v", host, answer, err)
				}
			default:
				_, _ = fmt.Fprintf(requests, "GET http://%s/ HTTP/1.1\r\nHost: %s\r\n\r\n", host, host) // to memory
				if waiting++; waiting == 50 {
					if err := collect(); err != nil {
						return err
					}
				}
			}
		}
		return collect()
	}
	if err := deny(0, 50); err != nil {
		t.Fatal(err)
	}
	before := series()
	const clients = 10
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			if err := deny(50+i*hosts/clients, hosts/clients); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if after := series(); after != before {
		t.Errorf("%d series, %d before", after, before)
	}
}

func deniedTunnel(proxy, host string) error {
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		return err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(c, "CONNECT %s:443 HTTP/1.1\r\n\r\n", host); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || answer.StatusCode != http.StatusForbidden {
		return fmt.Errorf("%s: %v, %v", host, answer, err)
	}
	return nil
}
