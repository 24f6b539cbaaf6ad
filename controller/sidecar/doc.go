// Package sidecar keeps one sluice-proxy container running and in step with what the controller wants.
//
// It starts the container, hands it the sockets of every session and their rule sets, watches it, replaces one that died
// or hangs, and moves everything to a newer one without a refused connection. Clients that connect meanwhile wait in the
// queues of the sockets, which the controller holds open.
//
// # Directories and peers
//
// Every sidecar has a directory of its own below [Options.Dir], named by its number, which is mounted into it read-only.
// The controller binds both of its sockets (control.sock and listeners.sock, see package control), so each sidecar can be
// told from the others by the path that it is reached at. On listeners.sock the peer must be the container's first
// process, by the process id that the engine says and the kernel confirms (SO_PEERCRED in unix(7)), and have the
// sidecar's user id. The controller therefore shares the host's process ids.
//
// # What is lost with a sidecar
//
// Its open flows; the counters of its metrics; the audit records that it had not sent yet; and the names that containers
// had looked addresses up under. These are looked up again: of an address that it does not know, a new sidecar resolves
// all exact names of the policy before it refuses. Connections that show no name of their own (neither TLS nor HTTP) to
// an address that only a wildcard's name allowed are refused until the container has looked that name up again.
package sidecar
