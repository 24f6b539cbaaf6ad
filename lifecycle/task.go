package lifecycle

import (
	"context"
	"time"

	"sluice/controller/api"
	"sluice/policy"
)

// Boundary is a function of an evaluation: the smallest part that has a policy of its own.
type Boundary string

const (
	Open             Boundary = "open"
	PrepareTask      Boundary = "prepare_task"
	StartSession     Boundary = "start_session"
	RunTask          Boundary = "run_task"
	CloseSession     Boundary = "close_session"
	CollectArtifacts Boundary = "collect_artifacts"
	Evaluate         Boundary = "evaluate"
	Close            Boundary = "close"
	EvaluationOpen   Boundary = "evaluation_open"  // of an own Environment for the evaluation only
	EvaluationClose  Boundary = "evaluation_close" // the same
)

// Boundaries are all of them, in the order of a task with an own Environment for the evaluation.
var Boundaries = []Boundary{Open, PrepareTask, StartSession, RunTask, CloseSession, CollectArtifacts, Close, EvaluationOpen, Evaluate, EvaluationClose}

// Role says what an Environment is for.
type Role string

const (
	Shared     Role = "shared"     // for all of a task
	Agent      Role = "agent"      // for all but the evaluation
	Evaluation Role = "evaluation" // for the evaluation
)

// Command is run in an Environment.
type Command struct {
	Argv          []string
	Env           []string // NAME=VALUE
	Workdir, User string   // "" is the Environment's
	// Timeout ends the command; 0 is none, but for what is run to clean up, which has [CleanupTimeout].
	Timeout time.Duration
}

// Artifact is a file or directory that is copied out of an Environment.
type Artifact struct{ From, To string }

// Environment is where commands of a task run. A call at a time.
type Environment interface {
	// Switch puts a phase's policy in force. When it returns without an error, nothing passes that this policy refuses.
	Switch(ctx context.Context, phase policy.Phase) (api.Receipt, error)
	// Exec runs a command and returns its exit code. If ctx ends first, it ends the command with all that it has
	// started and returns an error that wraps ctx's cause.
	Exec(ctx context.Context, c Command) (code int, err error)
	// Copy copies an artifact out. leftOut names what of it was not copied, because it is no file and no directory.
	Copy(ctx context.Context, a Artifact) (leftOut []string, err error)
	// Close ends the Environment, and everything in it.
	Close(ctx context.Context) error
}

// Opener makes an Environment that is under the baseline policy from its first instruction. The receipt says which
// generation that is.
type Opener interface {
	Open(ctx context.Context, role Role) (Environment, api.Receipt, error)
}

// Task is what is to be done.
type Task struct {
	// Commands are those of the boundaries; a boundary without one does nothing. There is a session if there is a
	// command that starts one.
	Commands map[Boundary]Command
	// Artifacts are copied in [CollectArtifacts], after its command.
	Artifacts []Artifact
	// Fresh gives the evaluation an Environment of its own.
	Fresh bool
	// Keep leaves Environments running, under the policy in which they would have been closed.
	Keep bool
}

// Step is one boundary that was passed, or one switch between two of them.
type Step struct {
	// Boundary is empty for a switch.
	Boundary Boundary `json:"boundary,omitempty"`
	// Switch is set for a change of the policy in force.
	Switch      bool         `json:"switch,omitempty"`
	Environment Role         `json:"environment"`
	Phase       policy.Phase `json:"phase"`
	Generation  uint64       `json:"generation"`
	// Receipt is that of the switch, or of the opening.
	Receipt *api.Receipt `json:"receipt,omitempty"`
	// ExitCode is that of the boundary's command; nil if it has none, or it did not end by itself.
	ExitCode *int `json:"exit_code,omitempty"`
	TimedOut bool `json:"timed_out,omitempty"`
	// LeftOut names what of artifacts was not copied, see [Environment.Copy].
	LeftOut []string `json:"left_out,omitempty"`
	// Kept: the Environment was left running.
	Kept    bool      `json:"kept,omitempty"`
	Began   time.Time `json:"began"`
	Seconds float64   `json:"seconds"`
	Error   string    `json:"error,omitempty"`
}
