package convert

import (
	"strings"
	"testing"

	"sluice/policy"
)

// text shows a policy as "mode target target".
func text(p *policy.Policy) string {
	if p == nil {
		return "-"
	}
	words := []string{p.Mode.String()}
	for _, t := range p.Targets {
		words = append(words, t.String())
	}
	return strings.Join(words, " ")
}

func shown(r Result) string {
	if r.Policy != nil {
		return text(r.Policy)
	}
	var phases []string
	for _, p := range r.Phases {
		phases = append(phases, text(p))
	}
	return strings.Join(phases, " | ")
}

func TestConvert(t *testing.T) {
	for _, row := range []struct {
		name, format, in string
		o                Options
		want, err        string
	}{
		{"harbor-nothing", "harbor", "[metadata]\nauthor = 'x'\nneeds_network = true\n", Options{}, "public | public | public", ""},
		{"harbor-inherits", "harbor", "[environment]\nnetwork_mode = 'no-network'\n[agent]\ntimeout_sec = 5\n", Options{}, "no-network | no-network | no-network", ""},
		{"harbor-own", "harbor", "[environment]\nnetwork_mode = 'public'\n[agent]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['PyPI.org', '*.a.test', '10.0.0.0/8']\n[verifier]\nnetwork_mode = 'no-network'\n",
			Options{}, "public | allowlist *.a.test 10.0.0.0/8 pypi.org | no-network", ""},
		{"harbor-old-false", "harbor", "[environment]\nallow_internet = false\n", Options{}, "no-network | no-network | no-network", ""},
		{"harbor-old-true", "harbor", "[environment]\nallow_internet = true\n[agent]\nnetwork_mode = 'no-network'\n", Options{}, "public | no-network | public", ""},
		{"harbor-new-before-old", "harbor", "[environment]\nallow_internet = true\nnetwork_mode = 'no-network'\n", Options{}, "no-network | no-network | no-network", ""},
		{"harbor-empty-list", "harbor", "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = []\n", Options{}, "no-network | no-network | no-network", ""},
		{"harbor-hosts-alone", "harbor", "[agent]\nallowed_hosts = ['a.test']\n", Options{}, "", `[agent] has allowed_hosts without network_mode`},
		{"harbor-hosts-public", "harbor", "[agent]\nnetwork_mode='public'\nallowed_hosts = ['a.test']\n", Options{}, "", `[agent] has allowed_hosts, which belong to the mode allowlist, not to public`},
		{"harbor-port", "harbor", "[agent]\nnetwork_mode='allowlist'\nallowed_hosts = ['a.test:443']\n", Options{}, "", `"a.test:443" has a port, which Harbor does not know`},
		{"harbor-mode", "harbor", "[agent]\nnetwork_mode='closed'\n", Options{}, "", `[agent] network_mode: "closed": is not a known mode`},
		{"harbor-deny", "harbor", "[agent]\nnetwork_mode='denylist'\n", Options{}, "", "Harbor has no denylist"},
		{"harbor-agent-internet", "harbor", "[agent]\nallow_internet = true\n", Options{}, "", "[agent] has allow_internet, which belongs to [environment]"},
		{"harbor-verifier-environment", "harbor", "[verifier.environment]\nnetwork_mode='public'\n", Options{}, "", "[verifier.environment] has a network of its own"},
		{"harbor-steps", "harbor", "[[steps]]\nname='a'\n[[steps]]\n[steps.agent]\nnetwork_mode='public'\n", Options{}, "", "step 2 has a network of its own"},
		{"harbor-misspelt", "harbor", "[environment]\nnetwork_modes = 'no-network'\n", Options{}, "", "environment.network_modes is not read"},
		{"harbor-elsewhere", "harbor", "[environment.docker]\nallow_internet = false\n", Options{}, "", "environment.docker.allow_internet is not read"},
		{"harbor-toml", "harbor", "[agent\n", Options{}, "", "is not valid TOML"},

		{"e2b-open", "e2b", `{"template": "base", "metadata": {"network": "x"}}`, Options{}, "public", ""},
		{"e2b-closed", "e2b", `{"allow_internet_access": false}`, Options{}, "no-network", ""},
		{"e2b-allow", "e2b", `{"network": {"denyOut": ["0.0.0.0/0"], "allowOut": ["api.test", "*.b.test", "1.1.1.1", "8.8.8.0/24"]}}`, Options{},
			"allowlist *.b.test:80 *.b.test:443 1.1.1.1 8.8.8.0/24 api.test:80 api.test:443", ""},
		{"e2b-off-and-allow", "e2b", `{"allowInternetAccess": false, "allow_out": ["1.1.1.1"]}`, Options{}, "allowlist 1.1.1.1", ""},
		{"e2b-deny", "e2b", `{"deny_out": ["10.0.0.0/8", "1.1.1.1"]}`, Options{}, "denylist 1.1.1.1 10.0.0.0/8", ""},
		{"e2b-allow-alone", "e2b", `{"allow_out": ["1.1.1.1"]}`, Options{}, "", `allow_out without "0.0.0.0/0" in deny_out does not close the network`},
		{"e2b-exceptions", "e2b", `{"allow_out": ["10.1.0.0/16"], "deny_out": ["10.0.0.0/8"]}`, Options{}, "", "allow_out without"},
		{"e2b-deny-name", "e2b", `{"deny_out": ["a.test"]}`, Options{}, "", `deny_out: "a.test" is no address or network`},
		{"e2b-both", "e2b", `{"allow_out": ["1.1.1.1"], "allowOut": ["2.2.2.2"], "deny_out": ["0.0.0.0/0"]}`, Options{}, "", "allow_out and allowOut: keep one of them"},
		{"e2b-access", "e2b", `{"allow_internet_access": "no"}`, Options{}, "", "allow_internet_access is neither true nor false"},
		{"e2b-list", "e2b", `{"allow_out": "1.1.1.1", "deny_out": ["0.0.0.0/0"]}`, Options{}, "", "allow_out is not a list"},

		{"e2b-network-text", "e2b", `{"network": "closed"}`, Options{}, "", "network is not an object"},
		{"e2b-network-misspelt", "e2b", `{"network": {"denyouts": ["0.0.0.0/0"]}}`, Options{}, "", "network/denyouts is not known"},
		{"e2b-hidden", "e2b", `{"sandbox": {"network": {"deny_out": ["0.0.0.0/0"]}}}`, Options{}, "", "sandbox/network is not where E2B looks for it"},
		{"e2b-hidden-list", "e2b", `{"boxes": [{"a": 1}, {"allowInternetAccess": false}]}`, Options{}, "", "boxes/1/allowInternetAccess is not where E2B looks for it"},

		{"inspect-nothing", "inspect", "services: {default: {image: a}}\n", Options{}, "no-network", ""},
		{"inspect-lists", "inspect", "allowDomains: [pypi.org, files.pythonhosted.org]\nallowCIDR: [8.8.8.8/32]\n", Options{}, "allowlist 8.8.8.8/32 files.pythonhosted.org pypi.org", ""},
		{"inspect-world", "inspect", "allowEntities: [world]\n", Options{}, "public", ""},
		{"inspect-cluster", "inspect", "allowEntities: [kube-apiserver]\n", Options{}, "", `allowEntities: "kube-apiserver" is about a cluster`},
		{"inspect-wildcard", "inspect", "allowDomains: ['*.a.test']\n", Options{}, "", `"*.a.test" is one label under a.test in Inspect, and any number of labels in a policy; name what is meant instead, or accept the difference with --accept-wider`},
		{"inspect-wildcard-wider", "inspect", "allowDomains: ['*.a.test']\n", Options{Wider: true}, "allowlist *.a.test", ""},
		{"inspect-star", "inspect", "allowDomains: ['*']\n", Options{}, "", "the policy public is every address"},
		{"inspect-star-wider", "inspect", "allowDomains: ['*']\n", Options{Wider: true}, "public", ""},
		{"inspect-inner-star", "inspect", "allowDomains: ['a*.test']\n", Options{Wider: true}, "", `"a*.test" has a star that a policy cannot have`},
		{"inspect-bad-cidr", "inspect", "allowCIDR: [8.8.8.8/8]\n", Options{}, "", "8.8.8.8/8"},

		{"squid-list", "squid", "# allowed\n.example.com  pypi.org\n\n10.0.0.1 # one\n", Options{}, "allowlist *.example.com 10.0.0.1 example.com pypi.org", ""},
		{"squid-deny", "squid", ".ads.test\n", Options{Deny: true}, "denylist *.ads.test ads.test", ""},
		{"squid-acl", "squid", "acl ok dstdomain -n .a.test\r\nacl ok dst 10.0.0.0/8 2001:db8::/32\n", Options{}, "allowlist *.a.test 10.0.0.0/8 2001:db8::/32 a.test", ""},
		{"squid-two-acls", "squid", "acl ok dstdomain a.test\nacl bad dstdomain b.test\n", Options{}, "", "has 2 acls"},
		{"squid-regex", "squid", "acl ok dstdom_regex ^a\n", Options{}, "", `line 1: acls of the type "dstdom_regex" are not about destinations by name or address`},
		{"squid-conf", "squid", "http_access allow ok\n", Options{}, "", `"http_access"`},
		{"squid-file", "squid", "acl ok dstdomain \"/etc/squid/ok\"\n", Options{}, "", "names another file: import that one"},
		{"squid-range", "squid", "acl ok dst 10.0.0.1-10.0.0.9\n", Options{}, "", "is a range of addresses: write networks"},
		{"squid-all", "squid", "acl bad dst all\n", Options{Deny: true}, "", `"all" stands for many addresses in Squid`},
		{"squid-ipv6", "squid", "acl bad dst 10.0.0.1 ipv6\n", Options{Deny: true}, "", `"ipv6" stands for many addresses in Squid`},
		{"squid-port", "squid", "a.test:443\n", Options{}, "", "is not how Squid names a destination"},
		{"squid-url", "squid", "http://a.test/\n", Options{}, "", "is a URL"},
		{"squid-empty", "squid", "# nothing\n", Options{}, "", "holds no destination"},

		{"unknown", "nginx", "", Options{}, "", `"nginx" is not a known format: write e2b, harbor, inspect, squid`},
		{"empty", "e2b", "", Options{}, "", "is empty"},
	} {
		t.Run(row.name, func(t *testing.T) {
			r, err := Convert(row.format, []byte(row.in), row.o)
			if row.err != "" {
				if err == nil || !strings.Contains(err.Error(), row.err) {
					t.Errorf("got %s, %v; want the error %s", shown(r), err, row.err)
				}
				return
			}
			if err != nil || shown(r) != row.want {
				t.Fatalf("got %s, %v; want %s", shown(r), err, row.want)
			}
			document, err := r.Document()
			if err != nil {
				t.Fatal(err)
			}
			back, err := policy.Parse(document)
			if err != nil || shown(Result{Policy: back.Policy, Phases: back.Phases}) != row.want {
				t.Errorf("the document %s is read as %+v, %v", document, back, err)
			}
		})
	}
}

func FuzzConvert(f *testing.F) {
	for _, format := range Formats() {
		f.Add(format, []byte("[agent]\nnetwork_mode='public'\n"), true)
		f.Add(format, []byte(`{"allow_out":["a.test"],"deny_out":["0.0.0.0/0"],"allowDomains":["*"]}`), false)
		f.Add(format, []byte("acl a dstdomain .a.test"), false)
	}
	f.Fuzz(func(t *testing.T, format string, in []byte, wider bool) {
		r, err := Convert(format, in, Options{Wider: wider})
		if err != nil {
			return
		}
		document, err := r.Document()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := policy.Parse(document); err != nil {
			t.Errorf("%s, %q: %s: %v", format, in, document, err)
		}
	})
}
