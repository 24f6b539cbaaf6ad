package main

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"sluice/matcher"
	"sluice/policy"
)

// explained is the answer for one destination, and a line of explain's --json output.
type explained struct {
	Target  string         `json:"target"`
	Asked   string         `json:"asked"` // connect, look-up or ping
	Verdict string         `json:"verdict"`
	Reason  matcher.Reason `json:"reason"`
	Rule    string         `json:"rule,omitempty"`
	Why     string         `json:"why"`
}

func newExplain(g *globals) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain {CONTAINER | --policy FILE} TARGET...",
		Short: "Say what happens to a destination, and which rule decides",
		Long: `Explain judges destinations as they are judged, without sending anything to them: under what is in force for a
container now, or under a policy file.

For a container, a TARGET is HOST:PORT or ADDRESS:PORT (an IPv6 address in brackets), and names are looked up. For a
file it may also be HOST alone, for a DNS look-up, or ADDRESS alone, for a ping; an allowed name is not the last word
then, for each address behind it is judged as well.`,
		Example: "  sluice explain web api.example.com:443 203.0.113.9:22",
		Args:    cobra.MinimumNArgs(1),
	}
	file := cmd.Flags().String("policy", "", `judge by the policy FILE, "-" for stdin`)
	phase := addPhase(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *file == "" {
			if len(args) < 2 {
				return errors.New("a container and a target are needed, or --policy FILE and a target")
			}
			return explainContainer(cmd, g, args[0], args[1:])
		}
		destinations := make([]destination, len(args))
		for i, arg := range args {
			var err error
			if destinations[i], err = parseDestination(arg); err != nil {
				return err
			}
		}
		p, err := readPolicy(cmd, *file, phase.Phase)
		if err != nil {
			return err
		}
		rules, err := matcher.Compile(p, matcher.Options{})
		if err != nil {
			return failed(fmt.Errorf("compile %s: %w", *file, err))
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		if !g.json {
			fmt.Fprintln(table, "TARGET\tASKED\tVERDICT\tRULE\tWHY")
		}
		for _, d := range destinations {
			e := d.explain(rules)
			if g.json {
				if err := printJSON(cmd, e); err != nil {
					return err
				}
				continue
			}
			rule := e.Rule
			if rule == "" {
				rule = "-"
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", e.Target, e.Asked, e.Verdict, rule, e.Why)
		}
		return table.Flush()
	}
	return cmd
}

// explainContainer asks the controller.
func explainContainer(cmd *cobra.Command, g *globals, container string, targets []string) error {
	rows := [][]string{{"TARGET", "VERDICT", "RULE", "WHY"}}
	for _, target := range targets {
		x, err := g.client().Explain(cmd.Context(), container, target)
		if err != nil {
			return failed(err)
		}
		if g.json {
			if err := printJSON(cmd, x); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []string{x.Target, x.Verdict, cmp.Or(x.Rule, "-"), x.Text})
	}
	if g.json {
		return nil
	}
	return printTable(cmd, rows)
}

// destination is what a client would ask for: a name, or else an address, and the port, 0 if there is none.
type destination struct {
	text string
	name string
	addr netip.Addr
	port uint16
}

func parseDestination(s string) (destination, error) {
	d := destination{text: strings.Trim(strconv.Quote(s), `"`)}
	bare := s
	if inside, found := strings.CutPrefix(s, "["); found && strings.HasSuffix(inside, "]") {
		bare = strings.TrimSuffix(inside, "]")
	}
	if addr, err := netip.ParseAddr(bare); err == nil {
		d.addr = addr
		return d, nil
	}
	if pair, err := netip.ParseAddrPort(s); err == nil && pair.Port() != 0 {
		d.addr, d.port = pair.Addr(), pair.Port()
		return d, nil
	}
	host, port, hasPort := strings.Cut(s, ":")
	number, err := strconv.ParseUint(port, 10, 16)
	if host == "" || strings.ContainsAny(host, "*/[") || hasPort && (err != nil || number == 0) {
		return d, fmt.Errorf("%s is not one destination; write HOST:PORT, ADDRESS:PORT, HOST or ADDRESS", d.text)
	}
	d.name, d.port = host, uint16(number)
	return d, nil
}

func (d destination) explain(rules *matcher.Ruleset) explained {
	e := explained{Target: d.text, Asked: "connect"}
	var decision matcher.Decision
	switch {
	case d.name == "":
		if d.port == 0 {
			e.Asked = "ping"
		}
		decision = rules.Addr(d.addr, d.port)
	case d.port == 0:
		e.Asked = "look-up"
		decision = rules.Query(d.name)
	default:
		decision = rules.Name(d.name, d.port)
	}
	e.Verdict, e.Reason, e.Why = decision.Verdict.String(), decision.Reason, why(decision.Reason, rules.Mode())
	if decision.Rule != matcher.NoRule {
		e.Rule = rules.Target(decision.Rule).String()
	}
	return e
}

// why says a reason in words.
func why(r matcher.Reason, mode policy.Mode) string {
	switch r {
	case matcher.PublicMode:
		return "the mode is public"
	case matcher.NoNetworkMode:
		return "the mode is no-network"
	case matcher.NotDenied:
		return "denied_hosts does not name it"
	case matcher.NameRule, matcher.AddressRule:
		if mode == policy.Denylist {
			return "denied_hosts names it"
		}
		return "allowed_hosts names it"
	case matcher.NotListed:
		return "allowed_hosts does not name it"
	case matcher.PortNotListed:
		return "allowed_hosts names the host on other ports only"
	case matcher.Floor:
		return "the floor: only a target that names this very address opens it"
	case matcher.BadName:
		return "not a host name or address in its plain form"
	}
	return string(r)
}
