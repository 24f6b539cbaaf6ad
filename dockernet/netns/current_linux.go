package netns

import (
	"fmt"
	"os"
)

// Current opens the network namespace that this process is in, for a sidecar which lives in one namespace with what it
// looks after. No right is needed to enter it, so CAP_NET_ADMIN inside is enough for rules.
//
// [Open] refuses this namespace, for it may be the host's. Who calls Current has made sure that it is not.
func Current() (*Namespace, error) {
	const path = "/proc/self/ns/net"
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open own network namespace: %w", err)
	}
	id, err := inspect(int(file.Fd()))
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open own network namespace %s: %w", path, err)
	}
	return &Namespace{file: file, id: id, current: true}, nil
}
