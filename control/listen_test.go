package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
)

func TestListenModes(t *testing.T) {
	path := filepath.Join(shortDir(t), "x", "control.sock")
	l, err := Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for p, want := range map[string]os.FileMode{path: 0o660, filepath.Dir(path): 0o750} {
		info, err := os.Stat(p)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", p, got, want)
		}
	}
	l.Close()
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket is still there after Close: %v", err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	for _, network := range []string{"unix", "unixpacket"} {
		path := filepath.Join(shortDir(t), "s.sock")
		old, err := Listen(network, path)
		if err != nil {
			t.Fatal(err)
		}
		old.SetUnlinkOnClose(false) // as when a process is killed
		old.Close()
		l, err := Listen(network, path)
		if err != nil {
			t.Fatalf("%s: %v", network, err)
		}
		l.Close()
	}
}

func TestLiveSocketIsNotStolen(t *testing.T) {
	for _, row := range []struct{ name, first, second string }{
		{"same", "unix", "unix"},
		{"packet", "unixpacket", "unixpacket"},
		{"other-type", "unixpacket", "unix"},
	} {
		t.Run(row.name, func(t *testing.T) {
			path := filepath.Join(shortDir(t), "s.sock")
			first, err := Listen(row.first, path)
			if err != nil {
				t.Fatal(err)
			}
			defer first.Close()
			if l, err := Listen(row.second, path); err == nil {
				l.Close()
				t.Fatal("a socket with a live listener was taken")
			}
			c, err := net.Dial(row.first, path)
			if err != nil {
				t.Fatalf("the first listener is out of reach: %v", err)
			}
			c.Close()
		})
	}
}

// Many that start at once over a dead socket: one has it in the end, and that one can be reached.
func TestListenRace(t *testing.T) {
	path := filepath.Join(shortDir(t), "s.sock")
	old, err := Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	old.Close()
	var mu sync.Mutex
	var won []net.Listener
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			l, err := Listen("unix", path)
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			won = append(won, l)
		})
	}
	wg.Wait()
	if len(won) != 1 {
		t.Fatalf("%d listeners on one path, want 1", len(won))
	}
	defer won[0].Close()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestOtherFilesStay(t *testing.T) {
	dir := shortDir(t)
	if err := os.Mkdir(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s.sock")
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Listen("unix", path)
	if err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("got %v, want an error that says what is there", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "precious" {
		t.Errorf("the file was changed to %q", got)
	}
}

func TestMayTalk(t *testing.T) {
	for _, row := range []struct {
		name      string
		peer, own uint32
		others    []uint32
		want      bool
	}{
		{"root", 0, 65532, nil, true},
		{"self", 65532, 65532, nil, true},
		{"stranger", 1000, 65532, nil, false},
		{"stranger-to-root", 1000, 0, nil, false},
		{"named", 65532, 0, []uint32{65532}, true},
		{"overflow", 65534, 65532, []uint32{1}, false}, // how a user of another user namespace looks
	} {
		if got := mayTalk(row.peer, row.own, row.others); got != row.want {
			t.Errorf("%s: got %v", row.name, got)
		}
	}
}

// TestOtherUser lets a process of another user connect, which only root can arrange.
func TestOtherUser(t *testing.T) {
	if path := os.Getenv("CONTROL_TEST_DIAL"); path != "" { // the process of the other user
		c, err := net.Dial("unix", path)
		if err != nil {
			fmt.Println("dial:", err)
			os.Exit(3)
		}
		io.Copy(os.Stdout, c)
		os.Exit(0)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: run with -exec sudo")
	}
	dir, err := os.MkdirTemp("", "sluice")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// The test's own program lies where the other user may not look.
	program := filepath.Join(dir, "test")
	copyProgram(t, program)
	path := filepath.Join(dir, "s.sock")
	l, err := Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.Chmod(path, 0o666); err != nil { // so that the file's mode is not what refuses
		t.Fatal(err)
	}
	many := make([]uint32, 100)
	for i := range many {
		many[i] = 1000 + uint32(i)
	}
	uids := func(list ...uint32) func(net.Listener, *slog.Logger) net.Listener {
		return func(l net.Listener, log *slog.Logger) net.Listener { return OnlyPeers(l, log, list...) }
	}
	group := func(gid uint32) func(net.Listener, *slog.Logger) net.Listener {
		return func(l net.Listener, log *slog.Logger) net.Listener { return OnlyGroup(l, log, gid) }
	}
	for _, row := range []struct {
		name   string
		only   func(net.Listener, *slog.Logger) net.Listener
		groups []uint32
		want   string
	}{
		{"refused", uids(), nil, ""},
		{"named", uids(65533), nil, "hello"},
		{"first-group", group(65533), nil, "hello"},
		{"one-of-a-hundred-groups", group(1099), many, "hello"},
		{"in-no-such-group", group(2000), many, ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			var log bytes.Buffer
			only := row.only(l, slog.New(slog.NewTextHandler(&log, nil)))
			accepted := make(chan int, 1)
			go func() {
				n := 0
				defer func() { accepted <- n }()
				for {
					c, err := only.Accept()
					if err != nil {
						return
					}
					var own bytes.Buffer
					n++
					io.WriteString(c, "hello")
					c.(*net.UnixConn).CloseWrite()
					io.Copy(&own, c)
					c.Close()
					if own.String() == "end" {
						return
					}
				}
			}()
			cmd := exec.Command(program, "-test.run=^TestOtherUser$")
			cmd.Env = append(os.Environ(), "CONTROL_TEST_DIAL="+path)
			cmd.Dir = dir
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65533, Gid: 65533, Groups: row.groups}}
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
			if string(out) != row.want {
				t.Errorf("the other user got %q, want %q", out, row.want)
			}
			end, err := net.Dial("unix", path) // the own user is let in, and ends the loop
			if err != nil {
				t.Fatal(err)
			}
			defer end.Close()
			io.WriteString(end, "end")
			end.(*net.UnixConn).CloseWrite()
			want := 1
			if row.want != "" {
				want++
			}
			if n := <-accepted; n != want {
				t.Errorf("%d connections were handed on, want %d", n, want)
			}
			if told := strings.Contains(log.String(), "65533"); told != (row.want == "") {
				t.Errorf("log: %q", log.String())
			}
		})
	}
}

func copyProgram(t *testing.T, to string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, data, 0o755); err != nil {
		t.Fatal(err)
	}
}
