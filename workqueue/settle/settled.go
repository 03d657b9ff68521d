package settle

import "github.com/tranchehq/tranche/workqueue"

// Settled counts what one transaction settled of one endpoint: items that came to their end at a step, and requests, or
// chunks that nodes worked on, that ended.
type Settled struct {
	Endpoint     string // or what else paces a step, like http:HOST
	Done, Failed int64  // items, for good
	Answered     int64  // requests
	Refused      int64  // requests that failed as a whole, or of which every item is to be tried again
	Expired      int64  // requests whose time was over
	Lost         int64  // requests that are issued again for no fault of theirs: a node, a stream or a message was lost
}

// Counting returns a store that tells count of what its transactions settled, each after its commit.
func (s Store) Counting(count func([]Settled)) Store {
	s.count = count
	return s
}

// tell is called after a commit.
func (s Store) tell(set *settlement) {
	if s.count != nil && set != nil && len(set.settled) > 0 {
		s.count(set.settled)
	}
}

// of returns the counts of an endpoint. A transaction is about few; most often it is the one before.
func (s *settlement) of(endpoint string) *Settled {
	for i := len(s.settled) - 1; i >= 0; i-- {
		if s.settled[i].Endpoint == endpoint {
			return &s.settled[i]
		}
	}
	s.settled = append(s.settled, Settled{Endpoint: endpoint})
	return &s.settled[len(s.settled)-1]
}

// answered counts a request that a reply has ended.
func (s *settlement) answered(endpoint string, why *workqueue.SlotError) {
	if why == nil {
		s.of(endpoint).Answered++
	} else {
		s.of(endpoint).Refused++
	}
}

// released counts a request that ended without a reply.
func (s *settlement) released(endpoint string, cause workqueue.Cause) {
	if cause == workqueue.CauseDeadline || cause == workqueue.CauseSilence {
		s.of(endpoint).Expired++
	} else {
		s.of(endpoint).Lost++
	}
}
