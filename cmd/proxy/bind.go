package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
)

// bind listens on what a flag says, or tells what is wrong with that. It takes plain TCP, and not Multipath TCP as Go's
// listeners do where they can: on older kernels such sockets refuse options that the proxy sets (TCP_KEEPIDLE, go.dev/issue/56539).
func bind(flag, address string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp", address)
	if err != nil {
		return nil, bindError(flag, address, err)
	}
	return l, nil
}

func bindError(flag, address string, err error) error {
	repair := "write an address and a port, as in 127.0.0.1:8080 or :8080"
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		repair = "another process listens there: stop it or choose another port"
	case errors.Is(err, syscall.EACCES):
		repair = "this user may not have that port: choose one from 1024 on"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		repair = "no interface here has that address: choose one that it has"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err // the rest of it says again where
	}
	return fmt.Errorf("--%s %s: %w: %s", flag, address, err, repair)
}
