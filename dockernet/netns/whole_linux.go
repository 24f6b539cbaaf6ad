package netns

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/vishvananda/netlink"
)

const (
	// wholeTries is how often a list is asked for, and wholePause how long others get in between.
	wholeTries = 100
	wholePause = time.Millisecond
)

// Whole asks the kernel for a list of interfaces, addresses or routes until it is of one moment. The kernel gives it in
// parts, and where somebody changes the namespace between two of them it may leave some out, and says so
// (NLM_F_DUMP_INTR of linux/netlink.h). On a busy host that is no rare thing: each container that starts or ends does.
//
// The error is list's, or says that something has changed them each of a hundred times.
func Whole[T any](list func() ([]T, error)) ([]T, error) {
	for range wholeTries {
		all, err := list()
		if err == nil {
			return all, nil
		}
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return nil, err
		}
		time.Sleep(wholePause)
	}
	return nil, fmt.Errorf("something changes the namespace's network all the time: asked %d times in vain, try again", wholeTries)
}

// Interfaces is [net.Interfaces] of the calling thread's namespace, but never a part of them.
func Interfaces() ([]net.Interface, error) {
	links, err := Whole(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	list := make([]net.Interface, len(links))
	for i, l := range links {
		a := l.Attrs()
		list[i] = net.Interface{Index: a.Index, MTU: a.MTU, Name: a.Name, HardwareAddr: a.HardwareAddr, Flags: a.Flags}
	}
	return list, nil
}
