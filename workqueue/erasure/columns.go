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
	// Row: its rows are found by the item's key, or by their contents, and what they say is deleted or emptied.
	Row = "row"
	// Text and JSON: wherever the key stands in it, the marker takes its place.
	Text = "text"
	JSON = "json"
	// Kept: it is searched and left as it is. The answer says where the key was found, and why it stays.
	Kept = "kept"
	// Exempt: no key of an item stands in it.
	Exempt = "exempt"
)

// Columns are columns that are searched in one way.
type Columns struct {
	How   string
	Names string // table.column, with spaces between them
	Why   string // of those that are kept or exempt
}

// AllColumns are all columns of the database in which text can stand. A test compares them with the catalogue.
func AllColumns() []Columns {
	return []Columns{
		{Row, `work_queue.item_key work_queue.payload work_correction.payload work_part.result work_part.content_type
			work_part.error_message work_part.error_keyed work_large.content_type work_piece.bytes dead_letter.message
			dead_letter.stack dead_letter.origin dead_letter.headers dead_letter.body quarantine.detail quarantine.subject
			quarantine.headers quarantine.body collector_op.key collector_op.op_id collector_op.payload collector_op.fold
			collector_op.folded_into collector_key.key audit_log.subject audit_log.detail audit_log.before audit_log.after
			api_request.body batchrun.params batchrun.content`, ""},
		{Text, `alert.error alert_message.error api_request.operation batchrun.name batchrun.source batchrun.hold_detail
			collector.failure_message collector.refused_for collector_key.failed_message collector_op.error_message
			dead_letter.msg_id endpoint_change.reason endpoint_pace.breaker_reason health_mark.reason retention_run.name
			retention_run.why run_acceptance.reason run_correction.reason run_guard.tripped schedule_fire.reason
			schedule_fire.late stream_fault.detail stream_setting.trouble tracker_service.webhook_error
			work_error.error_message work_slice.error_message`, ""},
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
		{Exempt, `alert.name alert_condition.alert alert_message.alert batchrun.plan collector.name collector.endpoint
			endpoint_change.endpoint endpoint_pace.endpoint endpoint_setting.endpoint plan.name retention_run.plan
			run_step.name run_step.endpoint schedule.name schedule.zone schedule_fire.schedule tracker_service.webhook_host
			tracker_service.webhook_secret work_block.endpoint work_slice.endpoint`,
			"names of plans, endpoints and the like"},
		{Exempt, `alert.created_by alert.changed_by api_request.user_name api_token.name api_token.created_by
			api_token.revoked_by audit_log.actor batchrun.created_by batchrun.held_by collector.created_by
			collector.changed_by collector.paused_by endpoint_setting.changed_by health_mark.by plan.created_by
			retention.changed_by retention_run.deleted_by run_acceptance.actor run_correction.actor run_step.approved_by
			schedule.created_by schedule.changed_by schedule_fire.asked_by stream_setting.changed_by
			tracker_service.created_by web_session.user_name web_session.subject`, "who did what"},
		{Exempt, `collector.failure_code collector_key.failed_code collector_op.error_code dead_letter.cause
			quarantine.reason run_guard.codes run_step.retry_codes run_step.never_retry tracker_failed.code
			work_error.error_code work_part.error_code work_slice.error_code`, "codes"},
		{Exempt, `alert.state alert_condition.kind alert_condition.severity alert_condition.told alert_condition.before
			alert_message.what alert_message.severity alert_message.state api_request.content_type api_token.role
			audit_log.action batchrun.state batchrun.hold batchrun.max_failed batchrun.guard batchrun.canary_state
			batchrun.on_overdue batchrun.on_duplicate collector.state database_mark.name dead_letter.mode
			dead_letter.service dead_letter.state endpoint_change.what endpoint_change.before endpoint_change.after
			endpoint_pace.learned endpoint_pace.breaker health_condition.kind health_mark.kind health_mark.state
			health_mark.severity leader.name node_session.host node_session.version node_session.stats retention.kind
			run_event.kind run_step.kind run_step.approval schedule.state schedule_fire.kind schedule_fire.state
			stream_epoch.name stream_fault.stream stream_setting.name stream_setting.applied tracker_batch.owner
			tracker_batch.state tracker_service.webhook_state web_session.role work_slice.state work_slice.cause
			work_slice.service`, "states, settings, numbers and names of programs"},
		{Exempt, `api_request.fingerprint api_token.hash run_add.digest web_session.hash web_session.renewal
			work_large.sha256`, "digests, and what is sealed"},
	}
}

// perRun are the tables of the above with run_id, which are erased from for one run, too.
const perRun = " run_event work_error work_slice run_correction run_acceptance run_guard "

// texts has the marker stand for the key in what is told of everything.
func (e *erasure) texts(ctx context.Context, run *workqueue.RunID) (done Erased, err error) {
	var statements []string
	for _, of := range AllColumns() {
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
	for _, of := range AllColumns() {
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
