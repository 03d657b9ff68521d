package export

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// ResultRequest names one result of a run.
type ResultRequest struct {
	Run     workqueue.RunID
	Step    string             // empty: the only step that no other needs
	Key     string             // of the item
	Ordinal *workqueue.Ordinal // of the item, where several have the key
}

// Result is what a step made of an item.
type Result struct {
	Ordinal     workqueue.Ordinal
	Step        string
	Generation  workqueue.Generation
	Body        []byte
	ContentType string        // as the service said; empty: JSON
	Large       uuid.NullUUID // the result did not fit a message: Open has it, and Body only refers to it
	SHA256      [sha256.Size]byte
}

// TwinsError is returned where one item has to be named, and several have the key.
type TwinsError struct {
	Key      string
	Ordinals []workqueue.Ordinal // some
}

func (e *TwinsError) Error() string {
	all := make([]string, len(e.Ordinals))
	for i, o := range e.Ordinals {
		all[i] = fmt.Sprint(o)
	}
	return fmt.Sprintf("several items have the key %.80q; name one by its ordinal: %s", e.Key, strings.Join(all, ", "))
}

const maxTwinsTold = 10

var errNoKey = fmt.Errorf("no item has this key: %w", workqueue.ErrNotFound)

// work_queue_key finds the items.
const ordinalsByKey = `
SELECT ordinal FROM work_queue WHERE run_id = $1 AND item_key = $2 AND ($3::int IS NULL OR ordinal = $3)
ORDER BY ordinal LIMIT $4`

// The newest part counts while the item's bit is set. Points of primary keys.
const oneResult = `
SELECT p.generation, p.result, coalesce(p.content_type, ''), p.large_id,
    CASE WHEN p.large_id IS NULL THEN sha256(p.result)
        ELSE (SELECT l.sha256 FROM work_large l WHERE l.id = p.large_id) END
FROM work_part p
JOIN work_block b ON b.run_id = p.run_id AND b.step = p.step AND b.block = $4
WHERE p.run_id = $1 AND p.step = $2 AND p.ordinal = $3 AND p.result IS NOT NULL AND get_bit(b.done, $5) = 1
ORDER BY p.generation DESC LIMIT 1`

// Result returns the result that counts of one item at one step. The error wraps ErrNotFound when there is none, is a
// *StepChoiceError when the step is none of the run or one has to be named, and a *TwinsError when the item has to be.
func (s Store) Result(ctx context.Context, req ResultRequest) (Result, error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, req.Run)
	if err != nil {
		return Result{}, fmt.Errorf("read a result of run %s: %w", req.Run, err)
	}
	step, err := g.Leaf(req.Step)
	if err != nil {
		return Result{}, err
	}
	out := Result{Step: g.Steps[step].Name}
	if out.Ordinal, err = s.ordinalOf(ctx, &req); err != nil {
		return Result{}, err
	}
	block, bit := out.Ordinal.Block()
	var sum []byte
	err = s.db.Pool.QueryRow(ctx, oneResult, req.Run, step, out.Ordinal, block, bit).
		Scan(&out.Generation, &out.Body, &out.ContentType, &out.Large, &sum)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("step %s has no result for item %q: %w", out.Step, req.Key, workqueue.ErrNotFound)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read a result of run %s: %w", req.Run, err)
	}
	copy(out.SHA256[:], sum)
	return out, nil
}

func (s Store) ordinalOf(ctx context.Context, req *ResultRequest) (workqueue.Ordinal, error) {
	if !pg.ValidText(req.Key) {
		return 0, errNoKey
	}
	found, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.Ordinal], ordinalsByKey, req.Run, req.Key, req.Ordinal,
		maxTwinsTold)
	switch {
	case err != nil:
		return 0, fmt.Errorf("find item %q of run %s: %w", req.Key, req.Run, err)
	case len(found) == 0:
		return 0, fmt.Errorf("find item %q of run %s: %w", req.Key, req.Run, errNoKey)
	case len(found) > 1:
		return 0, &TwinsError{req.Key, found}
	}
	return found[0], nil
}
