// Package proxy is the data plane: it accepts, sniffs, resolves, judges, dials and relays.
package proxy
