package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"sluice/control"
)

// pseudoTerminal is one of 80 columns, and what was printed on it.
type pseudoTerminal struct {
	*os.File // for the program
	master   *os.File
	mu       sync.Mutex // guards text
	text     strings.Builder
	ended    chan struct{}
}

func newTerminal(t *testing.T) *pseudoTerminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fd := int(master.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: 80, Row: 24}); err != nil {
		t.Fatal(err)
	}
	p := &pseudoTerminal{File: slave, master: master, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		buffer := make([]byte, 4096)
		for {
			n, err := master.Read(buffer)
			p.mu.Lock()
			p.text.Write(buffer[:n])
			p.mu.Unlock()
			if err != nil { // EIO, when the other side is closed
				return
			}
		}
	}()
	t.Cleanup(func() { p.end() })
	return p
}

func (p *pseudoTerminal) shown() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// end returns all that was printed.
func (p *pseudoTerminal) end() string {
	p.File.Close()
	<-p.ended
	p.master.Close()
	return strings.ReplaceAll(p.shown(), "\r\n", "\n")
}

var escape = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// checkWidth fails if a line is longer than the terminal is wide.
func checkWidth(t *testing.T, text string) {
	t.Helper()
	for line := range strings.Lines(escape.ReplaceAllString(text, "")) {
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 {
			t.Errorf("a line of %d characters: %q", n, line)
		}
	}
}

func TestOnTerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c", "sluice.sock")
	stop, err := startFake(path)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	do := func(stdout io.Writer, args ...string) {
		t.Helper()
		var stderr strings.Builder
		if got := run(t.Context(), append(args, "--socket", path), strings.NewReader(`"no-network"`), stdout, &stderr); got != exitDone {
			t.Fatalf("%v: exit code %d: %s", args, got, &stderr)
		}
	}
	do(io.Discard, "attach", "web", "--policy", "-")
	do(io.Discard, "attach", "db", "--policy", "-", "--allow-weak")
	run(t.Context(), []string{"phase", "db", "evaluation", "--socket", path}, nil, io.Discard, io.Discard) // fails, into quarantine
	for _, row := range []struct {
		name, args, noColour, term string
		want                       []string
		colour                     bool
	}{
		{"ls", "ls", "", "xterm", []string{"\x1b[1mCONTAINER\x1b[0m", "\x1b[31mquarantined\x1b[0m", "\x1b[32mattached\x1b[0m"}, true},
		{"status", "status db", "", "xterm", []string{"\x1b[31mquarantined\x1b[0m", "\x1b[33mweak: it restarts\x1b[0m", "\x1b[31mproblem: ", "…\n"}, true},
		{"no-color", "ls", "1", "xterm", []string{"CONTAINER ", "quarantined"}, false},
		{"dumb", "ls", "", "dumb", []string{"CONTAINER ", "quarantined"}, false},
		{"json", "ls --json", "", "xterm", []string{`"quarantined"`}, false},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Setenv("NO_COLOR", row.noColour)
			t.Setenv("TERM", row.term)
			p := newTerminal(t)
			do(p.File, strings.Fields(row.args)...)
			got := p.end()
			for _, want := range row.want {
				if !strings.Contains(got, want) {
					t.Errorf("want %q in %q", want, got)
				}
			}
			if escape.MatchString(got) != row.colour {
				t.Errorf("colours: %q", got)
			}
			if row.name != "json" {
				checkWidth(t, got)
			}
		})
	}
	t.Run("no-terminal", func(t *testing.T) {
		t.Setenv("NO_COLOR", "")
		t.Setenv("TERM", "xterm")
		var out strings.Builder
		do(&out, "status", "db")
		if strings.ContainsAny(out.String(), "\x1b…") {
			t.Errorf("cut or coloured: %q", out.String())
		}
	})
	t.Run("logs", func(t *testing.T) {
		t.Setenv("NO_COLOR", "")
		t.Setenv("TERM", "xterm")
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := newTerminal(t)
		ended := make(chan int)
		go func() {
			ended <- run(ctx, []string{"logs", "-f", "--socket", path}, nil, p.File, io.Discard)
		}()
		for strings.Count(p.shown(), "evil.test:443") < 2 {
			time.Sleep(time.Millisecond)
		}
		cancel()
		if got := <-ended; got != exitDone {
			t.Errorf("exit code %d", got)
		}
		got := p.end()
		checkWidth(t, got)
		if !strings.Contains(got, "\x1b[31mrefuse\x1b[0m  connect   evil.test:443") {
			t.Errorf("%q", got)
		}
	})
}

// What a workload has chosen cannot speak to the terminal, or look like another field.
func TestLogLines(t *testing.T) {
	for _, row := range []struct {
		name string
		e    control.Event
		want string
	}{
		{"plain", control.Event{Target: "a.test", Port: 443, Reason: "not-listed", Decision: "d1"},
			"03:04:05  web               run         refuse  tls       a.test:443\n          not-listed decision=d1\n"},
		{"fits", control.Event{Target: "a.test", Port: 443, Reason: "never"},
			"03:04:05  web               run         refuse  tls       a.test:443  never\n"},
		{"escape", control.Event{Target: "\x1b]0;x\a", Reason: "never"},
			"03:04:05  web               run         refuse  tls       \"\\x1b]0;x\\a\"  never\n"},
		{"fields", control.Event{Target: "a.test allow", Reason: "never"},
			"03:04:05  web               run         refuse  tls       \"a.test allow\"  never\n"},
		{"right-to-left", control.Event{Target: "a\u202etset", Reason: "never"},
			"03:04:05  web               run         refuse  tls       \"a\\u202etset\"  never\n"},
		{"address", control.Event{Target: "2001:db8::1", Port: 9, Reason: "never"},
			"03:04:05  web               run         refuse  tls       [2001:db8::1]:9  never\n"},
		{"long", control.Event{Target: strings.Repeat("x", 100), Reason: strings.Repeat("y", 100)},
			"03:04:05  web               run         refuse  tls       " + strings.Repeat("x", 21) + "…\n          " + strings.Repeat("y", 69) + "…\n"},
	} {
		t.Run(row.name, func(t *testing.T) {
			e := row.e
			e.Container, e.Phase, e.Verdict, e.Protocol = "web", "run", "refuse", "tls"
			e.Time = time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.Local)
			var text strings.Builder
			out := newOutput(&text)
			out.columns = 80
			cmd := newRoot()
			cmd.SetOut(out)
			if err := printEvent(cmd, &globals{}, e); err != nil {
				t.Fatal(err)
			}
			if text.String() != row.want {
				t.Errorf("%q, want\n%q", text.String(), row.want)
			}
			checkWidth(t, text.String())
		})
	}
}
