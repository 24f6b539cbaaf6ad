// Command use is a network client that resolves names as Go programs do, for scenarios in which a workload does what
// workloads do. Each verb prints "ok" at the end, or says on standard error what went wrong.
//
//	use get URL                  one page by HTTP/1.1 or HTTP/2, whatever is agreed on
//	use grpc URL                 a gRPC call with messages both ways, over TLS or without
//	use websocket URL            a message there and back
//	use rotate HOST PORT N       looks HOST up N times, then uses a connection to each address that it was told
//	use hold HOST:PORT FILE      uses a connection, makes FILE, uses it once more when FILE is gone
//	use flood ADDRESS            UDP packets from one port after the other, to a few ports, for floodTime
//	use follow URL FILE          keeps what a WebSocket or a page sends in FILE, and how it ended in FILE.end
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/net/websocket"
)

// limit is how long one exchange may take.
const limit = 10 * time.Second

var verbs = map[string]struct {
	arguments int
	do        func(args []string) error
}{
	"get":       {1, func(a []string) error { return get(a[0]) }},
	"grpc":      {1, func(a []string) error { return grpc(a[0]) }},
	"websocket": {1, func(a []string) error { return webSocket(a[0]) }},
	"rotate":    {3, func(a []string) error { return rotate(a[0], a[1], a[2]) }},
	"flood":     {1, func(a []string) error { return flood(a[0]) }},
	"hold":      {2, func(a []string) error { return hold(a[0], a[1]) }},
	"follow":    {2, func(a []string) error { return follow(a[0], a[1]) }},
}

func main() {
	verb := verbs[strings.Join(os.Args[1:min(2, len(os.Args))], "")]
	if verb.do == nil || len(os.Args)-2 != verb.arguments {
		fmt.Fprintln(os.Stderr, "use: see its package comment")
		os.Exit(2)
	}
	if err := verb.do(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "use:", err)
		os.Exit(1)
	}
	fmt.Println("ok")
}

// client speaks HTTP/2 in TLS, and in cleartext if so asked.
func client(cleartext2 bool) *http.Client {
	p := new(http.Protocols)
	p.SetHTTP1(!cleartext2)
	p.SetHTTP2(true)
	p.SetUnencryptedHTTP2(cleartext2)
	return &http.Client{Transport: &http.Transport{Protocols: p}, Timeout: limit}
}

func get(url string) error {
	answer, err := client(false).Get(url)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	_, err = io.Copy(os.Stdout, answer.Body)
	return err
}

// grpc sends messages and expects each back before it sends the next.
func grpc(url string) error {
	body, out := io.Pipe()
	defer out.Close()
	request, err := http.NewRequest(http.MethodPost, url, body)
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	answer, err := client(strings.HasPrefix(url, "http://")).Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return errors.New(answer.Status)
	}
	for i := range 10 {
		message := bytes.Repeat([]byte{byte(i)}, 1000)
		frame := append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
		if _, err := out.Write(frame); err != nil {
			return err
		}
		back := make([]byte, len(frame))
		if _, err := io.ReadFull(answer.Body, back); err != nil || !bytes.Equal(frame, back) {
			return fmt.Errorf("message %d: %v", i, err)
		}
	}
	out.Close()
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if status := answer.Trailer.Get("Grpc-Status"); status != "0" {
		return fmt.Errorf("the trailers have status %q", status)
	}
	return nil
}

func dialWebSocket(url string) (*websocket.Conn, error) {
	config, err := websocket.NewConfig(url, "http://use.test/")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return config.DialContext(ctx)
}

func webSocket(url string) error {
	ws, err := dialWebSocket(url)
	if err != nil {
		return err
	}
	defer ws.Close()
	return echo(ws, "a message")
}

// echo sends a text and expects it back.
func echo(conn net.Conn, text string) error {
	conn.SetDeadline(time.Now().Add(limit))
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	back := make([]byte, len(text))
	if _, err := io.ReadFull(conn, back); err != nil {
		return err
	}
	if string(back) != text {
		return fmt.Errorf("sent %q, and got %q back", text, back)
	}
	return nil
}

func use(address string) error {
	conn, err := net.DialTimeout("tcp", address, limit)
	if err != nil {
		return err
	}
	defer conn.Close()
	return echo(conn, "hello\n")
}

func rotate(host, port, times string) error {
	count, err := strconv.Atoi(times)
	if err != nil || count > 1000 {
		return fmt.Errorf("%q is no number up to 1000", times)
	}
	told := map[string]bool{}
	for range count {
		addresses, err := net.LookupHost(host)
		if err != nil {
			return err
		}
		for _, a := range addresses {
			told[a] = true
		}
	}
	for a := range told {
		if err := use(net.JoinHostPort(a, port)); err != nil {
			return fmt.Errorf("one of %d addresses: %w", len(told), err)
		}
	}
	fmt.Println(len(told), "addresses")
	return nil
}

func hold(address, file string) error {
	dialer := net.Dialer{Timeout: limit, KeepAlive: -1} // really idle
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := echo(conn, "first\n"); err != nil {
		return err
	}
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		return err
	}
	for err == nil {
		time.Sleep(100 * time.Millisecond)
		_, err = os.Stat(file)
	}
	return echo(conn, "second\n")
}

// floodTime is how long flood goes on, if nobody ends it before.
const floodTime = time.Minute

// flood goes on where the kernel refuses a packet. It needs the right to open raw sockets.
func flood(address string) error {
	conn, err := net.Dial("ip4:udp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	const first, ports = 1024, 64000
	for i, end := 0, time.Now().Add(floodTime); time.Now().Before(end); i++ {
		packet := binary.BigEndian.AppendUint16(nil, uint16(first+i%ports))
		packet = binary.BigEndian.AppendUint16(packet, uint16(1000+i/ports%1000))
		packet = binary.BigEndian.AppendUint16(packet, 8) // the length; no checksum, RFC 768
		_, _ = conn.Write(append(packet, 0, 0))
	}
	return nil
}

// follow keeps a stream.
func follow(url, file string) error {
	var stream io.Reader
	if strings.HasPrefix(url, "ws") {
		ws, err := dialWebSocket(url)
		if err != nil {
			return err
		}
		defer ws.Close()
		stream = ws
	} else {
		transport := &http.Transport{TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}} // HTTP/1.1 alone
		answer, err := (&http.Client{Transport: transport}).Get(url)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		stream = answer.Body
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	lines := bufio.NewScanner(stream)
	for lines.Scan() {
		fmt.Fprintln(out, lines.Text())
	}
	ended := "closed"
	if errors.Is(lines.Err(), syscall.ECONNRESET) {
		ended = "reset"
	}
	return os.WriteFile(file+".end", []byte(ended+"\n"), 0o644)
}
