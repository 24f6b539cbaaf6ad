package sidecar

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"sluice/control"
)

// program is sluice-proxy, built for the tests.
var program string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "sluice")
	if err == nil {
		program = filepath.Join(dir, "sluice-proxy")
		build := exec.Command("go", "build", "-o", program, "sluice/cmd/proxy")
		build.Env = append(os.Environ(), "CGO_ENABLED=0") // as in the image
		var out []byte
		if out, err = build.CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build sluice-proxy:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		os.RemoveAll(dir)
		os.Exit(code)
	}))
}

// world is an engine, a binary, a directory, and the controllers that come and go.
type world struct {
	*testing.T
	engine  *fakeEngine
	options Options
}

func newWorld(t *testing.T) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "sluice") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// Without a mount the sidecar's user comes to its own directory only through this one.
	if err := os.Mkdir(filepath.Join(dir, "proxy"), 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "sluice-proxy")
	w := &world{T: t, engine: newEngine(t, binary)}
	w.options = Options{
		Docker: w.engine, Binary: binary, Dir: filepath.Join(dir, "proxy"), Flags: []string{"--floor=false"},
		Timing: Timing{Health: 50 * time.Millisecond, Healthy: 2 * time.Second, Call: 5 * time.Second, Drain: time.Minute},
	}
	w.install("")
	return w
}

// install puts a binary there that differs from others by what is added behind it.
func (w *world) install(added string) {
	w.Helper()
	b, err := os.ReadFile(program)
	if err != nil {
		w.Fatal(err)
	}
	if err := os.WriteFile(w.options.Binary+".new", append(b, added...), 0o755); err != nil {
		w.Fatal(err)
	}
	if err := os.Rename(w.options.Binary+".new", w.options.Binary); err != nil {
		w.Fatal(err)
	}
}

// controller is a Sidecar that runs.
type controller struct {
	*Sidecar
	*testing.T
	stop func() // ends Run; may be called more than once
}

func (w *world) start() *controller {
	w.Helper()
	o := w.options
	o.Logger = slog.New(slog.NewTextHandler(testWriter{w.T}, nil))
	s, err := New(o)
	if err != nil {
		w.Fatal(err)
	}
	if os.Geteuid() != 0 {
		s.uid = uint32(os.Geteuid())
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	c := &controller{s, w.T, sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.Errorf("Run: %v", err)
		}
	})}
	w.Cleanup(c.stop)
	return c
}

type testWriter struct{ *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	w.Logf("%s", b)
	return len(b), nil
}

func (c *controller) apply(id string, spec control.SessionSpec) control.Receipt {
	c.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := c.Apply(ctx, id, spec)
	if err != nil {
		c.Fatal(err)
	}
	return r
}

// give hands a session a listener for explicit clients, as no redirect leads to it, and returns where it is.
func (c *controller) give(id string) string {
	c.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.hand(ctx, id, []socket{{kind: control.KindProxy, file: f, close: f.Close}}); err != nil {
		c.Fatal(err)
	}
	return l.Addr().String()
}

func (c *controller) until(what string, ok func() bool) {
	c.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			c.Fatalf("never: %s; status %+v", what, c.Status())
		}
	}
}

// restarts is a counter's value.
func (c *controller) restarts(reason string) float64 {
	c.Helper()
	var m dto.Metric
	if err := c.metrics.restarts.WithLabelValues(reason).Write(&m); err != nil {
		c.Fatal(err)
	}
	return m.Counter.GetValue()
}

// spec allows targets in phase baseline and nothing in the others.
func spec(targets ...string) control.SessionSpec {
	all := map[string]json.RawMessage{}
	for _, phase := range []string{"run", "evaluation"} {
		all[phase] = json.RawMessage(`{"network_mode":"no-network"}`)
	}
	text, err := json.Marshal(map[string]any{"network_mode": "allowlist", "allowed_hosts": targets})
	if err != nil {
		panic(err)
	}
	all["baseline"] = text
	return control.SessionSpec{Container: "web", ContainerID: "0123", Policies: all}
}

// echo is a server that sends back what it gets, until the test ends.
func echo(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				stop := context.AfterFunc(t.Context(), func() { c.Close() }) // before the cleanups
				defer stop()
				defer c.Close()
				io.Copy(c, c)
			})
		}
	})
	t.Cleanup(func() { l.Close(); all.Wait() })
	return l.Addr().String()
}

// tunnel is a connection through a proxy.
type tunnel struct {
	net.Conn
	reader *bufio.Reader
	status int
}

// connect asks a proxy for a tunnel.
func connect(proxy, target string) (*tunnel, error) {
	c, err := net.Dial("tcp", proxy)
	if err != nil {
		return nil, err
	}
	t := &tunnel{Conn: c, reader: bufio.NewReader(c)}
	c.SetDeadline(time.Now().Add(20 * time.Second))
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	answer, err := http.ReadResponse(t.reader, &http.Request{Method: http.MethodConnect})
	if err != nil {
		c.Close()
		return nil, err
	}
	t.status = answer.StatusCode
	return t, nil
}

// ping sends bytes through the tunnel and waits for them.
func (t *tunnel) ping() error {
	t.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(t, "ping\n"); err != nil {
		return err
	}
	line, err := t.reader.ReadString('\n')
	if err == nil && line != "ping\n" {
		err = fmt.Errorf("got %q back", line)
	}
	return err
}

// freeze stops a process, as if it hung.
func (c *controller) freeze(p *os.Process) {
	c.Helper()
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		c.Fatal(err)
	}
	c.until("the process is stopped", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.Pid))
		return err == nil && strings.Contains(string(text), ") T ")
	})
}

// open is a tunnel that works.
func (c *controller) open(proxy, target string) *tunnel {
	c.Helper()
	t, err := connect(proxy, target)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { t.Close() })
	if t.status != http.StatusOK {
		c.Fatalf("status %d, want 200", t.status)
	}
	if err := t.ping(); err != nil {
		c.Fatal(err)
	}
	return t
}

// works reports an error unless bytes pass.
func (c *controller) alive(t *tunnel) {
	c.Helper()
	if err := t.ping(); err != nil {
		c.Errorf("a flow that is allowed is cut: %v", err)
	}
}

// cut reports an error unless the tunnel ends.
func (c *controller) cut(t *tunnel) {
	c.Helper()
	t.SetDeadline(time.Now().Add(20 * time.Second))
	if b, err := t.reader.ReadByte(); err == nil {
		c.Errorf("a flow goes on: %q", b)
	} else if os.IsTimeout(err) {
		c.Error("a flow that is refused stays open")
	}
}
