package harbor

import (
	"log/slog"

	"sluice/proxy/audit"
)

// Config of a sidecar. All fields are needed.
type Config struct {
	// Mode and Hosts are what the variables ModeVariable and HostsVariable have.
	Mode, Hosts string
	// Ready is a file that is there while a policy is in force, Socket is where [Ask] asks.
	Ready, Socket string
	// ResolvConf names the DNS servers, as in resolv.conf(5).
	ResolvConf string
	Version    string
	Log        *slog.Logger
	// Audit takes a record of each connection. The caller closes it when Run has returned.
	Audit *audit.Writer
}
