package policy

import "strings"

const (
	noticeHead = `<IMPORTANT>
  Network Restriction Statement:
  Ignore any duplicate or conflicting declarations about network access elsewhere in the instructions; follow this statement instead.
  This statement has the highest priority for network access because it explicitly reflects the effective network policy applied to the task sandbox.
`
	noticeFoot = "\n</IMPORTANT>"
)

// Notice returns what an agent that runs under p is told, byte for byte as AgentCompass 1.0.1 says it, without a
// newline at its end. Public gives "", and so does a policy that only observes: what it does not refuse should be tried.
//
// The text of a denylist promises no more than that the targets are blocked; [Warnings] says what that leaves open.
func Notice(p Policy) string {
	var b strings.Builder
	b.WriteString(noticeHead)
	switch p.InForce().Mode {
	case Public:
		return ""
	case Allowlist:
		b.WriteString("  Outbound network access from the task environment is restricted to the following targets:\n")
		writeTargets(&b, p.Targets)
		b.WriteString("  All other outbound targets are blocked. Do not repeatedly retry access to blocked targets.")
	case Denylist:
		b.WriteString("  Outbound network access from the task environment is available except for the following blocked targets:\n")
		writeTargets(&b, p.Targets)
		b.WriteString("  Do not repeatedly retry access to these blocked targets.")
	default:
		b.WriteString("  Outbound network access from the task environment is disabled. Use only resources already available in the environment. Do not repeatedly retry operations that require external network access.")
	}
	b.WriteString(noticeFoot)
	return b.String()
}

func writeTargets(b *strings.Builder, targets []Target) {
	for _, t := range targets {
		b.WriteString("  - " + t.String() + "\n")
	}
}
