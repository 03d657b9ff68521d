package erasure

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// The view searches each block for the key, by index. It has no items of a run that is loading.
	itemUnderWay = `
SELECT EXISTS (SELECT FROM batchrun r JOIN work_queue q ON q.run_id = r.id
    WHERE r.id = $1 AND r.state = 'loading' AND q.item_key = $2)
OR EXISTS (SELECT FROM batchrun r JOIN run_item i ON i.run_id = r.id
    WHERE r.id = $1 AND r.state IN ('loading', 'running') AND i.key = $2
        AND i.state NOT IN ('done', 'failed', 'skipped'))`

	// Locks the steps first, like every operation on a run.
	lockSteps = `SELECT step FROM run_step WHERE run_id = $1 ORDER BY step FOR UPDATE`

	// A run that takes items of this one waits for this transaction, and is refused.
	countErasure = `UPDATE batchrun SET erased = erased + 1 WHERE id = $1`

	lockItems = `
SELECT ordinal FROM work_queue WHERE run_id = $1 AND item_key = $2 ORDER BY ordinal FOR UPDATE`

	// Every slice that ever had one of the items, in lock order.
	lockSlices = `
SELECT w.id FROM work_slice w
WHERE w.run_id = $1 AND w.block = ANY (SELECT o >> 13 FROM unnest($2::int[]) o)
    AND EXISTS (SELECT FROM unnest($2::int[]) o WHERE o >> 13 = w.block AND get_bit(w.mask, o & 8191) = 1)
ORDER BY w.id FOR UPDATE`

	// Changing the blocks invalidates cached error groups.
	lockBlocks = `
SELECT step FROM work_block WHERE run_id = $1 AND block = ANY (SELECT o >> 13 FROM unnest($2::int[]) o)
ORDER BY step, block FOR UPDATE`

	eraseItems = `
WITH old AS (SELECT ordinal, octet_length(payload) AS bytes FROM work_queue WHERE run_id = $1 AND ordinal = ANY ($2)),
items AS (
    UPDATE work_queue SET item_key = $3, payload = $4 WHERE run_id = $1 AND ordinal = ANY ($2) RETURNING 1),
sizes AS (
    UPDATE work_block b SET payload_bytes = greatest(b.payload_bytes - s.bytes, 0)
    FROM (SELECT ordinal >> 13 AS block, sum(bytes) - count(*) * octet_length($4) AS bytes FROM old GROUP BY 1) s
    WHERE b.run_id = $1 AND b.block = s.block)
SELECT count(*) FROM items`

	eraseEarlier = `
UPDATE work_correction SET payload = $3 WHERE run_id = $1 AND ordinal = ANY ($2) AND payload <> $3`

	eraseParts = `
UPDATE work_result SET result = CASE WHEN result IS NOT NULL THEN 'null'::bytea END, content_type = NULL,
    large_id = NULL, error_message = CASE WHEN error_code IS NOT NULL THEN 'erased' END, error_keyed = NULL
WHERE run_id = $1 AND step = ANY (ARRAY(SELECT step FROM run_step WHERE run_id = $1)) AND ordinal = ANY ($2)`

	// With their pieces.
	eraseLarge = `
DELETE FROM large_result WHERE run_id = $1 AND step = ANY (ARRAY(SELECT step FROM run_step WHERE run_id = $1))
    AND ordinal = ANY ($2)`

	eraseErrors = `
UPDATE work_error SET error_message = 'erased'
WHERE run_id = $1 AND step = ANY (ARRAY(SELECT step FROM run_step WHERE run_id = $1)) AND ordinal = ANY ($2)`

	// A chunk's error may be about any of its items.
	eraseChunks = `
UPDATE work_slice SET error_message = 'erased' WHERE id = ANY ($1) AND error_message <> 'erased'`

	eraseLettersOf = `
UPDATE dead_letter SET ` + emptyLetter + `
WHERE run_id = $1 AND (slice_id = ANY ($2) OR root_id = ANY ($2)) AND NOT (` + letterIsEmpty + `)`

	eraseQuarantineOf = `
UPDATE quarantine SET ` + emptyQuarantined + ` WHERE run_id = $1 AND slice_id = ANY ($2) AND octet_length(body) > 0`

	runs = `SELECT id FROM batchrun WHERE $1::uuid IS NULL OR id = $1 ORDER BY id`

	// A page of the failures of a run, by their index, changing their blocks, too.
	eraseFailures = `
WITH page AS (
    SELECT step, error_code, ordinal, generation FROM work_result
    WHERE run_id = $1 AND error_code IS NOT NULL AND (step, error_code, ordinal, generation) > ($4, $5, $6, $7)
    ORDER BY step, error_code, ordinal, generation LIMIT $8),
changed AS (
    UPDATE work_result w SET error_message = erased_text(error_message, $2, $3),
        error_keyed = erased_text(error_keyed, $2, $3)
    FROM page p WHERE w.run_id = $1 AND w.step = p.step AND w.ordinal = p.ordinal AND w.generation = p.generation
        AND CASE WHEN strpos(concat_ws(' ', error_message, error_keyed), $2) > 0
            OR concat_ws(' ', error_message, error_keyed) ~ '[\\%+]' THEN (error_message, error_keyed) IS DISTINCT FROM
            (erased_text(error_message, $2, $3), erased_text(error_keyed, $2, $3)) END RETURNING w.step, w.ordinal),
blocks AS (
    UPDATE work_block b SET payload_bytes = b.payload_bytes
    FROM (SELECT DISTINCT step, ordinal >> 13 AS block FROM changed) c
    WHERE b.run_id = $1 AND b.step = c.step AND b.block = c.block)
SELECT (SELECT count(*) FROM changed), step, error_code, ordinal, generation FROM page
ORDER BY step DESC, error_code DESC, ordinal DESC, generation DESC LIMIT 1`

	// A page of the retried errors, by primary key.
	eraseRetried = `
WITH page AS (
    SELECT step, ordinal, slice_id FROM work_error
    WHERE run_id = $1 AND (step, ordinal, slice_id) > ($4, $6, coalesce(nullif($5, ''), repeat('0', 32))::uuid)
        AND $7::int >= 0
    ORDER BY step, ordinal, slice_id LIMIT $8),
changed AS (
    UPDATE work_error w SET error_message = erased_text(error_message, $2, $3)
    FROM page p WHERE w.run_id = $1 AND w.step = p.step AND w.ordinal = p.ordinal AND w.slice_id = p.slice_id
        AND CASE WHEN strpos(error_message, $2) > 0 OR error_message ~ '[\\%+]'
            THEN error_message <> erased_text(error_message, $2, $3) END RETURNING 1)
SELECT (SELECT count(*) FROM changed), step, slice_id::text, ordinal, 0 FROM page
ORDER BY step DESC, ordinal DESC, slice_id DESC LIMIT 1`

	// errorsPage bounds a statement's duration: a message with the key takes some 100 µs.
	errorsPage = 5_000
)

