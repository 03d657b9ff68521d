package orchestrator_test

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/order"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/start"
)

// scene is a run whose end is foretold while it continues.
type scene struct {
	name   string
	steps  []workqueue.StepSpec
	items  int
	before int                          // items of an earlier run of the same plan; 0: there was none
	beside int                          // items of a run that begins at the same time and asks the same; 0: there is none
	budget int                          // of the first endpoint
	takes  map[string]func() float64    // seconds of a request, by endpoint
	each   float64                      // and of each of its items
	at     int                          // requests that a service works on concurrently; 0: 32
	double bool                         // a second service begins when half is done
	down   time.Duration                // services answer nothing for so long, from a quarter of the way on
	again  float64                      // share of the items that are answered with an error that passes
	change func(req *start.LoadRequest) // of the run; nil: nothing
	by     float64                      // seconds in which it is to be done; 0: whenever
	gentle bool
	late   bool // that is impossible
	alone  bool // played when no other is
}

func asks(endpoint string, needs ...int) workqueue.StepSpec {
	return workqueue.StepSpec{Name: endpoint, Endpoint: endpoint, Needs: needs, StepSettings: workqueue.StepSettings{
		Chunk: 10, InFlight: 8, MaxAttempts: 5, Timeout: time.Minute, RetryBackoff: time.Second}}
}

// around is a time that varies by a third.
func around(seconds float64) func() float64 {
	return func() float64 { return seconds * math.Exp(rand.NormFloat64()/3) }
}

func scenes() []scene {
	barrier, second := asks("b", 0), asks("b", 0)
	barrier.Barrier = true
	patient, auto := asks("a"), asks("a")
	patient.MaxAttempts, auto.Chunk, auto.ChunkAuto = 100, 200, true
	large := asks("a")
	large.Chunk = 2000
	tail := func() float64 {
		if rand.Float64() < 0.03 {
			return 5 + 3*rand.Float64()
		}
		return around(0.4)()
	}
	return []scene{
		{name: "steady", steps: []workqueue.StepSpec{asks("a")}, items: 3000,
			takes: map[string]func() float64{"a": around(0.8)}},
		{name: "two steps, the second slow", steps: []workqueue.StepSpec{asks("a"), second}, items: 2000, before: 200,
			takes: map[string]func() float64{"a": around(0.3), "b": around(1)}},
		{name: "barrier", steps: []workqueue.StepSpec{asks("a"), barrier}, items: 2000, before: 300,
			takes: map[string]func() float64{"a": around(0.3), "b": around(0.9)}},
		{name: "5% retries", steps: []workqueue.StepSpec{asks("a")}, items: 3000, again: 0.05,
			takes: map[string]func() float64{"a": around(0.6)}},
		{name: "heavy tail", steps: []workqueue.StepSpec{asks("a")}, items: 3000,
			takes: map[string]func() float64{"a": tail}},
		{name: "shared budget", steps: []workqueue.StepSpec{asks("a")}, items: 2400, beside: 900, budget: 8,
			takes: map[string]func() float64{"a": around(0.8)}},
		{name: "canary", steps: []workqueue.StepSpec{asks("a")}, items: 3000,
			takes: map[string]func() float64{"a": around(0.8)}, change: func(req *start.LoadRequest) {
				req.Canary, req.CanaryAutoApprove = 60, true
			}},
		{name: "breaker open for 30 s", steps: []workqueue.StepSpec{patient}, items: 3000, down: 30 * time.Second,
			takes: map[string]func() float64{"a": around(0.8)}},
		{name: "ordered, 4 lanes", steps: []workqueue.StepSpec{asks("a")}, items: 600,
			takes: map[string]func() float64{"a": around(0.2)}, change: func(req *start.LoadRequest) {
				req.Order = &workqueue.RunOrder{Rule: order.Rule{By: order.Key, Partitions: 4}}
			}},
		{name: "doubled half-way", steps: []workqueue.StepSpec{asks("a")}, items: 3000, at: 4, double: true,
			takes: map[string]func() float64{"a": around(0.5)}},
		{name: "chunk auto", steps: []workqueue.StepSpec{auto}, items: 20_000, each: 0.005,
			takes: map[string]func() float64{"a": around(0.2)}},
		{name: "5 million items", steps: []workqueue.StepSpec{large}, items: 5_000_000, alone: true,
			takes: map[string]func() float64{"a": around(0.2)}},
	}
}

// told is what was foretold at a moment, in seconds from the start of the run; NaN: nothing.
type told struct {
	at, p10, p50, p90, naive float64

	out    float64 // requests in flight
	atRisk bool
	fix    string
}

