package e2e

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"sluice/e2e/agentcompass"
	"sluice/e2e/lab/client"
	"sluice/e2e/lab/internet"
)

// waitLimit is how long a script waits for something to become true, and for a command in a task.
const waitLimit = 30 * time.Second

// script is the state of one running script.
type script struct {
	// prefix begins the names of all containers and networks that the script makes.
	prefix string
	task   *agentcompass.Task
	// switched is the last change of phase, and streamed how many bytes each tick stream had sent by then.
	switched agentcompass.Switch
	streamed map[string]int
	// before is what had reached the internet when the script began: other tests send there on purpose.
	before internet.Counts
}

type scriptKey struct{}

var scripts atomic.Int32

func newScript() *script {
	return &script{prefix: fmt.Sprintf("e2e-%d-", scripts.Add(1)), streamed: map[string]int{}}
}

func scriptOf(ts *testscript.TestScript) *script { return ts.Value(scriptKey{}).(*script) }

// eventually waits until a condition holds. The condition says what it has seen when it does not.
func eventually(ts *testscript.TestScript, condition func() (ok bool, seen string)) {
	deadline := time.Now().Add(waitLimit)
	for {
		ok, seen := condition()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			ts.Fatalf("not within %v: %s", waitLimit, seen)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// cmdTask drives a task of AgentCompass: task open FILE, task phase NAME, task exec ARG..., task close.
func cmdTask(ts *testscript.TestScript, neg bool, args []string) {
	s := scriptOf(ts)
	verb := ""
	if len(args) > 0 {
		verb = args[0]
	}
	if verb != "open" && s.task == nil {
		ts.Fatalf("no task is open")
	}
	switch {
	case verb == "open" && len(args) == 2:
		s.open(ts, neg, args[1], *proxyImage)
	case verb == "open" && len(args) == 3:
		s.open(ts, neg, args[1], args[2])
	case verb == "phase" && len(args) == 2 && !neg:
		counts, err := lab.Internet.Counts()
		ts.Check(err)
		for id, stream := range counts.Streams {
			s.streamed[id] = stream.Bytes
		}
		s.switched, err = s.task.Phase(args[1])
		ts.Check(err)
		ts.Logf("[switched in %v]", s.switched.Took.Round(time.Millisecond))
	case verb == "exec" && len(args) > 1:
		result, err := s.task.Exec(waitLimit, args[1:]...)
		ts.Check(err)
		fmt.Fprint(ts.Stdout(), result.Stdout)
		fmt.Fprint(ts.Stderr(), result.Stderr)
		if result.TimedOut {
			ts.Fatalf("not done within %v", waitLimit)
		}
		if (result.Code != 0) != neg {
			ts.Fatalf("exit code %d", result.Code)
		}
	case verb == "close" && len(args) == 1 && !neg:
		task := s.task
		ts.Check(task.Close())
		s.task = nil
		s.checkGone(ts, task)
	default:
		ts.Fatalf("usage: task open FILE [IMAGE] | phase NAME | exec ARG... | close")
	}
}

func (s *script) open(ts *testscript.TestScript, neg bool, file, proxy string) {
	if s.task != nil {
		ts.Fatalf("a task is open already")
	}
	spec := agentcompass.Spec{ID: s.prefix + "task", Image: client.Tag, ProxyImage: proxy}
	ts.Check(json.Unmarshal([]byte(ts.ReadFile(file)), &spec.Policies))
	task, err := agentcompass.Open(lab.python, lab.DockerHost(), spec)
	if neg {
		if err == nil {
			s.task = task
			ts.Fatalf("the task was opened")
		}
		fmt.Fprintln(ts.Stderr(), err)
		return
	}
	ts.Check(err)
	s.task = task
	ts.Setenv("TASK", task.Container)
	ts.Setenv("SIDECAR", task.Proxy)
	ts.Setenv("TASKNET", task.Network)
}

// checkGone looks for what the provider had made for a task.
func (s *script) checkGone(ts *testscript.TestScript, task *agentcompass.Task) {
	containers, err := docker("ps", "--all", "--quiet", "--no-trunc")
	ts.Check(err)
	networks, err := docker("network", "ls", "--format", "{{.Name}}")
	ts.Check(err)
	for _, name := range []string{task.Container, task.Proxy, task.Network} {
		if name != "" && strings.Contains(containers+networks, name) {
			ts.Fatalf("%s is still there after the task was closed", name)
		}
	}
}

// cmdTunnel watches tick streams: tunnel open ID HOST:PORT|URL, tunnel lives ID, tunnel cut ID.
func cmdTunnel(ts *testscript.TestScript, neg bool, args []string) {
	s := scriptOf(ts)
	if s.task == nil {
		ts.Fatalf("no task is open")
	}
	switch {
	case len(args) == 3 && args[0] == "open" && !neg:
		ts.Check(s.task.Start("tunnel", "open", args[2], args[1]))
		eventually(ts, func() (bool, string) {
			sent := streamBytes(ts, args[1])
			return sent > 0, "nothing has been sent into " + args[1]
		})
	case len(args) == 2 && args[0] == "lives" && !neg:
		s.tunnelLives(ts, args[1])
	case len(args) == 2 && args[0] == "cut" && !neg:
		s.tunnelCut(ts, args[1])
	default:
		ts.Fatalf("usage: tunnel open ID HOST:PORT|URL | lives ID | cut ID")
	}
}

func streamBytes(ts *testscript.TestScript, id string) int {
	counts, err := lab.Internet.Counts()
	ts.Check(err)
	return counts.Streams[id].Bytes
}

// tunnelState is what the client's end of a tunnel knows.
type tunnelState struct {
	Lines int
	Ended string  // "", "reset", "closed"
	At    float64 // seconds since 1970
}

func (s *script) showTunnel(ts *testscript.TestScript, id string) tunnelState {
	result, err := s.task.Exec(waitLimit, "tunnel", "show", id)
	ts.Check(err)
	if result.Code != 0 {
		ts.Fatalf("tunnel %s: %s", id, result.Stderr)
	}
	var state tunnelState
	ts.Check(json.Unmarshal([]byte(result.Stdout), &state))
	return state
}

// tunnelLives checks that a stream has gone on since the last change of phase, without a byte missing.
func (s *script) tunnelLives(ts *testscript.TestScript, id string) {
	sent := s.streamed[id]
	eventually(ts, func() (bool, string) {
		return streamBytes(ts, id) > sent+200, fmt.Sprintf("the stream stays at %d bytes", sent)
	})
	before := s.showTunnel(ts, id)
	if before.Ended != "" {
		ts.Fatalf("tunnel %s: %s", id, before.Ended)
	}
	eventually(ts, func() (bool, string) {
		return s.showTunnel(ts, id).Lines > before.Lines+10, fmt.Sprintf("the client stays at %d lines", before.Lines)
	})
}

// cutLimit is how long after a change of phase a tunnel may live that the new phase refuses. The provider changes the
// sidecar's policy by writing a file, so the sidecar learns of it without anybody waiting for that.
const cutLimit = 100 * time.Millisecond

// tunnelCut checks that both ends of a stream were reset by the last change of phase.
func (s *script) tunnelCut(ts *testscript.TestScript, id string) {
	var state tunnelState
	eventually(ts, func() (bool, string) {
		state = s.showTunnel(ts, id)
		return state.Ended != "", "the tunnel " + id + " is still open"
	})
	whole, part := math.Modf(state.At)
	after := time.Unix(int64(whole), int64(part*1e9)).Sub(s.switched.Returned).Round(time.Millisecond)
	ts.Logf("[tunnel %s: %s %v after the switch returned, which took %v]", id, state.Ended, after, s.switched.Took.Round(time.Millisecond))
	if state.Ended != "reset" {
		ts.Fatalf("the client's end was %s, not reset", state.Ended)
	}
	if after > cutLimit {
		ts.Fatalf("reset %v after the switch returned, want at most %v", after, cutLimit)
	}
	eventually(ts, func() (bool, string) {
		counts, err := lab.Internet.Counts()
		ts.Check(err)
		return counts.Streams[id].End != "", "the origin's end of tunnel " + id + " is still open"
	})
}

// cmdInternetSaw compares what reached the internet since the script began: internet-saw dns|connections|packets WHAT COUNT|some.
func cmdInternetSaw(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 3 || neg {
		ts.Fatalf("usage: internet-saw dns NAME | connections ADDRESS:PORT | packets ADDRESS, then a number or 'some'")
	}
	var count func(internet.Counts) int
	switch args[0] {
	case "dns":
		count = func(c internet.Counts) int { return c.Questions(args[1]) }
	case "connections":
		count = func(c internet.Counts) int { return c.Connections[args[1]] }
	case "packets":
		addr, err := netip.ParseAddr(args[1])
		ts.Check(err)
		count = func(c internet.Counts) int { return c.PacketsTo(addr) }
	default:
		ts.Fatalf("the internet counts dns, connections and packets, not %q", args[0])
	}
	counts, err := lab.Internet.Counts()
	ts.Check(err)
	got := count(counts) - count(scriptOf(ts).before)
	if args[2] == "some" {
		if got == 0 {
			ts.Fatalf("the internet saw no %s of %s", args[0], args[1])
		}
		return
	}
	want, err := strconv.Atoi(args[2])
	ts.Check(err)
	if got != want {
		ts.Fatalf("the internet saw %d %s of %s, want %d", got, args[0], args[1], want)
	}
}

// cmdWaitFor runs a program until what it prints matches: wait-for REGEXP PROGRAM ARG...
func cmdWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: wait-for REGEXP PROGRAM ARG...")
	}
	pattern, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	eventually(ts, func() (bool, string) {
		command := exec.Command(args[1], args[2:]...)
		command.Env = append(command.Environ(), "DOCKER_HOST="+lab.DockerHost())
		out, _ := command.CombinedOutput() // a program that fails may succeed the next time
		return pattern.Match(out), fmt.Sprintf("%s does not print %q but:\n%s", args[1], args[0], out)
	})
}

// cmdCapture puts what a program prints into a variable: capture NAME PROGRAM ARG...
func cmdCapture(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) < 2 || neg {
		ts.Fatalf("usage: capture NAME PROGRAM ARG...")
	}
	ts.Check(ts.Exec(args[1], args[2:]...))
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile("stdout")))
}
