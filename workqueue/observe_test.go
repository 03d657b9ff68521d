package workqueue_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// auto is a run of chunks of 4 that leaves its pace to the endpoint's.
func (b *bench) auto(n int) workqueue.RunID {
	b.Helper()
	run := b.Load(storetest.Request(), n)
	b.Exec(`UPDATE run_step SET in_flight_auto = true, chunk_auto = true, chunk_time = '2 s' WHERE run_id = $1`, run)
	return run
}

// observe looks from the beginning, without waiting for what may not be committed yet.
func (b *bench) observe() pacestore.Observation {
	b.Helper()
	b.Exec(`UPDATE work_slice SET ended_at = ended_at - interval '1 s', created_at = ended_at - interval '3 s'
		WHERE ended_at IS NOT NULL`)
	return testenv.Must(pacestore.New(b.Store).Observe(b.Context(), time.Unix(1, 0), []string{"throttled"}))(b)
}

func TestObserveTellsWhatGoesOnAtAnEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.auto(40)
	claimed := b.Claim(run, 8)
	b.Send(claimed...)
	good, mixed, refused := storetest.Whole(claimed[0]), storetest.Whole(claimed[1]), storetest.Whole(claimed[2])
	failed := settle.Answer{Slice: claimed[3].ID, Endpoint: storetest.Endpoint,
		Failure: &workqueue.SlotError{Code: "throttled", Retry: true}}
	good.Took = 1.5
	mixed.Slots[0] = settle.Slot{Ordinal: mixed.Slots[0].Ordinal, Err: &workqueue.SlotError{Code: "odd", Retry: true}}
	mixed.Slots[1] = settle.Slot{Ordinal: mixed.Slots[1].Ordinal, Err: &workqueue.SlotError{Code: "bad"}}
	for i := range refused.Slots {
		refused.Slots[i] = settle.Slot{Ordinal: refused.Slots[i].Ordinal,
			Err: &workqueue.SlotError{Code: "throttled", Retry: i < 2}}
	}
	b.Record(good, mixed, refused, failed)
	o := b.observe()
	testenv.MustSame(t, len(o.Endpoints), 1, "%+v", o)
	e := o.Endpoints[0]
	if e.Endpoint != storetest.Endpoint || !e.InFlightAuto || !e.ChunkAuto || e.ChunkTime != 2*time.Second ||
		e.ChunkMax != 4 ||
		e.Ceiling != 100 || e.Live != 4 || e.Others != 0 || !e.Demand || e.Pace.Open {
		t.Errorf("%+v", e)
	}
	want := map[string]pacestore.EndedSlices{
		"": {Endpoint: storetest.Endpoint, Slices: 3, Items: 12, Retried: 3, Refused: 4, Timed: 1,
			Took: 1500 * time.Millisecond, Clocked: 3, Stay: 6 * time.Second},
		"throttled": {Endpoint: storetest.Endpoint, Code: "throttled", Slices: 1, Items: 4, Clocked: 1,
			Stay: 2 * time.Second},
	}
	for _, got := range e.Ended {
		testenv.Same(t, got, want[got.Code], "%s", got.Code)
		delete(want, got.Code)
	}
	testenv.Same(t, len(want), 0, "missing: %+v", want)
	again, err := pacestore.New(b.Store).Observe(t.Context(), o.Until, nil)
	if err != nil || len(again.Endpoints[0].Ended) > 0 || !again.Since.Equal(o.Until) {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestObserveLeavesFixedPacesAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Send(b.Claim(b.Load(storetest.Request(), 20), 2)...)
	testenv.Same(t, len(b.observe().Endpoints), 0, "endpoints")
	run := b.auto(8)
	b.Send(b.Claim(run, 1)...)
	if o := b.observe(); len(o.Endpoints) != 1 || o.Endpoints[0].Live != 1 || o.Endpoints[0].Others != 2 {
		t.Errorf("%+v", o)
	}
	b.Exec(`UPDATE batchrun SET hold = 'operator', held_at = tranche_now() WHERE id = $1`, run)
	testenv.Same(t, len(b.observe().Endpoints), 0, "a held run counts")
}

func TestAPaceIsSavedWithItsChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.auto(8)
	lease := b.Lead()
	pace := pacestore.LearnedPace{InFlight: 9, Rate: 12.5, Chunk: 200, Learned: []byte(`{"a": 1}`)}
	changes := []pacestore.Change{{What: "in_flight", Before: "12", After: "9", Reason: "requests wait"},
		{What: "rate", Before: "none", After: "12.5", Reason: "refused"}}
	testenv.NoError(t, pacestore.New(b.Store).SavePace(t.Context(), lease, storetest.Endpoint, pace, changes))
	got := b.observe().Endpoints[0].Pace
	if got.InFlight != 9 || got.Rate != 12.5 || got.Chunk != 200 || string(got.Learned) != `{"a": 1}` {
		t.Errorf("%+v", got)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM endpoint_change WHERE endpoint = $1`, storetest.Endpoint), 2,
		"changes")
	b.Exec(`INSERT INTO endpoint_change (endpoint, what, reason) SELECT 'other', 'rate', '' FROM generate_series(1, 510)`)
	testenv.Same(t, testenv.Must(pacestore.New(b.Store).PruneChanges(t.Context(), lease))(t), 10, "changes were forgotten")
	stale := workqueue.Lease{Session: lease.Session, Epoch: lease.Epoch - 1}
	testenv.Fails(t, pacestore.New(b.Store).SavePace(t.Context(), stale, storetest.Endpoint, pace, nil),
		"someone who leads no more has saved a pace")
}

// A service that works far longer on requests and on items than before is reported, with both figures and since when.
// Larger requests of the same items, and smaller ones, are no slower service.
func TestAServiceThatBecameSlow(t *testing.T) {
	t.Parallel()
	type requests struct {
		chunk int
		took  float64 // seconds, of each
	}
	for name, tc := range map[string]struct {
		before, now requests
		ago         string // that the requests before ended
		slow        string
	}{
		"39 s, 1 ms before": {requests{100, 0.1}, requests{1, 39}, "1 hour",
			storetest.Endpoint + " became slow: an item takes 39 s, and took 1 ms before"},
		"large requests":        {requests{1, 0.5}, requests{100, 50}, "1 hour", ""},
		"small requests":        {requests{100, 1.5}, requests{1, 1.2}, "1 hour", ""},
		"somewhat slower":       {requests{1, 1}, requests{1, 9}, "1 hour", ""},
		"slow as long as known": {requests{1, 39}, requests{1, 39}, "1 hour", ""},
		"quick a month ago":     {requests{1, 0.01}, requests{1, 39}, "30 days", ""},
		"quick again":           {requests{1, 0.001}, requests{1, 39}, "1 hour", ""},
		"a host": {requests{100, 0.1}, requests{1, 39}, "1 hour",
			storetest.Endpoint + " became slow: an item takes 39 s, and took 1 ms before"},
		"a host, of waits of ours":      {requests{100, 0.1}, requests{1, 39}, "1 hour", ""},
		"a host, asked something else":  {requests{100, 0.1}, requests{1, 39}, "1 hour", ""},
		"a function of the node itself": {requests{100, 0.1}, requests{1, 39}, "1 hour", ""},
	} {
		subtest(t, name, func(b *bench) {
			for _, r := range []requests{tc.before, tc.now} {
				run := b.Load(storetest.Chunked(r.chunk), 5*r.chunk)
				for _, s := range b.Claim(run, 5) {
					a := storetest.Whole(s)
					a.Took = r.took
					b.Record(a)
				}
				if r == tc.before && b.Number(`SELECT count(*) FROM batchrun`) == 1 {
					b.Exec(`UPDATE work_slice SET ended_at = ended_at - $1::interval`, tc.ago)
				}
			}
			if name == "quick again" {
				b.Exec(`UPDATE work_slice SET took = 0.001 WHERE ended_at = (SELECT max(ended_at) FROM work_slice)`)
			}
			run := b.Load(storetest.Chunked(1), 1)
			switch {
			case strings.HasPrefix(name, "a host"):
				b.Exec(`UPDATE run_step SET kind = 'http', config = '{"url": "x"}'`)
				b.Exec(`UPDATE work_slice SET worked = took`)
			case strings.HasPrefix(name, "a function"):
				b.Exec(`UPDATE run_step SET kind = 'local'`)
			}
			switch name {
			case "a host, of waits of ours":
				b.Exec(`UPDATE work_slice SET worked = 0.001`)
			case "a host, asked something else":
				b.Exec(`UPDATE run_step SET config = '{"url": "y"}'
					WHERE run_id IN (SELECT run_id FROM work_slice WHERE took < 1)`)
			}
			facts := testenv.Must(health.New(b.Store).Health(b.Context(), health.Limits{}))(b)
			found := slices.DeleteFunc(facts.Conditions, func(c health.Condition) bool { return c.Kind != health.ServiceSlow })
			of := testenv.Must(health.New(b.Store).ExplainEndpoint(b.Context(), storetest.Endpoint))(b)
			notes := slices.Concat(b.explain(run).Notes, of.Notes)
			if tc.slow == "" {
				if len(found) != 0 || len(notes) != 0 {
					b.Errorf("%+v, %q; want nothing", found, notes)
				}
				return
			}
			if len(found) != 1 || found[0].Title != tc.slow || !strings.Contains(found[0].Detail, "1 running run uses") {
				b.Fatalf("%+v; want %s", found, tc.slow)
			}
			testenv.Same(b, b.Number(`SELECT count(*) FROM (SELECT min(ended_at) AS first FROM work_slice WHERE took = 39) w
				WHERE first = $1::timestamptz + interval '39 s'`, found[0].Since), 1, "since, when the first slow one began")
			if len(notes) != 2 || !strings.Contains(notes[0], tc.slow) || !strings.Contains(notes[1], tc.slow) {
				b.Errorf("explained: %q", notes)
			}
		})
	}
}
