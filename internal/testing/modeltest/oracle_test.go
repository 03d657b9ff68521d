package modeltest_test

import (
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

type place int

const (
	isReady place = iota
	isScheduled
	isHeld
	isDone
	isFailed
	isHeldBack // by a canary
)

// item is where an item is.
type item struct {
	place    place
	failures int               // of a scheduled or held one
	slice    workqueue.SliceID // that holds it
	sent     bool
	accepted bool // of a failed one
}

// data is which payload an item has, by the number of the generation that its last correction opened.
type data []int

// held is a slice that was claimed at some time.
type held struct {
	workqueue.Slice
	state     string
	remaining bitfield.Set
	answered  int
	failure   *workqueue.SlotError
	retry     bitfield.Set // within one recording
	touched   bool
}

func (h *held) live() bool { return h.state == "claimed" || h.state == "sent" }

// oracle is a run as anyone would write it: a place for each item, no planes.
type oracle struct {
	items      []item
	all        []*held
	generation int
	finished   []int // generations whose completion was told
	cancelled  bool
	at         string // the endpoint of new requests
	data       data
	holding
}

func newOracle(items int) oracle {
	return oracle{items: make([]item, items), generation: 1, at: storetest.Endpoint, data: make(data, items),
		holding: holding{failing: map[string]int{}}}
}

func (o *oracle) inFlight() int {
	n := 0
	for _, h := range o.all {
		if h.live() {
			n++
		}
	}
	return n
}

// inFlightAt is what is out at an endpoint.
func (o *oracle) inFlightAt(name string) int {
	n := 0
	for _, h := range o.all {
		if h.live() && h.Endpoint == name {
			n++
		}
	}
	return n
}

func (o *oracle) count(places ...place) int {
	n := 0
	for i := range o.items {
		if slices.Contains(places, o.items[i].place) {
			n++
		}
	}
	return n
}

func (o *oracle) claimable() bool { return !o.cancelled && o.count(isReady, isScheduled) > 0 }

// over reports whether nothing of the run is under way.
func (o *oracle) over() bool { return o.cancelled || o.completed() }

func (o *oracle) completed() bool { return o.count(isDone, isFailed) == len(o.items) }

// claimed checks a slice that a claim brought, and holds it.
func (o *oracle) claimed(s workqueue.Slice) (wrong string) {
	for _, i := range storetest.Ordinals(s) {
		was := o.items[i]
		fresh := s.Cause == workqueue.CauseReady || s.Cause == workqueue.CauseProbe
		if was.place != isScheduled && (was.place != isReady || !fresh) || was.failures != s.Failures {
			return fmt.Sprintf("item %d was claimed (%s, %d failures) when it was %+v", i, s.Cause, s.Failures, was)
		}
	}
	o.hold(s)
	return ""
}

// hold notes a slice that is out. One that was claimed and given back may come again under the same id.
func (o *oracle) hold(s workqueue.Slice) {
	o.all = slices.DeleteFunc(o.all, func(h *held) bool { return h.ID == s.ID })
	o.all = append(o.all, &held{Slice: s, state: "claimed", remaining: s.Mask, answered: -1})
	o.sync()
}

// sync notes the holders at the items they hold.
func (o *oracle) sync() {
	for _, h := range o.all {
		if h.live() {
			o.put(h, h.remaining, item{place: isHeld, failures: h.Failures, slice: h.ID, sent: h.state == "sent"})
		}
	}
}

func (o *oracle) put(h *held, set bitfield.Set, to item) {
	for bit := range set.All() {
		o.items[h.Block.Ordinal(bit)] = to
	}
}

func (o *oracle) schedule(h *held, set bitfield.Set, failures int) {
	o.put(h, set, item{place: isScheduled, failures: failures})
}

// fault counts an attempt against items: they come again, or the last one that cannot be told from others fails. A
// chunk comes again whole once; then it comes in pieces, which is held against none of their items.
func (o *oracle) fault(h *held, set bitfield.Set, hopeless, singled, exhausted bool) {
	alone := set.Count() == 1 || singled
	tried := h.Failures > 0 || h.Cause == workqueue.CauseBisect
	switch {
	case alone && (hopeless || h.Failures+1 >= maxAttempts):
		o.put(h, set, item{place: isFailed})
		code := ""
		if hopeless {
			code = h.failure.Code
		}
		for range set.Count() {
			o.outcome(code)
		}
	case alone || !hopeless && !exhausted && !tried:
		o.schedule(h, set, h.Failures+1)
	default:
		o.schedule(h, set, h.Failures)
	}
}

// take is a recording.
func (o *oracle) take(answers []settle.Answer, spared []workqueue.SliceID) []settle.Verdict {
	verdicts := make([]settle.Verdict, len(answers))
	for i := range answers {
		verdicts[i] = o.takeOne(&answers[i])
	}
	for _, h := range o.all {
		if h.touched {
			o.close(h, slices.Contains(spared, h.ID))
			h.touched, h.retry = false, bitfield.Set{}
		}
	}
	o.sync()
	o.judgeGuard()
	return verdicts
}

func (o *oracle) takeOne(a *settle.Answer) (v settle.Verdict) {
	at := slices.IndexFunc(o.all, func(h *held) bool { return h.ID == a.Slice })
	if at < 0 || !o.all[at].live() {
		return settle.Verdict{Stale: true}
	}
	h := o.all[at]
	if a.Endpoint != h.Endpoint {
		return settle.Verdict{Endpoint: h.Endpoint}
	}
	h.touched = true
	if a.Answered >= 0 {
		h.answered = a.Answered
	}
	if a.Failure != nil {
		h.failure = a.Failure
	}
	members := storetest.Ordinals(h.Slice)
	for _, slot := range a.Slots {
		if !slices.Contains(members, slot.Ordinal) {
			v.Foreign = append(v.Foreign, slot.Ordinal)
			continue
		}
		_, bit := slot.Ordinal.Block()
		if !h.remaining.Has(bit) {
			v.Duplicates++
			continue
		}
		v.Taken++
		h.remaining.Remove(bit)
		switch {
		case slot.Err == nil:
			o.items[slot.Ordinal] = item{place: isDone}
			o.outcome("")
		case slot.Err.Retry:
			h.retry.Add(bit)
		default:
			o.items[slot.Ordinal] = item{place: isFailed}
			o.outcome(slot.Err.Code)
		}
	}
	return v
}

// close ends a slice once it has as many slots as its reply announced. One that is spared failed in an outage: that is
// held against none of its items, and only a slice of which nothing came can be.
func (o *oracle) close(h *held, spared bool) {
	got := h.Mask.Count() - h.remaining.Count()
	switch {
	case spared:
		o.schedule(h, h.retry, h.Failures)
	case h.Failures+1 < maxAttempts:
		o.schedule(h, h.retry, h.Failures+1)
	default:
		o.put(h, h.retry, item{place: isFailed})
		for range h.retry.Count() {
			o.outcome("")
		}
	}
	switch {
	case h.remaining.Empty():
	case h.answered < 0 || got < h.answered:
		return // more is to come
	case spared:
		o.schedule(h, h.remaining, h.Failures)
	case h.failure != nil:
		o.fault(h, h.remaining, !h.failure.Retry, false, h.failure.Code == workqueue.CodeDeliveries)
	default:
		o.fault(h, h.remaining, false, true, false)
	}
	h.state = "recorded"
}

// amend gives items other data: what was made of the former is worth nothing, and nor is what is being made of it.
func (o *oracle) amend(items []int) (begun int) {
	completed := o.completed()
	o.generation++
	for _, i := range items {
		o.data[i] = o.generation
		switch o.items[i].place {
		case isReady, isHeldBack:
			continue
		case isHeld:
			for _, h := range o.all {
				block, bit := workqueue.Ordinal(i).Block()
				if !h.live() || h.Block != block || !h.remaining.Has(bit) {
					continue
				}
				if h.remaining.Remove(bit); h.remaining.Empty() {
					h.state = "cancelled"
				}
			}
		}
		o.items[i] = item{}
		begun++
	}
	if completed {
		o.pausedBy = ""
	}
	return begun
}

// revive has a run go on that was cancelled.
func (o *oracle) revive() {
	if o.cancelled {
		o.cancelled = false
		o.generation++
	}
}

// complete notes a completion when there is one to tell.
func (o *oracle) complete() bool {
	if o.cancelled || !o.completed() || slices.Contains(o.finished, o.generation) {
		return false
	}
	o.finished = append(o.finished, o.generation)
	return true
}

// cancel ends every slice. Items of a cancelled run that were in flight are nowhere; read shows them as ready.
func (o *oracle) cancel() {
	o.cancelled = true
	for _, h := range o.all {
		if h.live() {
			h.state = "cancelled"
		}
	}
	for i := range o.items {
		if o.items[i].place == isScheduled || o.items[i].place == isHeld {
			o.items[i] = item{}
		}
	}
}
