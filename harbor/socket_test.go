package harbor

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// served serves at a socket and returns its path and what ends it.
func served(t *testing.T, do func(context.Context, []string) Answer) (path string, end func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "socket")
	l, err := listenAt(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := serve(ctx, l, do); err != nil {
			t.Error(err)
		}
	})
	end = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(end)
	return path, end
}

func TestAsk(t *testing.T) {
	path, end := served(t, func(_ context.Context, args []string) Answer {
		return Answer{Code: len(args), Stdout: strings.Join(args, "|"), Stderr: "said"}
	})
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v: want a socket of root alone", info, err)
	}
	var asking sync.WaitGroup
	for range 20 {
		asking.Go(func() {
			a, err := Ask(context.Background(), path, []string{"allow", "a b", ""})
			if want := (Answer{3, "allow|a b|", "said"}); err != nil || a != want {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
	asking.Wait()
	// Who asks nothing, or nonsense, holds nobody up.
	quiet, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	odd, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer odd.Close()
	if _, err := odd.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if n, err := odd.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("nonsense got an answer of %d bytes, %v", n, err)
	}
	if a, err := Ask(context.Background(), path, nil); err != nil || a.Code != 0 {
		t.Errorf("%+v, %v", a, err)
	}
	end() // does not wait for who is quiet
	if _, err := Ask(context.Background(), path, []string{"deny-all"}); err == nil || !strings.Contains(err.Error(), "nothing has changed") {
		t.Errorf("%v", err)
	}
}

// Who loses the sidecar while it switches must not believe that nothing has changed.
func TestAskNoAnswer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := listenAt(path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var answering sync.WaitGroup
	answering.Go(func() {
		c, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	})
	_, err = Ask(context.Background(), path, []string{"deny-all"})
	answering.Wait()
	if err == nil || !strings.Contains(err.Error(), "is not known") && !strings.Contains(err.Error(), "does not listen") {
		t.Errorf("%v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Ask(ctx, path, []string{"deny-all"}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// A sidecar that was killed leaves its socket.
func TestListenAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := listenAt(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// scarceListener has no descriptor for the first who asks.
type scarceListener struct {
	net.Listener
	once sync.Once
}

func (l *scarceListener) Accept() (c net.Conn, err error) {
	l.once.Do(func() { err = os.NewSyscallError("accept4", syscall.EMFILE) })
	if err != nil {
		return nil, err
	}
	return l.Listener.Accept()
}

// A sidecar without a descriptor to spare for the moment goes on, and who asks waits.
func TestServeWithoutDescriptors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "socket")
	l, err := listenAt(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- serve(ctx, &scarceListener{Listener: l}, func(context.Context, []string) Answer { return Answer{Stdout: "here"} })
	}()
	if a, err := Ask(t.Context(), path, []string{"show"}); err != nil || a.Stdout != "here" {
		t.Errorf("%+v, %v", a, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
