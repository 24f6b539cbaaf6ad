// Package evidence reads and writes what a task leaves as evidence, and says what that means for a policy. It does no
// I/O but through readers and writers it is given.
package evidence

import "sluice/controller/tally"

// What was tried in each phase is summed up by package tally.
type (
	Summary = tally.Summary
	Phase   = tally.Phase
	Attempt = tally.Attempt
)

// Verdicts of attempts.
const (
	Allowed = tally.Allowed
	Refused = tally.Refused
	Failed  = tally.Failed
	Cut     = tally.Cut
)