// How close the forecast is to when runs of several kinds really ended, beside what is left divided by the rate of the
// last ten seconds, which was told before.
func TestForecastsAreClose(t *testing.T) { //nolint:tparallel // scenes ends when all of them have
	t.Parallel()
	all := scenes()
	rows := make([]string, len(all))
	var sums struct {
		sync.Mutex

		forecast, naive []float64 // errors at a tenth and at a quarter of the way
		inside, of      int
	}
	t.Run("scenes", func(t *testing.T) {
		for i := range all {
			t.Run(all[i].name, func(t *testing.T) {
				if !all[i].alone {
					t.Parallel()
				}
				found, took := play(t, &all[i])
				row := fmt.Sprintf("| %s | %.0f s |", all[i].name, took)
				for _, share := range []float64{0.1, 0.25, 0.5, 0.75} {
					f := nearest(found, share*took)
					left := took - f.at
					own, naive := math.Abs(f.at+f.p50-took)/left, math.Abs(f.at+f.naive-took)/left
					row += fmt.Sprintf(" %s, %s |", percent(own), percent(naive))
					if share < 0.3 {
						sums.Lock()
						sums.forecast, sums.naive = append(sums.forecast, own), append(sums.naive, naive)
						sums.Unlock()
					}
				}
				inside, of := 0, 0
				for _, f := range found {
					if f.at > 0.1*took && f.at < 0.9*took && !math.IsNaN(f.p50) {
						of++
						if f.at+f.p10 <= took && took <= f.at+f.p90 {
							inside++
						}
					}
				}
				half := nearest(found, took/2)
				rows[i] = row + fmt.Sprintf(" %s | %s |", percent(float64(inside)/float64(max(of, 1))),
					percent((half.p90-half.p10)/(took-half.at)))
				sums.Lock()
				sums.inside, sums.of = sums.inside+inside, sums.of+of
				sums.Unlock()
			})
		}
	})
	own, naive := median(sums.forecast), median(sums.naive)
	t.Logf("p50's error, and that of the rate:\n| scene | took | 10%% | 25%% | 50%% | 75%% | inside | width |\n%s\n"+
		"at 10%% and 25%%: %s, %s; inside: %s", strings.Join(rows, "\n"), percent(own), percent(naive),
		percent(float64(sums.inside)/float64(max(sums.of, 1))))
	if own > naive {
		t.Errorf("the forecast errs by %s, the rate by %s", percent(own), percent(naive))
	}
}

// Runs are done by their time, as gently as that allows; and those that cannot be are reported soon, and no others.
func TestRunsAreDoneByTheirTime(t *testing.T) { //nolint:tparallel // scenes ends when all of them have
	t.Parallel()
	all := scenes()[:7]
	for i, by := range []float64{100, 90, 100, 75, 100, 110, 100} { // most of them take a third of that
		all[i].by, all[i].gentle = by, true
	}
	auto := asks("a")
	auto.InFlight, auto.InFlightAuto = 64, true
	slow := map[string]func() float64{"a": around(0.8)}
	all = append(all,
		scene{name: "automatic limit", steps: []workqueue.StepSpec{auto}, items: 4000, by: 100, gentle: true, takes: slow},
		scene{name: "little to spare", steps: []workqueue.StepSpec{asks("a")}, items: 6000, by: 80, gentle: true,
			takes: slow},
		scene{name: "late by halves of a budget", steps: []workqueue.StepSpec{asks("a")}, items: 5000, beside: 5000,
			budget: 8, by: 80, takes: slow},
		scene{name: "too many items", steps: []workqueue.StepSpec{asks("a")}, items: 9000, by: 60, late: true, takes: slow},
		scene{name: "too small a budget", steps: []workqueue.StepSpec{asks("a")}, items: 4000, budget: 3, by: 70, late: true,
			takes: slow})
	rows := make([]string, len(all))
	var wrong atomic.Int32
	t.Run("scenes", func(t *testing.T) {
		for i := range all {
			t.Run(all[i].name, func(t *testing.T) {
				t.Parallel()
				s := &all[i]
				found, took := play(t, s)
				out, said, falsely, fix := 0.0, math.NaN(), false, ""
				for _, f := range found {
					out += f.out / float64(len(found))
					if f.atRisk && math.IsNaN(said) {
						said = f.at
					}
					falsely = falsely || f.atRisk && !s.late && f.at > took/4
					fix = cmp.Or(fix, f.fix)
				}
				rows[i] = fmt.Sprintf("| %s | %.0f s | %.0f s | %+.0f%% | %.1f | %.0f s | %s |", s.name, s.by, took,
					100*(took/s.by-1), out, said, fix)
				t.Log(rows[i])
				if took <= 1.03*s.by == s.late || falsely || s.late && !(said < 60) {
					t.Logf("not as it should be: falsely said to be late: %t", falsely)
					wrong.Add(1)
				}
			})
		}
	})
	if n := wrong.Load(); n > 1 {
		t.Errorf("%d scenes were not as they should be; one at most may be by chance", n)
	}
	t.Logf("| scene | to be done in | took | by | in flight | said to be late after | fix |\n%s", strings.Join(rows, "\n"))
}

