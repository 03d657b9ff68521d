package erasure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// In place: after waiting for another erasure it is computed again.
	eraseParams = `
UPDATE batchrun SET content = erased_json(content, $1, $2, true),
    params = CASE WHEN data_key IS NULL THEN erased_json(params, $1, $2, true) ELSE params END
WHERE ($3::uuid IS NULL OR id = $3) AND (content, params) IS DISTINCT FROM (erased_json(content, $1, $2, true),
    CASE WHEN data_key IS NULL THEN erased_json(params, $1, $2, true) ELSE params END)`

	// Only if they did not change since.
	eraseSealed = `
UPDATE batchrun r SET params = u.params FROM unnest($1::uuid[], $2::jsonb[], $3::jsonb[]) AS u (id, was, params)
WHERE r.id = u.id AND r.params = u.was`

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

	// The keys are locked before their operations, in primary key order.
	lockParked = `
SELECT k.parked FROM collector_key k WHERE (k.collector, k.key_version, k.key) IN (
    SELECT o.collector, o.key_version, o.key FROM collector_op o WHERE o.seq = ANY ($1))
ORDER BY k.collector, k.key_version, k.key FOR NO KEY UPDATE`

	eraseParked = `
WITH gone AS (
    DELETE FROM collector_op WHERE seq = ANY ($1) AND parked_at IS NOT NULL
    RETURNING collector, key_version, key, op_id),
seen AS (
    DELETE FROM collector_seen s USING gone g WHERE s.collector = g.collector AND s.op_id = g.op_id),
keys AS (SELECT collector, key_version, key, count(*)::int AS ops FROM gone GROUP BY collector, key_version, key),
less AS (
    UPDATE collector_key k SET parked = k.parked - g.ops FROM keys g
    WHERE k.collector = g.collector AND k.key_version = g.key_version AND k.key = g.key)
SELECT count(*) FROM gone`

	// Only keys that have just lost their operations have none.
	dropEmptyKeys = `DELETE FROM collector_key WHERE untried = 0 AND retrying = 0 AND parked = 0 AND flush IS NULL`

	auditPiece = 5000
	eraseAudit = `SELECT audit_erase($1, $2, $3, $4, $5)`
)

