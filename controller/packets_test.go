package controller

import "testing"

func TestPackets(t *testing.T) {
	w := newWorld()
	c, _ := w.control(t, t.TempDir())
	w.attached(t, c, "web", id1)
	if allowed, refused, ok := c.Packets(id1); allowed != 1 || refused != 5 || !ok {
		t.Errorf("%d packets allowed, %d refused, %v", allowed, refused, ok)
	}
	if _, _, ok := c.Packets("nobody"); ok {
		t.Error("packets of nobody")
	}
}
