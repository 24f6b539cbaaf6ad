package proxy

import "time"

// idleTurns is how often flows are looked at while the idle limit lasts. One that has moved nothing from one look to
// the next so many times has been idle for the limit at least, and a quarter longer at most.
const idleTurns = 4

// idleness is how long a flow has moved no byte, in turns. Its zero value is that of a flow that has just moved one.
type idleness struct {
	moved uint64 // bytes both ways at the last turn, and 1, so that 0 is before the first one
	turns uint8
}

// turn looks at a flow that has moved so many bytes by now, and reports whether it has been idle for too long.
func (i *idleness) turn(moved uint64) bool {
	if i.moved != moved+1 {
		*i = idleness{moved: moved + 1}
		return false
	}
	i.turns++
	return i.turns >= idleTurns
}

// sweep cuts the worker's idle tunnels, and starts the next turn. A timer for each tunnel would have to be started anew
// with every byte.
func (w *worker) sweep() {
	for _, s := range w.server.list() {
		for c := s.tunnels[w.index]; c != nil; {
			next := c.flow.next
			if c.idle.turn(c.bytesIn + c.bytesOut) {
				c.account(cutOff, reasonIdle, "")
				c.abort()
			}
			c = next
		}
		if w.index == 0 {
			s.web.sweep()
		}
	}
	w.sweeps.Start(&w.nextSweep, w)
}

// sweep cuts the requests in which nothing has moved for too long. Clients between two requests are the HTTP engine's.
func (w *webFlows) sweep() {
	for _, u := range w.all() {
		u.mu.Lock()
		idle := u.idle.turn(u.moved.Load()) && u.busy
		u.mu.Unlock()
		if idle {
			u.reset(reasonIdle)
		}
	}
}

// Read counts what comes from the upstream.
func (u *webUpstream) Read(b []byte) (int, error) {
	n, err := u.TCPConn.Read(b)
	u.moved.Add(uint64(max(n, 0)))
	return n, err
}

// Write counts what goes to the upstream.
func (u *webUpstream) Write(b []byte) (int, error) {
	n, err := u.TCPConn.Write(b)
	u.moved.Add(uint64(max(n, 0)))
	return n, err
}

// sweepTime is how long a turn lasts.
func sweepTime(limit time.Duration) time.Duration { return max(1, limit/idleTurns) }
