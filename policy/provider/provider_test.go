package provider

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sluice/policy"
)

// read makes phases of a text like "public | allow a.test *.b.test | none".
func read(t *testing.T, text string) policy.Phases {
	t.Helper()
	var phases policy.Phases
	for i, one := range strings.Split(text, "|") {
		words := strings.Fields(one)
		p := policy.Policy{Mode: map[string]policy.Mode{"public": policy.Public, "none": policy.NoNetwork, "allow": policy.Allowlist, "deny": policy.Denylist}[words[0]]}
		for _, w := range words[1:] {
			target, err := policy.ParseTarget(w)
			if err != nil {
				t.Fatal(err)
			}
			p.Targets = append(p.Targets, target)
		}
		phases[i] = p
	}
	return phases
}

func TestSettings(t *testing.T) {
	for _, row := range []struct {
		name, provider, phases string
		fresh                  bool
		want                   string
	}{
		{"host-public", "host_process", "public | public | public", false, `{"create":{}}`},
		{"daytona-same", "daytona", "none | none | none", false, `{"create":{"network_block_all":true}}`},
		{"daytona-switch", "daytona", "public | allow a.test *.b.test | none", false,
			`{"create":{"network_block_all":false},"update":{"baseline":{"network_block_all":false},"evaluation":{"network_block_all":true},"run":{"domain_allow_list":"a.test,*.b.test"}}}`},
		{"daytona-networks", "daytona", "allow 192.0.2.1 198.51.100.0/24 | allow 192.0.2.1 198.51.100.0/24 | allow 192.0.2.1 198.51.100.0/24", false,
			`{"create":{"network_allow_list":"192.0.2.1/32,198.51.100.0/24"}}`},
		{"daytona-fresh-same", "daytona", "public | public | public", true, `{"create":{"network_block_all":false},"evaluation_create":{"network_block_all":false}}`},
		{"modal-same", "modal", "public | public | public", false, `{"create":{"block_network":false,"outbound_domain_allowlist":[],"outbound_cidr_allowlist":[]}}`},
		{"modal-switch", "modal", "public | none | allow a.test 2001:db8::1 192.0.2.1 2001:db8::/32", false,
			`{"create":{"block_network":false,"outbound_domain_allowlist":["*"],"outbound_cidr_allowlist":["0.0.0.0/0"]},"update":{` +
				`"baseline":{"outbound_domain_allowlist":["*"],"outbound_cidr_allowlist":["0.0.0.0/0"]},` +
				`"evaluation":{"outbound_domain_allowlist":["a.test"],"outbound_cidr_allowlist":["2001:db8::1/128","192.0.2.1/32","2001:db8::/32"]},` +
				`"run":{"outbound_domain_allowlist":[],"outbound_cidr_allowlist":[]}}}`},
		{"modal-fresh", "modal", "public | public | none", true,
			`{"create":{"block_network":false,"outbound_domain_allowlist":[],"outbound_cidr_allowlist":[]},` +
				`"evaluation_create":{"block_network":false,"outbound_domain_allowlist":["*"],"outbound_cidr_allowlist":["0.0.0.0/0"]},"update":{` +
				`"baseline":{"outbound_domain_allowlist":["*"],"outbound_cidr_allowlist":["0.0.0.0/0"]},` +
				`"evaluation":{"outbound_domain_allowlist":[],"outbound_cidr_allowlist":[]},` +
				`"run":{"outbound_domain_allowlist":["*"],"outbound_cidr_allowlist":["0.0.0.0/0"]}}}`},
		{"docker", "docker", "public | none | deny evil.test:443", false,
			`{"create":{"policy":{"baseline_network_policy":{"network_mode":"public","allowed_hosts":[],"denied_hosts":[]},"run_network_policy":{"network_mode":"no-network","allowed_hosts":[],"denied_hosts":[]},` +
				`"evaluation_network_policy":{"network_mode":"denylist","allowed_hosts":[],"denied_hosts":[{"host":"evil.test","port":443}]}},"phase":"baseline"},` +
				`"update":{"baseline":{"phase":"baseline"},"evaluation":{"phase":"evaluation"},"run":{"phase":"run"}}}`},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := Find(row.provider)
			if err != nil {
				t.Fatal(err)
			}
			got, err := p.Settings(Spec{Phases: read(t, row.phases), Fresh: row.fresh})
			text, _ := json.Marshal(got)
			if err != nil || string(text) != row.want {
				t.Errorf("\n got %s, %v\nwant %s", text, err, row.want)
			}
		})
	}
}

func many(format string, n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, " "+format, i)
	}
	return b.String()
}

