package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"sluice/control"
	"sluice/policy"
)

func newCtl(sys system) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "ctl",
		Short:   "Ask or change a running proxy, through its control socket",
		Long:    "Ctl asks or changes a running proxy that was started with --control.",
		Example: "  sluice-proxy ctl status --control /run/sluice-proxy",
		Args:    cobra.NoArgs,
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	policies := &cobra.Command{
		Use:     "policy",
		Short:   "Show or replace the policies of a session",
		Example: "  sluice-proxy ctl policy get",
		Args:    cobra.NoArgs,
	}
	policies.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	policies.AddCommand(newPolicyGet(), newPolicySet(sys))
	cmd.AddCommand(policies, newPhase(), newFlows(), newStatus(), newExplain())
	return cmd
}

// clientFlags adds the flags of every command that talks to a running proxy.
func clientFlags(cmd *cobra.Command) (client func() *control.Client, asJSON *bool) {
	dir := cmd.Flags().String("control", control.DefaultDir, "the `DIR` of the proxy's control socket")
	return func() *control.Client { return &control.Client{Dir: *dir} }, jsonFlag(cmd)
}

func jsonFlag(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("json", false, "print JSON, of which fields are added but never changed")
}

// sessionFlags adds --session as well. The function returns the client and the session's id, which may be left out
// where there is only one.
func sessionFlags(cmd *cobra.Command) (session func() (*control.Client, string, error), asJSON *bool) {
	client, asJSON := clientFlags(cmd)
	id := cmd.Flags().String("session", "", "the session's `ID`; needed where there are several")
	return func() (*control.Client, string, error) {
		c := client()
		if *id != "" {
			return c, *id, nil
		}
		all, err := c.Sessions(cmd.Context())
		if err != nil {
			return nil, "", failed(err)
		}
		switch len(all) {
		case 0:
			return nil, "", failed(errors.New("the proxy has no session yet"))
		case 1:
			return c, all[0].ID, nil
		}
		return nil, "", fmt.Errorf("the proxy has %d sessions: choose one with --session ID (status lists them)", len(all))
	}, asJSON
}

func newPolicyGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "get",
		Short:   "Print the policies, as set reads them",
		Example: "  sluice-proxy ctl policy get >policy.json",
		Args:    cobra.NoArgs,
	}
	session, _ := sessionFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, id, err := session()
		if err != nil {
			return err
		}
		status, err := c.Session(cmd.Context(), id)
		if err != nil {
			return failed(err)
		}
		if status.Policies == nil {
			return failed(fmt.Errorf("session %s has no policy yet", id))
		}
		return printJSON(cmd, policyDocument(status.Policies))
	}
	return cmd
}

// policyDocument is a policy file that means these policies: one policy where all phases have the same.
func policyDocument(policies map[string]json.RawMessage) any {
	document := map[string]json.RawMessage{}
	same := true
	for phase, p := range policies {
		document[phase+"_network_policy"] = p
		same = same && string(p) == string(policies[policy.Baseline.String()])
	}
	if same {
		return policies[policy.Baseline.String()]
	}
	return document
}

func newPolicySet(sys system) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set FILE",
		Short: "Replace the policies of all phases and print the receipt",
		Long: `Set reads a policy file in JSON or YAML ("-" is stdin), one policy for all phases or one for each, and puts it in
force: when the command returns, nothing passes any more that the new policy refuses. If the file is wrong, nothing
has changed. A proxy that follows a policy file goes back to that file at its next change.`,
		Example: "  sluice-proxy ctl policy set policy.yaml",
		Args:    one("FILE"),
	}
	session, asJSON := sessionFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		policies, err := readPolicies(args[0], sys.stdin)
		if err != nil {
			return failed(err)
		}
		c, id, err := session()
		if err != nil {
			return err
		}
		receipt, err := c.SetSession(cmd.Context(), id, control.SessionSpec{Policies: policies})
		if err != nil {
			return failed(err)
		}
		return printReceipt(cmd, receipt, *asJSON)
	}
	return cmd
}

func readPolicies(name string, stdin io.Reader) (map[string]json.RawMessage, error) {
	var data []byte
	var err error
	if name == "-" {
		name = "standard input"
		data, err = io.ReadAll(io.LimitReader(stdin, policy.MaxDocumentBytes+1))
	} else {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return nil, err
	}
	phases, err := decodePolicy(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	policies := map[string]json.RawMessage{}
	for phase, p := range phases {
		text, err := json.Marshal(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		policies[policy.Phase(phase).String()] = text
	}
	return policies, nil
}

// decodePolicy reads a policy file: a single policy is in force in every phase.
func decodePolicy(data []byte) (policy.Phases, error) {
	doc, err := policy.Parse(data)
	if err != nil {
		return policy.Phases{}, err
	}
	return doc.All(), nil
}

func newPhase() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "phase NAME",
		Short: "Switch to a phase (baseline, run or evaluation) and print the receipt",
		Long: `Phase puts the policy of another phase in force: when the command returns, nothing passes any more that this policy
refuses.`,
		Example: "  sluice-proxy ctl phase run",
		Args:    one("phase: baseline, run or evaluation"),
	}
	session, asJSON := sessionFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		phase, err := policy.ParsePhase(args[0])
		if err != nil {
			return err
		}
		c, id, err := session()
		if err != nil {
			return err
		}
		receipt, err := c.SetSession(cmd.Context(), id, control.SessionSpec{Phase: phase.String()})
		if err != nil {
			return failed(err)
		}
		return printReceipt(cmd, receipt, *asJSON)
	}
	return cmd
}

func newFlows() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "flows",
		Short:   "List the open connections of a session",
		Example: "  sluice-proxy ctl flows --json",
		Args:    cobra.NoArgs,
	}
	session, asJSON := sessionFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, id, err := session()
		if err != nil {
			return err
		}
		flows, err := c.Flows(cmd.Context(), id)
		if err != nil {
			return failed(err)
		}
		if *asJSON {
			return printJSON(cmd, flows)
		}
		return printFlows(cmd, flows)
	}
	return cmd
}

func newStatus() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Show what is in force",
		Example: "  sluice-proxy ctl status",
		Args:    cobra.NoArgs,
	}
	client, asJSON := clientFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		all, err := client().Sessions(cmd.Context())
		if err != nil {
			return failed(err)
		}
		if *asJSON {
			return printJSON(cmd, all)
		}
		return printStatus(cmd, all)
	}
	return cmd
}

func newExplain() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "explain TARGET",
		Short:   "Say what would happen to host:port now, and why",
		Example: "  sluice-proxy ctl explain api.example.com:443",
		Args:    one("host:port"),
	}
	session, asJSON := sessionFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, id, err := session()
		if err != nil {
			return err
		}
		explanation, err := c.Explain(cmd.Context(), id, args[0])
		if err != nil {
			return failed(err)
		}
		if *asJSON {
			return printJSON(cmd, explanation)
		}
		return printExplanation(cmd, explanation)
	}
	return cmd
}

// one takes exactly one argument.
func one(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%d arguments: give one %s", len(args), what)
		}
		return nil
	}
}
