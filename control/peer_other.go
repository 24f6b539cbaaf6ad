//go:build !linux

package control

import (
	"errors"
	"fmt"
	"net"
)

// CheckPeer and CheckPeerGroup know nobody here, so nobody may talk.
func CheckPeer(*net.UnixConn, ...uint32) error   { return errNoPeer }
func CheckPeerGroup(*net.UnixConn, uint32) error { return errNoPeer }

var errNoPeer = fmt.Errorf("peer of the socket: %w", errors.ErrUnsupported)
