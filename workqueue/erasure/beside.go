package erasure

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// Keys and values of what is called a parameter are texts and numbers of whoever started the run.
	eraseParams = `
UPDATE batchrun SET params = erased_json(params, $1, $2, true), content = erased_json(content, $1, $2, true)
WHERE ($3::uuid IS NULL OR id = $3) AND (params, content) IS DISTINCT FROM
    (erased_json(params, $1, $2, true), erased_json(content, $1, $2, true))`

	eraseAnswers = `
UPDATE api_request SET body = convert_to(erased_text(convert_from(body, 'UTF8'), $1, $2), 'UTF8')
WHERE CASE WHEN content_type LIKE 'application/%json%'
    THEN convert_from(body, 'UTF8') <> erased_text(convert_from(body, 'UTF8'), $1, $2) END`
)

const (
	// A page of operations, with whether they have the key or are folded by it.
	operations = `
SELECT o.seq, c.name, o.op_id, o.parked_at IS NOT NULL, o.key = $2 OR coalesce(o.fold = $2, false),
    concat_ws(E'\n', o.key, o.op_id, o.fold, o.folded_into, o.payload)
FROM collector_op o JOIN collector c ON c.id = o.collector WHERE o.seq > $1 ORDER BY o.seq LIMIT 2000`

	// The keys are locked before their operations, in the order of their primary key.
	lockParked = `
SELECT k.parked FROM collector_key k WHERE (k.collector, k.numbering, k.key) IN (
    SELECT o.collector, o.numbering, o.key FROM collector_op o WHERE o.seq = ANY ($1))
ORDER BY k.collector, k.numbering, k.key FOR NO KEY UPDATE`

	eraseParked = `
WITH gone AS (
    DELETE FROM collector_op WHERE seq = ANY ($1) AND parked_at IS NOT NULL RETURNING collector, numbering, key, op_id),
seen AS (
    DELETE FROM collector_seen s USING gone g WHERE s.collector = g.collector AND s.op_id = g.op_id),
keys AS (SELECT collector, numbering, key, count(*)::int AS ops FROM gone GROUP BY collector, numbering, key),
less AS (
    UPDATE collector_key k SET parked = k.parked - g.ops, failed_message = 'erased' FROM keys g
    WHERE k.collector = g.collector AND k.numbering = g.numbering AND k.key = g.key)
SELECT count(*) FROM gone`

	// No key is without operations but those that have just lost them.
	dropEmptyKeys = `DELETE FROM collector_key WHERE fresh = 0 AND retrying = 0 AND parked = 0 AND flush IS NULL`

	auditPiece = 5000
	eraseAudit = `SELECT audit_erase($1, $2, $3, $4, $5)`
)

// beside erases what does not belong to an item of a run.
func (e *erasure) beside(ctx context.Context) (done Erased, err error) {
	run := e.only()
	for _, of := range []struct {
		page, erase string
		into        func(*Erased) *int64
	}{
		{letters, eraseLetters, func(e *Erased) *int64 { return &e.DeadLetters }},
		{quarantined, eraseQuarantine, func(e *Erased) *int64 { return &e.Quarantine }},
	} {
		piece, err := e.messages(ctx, run, of.page, of.erase, of.into)
		done.add(&piece)
		if err != nil {
			return done, err
		}
	}
	for _, f := range []func(context.Context, *workqueue.RunID) (Erased, error){e.operations, e.answers, e.failures,
		e.texts} {
		piece, err := f(ctx, run)
		done.add(&piece)
		if err != nil {
			return done, err
		}
	}
	return done, e.auditLog(ctx, run)
}

// findOperations finds those of the key, or in which it stands: the parked ones, and collectors with others.
func (e *erasure) findOperations(ctx context.Context) (waiting []string, err error) {
	e.parked = nil
	n := needle(e.Key)
	for after, more := int64(0), true; more; {
		more = false
		var seq int64
		var name, id, text string
		var parked, own bool
		rows := pg.Rows(ctx, e.db.Pool, operations, after, e.Key)
		_, err := pgx.ForEachRow(rows, []any{&seq, &name, &id, &parked, &own, &text}, func() error {
			after, more = seq, true
			switch {
			case !own && !n.in([]byte(text), maxNested):
			case parked:
				e.parked = append(e.parked, seq)
			default:
				waiting = append(waiting, name+" "+id)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return waiting, nil
}

// operations deletes parked operations of the key, up to a number of them at once, that of the collectors' own
// statements.
func (e *erasure) operations(ctx context.Context, _ *workqueue.RunID) (done Erased, err error) {
	for seqs := range slices.Chunk(e.parked, 2000) {
		var piece Erased
		err := e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			piece = Erased{}
			if _, err := tx.Exec(ctx, lockParked, seqs); err != nil {
				return err
			}
			err := tx.QueryRow(ctx, eraseParked, seqs).Scan(&piece.Operations)
			if err != nil || piece.Operations == 0 {
				return err
			}
			if _, err := tx.Exec(ctx, dropEmptyKeys); err != nil {
				return err
			}
			return e.audit(ctx, tx, workqueue.RunID{}, &piece)
		})
		if err != nil {
			return done, err
		}
		done.add(&piece)
	}
	return done, nil
}

// answers has the marker stand for the key in parameters of runs and in answers that are kept.
func (e *erasure) answers(ctx context.Context, run *workqueue.RunID) (done Erased, err error) {
	err = e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		done = Erased{}
		tag, err := tx.Exec(ctx, eraseParams, e.Key, e.marker, run)
		if done.Texts = tag.RowsAffected(); err != nil {
			return err
		}
		if run == nil {
			tag, err = tx.Exec(ctx, eraseAnswers, e.Key, e.marker)
			done.Texts += tag.RowsAffected()
		}
		if err != nil || done.Texts == 0 {
			return err
		}
		return e.audit(ctx, tx, e.Run, &done)
	})
	return done, err
}

// auditLog has it stand there, too, which the log notes by itself.
func (e *erasure) auditLog(ctx context.Context, run *workqueue.RunID) error {
	for after := int64(0); ; {
		var last *int64
		err := e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, eraseAudit, e.Key, e.marker, run, after, auditPiece).Scan(&last)
		})
		if err != nil || last == nil {
			return err
		}
		after = *last
	}
}
