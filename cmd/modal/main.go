// Command sluice-modal puts outbound lists in force in a running sandbox of Modal, by Modal's Go SDK. It is a program of
// its own because the SDK is nearly as large as sluice, which runs it for "sluice apply --provider modal":
//
//	sluice-modal SANDBOX <settings.json
//
// The settings are {"outbound_domain_allowlist": [...], "outbound_cidr_allowlist": [...]}; two empty lists are no access.
// The token comes from MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, never from a file. The exit code is 0 when the lists are in
// force, 1 when they are not or that is not known, 2 for wrong usage.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	callTimeout      = 90 * time.Second
	maxSettingsBytes = 1 << 20
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stderr)) }

func run(ctx context.Context, args []string, stdin io.Reader, stderr io.Writer) int {
	if len(args) != 1 {
		fmt.Fprintln(stderr, "usage: sluice-modal SANDBOX <settings.json")
		return 2
	}
	if err := apply(ctx, args[0], stdin); err != nil {
		text := err.Error()
		for _, name := range []string{"MODAL_TOKEN_SECRET", "MODAL_TOKEN_ID"} {
			if secret := os.Getenv(name); secret != "" {
				text = strings.ReplaceAll(text, secret, "xxxxx")
			}
		}
		fmt.Fprintln(stderr, text)
		return 1
	}
	return 0
}

// settings are both lists; a missing one is an error, for the SDK would leave that one as it is.
type settings struct {
	Domains  *[]string `json:"outbound_domain_allowlist"`
	Networks *[]string `json:"outbound_cidr_allowlist"`
}

func readSettings(in io.Reader) (settings, error) {
	var s settings
	d := json.NewDecoder(io.LimitReader(in, maxSettingsBytes))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return s, fmt.Errorf("settings: %w", err)
	}
	if s.Domains == nil || s.Networks == nil {
		return s, errors.New("settings: outbound_domain_allowlist and outbound_cidr_allowlist are both needed")
	}
	return s, nil
}

var sandboxID = regexp.MustCompile(`^sb-[A-Za-z0-9_-]{1,120}$`)

func apply(ctx context.Context, sandbox string, in io.Reader) error {
	s, err := readSettings(in)
	if err != nil {
		return err
	}
	if !sandboxID.MatchString(sandbox) {
		return fmt.Errorf("%.40q is no id of a sandbox: it begins with sb-", sandbox)
	}
	client, err := connect()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	sb, err := client.Sandboxes.FromID(ctx, sandbox, nil)
	if err != nil {
		return fmt.Errorf("sandbox %s: %w", sandbox, err)
	}
	err = sb.UpdateNetworkPolicy(ctx, &modal.SandboxUpdateNetworkPolicyParams{
		OutboundDomainAllowlist: &modal.Allowlist{Entries: *s.Domains},
		OutboundCIDRAllowlist:   &modal.Allowlist{Entries: *s.Networks},
	})
	switch {
	case err == nil:
		return nil
	case status.Code(err) == codes.Unimplemented:
		return fmt.Errorf("sandbox %s: Modal lacks the call that changes the network of a running sandbox: upgrade its SDK, then try one task: %w", sandbox, err)
	}
	return fmt.Errorf("sandbox %s: %w: what is in force is not known", sandbox, err)
}

// connect makes a client of what the environment says, and of nothing else.
func connect() (*modal.Client, error) {
	if os.Getenv("MODAL_TOKEN_ID") == "" || os.Getenv("MODAL_TOKEN_SECRET") == "" {
		return nil, errors.New("MODAL_TOKEN_ID and MODAL_TOKEN_SECRET are not set")
	}
	if server := os.Getenv("MODAL_SERVER_URL"); server != "" {
		u, err := url.Parse(server)
		if err != nil || u.Host == "" {
			return nil, errors.New("MODAL_SERVER_URL is no URL")
		}
		addr, err := netip.ParseAddr(u.Hostname())
		if u.Scheme != "https" && (err != nil || !addr.IsLoopback()) {
			return nil, errors.New("MODAL_SERVER_URL is not https, so everybody on the way could read the token")
		}
	}
	if err := os.Setenv("MODAL_CONFIG_PATH", os.DevNull); err != nil { // no file has a say
		return nil, err
	}
	client, err := modal.NewClient()
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return client, nil
}
