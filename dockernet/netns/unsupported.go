//go:build !linux

package netns

import (
	"errors"
	"os"
)

// Namespace, Socket and Sockets are as on Linux; nothing makes a Namespace here.
type (
	Namespace struct{}
	Socket    struct {
		File *os.File
		Port uint16
	}
	Sockets struct{ TCP4, UDP4, TCP6, UDP6 Socket }
)

func OnOwnThread(func() error) error                { return errors.ErrUnsupported }
func Open(string, func() error) (*Namespace, error) { return nil, errors.ErrUnsupported }
func Current() (*Namespace, error)                  { return nil, errors.ErrUnsupported }
func (*Namespace) ID() ID                           { return ID{} }
func (*Namespace) Check(string) error               { return errors.ErrUnsupported }
func (*Namespace) Do(func() error) error            { return errors.ErrUnsupported }
func (*Namespace) Listen() (*Sockets, error)        { return nil, errors.ErrUnsupported }
func (*Namespace) Close() error                     { return nil }
func (s Socket) Share() Socket                      { return s }
func (Socket) Close() error                         { return nil }
func (*Sockets) Close() error                       { return nil }