// payload replaces an erased item's payload, recognizable if the item is requested again.
const payload = database.Erased

func underWay(ctx context.Context, db pg.RowQuerier, run workqueue.RunID, key string) (live bool, err error) {
	err = db.QueryRow(ctx, itemUnderWay, run, key).Scan(&live)
	return live, err
}

// run erases the key from a run in one transaction, since it concerns few rows.
func (e *erasure) run(ctx context.Context, run workqueue.RunID) (done Erased, err error) {
	err = e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) (err error) {
		done, err = e.runIn(ctx, tx, run)
		return err
	})
	return done, err
}

func (e *erasure) runIn(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (done Erased, err error) {
	if _, err := tx.Exec(ctx, lockSteps, run); err != nil {
		return done, err
	}
	switch live, err := underWay(ctx, tx, run, e.Key); {
	case err != nil:
		return done, err
	case live:
		return done, &UnderWayError{Runs: []workqueue.RunID{run}}
	}
	items, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.Ordinal], lockItems, run, e.Key)
	if err != nil || len(items) == 0 {
		return done, err
	}
	if _, err := tx.Exec(ctx, countErasure, run); err != nil {
		return done, err
	}
	slices, err := pg.Collect(ctx, tx, pgx.RowTo[uuid.UUID], lockSlices, run, items)
	if err != nil {
		return done, err
	}
	if _, err := tx.Exec(ctx, lockBlocks, run, items); err != nil {
		return done, err
	}
	if err := tx.QueryRow(ctx, eraseItems, run, items, e.marker, payload).Scan(&done.Items); err != nil {
		return done, err
	}
	var large int64 // pieces of results, which count with them
	count := func(into *int64, statement string, args ...any) {
		tag, failed := tx.Exec(ctx, statement, args...)
		*into += tag.RowsAffected()
		err = errors.Join(err, failed)
	}
	for _, of := range []struct {
		into *int64
		sql  string
		args []any
	}{
		{&done.Payloads, eraseEarlier, []any{run, items, payload}},
		{&done.Results, eraseParts, []any{run, items}},
		{&large, eraseLarge, []any{run, items}},
		{&done.Errors, eraseErrors, []any{run, items}},
		{&done.Errors, eraseChunks, []any{slices}},
		{&done.DeadLetters, eraseLettersOf, []any{run, slices}},
		{&done.Quarantine, eraseQuarantineOf, []any{run, slices}},
	} {
		if count(of.into, of.sql, of.args...); err != nil {
			return done, err
		}
	}
	return done, e.audit(ctx, tx, run, &done)
}

func (e *erasure) failures(ctx context.Context, only *workqueue.RunID) (done Erased, err error) {
	all, err := pg.Collect(ctx, e.db.Pool, pgx.RowTo[workqueue.RunID], runs, only)
	if err != nil {
		return done, err
	}
	for _, run := range all {
		for _, page := range []string{eraseFailures, eraseRetried} {
			pages, err := e.errors(ctx, run, page)
			done.add(&pages)
			if err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

func (e *erasure) errors(ctx context.Context, run workqueue.RunID, page string) (done Erased, err error) {
	type row struct {
		step                int16
		id                  string
		ordinal, generation int32
	}
	for last := (row{step: -1}); ; {
		var piece Erased
		var next row
		err := e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			err := tx.QueryRow(ctx, page, run, e.Key, e.marker, last.step, last.id, last.ordinal, last.generation, errorsPage).
				Scan(&piece.Errors, &next.step, &next.id, &next.ordinal, &next.generation)
			if err != nil || piece.Errors == 0 {
				return err
			}
			return e.audit(ctx, tx, run, &piece)
		})
		if err != nil {
			return done, pg.NoRow(err, nil)
		}
		done.add(&piece)
		last = next
	}
}
