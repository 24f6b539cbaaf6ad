// Package netns enters the network namespace of a container by its path and opens the sockets of a session there.
//
// A namespace is known by its device and inode, never by a process id, and the host's is refused. A sidecar inside of one
// works in its own, see [Current].
package netns
