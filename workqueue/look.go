package workqueue

import "slices"

// Look is what a transaction gives reason to look at. Nothing depends on it: the leader looks at everything by itself,
// a second later.
type Look struct {
	Endpoints []string // where slices failed as a whole, or a probe ended: for Store.CheckBreaker
	Halved    []string // where pieces of failed chunks ended: for Store.CheckTooBig
	Runs      []RunID  // of which items failed for good: for Store.CheckThreshold
}

// Empty reports whether there is nothing to look at.
func (l *Look) Empty() bool { return len(l.Endpoints)+len(l.Halved)+len(l.Runs) == 0 }

// look gathers it from a settlement.
func (s *settlement) look() (l Look) {
	for _, e := range s.ended {
		h := e.slice
		if (e.why != nil || h.Cause == CauseProbe) && !slices.Contains(l.Endpoints, h.Endpoint) {
			l.Endpoints = append(l.Endpoints, h.Endpoint)
		}
		piece := h.Cause == CauseBisect || h.Cause == CauseExhausted
		if piece && !slices.Contains(l.Halved, h.Endpoint) {
			l.Halved = append(l.Halved, h.Endpoint)
		}
	}
	for id, o := range s.outcomes {
		if !o.failed.Empty() && !slices.Contains(l.Runs, id.run) {
			l.Runs = append(l.Runs, id.run)
		}
	}
	return l
}
