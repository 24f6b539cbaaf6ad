package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sluice/control"
)

func newHealth() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Say whether the proxy forwards",
		Long: `Health has the running proxy send bytes through itself, to an echo of its own and back, and says whether they came.
Clients do not see this, and it is in no record of theirs. The exit code is 1 if it does not work.

It asks through the control socket of --control, or like a client through --listen. With neither it finds the proxy that
runs in this container, or on this machine.`,
		Example: "  sluice-proxy health",
		Args:    cobra.NoArgs,
	}
	var dir, listen string
	cmd.Flags().StringVar(&dir, "control", "", "the `DIR` of the proxy's control socket")
	cmd.Flags().StringVar(&listen, "listen", "", "the `ADDR` on which the proxy serves its clients, if it has no control socket")
	asJSON := jsonFlag(cmd)
	timeout := cmd.Flags().Duration("timeout", 5*time.Second, "how long to wait for the answer")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, cancel := context.WithTimeoutCause(cmd.Context(), *timeout, fmt.Errorf("no answer within %v", *timeout))
		defer cancel()
		if dir == "" && listen == "" {
			found, err := findRunning("/proc")
			if err != nil {
				return failed(err)
			}
			dir, listen = found.control, found.listen
		}
		var h control.Health
		var err error
		if dir != "" {
			h, err = (&control.Client{Dir: dir}).Health(ctx)
		} else {
			first, _, _ := strings.Cut(listen, ",") // SLUICE_LISTEN may have more
			h, err = askListener(ctx, first)
		}
		if err != nil {
			return failed(err)
		}
		if *asJSON {
			if err := printJSON(cmd, h); err != nil {
				return err
			}
		}
		if !h.OK {
			return failed(errors.New("not healthy: " + strings.Join(h.Problems, "; ")))
		}
		if *asJSON {
			return nil
		}
		return printHealth(cmd, h)
	}
	return cmd
}

// askListener asks a proxy where its clients connect, in the way of RFC 9110 section 7.6.2. What only its control socket
// tells is not in the answer.
func askListener(ctx context.Context, address string) (control.Health, error) {
	var h control.Health
	if _, port, err := net.SplitHostPort(address); err != nil || port == "0" {
		return h, fmt.Errorf("the proxy listens on %s, which is no port to connect to: give --listen ADDR, or start the proxy with --control DIR", address)
	}
	began := time.Now()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return h, fmt.Errorf("%w: is the proxy running?", err)
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, err := io.WriteString(c, "OPTIONS * HTTP/1.1\r\nHost: sluice-proxy\r\nMax-Forwards: 0\r\nConnection: close\r\n\r\n"); err != nil {
		return h, cmp.Or(context.Cause(ctx), err)
	}
	answer, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: http.MethodOptions})
	if err != nil {
		return h, cmp.Or(context.Cause(ctx), fmt.Errorf("%s gives no answer that is understood: %w", address, err))
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<10))
		h.Problems = []string{cmp.Or(strings.TrimSpace(string(text)), answer.Status)}
		return h, nil
	}
	h.OK, h.Milliseconds = true, float64(time.Since(began))/float64(time.Millisecond)
	return h, nil
}

func printHealth(cmd *cobra.Command, h control.Health) error {
	text := fmt.Sprintf("healthy: through the proxy and back in %.1f ms\n", h.Milliseconds)
	if h.Version != "" { // it comes from the control socket, which knows more
		text = fmt.Sprintf("healthy: %s through the proxy and back in %.1f ms\n", plural(h.Sessions, "session"), h.Milliseconds)
	}
	if len(h.Problems) > 0 {
		text += "but: " + strings.Join(h.Problems, "; ") + "\n"
	}
	_, err := fmt.Fprint(cmd.OutOrStdout(), text)
	return failed(err)
}
