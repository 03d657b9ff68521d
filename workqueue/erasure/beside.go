package erasure

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

// eraseTexts are what is told of everything, in tables that stay small. Only rows in which the key stands are written.
func eraseTexts() []string {
	return []string{
		`UPDATE alert_condition SET said = erased_json(said, $1, $2) WHERE said <> erased_json(said, $1, $2)`,
		`UPDATE alert_message SET body = erased_json(body, $1, $2), error = erased_text(error, $1, $2)
WHERE (body, error) IS DISTINCT FROM (erased_json(body, $1, $2), erased_text(error, $1, $2))`,
		`UPDATE alert SET error = erased_text(error, $1, $2) WHERE error <> erased_text(error, $1, $2)`,
		`UPDATE health_condition SET said = erased_json(said, $1, $2) WHERE said <> erased_json(said, $1, $2)`,
		`UPDATE health_mark SET reason = erased_text(reason, $1, $2) WHERE reason <> erased_text(reason, $1, $2)`,
		`UPDATE retention_run SET why = erased_text(why, $1, $2) WHERE why <> erased_text(why, $1, $2)`,
		`UPDATE schedule_fire SET reason = erased_text(reason, $1, $2), late = erased_text(late, $1, $2)
WHERE (reason, late) IS DISTINCT FROM (erased_text(reason, $1, $2), erased_text(late, $1, $2))`,
		`UPDATE tracker_service SET event = erased_json(event, $1, $2), webhook_error = erased_text(webhook_error, $1, $2)
WHERE (event, webhook_error) IS DISTINCT FROM (erased_json(event, $1, $2), erased_text(webhook_error, $1, $2))`,
		`UPDATE endpoint_pace SET breaker_reason = erased_text(breaker_reason, $1, $2)
WHERE breaker_reason <> erased_text(breaker_reason, $1, $2)`,
		`UPDATE endpoint_change SET reason = erased_text(reason, $1, $2) WHERE reason <> erased_text(reason, $1, $2)`,
		`UPDATE run_guard SET tripped = erased_text(tripped, $1, $2) WHERE tripped <> erased_text(tripped, $1, $2)`,
		`UPDATE api_request SET headers = erased_json(headers, $1, $2),
    body = convert_to(erased_text(convert_from(body, 'UTF8'), $1, $2), 'UTF8')
WHERE CASE WHEN content_type LIKE 'application/%json%' THEN (headers, convert_from(body, 'UTF8')) IS DISTINCT FROM
    (erased_json(headers, $1, $2), erased_text(convert_from(body, 'UTF8'), $1, $2)) END`,
	}
}

const (
	// The keys are locked before their operations, in the order of their primary key. What is folded by the key stands in
	// the key of a partition.
	lockParked = `
SELECT k.parked FROM collector_key k WHERE k.key = $1 OR (k.collector, k.numbering, k.key) IN (
    SELECT o.collector, o.numbering, o.key FROM collector_op o WHERE o.fold = $1)
ORDER BY k.collector, k.numbering, k.key FOR NO KEY UPDATE`

	// Up to a number of them, that of the collectors' own statements.
	eraseParked = `
WITH gone AS (
    DELETE FROM collector_op WHERE seq = ANY (ARRAY(
        SELECT o.seq FROM collector_key k JOIN collector_op o USING (collector, numbering, key)
        WHERE (k.key = $1 OR o.fold = $1) AND k.parked > 0 AND o.parked_at IS NOT NULL ORDER BY o.seq LIMIT 2000))
    RETURNING collector, numbering, key, op_id),
seen AS (
    DELETE FROM collector_seen s USING gone g WHERE s.collector = g.collector AND s.op_id = g.op_id),
keys AS (SELECT collector, numbering, key, count(*)::int AS ops FROM gone GROUP BY collector, numbering, key),
less AS (
    UPDATE collector_key k SET parked = k.parked - g.ops, failed_message = 'erased' FROM keys g
    WHERE k.collector = g.collector AND k.numbering = g.numbering AND k.key = g.key)
SELECT count(*) FROM gone`

	// No key is without operations but those that have just lost them.
	dropEmptyKeys = `DELETE FROM collector_key WHERE fresh = 0 AND retrying = 0 AND parked = 0 AND flush IS NULL`

	eraseFailure = `
UPDATE collector SET failure_message = erased_text(failure_message, $1, $2)
WHERE failure_message <> erased_text(failure_message, $1, $2)`

	auditPiece = 5000
	eraseAudit = `SELECT audit_erase($1, $2, $3, $4, $5)`
)

// beside erases what does not belong to an item of a run.
func (e *erasure) beside(ctx context.Context) (done Erased, err error) {
	var run *workqueue.RunID
	if e.Run != (workqueue.RunID{}) {
		run = &e.Run
	}
	for _, of := range []struct {
		page, erase string
		into        func(*Erased) *int64
	}{
		{looseLetters, eraseLetters, func(e *Erased) *int64 { return &e.DeadLetters }},
		{looseQuarantine, eraseQuarantine, func(e *Erased) *int64 { return &e.Quarantine }},
	} {
		piece, err := e.messages(ctx, run, of.page, of.erase, of.into)
		done.add(&piece)
		if err != nil {
			return done, err
		}
	}
	if run == nil {
		piece, err := e.operations(ctx)
		done.add(&piece)
		if err != nil {
			return done, err
		}
		if piece, err = e.texts(ctx); err != nil {
			return done, err
		}
		done.add(&piece)
	}
	return done, e.auditLog(ctx, run)
}

// operations deletes parked operations of the key.
func (e *erasure) operations(ctx context.Context) (done Erased, err error) {
	for {
		var piece Erased
		err := e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			piece = Erased{}
			if _, err := tx.Exec(ctx, lockParked, e.Key); err != nil {
				return err
			}
			err := tx.QueryRow(ctx, eraseParked, e.Key).Scan(&piece.Operations)
			if err != nil || piece.Operations == 0 {
				return err
			}
			if _, err := tx.Exec(ctx, dropEmptyKeys); err != nil {
				return err
			}
			return e.audit(ctx, tx, workqueue.RunID{}, &piece)
		})
		done.add(&piece)
		if err != nil || piece.Operations == 0 || e.DryRun {
			return done, err
		}
	}
}

// texts has the marker stand for the key in what is told of everything.
func (e *erasure) texts(ctx context.Context) (done Erased, err error) {
	err = e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		done = Erased{}
		for _, statement := range append(eraseTexts(), eraseFailure) {
			tag, err := tx.Exec(ctx, statement, e.Key, e.marker)
			if err != nil {
				return err
			}
			done.Texts += tag.RowsAffected()
		}
		return e.audit(ctx, tx, workqueue.RunID{}, &done)
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
