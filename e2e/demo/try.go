package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/miekg/dns"
)

// outcome is what the workload saw of one attempt: an HTTP status, or the answer to a DNS question.
type outcome struct {
	Seen string  `json:"seen"`
	MS   float64 `json:"ms"`
}

// tryFromWorkload makes one attempt in the workload's container and prints its outcome as JSON. A stream prints a line
// for every one that it gets, and then how it ended.
func tryFromWorkload(ctx context.Context, kind, target string, stdout io.Writer) error {
	switch kind {
	case "stream":
		return stream(ctx, target, stdout)
	case "scrape":
		return scrape(ctx, target, stdout)
	}
	try, ok := map[string]func(context.Context, string) (string, error){"get": get, "connect": connect, "look-up": lookUp}[kind]
	if !ok {
		return fmt.Errorf("no such attempt: %s", kind)
	}
	started := time.Now()
	seen, err := try(ctx, target)
	if err != nil {
		seen = err.Error()
	}
	took := time.Since(started)
	return json.NewEncoder(stdout).Encode(outcome{Seen: seen, MS: float64(took.Microseconds()) / 1000})
}

func viaProxy() *http.Client {
	proxy := &url.URL{Scheme: "http", Host: os.Getenv("PROXY")}
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		Proxy:           http.ProxyURL(proxy),
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, // the origin signed its own certificate
	}}
}

// get asks for a page by plain HTTP, as package managers of old do.
func get(ctx context.Context, target string) (string, error) { return fetch(ctx, "http://"+target+"/") }

// connect asks for a page by HTTPS, in a tunnel.
func connect(ctx context.Context, target string) (string, error) {
	return fetch(ctx, "https://"+target+"/")
}

func fetch(ctx context.Context, page string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page, nil)
	if err != nil {
		return "", err
	}
	response, err := viaProxy().Do(request)
	if err != nil {
		// A CONNECT that is refused gives no response here, only the text of its status.
		if _, status, ok := strings.Cut(err.Error(), page+"\": "); ok {
			return status, nil
		}
		return "", err
	}
	defer response.Body.Close()
	return response.Status, nil
}

// lookUp asks the sidecar's DNS filter for a name, and says with what code and why it answered (RFC 8914).
func lookUp(ctx context.Context, name string) (string, error) {
	host, _, err := net.SplitHostPort(os.Getenv("PROXY"))
	if err != nil {
		return "", err
	}
	question := new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA)
	question.SetEdns0(dns.DefaultMsgSize, false)
	answer, _, err := new(dns.Client).ExchangeContext(ctx, question, net.JoinHostPort(host, "53"))
	if err != nil {
		return "", err
	}
	seen := dns.RcodeToString[answer.Rcode]
	if opt := answer.IsEdns0(); opt != nil {
		for _, option := range opt.Option {
			if extended, ok := option.(*dns.EDNS0_EDE); ok {
				seen += ", " + dns.ExtendedErrorCodeToString[extended.InfoCode]
			}
		}
	}
	return seen, nil
}

// stream holds a tunnel open and copies the lines that come, until either side ends it.
func stream(ctx context.Context, target string, stdout io.Writer) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", os.Getenv("PROXY"))
	if err != nil {
		return err
	}
	defer conn.Close()
	fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return errors.New(response.Status)
	}
	_, err = io.Copy(stdout, reader)
	if errors.Is(err, syscall.ECONNRESET) {
		fmt.Fprintln(stdout, "reset")
		return nil
	}
	fmt.Fprintln(stdout, "closed")
	return err
}

// scrape prints the counters of what was refused and cut, of what Prometheus would get. The name of a metric stands
// above its series, and the label that all of them share is left out, so that a line fits on the screen.
func scrape(ctx context.Context, target string, stdout io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+target+"/metrics", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	above := ""
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		name, series, _ := strings.Cut(lines.Text(), "{")
		switch name {
		case "sluice_connections_total", "sluice_dns_queries_total":
			if strings.Contains(series, `verdict="allow"`) {
				continue
			}
		case "sluice_flows_cut_total", "sluice_generation":
		default:
			continue
		}
		if name != above {
			fmt.Fprintln(stdout, name)
			above = name
		}
		fmt.Fprintln(stdout, "{"+strings.TrimPrefix(series, `container="default",`))
	}
	return nil
}
