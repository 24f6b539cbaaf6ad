package harbor

import (
	"context"
	"fmt"
	"strings"

	"sluice/policy"
)

// Exit codes of network-policy, as Harbor's own has them.
const (
	done   = 0
	failed = 1
	wrong  = 2 // usage
)

const usage = `Usage:
  network-policy show                print what is in force
  network-policy allow-all           refuse only what no policy opens, such as metadata services
  network-policy deny-all            refuse everything
  network-policy allow [TARGET...]   refuse everything but the targets: HOST, *.HOST, an address or a network,
                                     each with :PORT if only that is meant
  network-policy rules               print the rules of the kernel
`

// Answer is what network-policy prints and exits with.
type Answer struct {
	Code           int
	Stdout, Stderr string
}

// Do runs one command of network-policy, given without its name.
func (s *Sidecar) Do(ctx context.Context, args []string) Answer {
	command := ""
	if len(args) > 0 {
		command, args = args[0], args[1:]
	}
	if len(args) > 0 && command != "allow" {
		return Answer{Code: wrong, Stderr: fmt.Sprintf("network-policy: %.40q takes no further word; nothing has changed\n%s", command, usage)}
	}
	switch command {
	case "show":
		return s.show()
	case "rules":
		text, err := s.listing()
		if err != nil {
			return Answer{Code: failed, Stderr: failure(err)}
		}
		return Answer{Stdout: text}
	case "allow-all":
		return s.put(ctx, public(), "allow all egress")
	case "deny-all":
		return s.put(ctx, refuseAll(), "deny all egress")
	case "allow":
		p, err := allowlist(args)
		if err != nil {
			return Answer{Code: failed, Stderr: failure(fmt.Errorf("%w\nnothing has changed", err))}
		}
		if p.Mode == policy.NoNetwork {
			return s.put(ctx, p, "deny all egress, for no target was given")
		}
		return s.put(ctx, p, "allowlist applied")
	}
	return Answer{Code: wrong, Stderr: usage}
}

func (s *Sidecar) put(ctx context.Context, p policy.Policy, what string) Answer {
	r, err := s.change(ctx, p)
	if err != nil {
		return Answer{Code: failed, Stderr: failure(err)}
	}
	ms := float64(r.took.Microseconds()) / 1000
	s.log.Info("switched", "mode", p.Mode, "generation", r.generation, "unchanged", r.unchanged, "cut", r.cut, "kept", r.kept, "ms", ms)
	if r.unchanged {
		return Answer{Stdout: fmt.Sprintf("ok: %s (generation %d, as before)\n", what, r.generation)}
	}
	return Answer{Stdout: fmt.Sprintf("ok: %s (generation %d, %d connections cut, %d kept, %.1f ms)\n", what, r.generation, r.cut, r.kept, ms)}
}

// failure puts the program's name before each line.
func failure(err error) string {
	var b strings.Builder
	for line := range strings.Lines(err.Error()) {
		b.WriteString("network-policy: " + strings.TrimRight(line, "\n") + "\n")
	}
	return b.String()
}

// show prints what is in force. It fails if that is not what was asked for.
func (s *Sidecar) show() Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem != "" {
		return Answer{Code: failed, Stdout: "mode: refuses everything\n", Stderr: failure(fmt.Errorf("a switch has failed: %s", s.problem))}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "mode: %v\ngeneration: %d\n", s.policy.Mode, s.generation)
	for _, t := range s.policy.Targets {
		fmt.Fprintf(&b, "allowed: %v\n", t)
	}
	refused, err := s.kernel.Refused()
	if err != nil {
		return Answer{Code: failed, Stdout: b.String(), Stderr: failure(err)}
	}
	fmt.Fprintf(&b, "refused by the kernel: %d packets\n", refused)
	return Answer{Stdout: b.String()}
}

func (s *Sidecar) listing() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.problem != "" {
		return "", fmt.Errorf("everything is refused, for a switch has failed: %s", s.problem)
	}
	return s.kernel.Listing()
}
