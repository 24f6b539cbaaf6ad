package lifecycle_test

import (
	"context"
	"fmt"

	"sluice/controller/api"
	"sluice/lifecycle"
	"sluice/policy"
)

// sandbox is an Environment of a harness's own; package lifecycle/docker has one of containers.
type sandbox struct{ generation uint64 }

func (s *sandbox) Switch(_ context.Context, p policy.Phase) (api.Receipt, error) {
	s.generation++
	return api.Receipt{Phase: p.String(), Generation: s.generation}, nil
}

func (s *sandbox) Exec(context.Context, lifecycle.Command) (int, error) { return 0, nil }
func (s *sandbox) Copy(context.Context, lifecycle.Artifact) ([]string, error) {
	return nil, nil
}
func (s *sandbox) Close(context.Context) error { return nil }
func (s *sandbox) Open(ctx context.Context, _ lifecycle.Role) (lifecycle.Environment, api.Receipt, error) {
	receipt, err := s.Switch(ctx, policy.Baseline)
	return s, receipt, err
}

func Example() {
	task := lifecycle.Task{Commands: map[lifecycle.Boundary]lifecycle.Command{
		lifecycle.PrepareTask: {Argv: []string{"make", "setup"}},
		lifecycle.RunTask:     {Argv: []string{"agent"}},
		lifecycle.Evaluate:    {Argv: []string{"make", "test"}},
	}}
	_, err := lifecycle.Run(context.Background(), task, &sandbox{}, func(s lifecycle.Step) {
		if s.Switch {
			fmt.Printf("-> %s, generation %d\n", s.Phase, s.Generation)
			return
		}
		fmt.Printf("%s under %s\n", s.Boundary, s.Phase)
	})
	fmt.Println(err)
	// Output:
	// open under baseline
	// prepare_task under baseline
	// -> run, generation 2
	// run_task under run
	// -> evaluation, generation 3
	// evaluate under evaluation
	// -> baseline, generation 4
	// close under baseline
	// <nil>
}
