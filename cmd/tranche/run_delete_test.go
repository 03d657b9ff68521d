package main

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// A run that somebody deletes is gone at once, and soon nothing is left of it.
func TestDeletionOfARun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mended := make(chan struct{})
	close(mended)
	b.echo(mended)
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "it", "--wait"), 0, "3 of 3")
	b.want(b.tranche("run", "delete", "it"), 1, "completed for less than 1m0s", "try again in")
	db, err := pgx.Connect(t.Context(), b.database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close(t.Context()) })
	var id string
	err = db.QueryRow(t.Context(), `UPDATE batchrun SET finished_at = finished_at - interval '1 hour' RETURNING id`).
		Scan(&id)
	if err != nil {
		t.Fatal(err)
	}
	b.wantSoon([]string{"run", "delete", "it", "--dry-run"}, "dry run, would be deleted", "(it) of plan echo, completed",
		"3 items in 1 steps", "nothing was changed")
	b.want(b.tranche("run", "show", "it"), 0, "3")
	b.want(b.tranche("run", "delete", "it", "--reason", "a rehearsal"), 0, "deleted: run", "tranche retention show")
	b.want(b.tranche("run", "show", id), 1, "was deleted at", "a rehearsal")
	b.want(b.tranche("run", "delete"), 2)
	eventually(t, "nothing is left of it", func() bool {
		var left int
		err := db.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM work_queue) + (SELECT count(*) FROM work_part)
			+ (SELECT count(*) FROM run_step) + (SELECT count(*) FROM retention_run WHERE gone_at IS NULL)`).Scan(&left)
		if err != nil {
			t.Fatal(err)
		}
		return left == 0
	})
	b.want(b.tranche("doctor"), 0)
	b.want(b.tranche("audit", "--action", "delete"), 0, "a rehearsal")
}
