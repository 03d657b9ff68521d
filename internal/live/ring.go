package live

// ring keeps the newest changes of a hub, for watchers that are behind or come back.
type ring struct {
	entries []entry // the oldest first
	numbers int     // in all of them
	dropped uint64  // changes up to this one are gone
}

// entry is what one look brought for one view.
type entry struct {
	seq     uint64
	view    string
	changes Changes
	lost    bool // too much to be told: the planes are to be read again
}

const (
	// maxKept bounds the numbers in a ring: 4 MB.
	maxKept = 1 << 20
	// maxEntries bounds its entries.
	maxEntries = 4096
	// maxTold bounds the numbers of one entry: to read the planes again takes fewer bytes then.
	maxTold = maxKept / 4
)

func (r *ring) add(e entry) {
	if len(e.changes) > maxTold {
		e.changes, e.lost = nil, true
	}
	r.entries = append(r.entries, e)
	r.numbers += len(e.changes)
	drop := 0
	for r.numbers > maxKept || len(r.entries)-drop > maxEntries {
		r.numbers -= len(r.entries[drop].changes)
		r.dropped = r.entries[drop].seq
		r.entries[drop] = entry{}
		drop++
	}
	r.entries = r.entries[drop:]
}

// after returns what came after a change for a view. whole is false when some of it is gone.
func (r *ring) after(seq uint64, view string) (all []Changes, whole bool) {
	if seq < r.dropped {
		return nil, false
	}
	for i := len(r.entries) - 1; i >= 0 && r.entries[i].seq > seq; i-- {
		e := &r.entries[i]
		if e.view != view {
			continue
		}
		if e.lost {
			return nil, false
		}
		all = append(all, e.changes)
	}
	return all, true
}
