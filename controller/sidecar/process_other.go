//go:build !linux

package sidecar

import "errors"

// process is not to be had here.
type process struct{}

func openProcess(int) (*process, error) { return nil, errors.ErrUnsupported }

func (*process) wait() error { return errors.ErrUnsupported }
func (*process) kill() error { return errors.ErrUnsupported }
func (*process) abandon()    {}
func (*process) close()      {}
