package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Control is an operator's wish about one run, or about every run that is under way.
type Control struct {
	Run    workqueue.RunID
	All    bool      // then Run is zero
	Step   string    // of Approve: the step that may begin; empty: what a canary holds back
	Seen   time.Time // with Step: since when it waited as it was looked at; zero: as it is
	Reason string
	Actor  string
}

// Controlled is what came of it.
type Controlled struct {
	Runs []workqueue.RunID // that changed
	Left []Refusal         // of all runs, those that could not change; a single run is refused by an error
	// Items are, of Pause: out at services; of Approve: released; of Cancel: without an outcome; of Resume, of a run that
	// was cancelled: likewise.
	Items  int64
	Slices int64 // of Pause: requests out
}

// Refusal is a run that an operation on all runs left as it is.
type Refusal struct {
	Run workqueue.RunID
	Why string
}

// MaxReasonBytes bounds a reason. Reasons are shown and audited; they are no place for documents.
const MaxReasonBytes = 2000

func (c *Control) validate() error {
	switch {
	case c.All == (c.Run != workqueue.RunID{}):
		return errors.New("name one run, or all")
	case len(c.Reason) > MaxReasonBytes:
		return &workqueue.SettingError{Detail: fmt.Sprintf("the reason has %d bytes, and at most %d are allowed; shorten it",
			len(c.Reason),
			MaxReasonBytes)}
	}
	return nil
}

// The rows are locked in the order of their ids and nothing is locked after them, so these need no turn among the
// claims: one that is under way ends within milliseconds, and the next one sees the hold.
const (
	runHolds = `
SELECT id, state, generation, items, coalesce(hold, ''), hold_detail, held_at, held_by, max_failed, failed_limit,
       coalesce(canary_state, '')
FROM batchrun `

	readRun          = runHolds + `WHERE id = $1`
	lockRun          = readRun + ` FOR NO KEY UPDATE`
	lockRunsUnderWay = runHolds + `WHERE state IN ('loading', 'running') ORDER BY id FOR NO KEY UPDATE`
	lockRunsHeld     = runHolds + `WHERE hold IS NOT NULL AND state IN ('loading', 'running')
ORDER BY id FOR NO KEY UPDATE`
	outOfRuns = `
SELECT count(*), coalesce(sum(bit_count(remaining)), 0)::bigint FROM work_slice
WHERE run_id = ANY ($1) AND state IN ('claimed', 'sent')`
)

// LockHolds locks the runs that a request names, or all of a statement.
func LockHolds(ctx context.Context, tx pgx.Tx, c *Control, all string) ([]*RunHold, error) {
	statement, args := all, []any{}
	if !c.All {
		statement, args = lockRun, []any{c.Run}
	}
	runs, err := pg.Collect(ctx, tx, scanHold, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("lock runs: %w", err)
	}
	if !c.All && len(runs) == 0 {
		return nil, fmt.Errorf("run %s: %w", c.Run, workqueue.ErrNotFound)
	}
	return runs, nil
}

func scanHold(row pgx.CollectableRow) (*RunHold, error) {
	r := &RunHold{}
	return r, row.Scan(&r.id, &r.state, &r.Generation, &r.items, &r.Hold, &r.Detail, &r.At, &r.By, &r.maxFailed,
		&r.limit, &r.Canary)
}

// readHold reads a run without locking it.
func readHold(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (*RunHold, error) {
	r, err := pg.One(ctx, tx, scanHold, readRun, run)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("run %s: %w", run, workqueue.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read run %s: %w", run, err)
	}
	return r, nil
}

// sort keeps the runs that may change. What keeps a single run from it is an error.
func (c *Control) sort(runs []*RunHold, may func(*RunHold) error, out *Controlled) ([]*RunHold, error) {
	var chosen []*RunHold
	for _, r := range runs {
		err := may(r)
		refused, ok := errors.AsType[*workqueue.StateError](err)
		switch {
		case err == nil:
			chosen = append(chosen, r)
			out.Runs = append(out.Runs, r.id)
		case c.All && ok:
			out.Left = append(out.Left, Refusal{r.id, "it is " + refused.State + "; " + refused.Fix})
		default:
			return nil, err
		}
	}
	return chosen, nil
}

// Pause holds runs: no node claims of them any more. What is out at services is still recorded, and may complete a run.
// A run that is still loading is held from its first item on. Runs that start later are not held.
func (s Store) Pause(ctx context.Context, c Control) (out Controlled, err error) {
	if err := c.validate(); err != nil {
		return out, fmt.Errorf("pause: %w", err)
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out = Controlled{}
		runs, err := LockHolds(ctx, tx, &c, lockRunsUnderWay)
		if err != nil {
			return err
		}
		chosen, err := c.sort(runs, (*RunHold).mayPause, &out)
		if err != nil {
			return err
		}
		if err := holdRuns(ctx, tx, chosen, holding{HoldOperator, c.Reason, c.Actor}); err != nil {
			return err
		}
		return tx.QueryRow(ctx, outOfRuns, out.Runs).Scan(&out.Slices, &out.Items)
	})
	if err != nil {
		return Controlled{}, fmt.Errorf("pause: %w", err)
	}
	return out, nil
}

