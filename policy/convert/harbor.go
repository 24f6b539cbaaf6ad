package convert

import (
	"fmt"
	"regexp"

	"github.com/BurntSushi/toml"

	"sluice/policy"
)

// harborNetwork is what a section of a task.toml says of the network.
type harborNetwork struct {
	Mode          *string   `toml:"network_mode"`
	Hosts         *[]string `toml:"allowed_hosts"`
	AllowInternet *bool     `toml:"allow_internet"` // older, of the environment only
}

func (n harborNetwork) silent() bool {
	return n.Mode == nil && n.Hosts == nil && n.AllowInternet == nil
}

// harborUnread are names of settings that nobody may overlook: what they restrict would be open.
var harborUnread = regexp.MustCompile(`(?i)network|internet|allowed?_?host`)

// harbor reads a task.toml of Harbor 0.25.0 and of Terminal-Bench 2: environment is the baseline, agent the run,
// verifier the evaluation. A section that says nothing has the environment's network.
func harbor(data []byte, _ Options) (Result, error) {
	var task struct {
		Environment harborNetwork `toml:"environment"`
		Agent       harborNetwork `toml:"agent"`
		Verifier    struct {
			harborNetwork
			Environment *harborNetwork `toml:"environment"`
		} `toml:"verifier"`
		Steps []struct {
			Agent    harborNetwork `toml:"agent"`
			Verifier harborNetwork `toml:"verifier"`
		} `toml:"steps"`
	}
	known, err := toml.Decode(string(data), &task)
	if err != nil {
		return Result{}, fmt.Errorf("is not valid TOML: %w", err)
	}
	for _, key := range known.Undecoded() {
		if name := key[len(key)-1]; key[0] != "metadata" && harborUnread.MatchString(name) {
			return Result{}, fmt.Errorf("%s is not read, though it seems to be about the network: write network_mode and allowed_hosts in [environment], [agent] or [verifier], or take it out", key)
		}
	}
	if e := task.Verifier.Environment; e != nil && !e.silent() {
		return Result{}, fmt.Errorf("[verifier.environment] has a network of its own, which no phase of ours stands for: write the policies yourself")
	}
	for i, s := range task.Steps {
		if !s.Agent.silent() || !s.Verifier.silent() {
			return Result{}, fmt.Errorf("step %d has a network of its own: write a task for each step", i+1)
		}
	}
	r := Result{}
	environment, err := task.Environment.policy("environment")
	if err != nil {
		return Result{}, err
	}
	if environment == nil {
		environment = &policy.Policy{Mode: policy.Public}
	}
	r.Phases = policy.Layer{environment, environment, environment}
	for _, section := range []struct {
		phase policy.Phase
		name  string
		harborNetwork
	}{{policy.Run, "agent", task.Agent}, {policy.Evaluation, "verifier", task.Verifier.harborNetwork}} {
		p, err := section.policy(section.name)
		if err != nil {
			return Result{}, err
		}
		if p != nil {
			r.Phases[section.phase] = p
		}
	}
	return r, nil
}

// policy is nil if the section says nothing.
func (n harborNetwork) policy(section string) (*policy.Policy, error) {
	if n.AllowInternet != nil && section != "environment" {
		return nil, fmt.Errorf("[%s] has allow_internet, which belongs to [environment]: write network_mode", section)
	}
	if n.Mode == nil {
		switch {
		case n.Hosts != nil:
			return nil, fmt.Errorf("[%s] has allowed_hosts without network_mode: add network_mode = \"allowlist\"", section)
		case n.AllowInternet == nil:
			return nil, nil
		case *n.AllowInternet:
			return &policy.Policy{Mode: policy.Public}, nil
		}
		return &policy.Policy{}, nil
	}
	mode, err := policy.ParseMode(*n.Mode)
	if err != nil {
		return nil, fmt.Errorf("[%s] network_mode: %w", section, err)
	}
	var hosts []string
	if n.Hosts != nil {
		hosts = *n.Hosts
	}
	switch {
	case mode == policy.Denylist:
		return nil, fmt.Errorf("[%s] network_mode: Harbor has no denylist", section)
	case mode != policy.Allowlist && len(hosts) > 0:
		return nil, fmt.Errorf("[%s] has allowed_hosts, which belong to the mode allowlist, not to %s", section, mode)
	case mode != policy.Allowlist:
		return &policy.Policy{Mode: mode}, nil
	}
	p, err := list(mode, hosts) // an empty list allows nothing, as in Harbor
	if err != nil {
		return nil, fmt.Errorf("[%s] %w", section, err)
	}
	for _, t := range p.Targets {
		if t.Port != 0 {
			return nil, fmt.Errorf("[%s] allowed_hosts: %q has a port, which Harbor does not know", section, t)
		}
	}
	return p, nil
}
