package netns_test

import (
	"errors"
	"testing"

	"sluice/dockernet/netns"
)

// The own namespace is entered by doing nothing, on whatever thread.
func TestCurrent(t *testing.T) {
	ns, err := netns.Current()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	host := inode(t, "/proc/self/ns/net")
	if ns.ID().Inode != host {
		t.Errorf("it is namespace %d, this process is in %d", ns.ID().Inode, host)
	}
	if err := ns.Check("/proc/self/ns/net"); err != nil {
		t.Error(err)
	}
	if _, err := netns.Open("/proc/self/ns/net", nil); !errors.Is(err, netns.ErrHost) {
		t.Errorf("Open of the same: error %v, want ErrHost", err)
	}
	want := errors.New("of the function")
	err = ns.Do(func() error {
		if got := inode(t, "/proc/thread-self/ns/net"); got != host {
			t.Errorf("runs in namespace %d, want %d", got, host)
		}
		return want
	})
	if err != want {
		t.Errorf("error %v, want the function's own", err)
	}
}
