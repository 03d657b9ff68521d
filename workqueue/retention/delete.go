package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// DeleteRequest says which run somebody wants to be deleted.
type DeleteRequest struct {
	Run    workqueue.RunID
	DryRun bool // change nothing, and say what would go
	Reason string
	Actor  string
}

// Deletion is what goes with a run, or would.
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
	Waiting    int64     `json:"waiting_letters" doc:"dead letters that wait for somebody; they go too"`
	Quarantine int64     `json:"quarantine" doc:"messages in quarantine"`
}

const (
	// As everybody does who begins something with a run: its steps first. Whoever is at work on it is waited for.
	lockStepsForGood = `
SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE`

	lockRunForGood = `
SELECT state, generation, coalesce(name, ''), plan, items, coalesce(failed, 0), hold IS NOT NULL,
    sealed_at IS NOT NULL OR opened, coalesce(finished_at, 'epoch'),
    coalesce(extract(epoch FROM finished_at + $2::interval - tranche_now()), 0)::float8,
    EXISTS (SELECT FROM run_event e WHERE e.run_id = batchrun.id AND e.published_at IS NULL),
    (SELECT o.id FROM batchrun o WHERE o.from_run = batchrun.id ORDER BY o.id DESC LIMIT 1)
FROM batchrun WHERE id = $1 FOR UPDATE`

	// The counts go by indexes that begin with the run; the size is that of measureRuns.
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

// DeleteByHand makes a finished run one that is being deleted because somebody wants it, whatever the limits are. What
// keeps it is a [workqueue.StateError]. [Store.DeletePiece] deletes what there is of it.
func (s Store) DeleteByHand(ctx context.Context, req DeleteRequest) (out Deletion, err error) {
	err = s.db.RedoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = req.take(ctx, tx)
		return err
	})
	if err != nil {
		return Deletion{}, fmt.Errorf("delete run %s: %w", req.Run, err)
	}
	return out, nil
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
	taken, err := takeRunRow(ctx, tx, req.Run, nil, pg.Plain(req.Reason), pg.Plain(req.Actor), out.Steps)
	if err != nil {
		return out, err
	}
	if taken == nil {
		return out, fmt.Errorf("%w: it was about to be deleted", workqueue.ErrFence)
	}
	detail := map[string]any{"dead_letters": out.Letters, "waiting_letters": out.Waiting, "quarantine": out.Quarantine}
	if req.Reason != "" {
		detail["reason"] = pg.Plain(req.Reason)
	}
	return out, ledger.AuditChange(ctx, tx, ledger.Action{Actor: req.Actor, Name: "delete", Run: req.Run, Before: taken,
		Detail: detail})
}

// lock locks the run, and refuses one that is still needed.
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
	if errors.Is(err, pgx.ErrNoRows) {
		return out, 0, fmt.Errorf("run %s: %w", req.Run, workqueue.ErrNotFound)
	}
	if err != nil {
		return out, 0, err
	}
	refused := &workqueue.StateError{Run: req.Run, State: out.State, Op: "delete"}
	switch {
	case out.State == "loading" || out.State == "running":
		if held {
			refused.State = "under way, and paused"
		}
		refused.Fix = "let it end, or end it first: tranche run cancel " + req.Run.String()
	case !whole:
		refused.State, refused.Fix = "a load that was given up", "it is cleared away by itself"
	case left > 0:
		refused.State += fmt.Sprintf(" for less than %s", retentionSettle)
		refused.Fix = fmt.Sprintf("answers about it may still come, and schedules look how it ended; try again in %s",
			(time.Duration(left*float64(time.Second)) + time.Second).Truncate(time.Second))
	case silent:
		refused.State += ", and an event about it is not published yet"
		refused.Fix = "try again when NATS has taken it, in seconds; tranche nodes says what keeps it"
	case later != nil:
		refused.State = "carried on by run " + later.String() + ", whose report counts both as one"
		refused.Fix = "delete that one first: tranche run delete " + later.String()
	default:
		return out, gen, nil
	}
	return out, gen, refused
}
