package pace

import (
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	// breakerWindow bounds how far back the breaker looks.
	breakerWindow = time.Minute
	// breakerNewest is by how many of the slices that ended last the breaker goes, and breakerRead how many are read to
	// find them: some do not count.
	breakerNewest = 10
	breakerRead   = 30
	// breakerPlaces is how many different chunks, or disjoint pieces of chunks, must have failed: fewer may be the work of
	// as many bad items.
	breakerPlaces = 5
	// breakerShare is the least share of failures, in tenths.
	breakerShare = 8
)

// endedHow is what the end of a slice says about its endpoint.
type endedHow int

// How a slice can have ended.
const (
	endedWell    endedHow = iota // the service dealt with the items, whatever it said of each
	EndedFailed                  // the chunk failed as a whole, in a way that may pass
	EndedRefused                 // the service answered every item, and asked for every item to be tried again
)

// endedSlice is a slice that has ended, or a flush of a collector, as the breaker sees it.
type endedSlice struct {
	id, parent workqueue.SliceID
	items      int
	how        endedHow
	itemsOwn   bool // it failed because of its items, or as they did before: that says nothing of its endpoint
	code       string
	message    string
}

// outage is what the slices of an endpoint that ended last say together.
type outage struct {
	down   bool
	failed int
	of     int
	last   endedSlice // that failed
}

// reason says in plain words why a breaker opens.
func (o outage) reason() string {
	return fmt.Sprintf("%d of the last %d requests failed, the last one with %s: %.200s", o.failed, o.of, o.last.code,
		o.last.message)
}

// judge tells an endpoint that is down from one that meets bad items. The newest slice comes first. The rule:
// an endpoint is down when, of the last breakerNewest slices that say something of it, or of all when they are fewer,
// breakerShare tenths failed, in breakerPlaces different places.
//
// What goes against an outage: a success, of whatever size. What says nothing: items that are known to fail by
// themselves; items that failed before and that the service answers with an error again; and, while the endpoint is
// trusted since it answered a probe, a chunk of several items: large chunks that fail while small ones work are no
// outage. Of a chunk and its pieces only the smallest failures count, and a retry counts with what it retries, so that
// one bad item, however often it is cut out and tried, is one place.
func judge(newest []endedSlice, trusted bool) (o outage) {
	var failures []endedSlice
	tried := map[workqueue.SliceID]bool{} // failed, and its pieces or its retry did as well
	for _, s := range newest {
		if s.how != endedWell && (s.itemsOwn || trusted && s.how == EndedFailed && s.items > 1) {
			continue
		}
		if o.of == breakerNewest {
			break
		}
		o.of++
		if s.how == endedWell {
			continue
		}
		if o.failed == 0 {
			o.last = s
		}
		o.failed++
		failures = append(failures, s)
		tried[s.parent] = true
	}
	places := 0
	for _, s := range failures {
		if !tried[s.id] {
			places++
		}
	}
	o.down = places >= breakerPlaces && o.failed*10 >= o.of*breakerShare
	return o
}

const (
	// FirstProbe is how long after its opening a breaker lets the first probe pass; the pause doubles with each that
	// fails, up to longestProbe.
	FirstProbe   = time.Second
	longestProbe = 30 * time.Second
	// BreakerTrust is for how long an endpoint that answered a probe is believed to be up.
	BreakerTrust = time.Minute
	// PatientProbes is how many probes must have failed before one more is held against an item that has failed alone
	// before. Shorter outages than that, about 30 s, cost nobody an attempt.
	PatientProbes = 5
)

// unansweredCodes are those of failures that may come of a service that is not there: they are no answer of its own.
func unansweredCodes() []string {
	return []string{"deadline", "timeout", "unavailable", "unanswered", workqueue.CodeDeliveries, "unreachable",
		"no_listeners"}
}

// answered reports whether a failure is an answer of the service's own.
func answered(code string) bool { return !slices.Contains(unansweredCodes(), code) }

// ProbePause is how long to wait for the next probe after so many have failed.
func ProbePause(failed int) time.Duration {
	d := FirstProbe
	for ; failed > 1 && d < longestProbe; failed-- {
		d *= 2
	}
	return min(d, longestProbe)
}

// Blame is what is known of items that fail while their endpoint is down or seems to be.
type Blame struct {
	proven bool // they failed while the endpoint worked for others
	Lone   int  // how often a single item has failed alone before
	again  bool // it is a single item, which failed alone before as an attempt that counted
	rerun  bool // they are few, and all of them failed in an earlier generation
	others bool // of a probe: there is other work to probe with
}

// spared reports whether the failure of a slice is put down to an outage, rather than to its items. failedProbes counts
// since the breaker opened.
//
// Items that are known to be to blame are not spared: otherwise items that always fail would keep a breaker open for
// which nobody else could send a probe. For the same reason a probe counts in the end when there is nothing left to
// probe with but items that have failed alone.
func (b Blame) spared(origin workqueue.Cause, failedProbes int) bool {
	last := origin == workqueue.CauseProbe && b.Lone > 0 && !b.others
	return !b.proven && (!last || failedProbes < PatientProbes)
}
