package retention

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// DeleteRequest asks to delete a run.
type DeleteRequest struct {
	Run    workqueue.RunID
	DryRun bool // change nothing, and return what would be deleted
	Reason string
	Actor  string
}

// Deletion is what is deleted with a run, or would be.
type Deletion struct {
	Name       string    `json:"name,omitempty"`
	Plan       string    `json:"plan"`
	State      string    `json:"state" enum:"completed,cancelled"`
	FinishedAt time.Time `json:"finished_at"`
	Items      int64     `json:"items"`
	Failed     int64     `json:"failed" doc:"of the items"`
	Steps      int       `json:"steps"`
	Bytes      int64     `json:"bytes" doc:"of all its rows, roughly"`
	Letters    int64     `json:"dead_letters"`
	Waiting    int64     `json:"waiting_letters" doc:"waiting dead letters; they are deleted, too"`
	Quarantine int64     `json:"quarantine" doc:"messages in quarantine"`
}

const (
	// Locks the steps first, like every operation on a run, and waits for other holders.
	lockStepsForGood = `
SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE`

	lockRunForGood = `
SELECT state, generation, coalesce(name, ''), plan, items, coalesce(failed, 0), hold IS NOT NULL,
    sealed_at IS NOT NULL OR opened, coalesce(finished_at, 'epoch'),
    coalesce(extract(epoch FROM finished_at + $2::interval - tranche_now()), 0)::float8,
    EXISTS (SELECT FROM run_event e WHERE e.run_id = batchrun.id AND e.published_at IS NULL),
    (SELECT o.id FROM batchrun o WHERE o.from_run = batchrun.id ORDER BY o.id DESC LIMIT 1)
FROM batchrun WHERE id = $1 FOR UPDATE`

	// The counts use indexes that start with the run; the size is that of measureRuns.
	weighRun = `
SELECT coalesce((SELECT z.bytes FROM retention_size z WHERE z.run_id = $1 AND z.generation = $4),
        4096 + $2::bigint * 150 * (1 + $3::bigint)
        + coalesce((SELECT sum(b.result_bytes) + sum(b.payload_bytes) FILTER (WHERE b.step = 0) FROM work_block b
                    WHERE b.run_id = $1), 0)
        + coalesce((SELECT sum(150 + octet_length(c.payload)) FROM work_correction c WHERE c.run_id = $1), 0)
        + 500 * (SELECT count(*) FROM work_slice w WHERE w.run_id = $1))::bigint,
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = $1),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = $1 AND d.state = 'waiting'),
    (SELECT count(*) FROM quarantine q WHERE q.run_id = $1)`
)

// DeleteByHand marks a finished run for [Store.DeletePiece]. It returns a [workqueue.StateError] if it must stay.
func (s Store) DeleteByHand(ctx context.Context, req DeleteRequest) (out Deletion, err error) {
	err = s.db.RedoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = req.take(ctx, tx)
		return err
	})
	return out, pg.Wrap(err, "delete run %s", req.Run)
}

func (req *DeleteRequest) take(ctx context.Context, tx pgx.Tx) (out Deletion, err error) {
	var gen workqueue.Generation
	if out, gen, err = req.lock(ctx, tx); err != nil {
		return out, err
	}
	err = tx.QueryRow(ctx, weighRun, req.Run, out.Items, out.Steps, gen).Scan(&out.Bytes, &out.Letters, &out.Waiting,
		&out.Quarantine)
	if err != nil {
		return out, err
	}
	taken, err := takeRunRow(ctx, tx, req.Run, nil, pg.Plain(req.Reason), pg.Plain(req.Actor), out.Steps, nil)
	if err != nil {
		return out, err
	}
	if taken == nil {
		return out, fmt.Errorf("%w: it was about to be deleted", workqueue.ErrFence)
	}
	detail := map[string]any{"dead_letters": out.Letters, "waiting_letters": out.Waiting, "quarantine": out.Quarantine}
	ledger.AddReason(detail, req.Reason)
	return out, ledger.AuditChange(ctx, tx, ledger.Action{Actor: req.Actor, Name: "delete", Run: req.Run, Before: taken,
		Detail: detail})
}

