// Package daytona puts a policy in force in a sandbox of Daytona, by the HTTP call that its SDKs make:
// POST /sandbox/{id}/network-settings, with a bearer token.
package daytona

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode"

	"sluice/policy/provider"
)

// DefaultURL is where Daytona's API is if DAYTONA_API_URL does not say otherwise.
const DefaultURL = "https://app.daytona.io/api"

const (
	requestTimeout = 60 * time.Second
	maxAnswerBytes = 1 << 20
	maxShownBytes  = 200 // of an answer in an error
)

// Client makes calls for one account. It is safe for concurrent use.
type Client struct {
	url          string
	token        string // never in errors
	organization string
	http         *http.Client
}

// FromEnvironment makes a client of DAYTONA_API_KEY (or DAYTONA_JWT_TOKEN with DAYTONA_ORGANIZATION_ID) and
// DAYTONA_API_URL. Nothing else says who the caller is.
func FromEnvironment() (*Client, error) {
	c := &Client{url: os.Getenv("DAYTONA_API_URL"), token: os.Getenv("DAYTONA_API_KEY")}
	if c.token == "" {
		c.token, c.organization = os.Getenv("DAYTONA_JWT_TOKEN"), os.Getenv("DAYTONA_ORGANIZATION_ID")
		if c.token == "" || c.organization == "" {
			return nil, errors.New("DAYTONA_API_KEY is not set; set it, or DAYTONA_JWT_TOKEN and DAYTONA_ORGANIZATION_ID")
		}
	}
	if c.url == "" {
		c.url = DefaultURL
	}
	u, err := url.Parse(c.url)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" {
		return nil, errors.New("DAYTONA_API_URL is not the URL of an API: write it as in " + DefaultURL)
	}
	if u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())) {
		return nil, errors.New("DAYTONA_API_URL is not https, so everybody on the way could read the key: write it as in " + DefaultURL)
	}
	c.url = strings.TrimSuffix(c.url, "/")
	c.http = &http.Client{Timeout: requestTimeout,
		// The key goes nowhere else.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

// settings is the body of the call, and what the answer repeats.
type settings struct {
	BlockAll *bool   `json:"networkBlockAll,omitempty"`
	Networks *string `json:"networkAllowList,omitempty"`
	Domains  *string `json:"domainAllowList,omitempty"`
}

var sandboxID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// Apply puts settings in force in a sandbox. It fails if Daytona does not confirm exactly these.
func (c *Client) Apply(ctx context.Context, sandbox string, want provider.Daytona) error {
	if !sandboxID.MatchString(sandbox) {
		return fmt.Errorf("%.40q is no id of a sandbox", sandbox)
	}
	body := settings{BlockAll: want.BlockAll}
	if want.Networks != "" {
		body.Networks = &want.Networks
	}
	if want.Domains != "" {
		body.Domains = &want.Domains
	}
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url+"/sandbox/"+sandbox+"/network-settings", bytes.NewReader(text))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if c.organization != "" {
		req.Header.Set("X-Daytona-Organization-ID", c.organization)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("sandbox %s: %w: what is in force is not known", sandbox, err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("sandbox %s: %w: what is in force is not known", sandbox, err)
	}
	if resp.StatusCode != http.StatusOK {
		return c.refused(sandbox, resp.StatusCode, answer)
	}
	return c.confirmed(sandbox, want, answer)
}

// refused is the error for an answer that is no success.
func (c *Client) refused(sandbox string, status int, answer []byte) error {
	advice := ""
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		advice = "check the key in the environment"
	case http.StatusNotFound:
		advice = "there is no such sandbox, or this Daytona cannot change the network of a running one: upgrade it, then try one task"
	case http.StatusMethodNotAllowed, http.StatusNotImplemented:
		advice = "this Daytona cannot change the network of a running sandbox: upgrade it, then try one task"
	default:
		advice = "nothing is known to have changed"
	}
	return fmt.Errorf("sandbox %s: Daytona answers %d %s%s: %s", sandbox, status, http.StatusText(status), c.shown(answer), advice)
}

// shown is a part of an answer that may be shown.
func (c *Client) shown(answer []byte) string {
	text := strings.ReplaceAll(string(answer), c.token, "xxxxx")
	text = strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
	if len(text) > maxShownBytes {
		text = strings.ToValidUTF8(text[:maxShownBytes], "") + "..."
	}
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return " (" + text + ")"
}

// confirmed checks that the sandbox in an answer has the settings that were asked for, and no others.
func (c *Client) confirmed(sandbox string, want provider.Daytona, answer []byte) error {
	var got settings
	if err := json.Unmarshal(answer, &got); err != nil {
		return fmt.Errorf("sandbox %s: Daytona's answer is not read: %w: what is in force is not known", sandbox, err)
	}
	has := func(p *string) string { // in one order, for Daytona may have its own
		if p == nil {
			return ""
		}
		return sorted(*p)
	}
	blocks := got.BlockAll != nil && *got.BlockAll
	wantBlocks := want.BlockAll != nil && *want.BlockAll
	if blocks != wantBlocks || has(got.Domains) != sorted(want.Domains) || has(got.Networks) != sorted(want.Networks) {
		return fmt.Errorf("sandbox %s: Daytona confirms other settings than those asked for%s: what is in force is not the policy",
			sandbox, c.shown(fmt.Appendf(nil, "blocked %v, domains %q, networks %q", blocks, has(got.Domains), has(got.Networks))))
	}
	return nil
}

// sorted is a list, separated by commas, in a fixed order without spaces.
func sorted(list string) string {
	items := strings.Split(strings.ReplaceAll(list, " ", ""), ",")
	slices.Sort(items)
	return strings.Join(items, ",")
}
