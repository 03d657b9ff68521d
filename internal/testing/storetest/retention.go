package storetest

import (
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Ended makes a run of n items that ended so long ago, and of which everything is known that can be.
func (b *Bench) Ended(n int, ago time.Duration) workqueue.RunID {
	b.Helper()
	run := b.Load(Request(), n)
	b.Record(Faulty(b.One(run), workqueue.SlotError{Code: "BAD", Message: "no"}))
	b.Record(Faulty(b.One(run), workqueue.SlotError{Code: "LATER", Message: "again", Retry: true}))
	b.Finish(run)
	if _, err := redo.New(b.Store).Rerun(b.Context(), redo.RerunRequest{Run: run, Actor: "ann",
		Select: redo.Selection{Failed: true}}); err != nil {
		b.Fatal(err)
	}
	b.Finish(run)
	b.Exec(`INSERT INTO quarantine (reason, detail, subject, run_id, body) VALUES ('r', 'd', 's', $1, 'x')`, run)
	b.Exec(`INSERT INTO dead_letter (id, msg_id, endpoint, cause, run_id) VALUES (gen_random_uuid(), $2, 'e', 'c', $1)`,
		run, run.String())
	b.Exec(`UPDATE run_event SET published_at = tranche_now() WHERE run_id = $1`, run)
	b.Exec(`UPDATE batchrun SET finished_at = tranche_now() - $2::interval WHERE id = $1`, run, ago)
	return run
}
