//go:build !linux

package guard

import (
	"context"
	"errors"

	"sluice/policy"
)

// Host and Port are as on Linux; nothing makes them here.
type (
	Host struct{}
	Port struct{}
)

func Open(Config) (*Host, error)                     { return nil, errors.ErrUnsupported }
func (*Host) Close() error                           { return nil }
func (*Host) Clear() error                           { return errors.ErrUnsupported }
func (*Host) AddBridge(string, bool) error           { return errors.ErrUnsupported }
func (*Host) RemoveBridge(string) error              { return errors.ErrUnsupported }
func (*Host) Found() []string                        { return nil }
func (*Host) Counters() (Counters, error)            { return Counters{}, errors.ErrUnsupported }
func (*Host) Watch(context.Context, func(Gap)) error { return errors.ErrUnsupported }
func (*Host) Port(string) *Port                      { return new(Port) }
func (*Port) Install(*Spec, policy.Phase) error      { return errors.ErrUnsupported }
func (*Port) Stage(*Spec) error                      { return errors.ErrUnsupported }
func (*Port) Both(policy.Phase) error                { return errors.ErrUnsupported }
func (*Port) Switch(policy.Phase) error              { return errors.ErrUnsupported }
func (*Port) Quarantine() error                      { return errors.ErrUnsupported }
func (*Port) Remove() error                          { return errors.ErrUnsupported }
func (*Port) Counters() (PortCounters, error)        { return PortCounters{}, errors.ErrUnsupported }