func percent(share float64) string {
	if math.IsNaN(share) {
		return "not yet"
	}
	return fmt.Sprintf("%.0f%%", 100*share)
}

func median(all []float64) float64 {
	all = slices.DeleteFunc(slices.Clone(all), math.IsNaN)
	slices.Sort(all)
	if len(all) == 0 {
		return math.NaN()
	}
	return all[len(all)/2]
}

func nearest(all []told, at float64) told {
	return slices.MinFunc(all, func(a, b told) int {
		return int(1000 * (math.Abs(a.at-at) - math.Abs(b.at-at)))
	})
}

// play plays a scene with a node and services, and returns what was foretold on the way and how long it took.
func play(t *testing.T, s *scene) ([]told, float64) {
	t.Helper()
	b := setup(t)
	var seen sync.Map
	var down atomic.Bool
	serve := func(endpoint string, takes func() float64) {
		b.Serve(t, endpoint, func(ctx context.Context, chunk *nodetest.Chunk) error {
			select {
			case <-time.After(time.Duration((takes() + s.each*float64(len(chunk.Items()))) * float64(time.Second))):
			case <-ctx.Done():
				return ctx.Err()
			}
			for _, item := range chunk.Items() {
				if down.Load() {
					item.Retry("down", "the ledger is unavailable")
					continue
				}
				if s.again > 0 {
					if _, known := seen.LoadOrStore(item.In.ID, true); !known && rand.Float64() < s.again {
						item.Retry("busy", "later")
						continue
					}
				}
				item.Reply(nodetest.Statement{Of: item.In.ID})
			}
			return nil
		}, endpoints.Concurrency(cmp.Or(s.at, 32)))
	}
	for endpoint, takes := range s.takes {
		serve(endpoint, takes)
	}
	req := start.LoadRequest{Plan: "scene", CreatedBy: "test", Steps: s.steps}
	if s.budget > 0 {
		testenv.Must(pace.New(b.Store).ChangeEndpoint(t.Context(), pace.EndpointChange{Endpoint: s.steps[0].Endpoint,
			MaxInFlight: &s.budget}, "test"))(t)
	}
	if s.before > 0 {
		b.Outcome(t, b.Start(t, req, s.before), 1)
	}
	if s.beside > 0 {
		b.Start(t, req, s.beside)
	}
	if s.change != nil {
		s.change(&req)
	}
	if s.by > 0 {
		req.DoneBy, req.Gentle = new(time.Now().Add(time.Duration(s.by*float64(time.Second)))), s.gentle
	}
	run := b.Start(t, req, s.items)
	var found []told
	var took float64
	var next time.Time
	nodetest.Until(t, "the run ended", func() bool {
		if time.Now().Before(next) {
			return false // to look is work for the machine
		}
		next = time.Now().Add(200 * time.Millisecond)
		view := testenv.Must(inspect.New(b.Store).ForecastRun(t.Context(), run))(t)
		if view.State == "completed" {
			took = view.FinishedAt.Sub(*view.StartedAt).Seconds()
			return true
		}
		if s.double && view.Progress > 0.5 {
			s.double = false
			serve("a", s.takes["a"])
		}
		if s.down > 0 && view.Progress > 0.25 {
			down.Store(true)
			time.AfterFunc(s.down, func() { down.Store(false) })
			s.down = 0
		}
		if view.StartedAt != nil {
			found = append(found, telling(view))
		}
		return false
	})
	return found, took
}

func telling(view *inspect.RunView) told {
	now := told{at: view.At.Sub(*view.StartedAt).Seconds(), p10: math.NaN(), p50: math.NaN(), p90: math.NaN(),
		naive: math.NaN()}
	if f := view.Forecast; f != nil && f.P50 != nil {
		now.p10, now.p50, now.p90 = f.P10.Sub(view.At).Seconds(), f.P50.Sub(view.At).Seconds(), f.P90.Sub(view.At).Seconds()
	}
	if now.atRisk = view.AtRisk != nil; now.atRisk && view.AtRisk.Fix != nil {
		now.fix = view.AtRisk.Fix.Text
	}
	left := int64(0)
	for i := range view.Steps {
		now.out += float64(view.Steps[i].SlicesInFlight)
		left += view.Steps[i].Items - view.Steps[i].Settled()
	}
	if view.Rate > 0 {
		now.naive = float64(left) / view.Rate
	}
	return now
}
