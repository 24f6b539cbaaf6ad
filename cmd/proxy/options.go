package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"sluice/matcher"
	"sluice/policy"
	"sluice/proxy/resolve"
)

// options are the settings of serve.
type options struct {
	policy       string
	phase        string
	listen       []string
	user         string
	passwordFile string

	switches
}

// add adds the flags of serve. What o holds are their defaults.
func (o *options) add(flags *pflag.FlagSet) {
	flags.SortFlags = false
	flags.StringVar(&o.policy, "policy", "", "the policy `FILE` to follow")
	flags.StringVar(&o.phase, "phase", o.phase, "the `PHASE` to begin with: baseline, run or evaluation")
	flags.StringSliceVar(&o.listen, "listen", o.listen, "serve HTTP proxy clients on `ADDR`")
	flags.StringVar(&o.user, "user", "", "ask clients for the user `NAME`, with the password in SLUICE_PASSWORD or --password-file")
	flags.StringVar(&o.passwordFile, "password-file", "", "the `FILE` that holds the password")
	o.switches.add(flags)
}

// switches are the settings that a personality leaves to the user.
type switches struct {
	dns, metrics, control, audit                   string
	upstreams, privateZones, never                 []string
	resolveForAddressRules, wildcardPrivate, floor bool
	drain, idle                                    time.Duration
}

// defaultDrain lets what is under way end as far as "docker stop" does, which kills after ten seconds: the rest of them
// is for resetting what is left and writing the last records.
const defaultDrain = 8 * time.Second

// add adds the flags. What s holds are their defaults.
func (s *switches) add(flags *pflag.FlagSet) {
	flags.StringVar(&s.dns, "dns", s.dns, "filter DNS on `ADDR`, UDP and TCP, as in :53 (default off)")
	flags.StringSliceVar(&s.upstreams, "upstream", s.upstreams, "DNS servers, as `ADDR` or ADDR:PORT (default those of /etc/resolv.conf)")
	flags.StringVar(&s.metrics, "metrics", s.metrics, "serve /metrics for Prometheus, and /health, on `ADDR`, as in :9464 (default off)")
	flags.StringVar(&s.control, "control", s.control, "bind control.sock in `DIR`, for ctl and health (default off)")
	flags.StringVar(&s.audit, "audit", s.audit, "write an audit record of each connection to `FILE`; - is stdout, none is none; SIGHUP reopens it")
	flags.StringSliceVar(&s.privateZones, "private-zone", s.privateZones, "a `DOMAIN` whose names may have private addresses under a wildcard")
	flags.StringSliceVar(&s.never, "never", s.never, "a `NETWORK` that is not dialled whatever the policy says, as in 192.0.2.0/24")
	flags.BoolVar(&s.wildcardPrivate, "wildcard-private", s.wildcardPrivate, "let names under any wildcard have private addresses")
	flags.BoolVar(&s.resolveForAddressRules, "resolve-for-address-rules", s.resolveForAddressRules, "look up names that an allowlist does not list, for the sake of its addresses")
	flags.DurationVar(&s.idle, "idle-timeout", s.idle, "reset connections in which no byte has moved either way for so `LONG`, 1s or more; 0 is never")
	flags.DurationVar(&s.drain, "drain", s.drain, "after SIGTERM or SIGINT, let open connections end for so `LONG` before they are reset; 0 is not at all")
	flags.BoolVar(&s.floor, "floor", s.floor, "refuse loopback, link-local, metadata and such addresses unless a target names them")
}

func (s *switches) matcher() (matcher.Options, error) {
	o := matcher.Options{
		PrivateZones: s.privateZones, WildcardPrivate: s.wildcardPrivate,
		ResolveForAddressRules: s.resolveForAddressRules, NoFloor: !s.floor,
	}
	for _, text := range s.never {
		n, err := netip.ParsePrefix(text)
		if err != nil {
			return o, fmt.Errorf("--never %q: write a network, as in 192.0.2.0/24, or 192.0.2.1/32 for one address", text)
		}
		o.Never = append(o.Never, n.Masked())
	}
	return o, nil
}

// defaults are those of the command line.
func defaults() options {
	return options{
		phase: policy.Baseline.String(), listen: []string{":8080"},
		switches: switches{audit: "-", floor: true, drain: defaultDrain},
	}
}

// credentials returns the user and password that clients must give, or none. The password is never a flag, because
// command lines can be seen by everybody on the machine.
func (o *options) credentials(sys system) (user, password string, err error) {
	password = sys.env("SLUICE_PASSWORD")
	if o.passwordFile != "" {
		if password != "" {
			return "", "", errors.New("--password-file and SLUICE_PASSWORD are both given: give one")
		}
		text, err := os.ReadFile(o.passwordFile)
		if err != nil {
			return "", "", failed(fmt.Errorf("password file: %w", err))
		}
		if password = strings.TrimRight(string(text), "\r\n"); password == "" {
			return "", "", failed(fmt.Errorf("password file %s is empty: write the password into it", o.passwordFile))
		}
	}
	switch {
	case o.user != "" && password == "":
		return "", "", errors.New("--user without a password: set SLUICE_PASSWORD or give --password-file")
	case o.user == "" && password != "":
		return "", "", errors.New("a password without a user: give --user")
	case strings.Contains(o.user, ":"):
		return "", "", errors.New("--user holds a colon, which Basic authentication cannot carry (RFC 7617)")
	}
	return o.user, password, nil
}

// parseUpstreams reads DNS servers, or takes those of the machine.
func parseUpstreams(list []string) ([]netip.AddrPort, error) {
	if len(list) == 0 {
		return resolve.Upstreams(resolvConfPath)
	}
	var servers []netip.AddrPort
	for _, one := range list {
		if addr, err := netip.ParseAddr(one); err == nil {
			servers = append(servers, netip.AddrPortFrom(addr, 53))
			continue
		}
		server, err := netip.ParseAddrPort(one)
		if err != nil || server.Port() == 0 {
			return nil, fmt.Errorf("--upstream %q: write an address, as in 192.0.2.53, 192.0.2.53:5353 or [2001:db8::53]:53", one)
		}
		servers = append(servers, server)
	}
	return servers, nil
}
