//go:build !linux

package control

import (
	"errors"
	"fmt"
	"net"
)

// Nobody is known here, so nobody may talk.
func CheckPeer(*net.UnixConn, ...uint32) error                 { return errNoPeer }
func CheckPeerGroup(*net.UnixConn, uint32) error               { return errNoPeer }
func PeerProcess(*net.UnixConn) (pid int, uid uint32, _ error) { return 0, 0, errNoPeer }

var errNoPeer = fmt.Errorf("peer of the socket: %w", errors.ErrUnsupported)
