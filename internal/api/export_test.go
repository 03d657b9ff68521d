package api

import "time"

// LetStall has bodies go on for so long that stand still.
func (s *Server) LetStall(d time.Duration) { s.config.ReadTimeout = d }

// LetEnd gives requests that were broken off so long to end.
func (s *Server) LetEnd(d time.Duration) { s.cut = d }

// Bounded reports whether few of the requests of a route are under way at once.
func (r *Route) Bounded() bool { return r.heavy || r.broad }
