package dns

import (
	"net/netip"

	"sluice/proxy/dnswire"
)

// learn tells of the addresses that the answer msg gives to the name of q, before the client gets it.
func (s *Server) learn(q *query, msg []byte) {
	if s.opts.Learn == nil || q.Question.Type != dnswire.TypeA && q.Question.Type != dnswire.TypeAAAA {
		return
	}
	off := q.Question.End
	for range dnswire.Count(msg, 1) {
		r, ok := dnswire.ReadRecord(msg, off)
		if !ok {
			return
		}
		off = r.End
		if r.Type != q.Question.Type {
			continue
		}
		if addr, ok := netip.AddrFromSlice(msg[r.Data:r.End]); ok {
			s.opts.Learn(q.name, addr)
		}
	}
}
