package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// What commits is counted once, by endpoint: outcomes by replies, and what failed since its time was over.
func TestWhatIsSettledIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	req := storetest.Request()
	req.Steps[0].MaxAttempts = 1
	run := b.Load(req, 12)
	claimed := b.Claim(run, storetest.Plenty)
	if len(claimed) != 3 {
		t.Fatalf("%d slices", len(claimed))
	}
	b.Send(claimed...)
	total := settle.Settled{Endpoint: req.Steps[0].Endpoint}
	store := settle.New(b.Store).Counting(func(all []settle.Settled) {
		for _, s := range all {
			if s.Endpoint != total.Endpoint {
				t.Errorf("counted for %q", s.Endpoint)
			}
			total.Done, total.Failed = total.Done+s.Done, total.Failed+s.Failed
			total.Answered, total.Refused = total.Answered+s.Answered, total.Refused+s.Refused
			total.Expired, total.Lost = total.Expired+s.Expired, total.Lost+s.Lost
		}
	})
	for range 2 { // the second time it is stale
		if _, err := store.Record(t.Context(), []settle.Answer{storetest.Whole(claimed[0])}); err != nil {
			t.Fatal(err)
		}
	}
	b.Exec(`UPDATE work_slice SET handed_at = tranche_now() - interval '1 hour',
		deadline = tranche_now() - interval '1 min' WHERE state = 'sent'`)
	if n, err := store.Expire(t.Context(), lease, ids(claimed[1])); err != nil || n != 1 {
		t.Fatalf("expired %d slices, %v", n, err)
	}
	refused := storetest.Answer(claimed[2])
	refused.Failure = &workqueue.SlotError{Code: "broken", Message: "no"}
	if _, err := store.Record(t.Context(), []settle.Answer{refused}); err != nil {
		t.Fatal(err)
	}
	if total.Done != 4 || total.Answered != 1 || total.Expired != 1 || total.Refused != 1 || total.Lost != 0 {
		t.Errorf("counted %+v", total)
	}
	if failed := b.Tally(run).Failed; int64(failed) != total.Failed {
		t.Errorf("%d items have failed, and %d were counted", failed, total.Failed)
	}
}
