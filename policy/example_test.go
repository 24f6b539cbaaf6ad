package policy_test

import (
	"fmt"

	"sluice/policy"
)

func ExampleParse() {
	_, err := policy.Parse([]byte(`
run_network_policy:
  network_mode: allowlist
  allowed_hosts: ["https://api.example.com/v1", "10.0.0.5/8"]
`))
	fmt.Println(err)
	// Output:
	// /run_network_policy/allowed_hosts/0: "https://api.example.com/v1": is a URL; write "api.example.com", or "api.example.com:443" for that port only
	// /run_network_policy/allowed_hosts/1: "10.0.0.5/8": is not a network: its address has bits behind the prefix; write "10.0.0.0/8" for the network or "10.0.0.5/32" for the address
}

func ExampleTarget_String() {
	for _, s := range []string{"PyPI.org.", "[2001:DB8::1]:443", "10.0.0.0/8:443"} {
		t, err := policy.ParseTarget(s)
		fmt.Println(t, t.Kind, err)
	}
	// Output:
	// pypi.org hostname <nil>
	// [2001:db8::1]:443 ipv6-address <nil>
	// 10.0.0.0/8:443 ipv4-cidr <nil>
}