func (r *RunHold) mayPause() error {
	switch {
	case r.state != "loading" && r.state != "running":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "pause", Fix: "there is nothing to stop"}
	case r.Hold != "":
		return &workqueue.StateError{Run: r.id, State: r.paused(), Op: "pause", Fix: "nothing more of it is sent"}
	}
	return nil
}

// paused says how the run is held: "paused by ann: the service is sick".
func (r *RunHold) paused() string {
	text := "paused already"
	if r.By != "" {
		text += " by " + r.By
	}
	if r.Detail != "" {
		text += ": " + r.Detail
	}
	return text
}

// Resume ends holds, and has a run that was cancelled go on while it is there, in its next generation. A run that waits
// for its canary's approval is not resumed but approved; one of which more items have failed than may is refused, since
// it would be held again at once. maxFailed, unless nil, is a new threshold, of one run only; see
// [workqueue.FailedLimit].
func (s Store) Resume(ctx context.Context, c Control, maxFailed *string) (out Controlled, err error) {
	if err := c.validate(); err != nil {
		return out, fmt.Errorf("resume: %w", err)
	}
	if c.All && maxFailed != nil {
		return out, &workqueue.SettingError{Detail: "max failed is set for one run at a time; name the run"}
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out = Controlled{}
		if revived, err := c.revive(ctx, tx, maxFailed, &out); err != nil || revived {
			return err
		}
		runs, err := LockHolds(ctx, tx, &c, lockRunsHeld)
		if err != nil {
			return err
		}
		for _, r := range runs {
			if err := r.prepare(ctx, tx, c.Actor, maxFailed); err != nil {
				return err
			}
		}
		chosen, err := c.sort(runs, c.mayResume, &out)
		if err != nil {
			return err
		}
		return freeRuns(ctx, tx, chosen, c.Actor, c.Reason)
	})
	if err != nil {
		return Controlled{}, fmt.Errorf("resume: %w", err)
	}
	return out, nil
}

// prepare sets the threshold, if there is one to set, and counts what it is about.
func (r *RunHold) prepare(ctx context.Context, tx pgx.Tx, actor string, maxFailed *string) error {
	if r.Hold == "" || r.state != "running" {
		return nil // mayResume has the last word
	}
	if maxFailed != nil {
		if err := r.setThreshold(ctx, tx, actor, *maxFailed); err != nil {
			return err
		}
	}
	if r.limit == nil {
		return nil
	}
	if err := tx.QueryRow(ctx, countFailed, r.id).Scan(&r.failed); err != nil {
		return fmt.Errorf("count failed items of run %s: %w", r.id, err)
	}
	return nil
}

// mayResume leaves a run that its guard holds to somebody who names it.
func (c *Control) mayResume(r *RunHold) error {
	if c.All && r.Hold == HoldGuard {
		return &workqueue.StateError{Run: r.id, State: "paused by its guard: " + r.Detail, Op: "resume",
			Fix: fmt.Sprintf("see why, and let it go on with: tranche run resume %s", r.id)}
	}
	return r.mayResume()
}

func (r *RunHold) mayResume() error {
	switch {
	case r.state != "loading" && r.state != "running":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "resume", Fix: "there is nothing to go on with"}
	case r.Hold == "":
		return &workqueue.StateError{Run: r.id, State: r.state + ", and not paused", Op: "resume",
			Fix: "there is nothing to do"}
	case r.Hold == HoldCanary:
		return &workqueue.StateError{Run: r.id, State: "paused for its canary: " + r.Detail, Op: "resume",
			Fix: fmt.Sprintf("let all its items go with: tranche run approve %s", r.id)}
	case r.limit != nil && r.failed > *r.limit:
		return &workqueue.StateError{Run: r.id, State: "over its threshold: " + r.overLimit(), Op: "resume",
			Fix: fmt.Sprintf("it would be paused again at once. Allow more with: tranche run resume %s --max-failed N; or run "+
				"the failed items again first: tranche run rerun %s --failed", r.id, r.id)}
	}
	return nil
}
