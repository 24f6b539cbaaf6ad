package proxy

import "sync/atomic"

// places counts the clients of a session, or of all sessions.
type places struct {
	connections atomic.Int64
	requests    atomic.Int64 // those of them that the HTTP engine serves
}

// count adds to the number of clients.
func (s *Session) count(n int64) {
	s.places.connections.Add(n)
	s.server.places.connections.Add(n)
}

// countRequests adds to the number of clients of the HTTP engine.
func (s *Session) countRequests(n int64) {
	s.places.requests.Add(n)
	s.server.places.requests.Add(n)
}

// crowded reports whether there is no place for one more client of the session.
func (s *Session) crowded() bool {
	return s.server.crowded(s.server.places.connections.Load(), s.places.connections.Load(), s.server.config.MaxConnections)
}

// crowdedRequests is crowded for clients of the HTTP engine.
func (s *Session) crowdedRequests() bool {
	return s.server.crowded(s.server.places.requests.Load(), s.places.requests.Load(), s.server.config.MaxRequests)
}

// crowded reports whether a session that has own of all places may have no other one. If there are other sessions, it has
// at most as many as are free, so that it leaves room for them: one alone takes half of the places, two a third each.
func (s *Server) crowded(all, own, most int64) bool {
	free := most - all
	return free <= 0 || own >= free && s.several.Load()
}
