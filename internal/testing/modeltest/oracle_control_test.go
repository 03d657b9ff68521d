package modeltest_test

import (
	"slices"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// holding is what keeps an oracle's run from going on.
type holding struct {
	pausedBy    control.Hold
	canary      string // canary_state
	canaryAuto  bool
	canarySince int // generation
	limited     bool
	failedLimit int64
	guard       workqueue.GuardRule // zero: it is over
	seen        int                 // outcomes under the guard
	failing     map[string]int      // and failures that would not pass, by code
	tripped     bool                // it waits for another hold to end
}

// outcome is seen by the guard: with the code of a failure that would not pass, or none.
func (o *oracle) outcome(code string) {
	o.seen++
	if code != "" {
		o.failing[code]++
	}
}

// judgeGuard decides on the first outcomes, once those of a transaction are all counted.
func (o *oracle) judgeGuard() {
	trips := false
	for _, n := range o.failing {
		trips = trips || o.guard.Trips(n, o.seen)
	}
	switch {
	case o.guard == workqueue.GuardRule{} || o.tripped:
	case trips && !o.completed():
		o.tripped = true
		o.holdForGuard()
	case trips || o.seen >= o.guard.Within:
		o.guard = workqueue.GuardRule{}
	}
}

func (o *oracle) holdForGuard() bool {
	if !o.tripped || o.over() || o.pausedBy != "" {
		return false
	}
	o.pausedBy, o.guard, o.tripped = control.HoldGuard, workqueue.GuardRule{}, false
	return true
}

func (o *oracle) setLimit(maxFailed string) {
	limit, limited, err := workqueue.FailedLimit(maxFailed, int64(len(o.items)))
	if err != nil {
		panic(err) // the machine gives none that is wrong
	}
	o.failedLimit, o.limited = limit, limited
}

// sample begins a canary: all items but one of each stretch are held back.
func (o *oracle) sample(n int, auto bool) {
	all := make([]int, len(o.items))
	for i := range all {
		all[i] = i
	}
	o.holdBack(all, n)
	o.canary, o.canaryAuto, o.canarySince = "sampling", auto, o.generation
}

func (o *oracle) holdBack(all []int, n int) (held int) {
	stride := (len(all) + n - 1) / n
	for i, at := range all {
		first := i / stride * stride
		stretch := min(stride, len(all)-first)
		if i != first+int(scattered(first/stride)%uint64(stretch)) {
			o.items[at] = item{place: isHeldBack}
			held++
		}
	}
	return held
}

// scattered is the finalizer of SplitMix64, written down once more.
func scattered(n int) uint64 {
	z := uint64(n) + 0x9e3779b97f4a7c15
	for _, step := range []struct{ shift, times uint64 }{{30, 0xbf58476d1ce4e5b9}, {27, 0x94d049bb133111eb}, {31, 1}} {
		z = (z ^ z>>step.shift) * step.times
	}
	return z
}

// judgeCanary decides on a sample of which nothing is ready or under way.
func (o *oracle) judgeCanary() control.CanaryVerdict {
	if o.over() || o.pausedBy != "" || o.canary != "sampling" || o.count(isReady, isScheduled, isHeld) > 0 {
		return control.CanaryUndecided
	}
	asked := map[workqueue.Ordinal]bool{}
	for _, h := range o.all {
		if int(h.Generation) >= o.canarySince {
			for _, i := range storetest.Ordinals(h.Slice) {
				asked[i] = true
			}
		}
	}
	lost := 0
	for i := range asked {
		if o.items[i].place == isFailed {
			lost++
		}
	}
	limit := int64(0)
	if o.limited {
		limit = o.failedLimit
	}
	if o.canaryAuto && int64(lost)*int64(len(o.items)) <= limit*int64(len(asked)) {
		o.release()
		return control.CanaryPassed
	}
	o.pausedBy, o.canary = control.HoldCanary, "waiting"
	return control.CanaryWaiting
}

func (o *oracle) release() (n int) {
	for i := range o.items {
		if o.items[i].place == isHeldBack {
			o.items[i] = item{}
			n++
		}
	}
	o.canary, o.pausedBy = "passed", ""
	return n
}

func (o *oracle) judgeThreshold() bool {
	if o.over() || o.pausedBy != "" || !o.limited || int64(o.count(isFailed)) <= o.failedLimit {
		return false
	}
	o.pausedBy = control.HoldThreshold
	return true
}

// final returns the items of a selection that have an outcome.
func (o *oracle) final(sel redo.Selection) (all []int) {
	for i := range o.items {
		failed, done := o.items[i].place == isFailed, o.items[i].place == isDone
		if sel.Failed && failed && !o.items[i].accepted || i < len(sel.Keys) && (failed || done) {
			all = append(all, i)
		}
	}
	return all
}

// reset is a re-run of items; it returns how many of them are held back.
func (o *oracle) reset(again []int, req *redo.RerunRequest) (heldBack int) {
	completed, inCanary := o.completed(), slices.Contains([]string{"sampling", "waiting"}, o.canary)
	for _, i := range again {
		o.items[i] = item{}
	}
	o.generation++
	if o.tripped { // who runs items again has seen how they failed
		o.guard, o.tripped = workqueue.GuardRule{}, false
	}
	if req.Canary > 0 {
		heldBack = o.holdBack(again, req.Canary)
	}
	sampling := heldBack > 0 || req.Canary > 0 && inCanary
	if sampling {
		o.canary, o.canaryAuto, o.canarySince = "sampling", req.CanaryAuto, o.generation
	}
	if completed || o.pausedBy == control.HoldCanary && sampling {
		o.pausedBy = ""
	}
	if req.Settings.Endpoint != "" {
		o.at = req.Settings.Endpoint
	}
	return heldBack
}
