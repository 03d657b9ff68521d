package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// auto is a run of chunks of 4 that leaves its pace to the endpoint's.
func (b *bench) auto(n int) workqueue.RunID {
	b.Helper()
	run := b.load(request(), n)
	b.exec(`UPDATE run_step SET in_flight_auto = true, chunk_auto = true, chunk_time = '2 s' WHERE run_id = $1`, run)
	return run
}

// observe looks from the beginning, without waiting for what may not be committed yet.
func (b *bench) observe() pacestore.Observation {
	b.Helper()
	b.exec(`UPDATE work_slice SET ended_at = ended_at - interval '1 s', created_at = ended_at - interval '3 s'
		WHERE ended_at IS NOT NULL`)
	o, err := pacestore.New(b.store).Observe(b.Context(), time.Unix(1, 0), []string{"throttled"})
	if err != nil {
		b.Fatal(err)
	}
	return o
}

func TestObserveTellsWhatGoesOnAtAnEndpoint(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.auto(40)
	claimed := b.claim(run, 8)
	b.send(claimed...)
	good, mixed, refused, failed := whole(claimed[0]), whole(claimed[1]), whole(claimed[2]), settle.Answer{
		Slice: claimed[3].ID, Endpoint: endpoint, Failure: &workqueue.SlotError{Code: "throttled", Retry: true}}
	good.Took = 1.5
	mixed.Slots[0] = settle.Slot{Ordinal: mixed.Slots[0].Ordinal, Err: &workqueue.SlotError{Code: "odd", Retry: true}}
	mixed.Slots[1] = settle.Slot{Ordinal: mixed.Slots[1].Ordinal, Err: &workqueue.SlotError{Code: "bad"}}
	for i := range refused.Slots {
		refused.Slots[i] = settle.Slot{Ordinal: refused.Slots[i].Ordinal,
			Err: &workqueue.SlotError{Code: "throttled", Retry: i < 2}}
	}
	b.record(good, mixed, refused, failed)
	o := b.observe()
	if len(o.Endpoints) != 1 {
		t.Fatalf("%+v", o)
	}
	e := o.Endpoints[0]
	if e.Endpoint != endpoint || !e.InFlightAuto || !e.ChunkAuto || e.ChunkTime != 2*time.Second || e.ChunkMax != 4 ||
		e.Ceiling != 100 || e.Live != 4 || e.Others != 0 || !e.Demand || e.Pace.Open {
		t.Errorf("%+v", e)
	}
	want := map[string]pacestore.EndedSlices{
		"": {Endpoint: endpoint, Slices: 3, Items: 12, Retried: 3, Refused: 4, Timed: 1,
			Took: 1500 * time.Millisecond, Clocked: 3, Stay: 6 * time.Second},
		"throttled": {Endpoint: endpoint, Code: "throttled", Slices: 1, Items: 4, Clocked: 1, Stay: 2 * time.Second},
	}
	for _, got := range e.Ended {
		if got != want[got.Code] {
			t.Errorf("%+v; want %+v", got, want[got.Code])
		}
		delete(want, got.Code)
	}
	if len(want) > 0 {
		t.Errorf("%+v is missing", want)
	}
	again, err := pacestore.New(b.store).Observe(t.Context(), o.Until, nil)
	if err != nil || len(again.Endpoints[0].Ended) > 0 || !again.Since.Equal(o.Until) {
		t.Errorf("%+v, %v", again, err)
	}
}

func TestObserveLeavesFixedPacesAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.send(b.claim(b.load(request(), 20), 2)...)
	if o := b.observe(); len(o.Endpoints) != 0 {
		t.Errorf("%+v", o)
	}
	run := b.auto(8)
	b.send(b.claim(run, 1)...)
	if o := b.observe(); len(o.Endpoints) != 1 || o.Endpoints[0].Live != 1 || o.Endpoints[0].Others != 2 {
		t.Errorf("%+v", o)
	}
	b.exec(`UPDATE batchrun SET hold = 'operator', held_at = clock_timestamp() WHERE id = $1`, run)
	if o := b.observe(); len(o.Endpoints) != 0 {
		t.Errorf("a held run counts: %+v", o)
	}
}

func TestAPaceIsSavedWithItsChanges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.auto(8)
	lease := b.lead()
	pace := pacestore.LearnedPace{InFlight: 9, Rate: 12.5, Chunk: 200, Learned: []byte(`{"a": 1}`)}
	changes := []pacestore.Change{{What: "in_flight", Before: "12", After: "9", Reason: "requests wait"},
		{What: "rate", Before: "none", After: "12.5", Reason: "refused"}}
	if err := pacestore.New(b.store).SavePace(t.Context(), lease, endpoint, pace, changes); err != nil {
		t.Fatal(err)
	}
	got := b.observe().Endpoints[0].Pace
	if got.InFlight != 9 || got.Rate != 12.5 || got.Chunk != 200 || string(got.Learned) != `{"a": 1}` {
		t.Errorf("%+v", got)
	}
	if n := b.number(`SELECT count(*) FROM endpoint_change WHERE endpoint = $1`, endpoint); n != 2 {
		t.Errorf("%d changes", n)
	}
	b.exec(`INSERT INTO endpoint_change (endpoint, what, reason) SELECT 'other', 'rate', '' FROM generate_series(1, 510)`)
	if n, err := pacestore.New(b.store).PruneChanges(t.Context(), lease); err != nil || n != 10 {
		t.Errorf("%d changes were forgotten, %v", n, err)
	}
	stale := workqueue.Lease{Session: lease.Session, Epoch: lease.Epoch - 1}
	if err := pacestore.New(b.store).SavePace(t.Context(), stale, endpoint, pace, nil); err == nil {
		t.Error("somebody who leads no more has saved a pace")
	}
}
