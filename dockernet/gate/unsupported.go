//go:build !linux

package gate

import (
	"errors"
	"net/netip"

	"sluice/dockernet/netns"
	"sluice/dockernet/nft"
	"sluice/policy"
)

// Gate is as on Linux; all its methods give [errors.ErrUnsupported] here.
type Gate struct{}

func New(*netns.Namespace) *Gate                  { return nil }
func (*Gate) Install(*Spec, policy.Phase) error   { return errors.ErrUnsupported }
func (*Gate) Stage(*Spec) error                   { return errors.ErrUnsupported }
func (*Gate) Both(policy.Phase) error             { return errors.ErrUnsupported }
func (*Gate) Switch(policy.Phase) error           { return errors.ErrUnsupported }
func (*Gate) Retarget(Listeners) error            { return errors.ErrUnsupported }
func (*Gate) Quarantine() error                   { return errors.ErrUnsupported }
func (*Gate) Remove() error                       { return errors.ErrUnsupported }
func (*Gate) Installed() (bool, error)            { return false, errors.ErrUnsupported }
func (*Gate) Counters() (Counters, error)         { return Counters{}, errors.ErrUnsupported }
func (*Gate) HoldsFrames() bool                   { return false }
func (*Gate) Close()                              {}
func (*Gate) FramesRefused() (nft.Counter, error) { return nft.Counter{}, errors.ErrUnsupported }

// Own is as on Linux; its methods give [errors.ErrUnsupported] here.
type Own struct{}

func NewOwn(*netns.Namespace) *Own               { return nil }
func (*Own) Open(netip.AddrPort, uint16) error   { return errors.ErrUnsupported }
func (*Own) Opened(netip.AddrPort, uint16) error { return errors.ErrUnsupported }
func (*Own) Close()                              {}
