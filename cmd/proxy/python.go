package main

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"sluice/cmd/internal/steadylog"
	"sluice/policy"
	"sluice/proxy"
	"sluice/proxy/agentcompass"
)

// python does what AgentCompass asks of the interpreter that it believes to be there.
func python(ctx context.Context, args []string, sys system) error {
	command, err := agentcompass.ParseCommand(args)
	if err != nil {
		return err
	}
	if command.Probe != nil {
		return failed(command.Probe.Run(ctx))
	}
	settings, err := agentcompass.FromEnvironment(sys.env)
	if err != nil {
		return failed(err)
	}
	o := defaults()
	// As AgentCompass's own proxy does.
	o.resolveForAddressRules, o.wildcardPrivate = true, true
	flags := pflag.NewFlagSet("agentcompass", pflag.ContinueOnError)
	o.switches.add(flags)
	if err := fromEnvironment(flags, sys); err != nil {
		return err
	}
	log, end := steadylog.New(sys.stderr)
	defer end()
	warnUnknown(log, newRoot(sys), sys)
	return serve(ctx, log, deployment{
		switches: o.switches, listen: []string{fmt.Sprintf(":%d", settings.Port)},
		user: agentcompass.User, password: settings.Token, phase: policy.Baseline, path: settings.PolicyPath,
		stdout: sys.stdout, hurry: sys.hurry,
		decode: func(data []byte) (loaded, error) {
			payload, err := agentcompass.Decode(data)
			l := loaded{phases: policy.Phases{payload.Policy, payload.Policy, payload.Policy}}
			for _, r := range payload.Rejected {
				l.rejected = append(l.rejected, r.String())
			}
			return l, err
		},
		personality: proxy.Personality{Realm: agentcompass.Realm, Status: agentcompass.Status},
		largeHead:   agentcompass.HeaderLimitStatus,
		ready: func([]string) error {
			_, err := fmt.Fprintln(sys.stdout, settings.Ready())
			return failed(err)
		},
	})
}