func (req *DeleteRequest) lock(ctx context.Context, tx pgx.Tx) (out Deletion, gen workqueue.Generation, err error) {
	steps, err := tx.Exec(ctx, lockStepsForGood, req.Run)
	if err != nil {
		return out, 0, err
	}
	out.Steps = int(steps.RowsAffected())
	var held, whole, silent bool
	var left float64
	var later *workqueue.RunID
	err = tx.QueryRow(ctx, lockRunForGood, req.Run, retentionSettle).Scan(&out.State, &gen, &out.Name, &out.Plan,
		&out.Items, &out.Failed, &held, &whole, &out.FinishedAt, &left, &silent, &later)
	if err := pg.NoRow(err, fmt.Errorf("run %s: %w", req.Run, workqueue.ErrNotFound)); err != nil {
		return out, 0, err
	}
	refused := &workqueue.StateError{Run: req.Run, State: out.State, Op: "delete"}
	switch {
	case out.State == "loading" || out.State == "running":
		if held {
			refused.State = "in progress, and paused"
		}
		refused.Fix = "let it end, or end it first: tranche run cancel " + req.Run.String()
	case !whole:
		refused.State, refused.Fix = "an abandoned load", "it is removed automatically"
	case left > 0:
		refused.State += fmt.Sprintf(" for less than %s", retentionSettle)
		refused.Fix = fmt.Sprintf("answers about it may still come, and schedules check how it ended; try again in %s",
			(time.Duration(left*float64(time.Second)) + time.Second).Truncate(time.Second))
	case silent:
		refused.State += ", and an event about it is not published yet"
		refused.Fix = "try again when NATS has taken it, in seconds; tranche nodes says what keeps it"
	case later != nil:
		refused.State = "continued by run " + later.String() + ", whose report counts both as one"
		refused.Fix = "delete that one first: tranche run delete " + later.String()
	default:
		return out, gen, nil
	}
	return out, gen, refused
}

// leastToEmpty is the number of items of a run that justifies giving tables new files.
const leastToEmpty = 20_000

// A partition with only rows of runs being deleted is truncated, which leaves no dead rows and takes as long for ten
// million rows as for one. Its contents prove it: its primary key is probed for each run, up to the first that is
// not being deleted. Nothing is truncated until this is checked again under the lock; uncommitted writers keep the
// lock from being taken. work_result_00 represents any partition.
const (
	partitionIsSpent = `
WITH RECURSIVE runs AS (
    (SELECT run_id FROM work_result_00 ORDER BY run_id LIMIT 1)
    UNION ALL
    SELECT (SELECT p.run_id FROM work_result_00 p WHERE p.run_id > runs.run_id ORDER BY p.run_id LIMIT 1)
    FROM runs WHERE runs.run_id IS NOT NULL)
SELECT NOT EXISTS (
        SELECT FROM runs WHERE run_id IS NOT NULL AND NOT EXISTS (
            SELECT FROM deleted_run g WHERE g.run_id = runs.run_id AND g.purged_at IS NULL))
    AND EXISTS (SELECT FROM work_result_00 WHERE run_id = $1)`

	// While the lock is awaited, readers and writers of the partition wait, too: so only briefly.
	waitBriefly = `SET LOCAL lock_timeout = '50ms'`

	lockPartition = `LOCK TABLE work_result_00 IN ACCESS EXCLUSIVE MODE`

	emptyPartition = `TRUNCATE work_result_00`

	noteEmptied = `
UPDATE deleted_run SET deleted = deleted + items * CASE WHEN $2 THEN steps ELSE 1 END
WHERE run_id = $1 AND purged_at IS NULL`
)

// Emptying is the result of trying to empty the partitions of a run.
type Emptying struct {
	Emptied int  // truncated tables
	Busy    bool // an emptiable one is in use: retry later
}

// Empty truncates the partitions of a run being deleted if no other rows stay; see [Store.DeletePiece]. Leader work.
func (s Store) Empty(ctx context.Context, lease workqueue.Lease, run workqueue.RunID) (out Emptying, err error) {
	for _, table := range []string{"work_result", "work_queue"} {
		emptied, err := s.emptyOne(ctx, lease, run, table)
		switch {
		case pg.IsLockTimeout(err):
			out.Busy = true
		case err != nil:
			return out, fmt.Errorf("empty the partition of run %s in %s: %w", run, table, err)
		case emptied:
			out.Emptied++
		}
	}
	return out, nil
}

func (s Store) emptyOne(ctx context.Context, lease workqueue.Lease, run workqueue.RunID, table string,
) (emptied bool, err error) {
	name := fmt.Sprintf("%s_%02d", table, run.Partition())
	say := func(statement string) string { return strings.ReplaceAll(statement, "work_result_00", name) }
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		emptied = false
		var large, spent bool
		err := tx.QueryRow(ctx, isLarge, run, leastToEmpty).Scan(&large)
		if err != nil || !large {
			return err
		}
		// The first check avoids the lock; the second, under it, decides.
		for _, before := range [][]string{nil, {waitBriefly, say(lockPartition)}} {
			for _, statement := range before {
				if _, err := tx.Exec(ctx, statement); err != nil {
					return err
				}
			}
			if err := tx.QueryRow(ctx, say(partitionIsSpent), run).Scan(&spent); err != nil || !spent {
				return err
			}
		}
		if _, err := tx.Exec(ctx, say(emptyPartition)); err != nil {
			return err
		}
		emptied = true
		_, err = tx.Exec(ctx, noteEmptied, run, table == "work_result")
		return err
	})
	return emptied && err == nil, err
}

const isLarge = `
SELECT EXISTS (SELECT FROM deleted_run WHERE run_id = $1 AND purged_at IS NULL AND items >= $2)`