func (e *erasure) beside(ctx context.Context) (done Erased, err error) {
	run := e.only()
	e.unsearched = 0
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

// findOperations finds operations with the key, or that contain it: the parked ones, and the collectors of others.
func (e *erasure) findOperations(ctx context.Context) (waiting []string, err error) {
	e.parked = nil
	n := needle(e.Key)
	for after, more := int64(0), true; more; {
		more = false
		var seq int64
		var name, id, text string
		var parked, own bool
		err := pg.Each(pg.Rows(ctx, e.db.Pool, operations, after, e.Key),
			[]any{&seq, &name, &id, &parked, &own, &text}, func() {
				after, more = seq, true
				switch {
				case !own && !n.in([]byte(text), maxNested):
				case parked:
					e.parked = append(e.parked, seq)
				default:
					waiting = append(waiting, name+" "+id)
				}
			})
		if err != nil {
			return nil, err
		}
	}
	return waiting, nil
}

// operations deletes parked operations of the key, in batches as large as the collectors' own.
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

type sealedParams struct {
	Run    workqueue.RunID
	Live   bool
	Params []byte
}

// findSealed finds the parameters of encrypted runs with the key, and how they will be stored without it.
func (e *erasure) findSealed(ctx context.Context, busy *UnderWayError) error {
	e.sealed, e.unreadable = erasedParams{}, 0
	for after := (workqueue.RunID{}); ; {
		page, err := pg.Collect(ctx, e.db.Pool, pgx.RowToStructByPos[sealedParams], pageOfSealed, after, e.only())
		if err != nil || len(page) == 0 {
			return err
		}
		after = page[len(page)-1].Run
		if err := e.searchSealed(ctx, page, busy); err != nil {
			return err
		}
	}
}

func (e *erasure) searchSealed(ctx context.Context, page []sealedParams, busy *UnderWayError) error {
	opened := make([]string, len(page))
	for i, of := range page {
		object, err := e.db.OpenParams(ctx, e.db.Pool, of.Run, of.Params)
		if err != nil && !database.Unreadable(err) {
			return err
		}
		if err != nil && !errors.Is(err, workqueue.ErrNotFound) {
			e.unreadable++
		}
		opened[i] = cmp.Or(string(object), "{}")
	}
	found, err := pg.Collect(ctx, e.db.Pool, pgx.RowToStructByPos[foundParams], findInParams, e.Key, e.marker, opened)
	for _, f := range found {
		of := page[f.N-1]
		if of.Live {
			busy.Params = append(busy.Params, of.Run)
			continue
		}
		seal, err := e.db.Seal(ctx, e.db.Pool, of.Run)
		if err != nil {
			return err
		}
		e.sealed.runs = append(e.sealed.runs, of.Run)
		e.sealed.was = append(e.sealed.was, of.Params)
		e.sealed.params = append(e.sealed.params, seal.Params(f.Params))
	}
	return err
}

func (e *erasure) answers(ctx context.Context, run *workqueue.RunID) (done Erased, err error) {
	err = e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		done = Erased{}
		tag, err := tx.Exec(ctx, eraseParams, e.Key, e.marker, run)
		if done.Texts = tag.RowsAffected(); err != nil {
			return err
		}
		if tag, err = tx.Exec(ctx, eraseSealed, e.sealed.runs, e.sealed.was, e.sealed.params); err != nil {
			return err
		}
		e.stale = int(tag.RowsAffected()) < len(e.sealed.runs)
		done.Texts += tag.RowsAffected()
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

// Ways of searching a column.
const (
	// Text and JSON: the marker replaces the key wherever it occurs.
	Text = "text"
	JSON = "json"
	// Kept: it is searched and left unchanged. The outcome says where the key was found, and why it stays.
	Kept = "kept"
)

// Columns are columns searched in the same way.
type Columns struct {
	How   string
	Names string // table.column, separated by spaces
	Why   string // for kept ones
}

// Searched returns the columns that are searched directly. Rows of others are found by the item's key or by their
// contents. A test lists those, and columns that cannot contain a key, and compares all with the catalog.
func Searched() []Columns {
	return []Columns{
		{Text, `alert.error alert_message.error archive.error audit_sink.error api_request.operation batchrun.name
			batchrun.source batchrun.hold_detail collector.failure_message collector.refused_for
			collector_op.error_message dead_letter.msg_id endpoint_change.reason endpoint_pace.breaker_reason
			health_ack.reason deleted_run.name deleted_run.why run_acceptance.reason run_correction.reason
			run_fail_fast.tripped schedule_occurrence.reason schedule_occurrence.late_action stream_fault.detail
			stream_setting.last_error tracker_service.webhook_error work_slice.error_message`, ""},
		{JSON, `batchrun.at_risk alert_condition.said alert_message.body api_request.headers api_request.committed_action
			health_condition.said
			run_event.payload tracker_service.event`, ""},
		{Kept, `alert.spec alert.source batchrun.spec collector.spec collector.source plan.spec plan.source run_order.rule
			run_step.config schedule.spec schedule.source tracker_service.webhook_url`,
			"it is part of a definition, which does what it says: apply it again without the key"},
		{Kept, `api_request.key batchrun.idempotency_key collector_seen.op_id run_add.key tracker_add.key
			tracker_service.owner tracker_service.key`,
			"a caller gave it as a name or an id, by which a repeated request is known: it goes with the rest of its row"},
		{Kept, `admin_act.path admin_act.input admin_act.preview`,
			"an administrator requested an act with it (tranche act list): it goes when that is settled, or has expired"},
		{Kept, `audit_log.subject audit_log.detail audit_log.before audit_log.after`,
			"the audit log keeps what it says of definitions, tokens, sessions and settings"},
		{Kept, `alert_condition.subject alert_condition.grp alert_message.grp health_condition.subject health_ack.subject
			dead_letter.endpoint`, "it is the name of something that must be seen to"},
	}
}

// runColumn is the column with the run, of tables that are searched for one run; else empty.
func runColumn(table string) string {
	switch table {
	case "batchrun":
		return "id"
	case "run_event", "work_slice", "run_correction", "run_acceptance", "run_fail_fast", "schedule_occurrence":
		return "run_id"
	default:
		return ""
	}
}

func (e *erasure) texts(ctx context.Context, run *workqueue.RunID) (done Erased, err error) {
	var statements []string
	for _, of := range Searched() {
		how := of.How
		if how != Text && how != JSON {
			continue
		}
		for name := range strings.FieldsSeq(of.Names) {
			table, column, _ := strings.Cut(name, ".")
			if of := runColumn(table); run == nil || of != "" {
				statements = append(statements, eraseColumn(table, column, how, of))
			}
		}
	}
	for _, statement := range statements {
		var piece Erased
		err := e.db.RedoOrTry(ctx, e.DryRun, func(ctx context.Context, tx pgx.Tx) error {
			piece = Erased{}
			args := []any{e.Key, e.marker}
			if strings.Contains(statement, "$3") {
				args = append(args, run)
			}
			tag, err := tx.Exec(ctx, statement, args...)
			if piece.Texts = tag.RowsAffected(); err != nil || piece.Texts == 0 {
				return err
			}
			return e.audit(ctx, tx, e.Run, &piece)
		})
		if err != nil {
			return done, err
		}
		done.add(&piece)
	}
	return done, nil
}

// eraseColumn updates only rows with the key. Names come from [Searched]. Tables may have millions of rows: a cheap
// condition excludes rows without any form of the key, since the function takes a hundred times as long. Run is the
// column with the run, if the table has one.
func eraseColumn(table, column, how, run string) string {
	of := "erased_" + how + "(" + column + ", $1, $2)"
	statement := "UPDATE " + table + " SET " + column + " = " + of + " WHERE CASE WHEN strpos(" + column +
		`::text, $1) > 0 OR ` + column + `::text ~ '[\\%+]' THEN ` + column + " <> " + of + " END"
	if run != "" {
		statement += " AND ($3::uuid IS NULL OR " + run + " = $3)"
	}
	return statement
}

func (e *erasure) kept(ctx context.Context) (left []string, err error) {
	if e.unreadable > 0 {
		left = append(left, fmt.Sprintf("batchrun.params, rows: %d: they cannot be decrypted; give the node their "+
			"--encryption-key, or delete these runs", e.unreadable))
	}
	if e.unsearched > 0 {
		left = append(left, fmt.Sprintf("dead_letter.body, quarantine.body, rows: %d: they cannot be decrypted; give the "+
			"node the --encryption-key of their runs", e.unsearched))
	}
	if e.only() != nil {
		return left, nil
	}
	for _, of := range Searched() {
		if of.How != Kept {
			continue
		}
		for name := range strings.FieldsSeq(of.Names) {
			table, column, _ := strings.Cut(name, ".")
			n, err := pg.One(ctx, e.db.Pool, pgx.RowTo[int64], "SELECT count(*) FROM "+table+
				" WHERE erased_text("+column+"::text, $1, $2) <> "+column+"::text", e.Key, e.marker)
			if err != nil {
				return nil, err
			}
			if n > 0 {
				left = append(left, fmt.Sprintf("%s, rows: %d: %s", name, n, of.Why))
			}
		}
	}
	return left, nil
}
