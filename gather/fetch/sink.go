package fetch

// Sink takes slots while their chunk is still at work, so that what is done is not held in memory, nor lost when the
// rest does not end. Nodes implement it.
type Sink interface {
	// Begin says which item the fetcher is at, for the case that it never comes back.
	Begin(ordinal int)
	// Take takes a slot, which must not be returned as well. It may wait until there is room.
	Take(slot Slot)
}

// WithSink sets where the slots of a request go early. It returns the request.
func (r *Request) WithSink(sink Sink) *Request {
	r.sink = sink
	return r
}

// Emit hands a slot over while other items are still at work, which keeps large results from piling up. It returns
// false when nobody takes it: then the slot is to be returned with the others. It may be called from several goroutines
// at once, and not after the fetcher has returned.
func (r *Request) Emit(slot Slot) bool {
	if r.sink == nil {
		return false
	}
	r.sink.Take(slot)
	return true
}

func (r *Request) begin(ordinal int) {
	if r.sink != nil {
		r.sink.Begin(ordinal)
	}
}
