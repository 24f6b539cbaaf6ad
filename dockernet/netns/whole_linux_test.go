package netns_test

import (
	"bytes"
	"errors"
	"net"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"sluice/dockernet/netns"
)

// What the kernel says in its own form is what the standard library makes of it.
func TestInterfaces(t *testing.T) {
	want, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	got, err := netns.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	same := func(a, b net.Interface) bool {
		return a.Index == b.Index && a.MTU == b.MTU && a.Name == b.Name && a.Flags == b.Flags && bytes.Equal(a.HardwareAddr, b.HardwareAddr)
	}
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("%v, want %v", got, want)
	}
}

func TestWhole(t *testing.T) {
	failed := errors.New("no memory")
	for name, test := range map[string]struct {
		errs []error // of the first times
		want error
		asks int
	}{
		"at-once":     {nil, nil, 1},
		"interrupted": {[]error{netlink.ErrDumpInterrupted, netlink.ErrDumpInterrupted}, nil, 3},
		"failed":      {[]error{netlink.ErrDumpInterrupted, failed}, failed, 2},
	} {
		asked := 0
		list, err := netns.Whole(func() ([]int, error) {
			asked++
			if asked <= len(test.errs) {
				return []int{1}, test.errs[asked-1] // a part of it
			}
			return []int{1, 2}, nil
		})
		if !errors.Is(err, test.want) || asked != test.asks || err == nil && !slices.Equal(list, []int{1, 2}) || err != nil && list != nil {
			t.Errorf("%s: %v, %v after asking %d times; want error %v after %d", name, list, err, asked, test.want, test.asks)
		}
	}
	if list, err := netns.Whole(func() ([]int, error) { return []int{1}, netlink.ErrDumpInterrupted }); err == nil {
		t.Errorf("a list that was never whole is given: %v", list)
	}
}