func TestRefusals(t *testing.T) {
	const accept = `if you accept another network than the task was made for, override it: --env-params '{"%s": "%s"}'`
	override := func(field, mode string) string { return fmt.Sprintf(accept, field, mode) }
	run, eval := override("run_network_policy", "no-network"), override("evaluation_network_policy", "no-network")
	const daytonaEntries = "daytona takes up to 20 domains or up to 10 IPv4 networks, never both"
	for _, row := range []struct {
		name, provider, phases, network string
		fresh, older                    bool
		want                            string // "" is accepted
	}{
		{"host-none", "host_process", "public | none | public", "", false, false,
			"run_network_policy: the mode no-network; host_process enforces public only; " + override("run_network_policy", "public")},
		{"daytona-deny", "daytona", "public | deny a.test | public", "", false, false,
			"run_network_policy: the mode denylist; daytona enforces public, no-network and allowlist; " + run},
		{"daytona-port", "daytona", "public | public | allow a.test:443", "", false, false,
			`evaluation_network_policy: "a.test:443" has a port; daytona enforces no ports; write "a.test" if every port of it may be reached, or ` + eval},
		{"daytona-v6", "daytona", "public | allow 2001:db8::1 | public", "", false, false,
			`run_network_policy: "2001:db8::1" is of the kind ipv6-address; daytona enforces hostname, wildcard-hostname, ipv4-address and ipv4-cidr; ` + run},
		{"daytona-mix", "daytona", "public | allow a.test 192.0.2.1 | public", "", false, false,
			"run_network_policy: mixes 1 domains and 1 networks; " + daytonaEntries + "; keep one kind of entries, or " + run},
		{"daytona-20", "daytona", "public | allow" + many("a%d.test", 20) + " | public", "", false, false, ""},
		{"daytona-21", "daytona", "public | allow" + many("a%d.test", 21) + " | public", "", false, false,
			"run_network_policy: has 21 domains; " + daytonaEntries + "; name fewer, or " + run},
		{"daytona-10", "daytona", "public | allow" + many("192.0.2.%d", 10) + " | public", "", false, false, ""},
		{"daytona-11", "daytona", "public | allow" + many("192.0.2.%d", 11) + " | public", "", false, false,
			"run_network_policy: has 11 networks; " + daytonaEntries + "; name fewer, or " + run},
		{"modal-deny", "modal", "public | deny a.test | public", "", false, false,
			"run_network_policy: the mode denylist; modal enforces public, no-network and allowlist; " + run},
		{"modal-port", "modal", "public | allow [2001:db8::1]:1 | public", "", false, false,
			`run_network_policy: "[2001:db8::1]:1" has a port; modal enforces no ports; write "2001:db8::1" if every port of it may be reached, or ` + run},
		{"modal-mix", "modal", "public | allow a.test 192.0.2.1 2001:db8::/32 | public", "", false, false, ""},
		{"docker-bridge", "docker", "public | none | public", "my-bridge", false, false, ""},
		{"docker-host", "docker", "public | none | none", "host", false, false,
			`evaluation_network_policy: differs from another phase of the same Environment; docker needs a bridge network for that, and the parameter network is "host"; remove the parameter network, or name a bridge network, or ` + eval},
		{"docker-none", "docker", "public | none | public", "none", true, false,
			`run_network_policy: differs from another phase of the same Environment; docker needs a bridge network for that, and the parameter network is "none"; remove the parameter network, or name a bridge network, or ` + run},
		{"docker-container", "docker", "allow a.test | allow a.test | allow a.test", "container:x", false, false,
			`evaluation_network_policy: the mode allowlist; docker needs a bridge network for that, and the parameter network is "container:x"; remove the parameter network, or name a bridge network, or ` + eval},
		{"docker-none-same", "docker", "none | none | none", "none", false, false, ""},
		{"docker-host-public", "docker", "public | public | public", "host", false, false, ""},
		{"docker-host-no-network", "docker", "none | none | none", "host", false, false,
			`evaluation_network_policy: the mode no-network; docker needs a bridge network for that, and the parameter network is "host"; remove the parameter network, or name a bridge network, or ` + eval},
		{"older", "host_process", "none | public | none", "", false, true,
			"network_policy: the mode no-network; host_process enforces public only; " + override("network_policy", "public") + "\n" +
				"verifier_network_policy: the mode no-network; host_process enforces public only; " + override("verifier_network_policy", "public")},
	} {
		t.Run(row.name, func(t *testing.T) {
			p, err := Find(row.provider)
			if err != nil {
				t.Fatal(err)
			}
			s := Spec{Phases: read(t, row.phases), Fresh: row.fresh, Older: row.older, Params: map[string]string{"network": row.network}}
			got := ""
			if err := p.Check(s); err != nil {
				got = err.Error()
			}
			if got != row.want {
				t.Errorf("\n got %s\nwant %s", got, row.want)
			}
			if settings, err := p.Settings(s); (err != nil) != (row.want != "") || err != nil && settings.Create != nil {
				t.Errorf("settings: %+v, %v", settings, err)
			}
		})
	}
}

func TestOptionsAreDockers(t *testing.T) {
	for _, name := range Names() {
		p, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		s := Spec{}
		for i := range s.Phases {
			s.Phases[i] = policy.Policy{Mode: policy.Public, Options: policy.Options{Inbound: policy.InboundNone}}
		}
		if err := p.Check(s); (err == nil) != (name == "docker") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Find("e2b"); err == nil || !strings.Contains(err.Error(), "daytona, docker, host_process, modal") {
		t.Errorf("unknown: %v", err)
	}
}
