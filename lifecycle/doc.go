// Package lifecycle takes one task through its boundaries: in this order, each under this phase's policy.
//
//	one Environment for all (reuse)          an own one for the evaluation (fresh)
//	open               baseline              open               baseline   the agent's
//	prepare_task       baseline              prepare_task       baseline
//	start_session      baseline              start_session      baseline
//	run_task           run                   run_task           run
//	close_session      run                   close_session      run
//	collect_artifacts  run                   collect_artifacts  run
//	evaluate           evaluation            close              run
//	close              baseline              evaluation_open    baseline   the evaluation's
//	                                         evaluate           evaluation
//	                                         evaluation_close   baseline
//
// Between run and evaluation an Environment is switched directly. Whatever happens, what had baseline before evaluate
// has it again afterwards: after a failure, a timeout, an interruption. No command runs under a policy whose switch
// did not succeed.
package lifecycle
