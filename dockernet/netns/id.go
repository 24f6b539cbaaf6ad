package netns

import (
	"errors"
	"fmt"
)

// ErrHost is in the error for a path that leads to the namespace of this process or of the host.
var ErrHost = errors.New("this is the host's own network namespace, and rules in it would cut the host off: " +
	"give the container a network of its own instead of --network host")

// ErrChanged is in the error for a path that leads to another namespace than it did, or to none.
var ErrChanged = errors.New("the container has another network namespace now: look it up again")

// ID tells namespaces apart for as long as one of them is open or has a process in it (namespaces(7), "The
// /proc/pid/ns/ directory"). A number may be used again after that, so an ID goes together with the container's.
type ID struct {
	Device, Inode uint64
}

// String returns the ID as "device:inode" in decimal.
func (id ID) String() string { return fmt.Sprintf("%d:%d", id.Device, id.Inode) }
