package controller

// Packets returns how many packets of a container went straight, and how many were refused in the kernel, since its
// rules were made. The id is one that [Controller.List] tells. It is false where they cannot be read: the container does
// not run, as a rule.
func (c *Controller) Packets(id string) (allowed, refused uint64, ok bool) {
	c.mu.Lock()
	m := c.about[id]
	c.mu.Unlock()
	if m == nil {
		return 0, 0, false
	}
	n := m.shown.Load().net
	if n == nil {
		return 0, 0, false
	}
	packets, err := n.Packets()
	if err != nil {
		return 0, 0, false
	}
	refused = packets.Never
	for i := range packets.Direct {
		allowed, refused = allowed+packets.Direct[i], refused+packets.Refused[i]
	}
	return allowed, refused, true
}
