package faultyservice

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/start"
)

func (w *world) lie(cfg LiarConfig) *Ledger {
	w.Helper()
	liar := testenv.Must(NewLiar(testenv.Conn(w, w.NS), cfg))(w)
	nodetest.Run(w.T, "liar", liar.Run)
	return liar.Ledger()
}

// Whatever a service claims that does not fit: no item is lost, none has a wrong result, and what deserves a look is in
// quarantine.
func TestLiar(t *testing.T) {
	t.Parallel()
	const items, chunk = 1500, 100
	w := setup(t)
	cases := map[Lie]struct {
		quarantined string // reason; "" for none
		once        bool   // nothing must be asked again
		deadline    bool   // the items come again after their deadline
		either      bool   // of two replies that contradict each other, the one that is recorded first counts
	}{
		LieForeign:   {quarantined: "foreign_ordinal"},
		LieOthers:    {quarantined: "foreign_ordinal"},
		LieMissing:   {},
		LieEmpty:     {},
		LieCountHigh: {deadline: true},
		LieCountLow:  {quarantined: "final"},
		LieDoubled:   {once: true},
		LieTwice:     {once: true, either: true},
		LieRun:       {once: true}, // the slice is the fence, and it is right
		LieSlice:     {deadline: true},
		LieEndpoint:  {quarantined: "wrong_endpoint", deadline: true},
		LieGarbage:   {quarantined: "json"},
		LieTruncated: {quarantined: "json"},
		LieBoth:      {quarantined: "slot"},
	}
	testenv.MustSame(t, len(cases), len(Lies()), "lies that are tested")
	ledgers, runs := map[Lie]*Ledger{}, map[Lie]workqueue.RunID{}
	for lie, tc := range cases { // all at the same time, each at an endpoint of its own
		endpoint := endpointOf(string(lie))
		ledgers[lie] = w.lie(LiarConfig{Endpoint: endpoint, Lie: lie})
		runs[lie] = w.start(items, plan(at(endpoint), func(r *start.LoadRequest) {
			r.Steps[0].Chunk = chunk
			if tc.deadline { // longer than a slow node takes to judge a reply: late ones are not looked at
				r.Steps[0].Timeout = 15 * time.Second
			}
		}))
	}
	t.Cleanup(func() {
		if n := w.number(`SELECT count(*) FROM quarantine WHERE run_id IS NULL OR run_id <> ALL ($1)`,
			slices.Collect(maps.Values(runs))); n != 0 {
			t.Errorf("%d messages in quarantine are of no run", n)
		}
		w.Check(w.T)
	})
	for lie, tc := range cases {
		t.Run(string(lie), func(t *testing.T) {
			t.Parallel()
			w, run := w.in(t), runs[lie]
			failed := 0
			if tc.either {
				_, failed = w.completed(run)
			}
			w.wantSound(run, ledgers[lie], items-failed, failed)
			w.wantFired(ledgers[lie], Fault(lie))
			n := w.number(`SELECT count(*) FROM quarantine WHERE run_id = $1 AND reason = $2`, run, tc.quarantined)
			testenv.Same(t, w.number(`SELECT count(*) FROM quarantine WHERE run_id = $1`, run)-n, 0,
				"messages in quarantine for other reasons than %q", tc.quarantined)
			testenv.Same(t, (n > 0), (tc.quarantined != ""), "%d messages are in quarantine for %q", n, tc.quarantined)
			testenv.Same(t, (w.extra(run) == 0), tc.once, "slices were reissued")
			n = w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND error_code IN ('deadline', 'lost')`, run)
			testenv.Same(t, (n > 0), tc.deadline, "%d slices passed their deadline, or had lost their reply", n)
		})
	}
}
