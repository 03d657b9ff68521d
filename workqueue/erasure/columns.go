package erasure

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// How a column is searched.
const (
	// Text and JSON: wherever the key stands in it, the marker takes its place.
	Text = "text"
	JSON = "json"
	// Kept: it is searched and left as it is. The answer says where the key was found, and why it stays.
	Kept = "kept"
)

// Columns are columns that are searched in one way.
type Columns struct {
	How   string
	Names string // table.column, with spaces between them
	Why   string // of those that are kept
}

// Searched are the columns that are searched as such. The rows of others are found by the item's key, or by what they
// say; a test has these, and those in which no key stands, and compares all with the catalogue.
func Searched() []Columns {
	return []Columns{
		{Text, `alert.error alert_message.error api_request.operation batchrun.name batchrun.source batchrun.hold_detail
			collector.failure_message collector.refused_for collector_key.failed_message collector_op.error_message
			dead_letter.msg_id endpoint_change.reason endpoint_pace.breaker_reason health_mark.reason retention_run.name
			retention_run.why run_acceptance.reason run_correction.reason run_guard.tripped schedule_fire.reason
			schedule_fire.late stream_fault.detail stream_setting.trouble tracker_service.webhook_error
			work_slice.error_message`, ""},
		{JSON, `alert_condition.said alert_message.body api_request.headers api_request.carried_out health_condition.said
			run_event.payload tracker_service.event`, ""},
		{Kept, `alert.spec alert.source batchrun.spec collector.spec collector.source plan.spec plan.source run_order.rule
			run_step.config schedule.spec schedule.source tracker_service.webhook_url`,
			"it is part of a definition, which does what it says: apply it again without the key"},
		{Kept, `api_request.key batchrun.idempotency_key collector_seen.op_id run_add.key tracker_add.key
			tracker_service.owner tracker_service.key`,
			"a caller gave it as a name or an id, by which a repeated request is known: it goes with the rest of its row"},
		{Kept, `alert_condition.subject alert_condition.grp alert_message.grp health_condition.subject health_mark.subject
			dead_letter.endpoint`, "it is the name of something that has to be seen to"},
	}
}

// perRun are the tables of the above with run_id, which are erased from for one run, too.
const perRun = " run_event work_slice run_correction run_acceptance run_guard "

// texts has the marker stand for the key in what is told of everything.
func (e *erasure) texts(ctx context.Context, run *workqueue.RunID) (done Erased, err error) {
	var statements []string
	for _, of := range Searched() {
		if of.How != Text && of.How != JSON {
			continue
		}
		for name := range strings.FieldsSeq(of.Names) {
			table, column, _ := strings.Cut(name, ".")
			byRun := strings.Contains(perRun, " "+table+" ")
			if run == nil || byRun {
				statements = append(statements, eraseColumn(table, column, of.How, byRun))
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

// eraseColumn writes only rows in which the key stands. Names are those above. Tables may have millions of rows: what
// plainly has no key in any form does not come to the function, which takes a hundred times as long.
func eraseColumn(table, column, how string, byRun bool) string {
	of := "erased_" + how + "(" + column + ", $1, $2)"
	statement := "UPDATE " + table + " SET " + column + " = " + of + " WHERE CASE WHEN strpos(" + column +
		`::text, $1) > 0 OR ` + column + `::text ~ '[\\%+]' THEN ` + column + " <> " + of + " END"
	if byRun {
		statement += " AND ($3::uuid IS NULL OR run_id = $3)"
	}
	return statement
}

// kept finds where the key stands in what is left as it is.
func (e *erasure) kept(ctx context.Context) (left []string, err error) {
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
