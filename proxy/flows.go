package proxy

import (
	"slices"
	"sync/atomic"
	"time"

	"sluice/control"
	"sluice/matcher"
)

// flowLink holds a tunnel in the list of its session's tunnels on its worker.
type flowLink struct {
	id           uint64
	listed       bool
	before, next *conn
}

var flowIDs atomic.Uint64

// list makes c a flow of its session: from now on a switch finds it.
func (c *conn) list() {
	head := &c.session.tunnels[c.worker.index]
	c.flow = flowLink{id: flowIDs.Add(1), listed: true, next: *head}
	if *head != nil {
		(*head).flow.before = c
	}
	*head = c
	c.session.flows.Add(1)
}

func (c *conn) unlist() {
	if !c.flow.listed {
		return
	}
	if c.flow.before != nil {
		c.flow.before.flow.next = c.flow.next
	} else {
		c.session.tunnels[c.worker.index] = c.flow.next
	}
	if c.flow.next != nil {
		c.flow.next.flow.before = c.flow.before
	}
	c.flow = flowLink{}
	c.session.flows.Add(-1)
}

// rejudge judges every tunnel of the session on this worker under r, resets those that r refuses, and returns how
// many were cut and kept. What is still being set up is judged again when that is done; connects that r refuses end.
func (w *worker) rejudge(s *Session, r *rules) (cut, kept int) {
	for _, d := range slices.Backward(w.racing) { // those that end make place for later ones
		if d.conn.session == s {
			d.rejudge(r)
		}
	}
	for c := s.tunnels[w.index]; c != nil; {
		next := c.flow.next
		if d := s.flow(r, c.subject()); d.Verdict != matcher.Allow {
			c.cut(r, d)
			cut++
		} else {
			c.rules, c.decision = r, d
			kept++
		}
		c = next
	}
	return cut, kept
}

// describe returns the session's tunnels on this worker as the control socket shows them.
func (w *worker) describe(s *Session) (all []control.Flow) {
	for c := s.tunnels[w.index]; c != nil; c = c.flow.next {
		all = append(all, control.Flow{
			ID: formatID(c.flow.id), Protocol: string(c.protocol), Target: c.target.String(),
			Address: joinAddress(c.address, c.target.port), Since: c.opened.Round(time.Millisecond),
			BytesIn: c.bytesIn, BytesOut: c.bytesOut, Rule: c.rules.ruleText(c.decision.Rule),
		})
	}
	return all
}
