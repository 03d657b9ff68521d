package health

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/start"
)

type runFacts struct {
	id                workqueue.RunID
	state             string
	generation        workqueue.Generation
	priority          int
	namespace         string
	maxInFlight       int // quota of the namespace; 0: none
	inFlight          int // of the namespace, if it has a quota
	createdAt         time.Time
	sealedAt          *time.Time
	startedAt         *time.Time
	finishedAt        *time.Time
	hold              string // why it is held; empty: not held
	holdDetail        string
	heldAt            *time.Time
	heldBy            string
	canary            int
	canaryAutoApprove bool
	canaryState       string
	loader            workqueue.SessionID
	loaded            int64
	quarantined       int64
	letters           int64

	lastDone                *LastEvent // the slice that ended last
	lastOrder               *LastEvent // the last action of an operator
	items                   int64
	failed                  bool  // some of them have
	unplaced                int64 // items of an open run without a block so far
	open                    bool
	sealDeadline, overdueAt *time.Time
	onOverdue               string
	ordered                 bool     // its items are in lanes
	ahead                   []string // keys of the items ahead in those lanes
	steps                   []*stepFacts
	bad                     []inspect.BadPart
}

// viewState is the state as views show it: a held run is paused.
func (r *runFacts) viewState() string {
	if r.state == "running" && r.hold != "" {
		return "paused"
	}
	return r.state
}

// The last ordinal, at the end of work_queue's primary key, gives the rows loaded so far.
const explainRuns = `
SELECT r.id, r.state, r.generation, r.priority, r.namespace, coalesce(n.max_in_flight, 0),
    CASE WHEN n.max_in_flight IS NOT NULL THEN (
        SELECT count(*) FROM work_slice s JOIN batchrun o ON o.id = s.run_id
        WHERE s.state IN ('claimed', 'sent') AND o.namespace = r.namespace) ELSE 0 END,
    r.created_at, r.sealed_at, r.started_at, r.finished_at,
    coalesce(r.hold, ''), r.hold_detail, r.held_at, r.held_by, r.canary, r.canary_auto_approve,
    coalesce(r.canary_state, ''),
    coalesce(r.loader_session, '00000000-0000-0000-0000-000000000000'),
    CASE WHEN r.sealed_at IS NULL THEN coalesce((SELECT max(q.ordinal) + 1 FROM work_queue q WHERE q.run_id = r.id), 0)
        ELSE 0 END,
    (SELECT count(*) FROM quarantine q WHERE q.run_id = r.id),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = r.id AND d.state = 'waiting'),
    r.items, EXISTS (SELECT FROM work_block b JOIN run_step s USING (run_id, step)
        WHERE b.run_id = r.id AND NOT s.optional AND b.failed <> ` + plane.NoBits + `),
    greatest(r.items - (SELECT coalesce(sum(b.size), 0) FROM work_block b WHERE b.run_id = r.id AND b.step = 0), 0),
    r.opened AND r.sealed_at IS NULL AND r.state IN ('loading', 'running'), r.seal_deadline, r.overdue_at, r.on_overdue,
    EXISTS (SELECT 1 FROM run_order o WHERE o.run_id = r.id)
FROM batchrun r JOIN namespace n ON n.name = r.namespace WHERE r.id = ANY ($1)`

const (
	// The last slice that ended, with its error.
	explainLastSlice = `
SELECT ended_at, state, coalesce(service, ''), bit_count(mask)::bigint, coalesce(error_code, ''),
    coalesce(error_message, '')
FROM work_slice WHERE id = (
    SELECT id FROM work_slice WHERE run_id = $1 AND ended_at IS NOT NULL ORDER BY ended_at DESC LIMIT 1)`

	explainLastAction = `
SELECT at, actor, action, coalesce(after->>'hold', '') FROM audit_log WHERE run_id = $1 ORDER BY id DESC LIMIT 1`
)

func (f *facts) readRuns(ctx context.Context, tx pgx.Tx) error {
	rows := pg.Rows(ctx, tx, explainRuns, f.of)
	runs, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*runFacts, error) {
		r := &runFacts{}
		return r, row.Scan(&r.id, &r.state, &r.generation, &r.priority, &r.namespace, &r.maxInFlight, &r.inFlight,
			&r.createdAt, &r.sealedAt, &r.startedAt,
			&r.finishedAt, &r.hold, &r.holdDetail, &r.heldAt, &r.heldBy, &r.canary, &r.canaryAutoApprove, &r.canaryState,
			&r.loader, &r.loaded, &r.quarantined, &r.letters, &r.items, &r.failed, &r.unplaced,
			&r.open, &r.sealDeadline, &r.overdueAt, &r.onOverdue, &r.ordered)
	})
	if err != nil {
		return fmt.Errorf("read runs: %w", err)
	}
	for _, r := range runs {
		f.runs[r.id] = r
	}
	if len(runs) == 1 {
		return f.readLast(ctx, tx, runs[0])
	}
	return nil
}

func (f *facts) readLast(ctx context.Context, tx pgx.Tx, r *runFacts) error {
	rows := pg.Rows(ctx, tx, explainLastSlice, r.id)
	var state, service, code, message string
	var items int64
	var at time.Time
	err := pg.Each(rows, []any{&at, &state, &service, &items, &code, &message}, func() {
		r.lastDone = &LastEvent{at, endedText(state, service, items, code, message)}
	})
	if err != nil {
		return fmt.Errorf("read the last slice: %w", err)
	}
	rows = pg.Rows(ctx, tx, explainLastAction, r.id)
	var actor, action, hold string
	err = pg.Each(rows, []any{&at, &actor, &action, &hold}, func() {
		r.lastOrder = &LastEvent{at, actionText(actor, action, control.Hold(hold))}
	})
	return pg.Wrap(err, "read the last action")
}

func actionText(actor, action string, hold control.Hold) string {
	switch {
	case hold == control.HoldThreshold || hold == control.HoldFailFast || hold == control.HoldCanary:
		return "its " + strings.Replace(string(hold), "fail_fast", "fail-fast limit", 1) + " paused the run"
	case actor == workqueue.Engine && action == "approve":
		return "its canary passed, and the remaining items were released"
	case actor == workqueue.Engine:
		return "tranche's own action " + action
	case actor == "":
		actor = "an operator"
	}
	return "operator's action " + action + ", by " + actor
}

func endedText(state, service string, items int64, code, message string) string {
	by := ""
	if service != "" {
		by = " by " + service
	}
	if state == "recorded" && code == "" {
		return fmt.Sprintf("a request of %s was answered%s", Count(items, "item"), by)
	}
	why := code
	if message != "" {
		why += ": " + message
	}
	if state == "recorded" {
		return fmt.Sprintf("a request of %s failed%s: %s", Count(items, "item"), by, why)
	}
	return fmt.Sprintf("a request of %s ended without an answer: %s", Count(items, "item"), why)
}

func (r *runFacts) last(f *facts) *LastEvent {
	last := &LastEvent{r.createdAt, "the run was created"}
	consider := func(at *time.Time, what string) {
		if at != nil && !at.Before(last.At) {
			last = &LastEvent{*at, what}
		}
	}
	consider(r.startedAt, fmt.Sprintf("generation %d started", r.generation))
	for i := range f.slices {
		if s := &f.slices[i]; s.run == r.id {
			consider(&s.lastAt, "a request was prepared")
			consider(s.lastSent, "a request was published")
			consider(s.lastHanded, "a request was taken by a service")
		}
	}
	if r.lastDone != nil {
		consider(&r.lastDone.At, r.lastDone.What)
	}
	if r.lastOrder != nil {
		consider(&r.lastOrder.At, r.lastOrder.What)
	}
	if r.hold != "" {
		consider(r.heldAt, "the run was paused")
	}
	consider(r.finishedAt, "the run was "+r.state)
	return last
}

// notes are a run's anomalies: open, quarantined messages, dead letters.
func (r *runFacts) notes() []string {
	var notes []string
	if r.open {
		notes = append(notes, r.openNote())
	}
	return append(notes, Leftovers(r.id, r.quarantined, r.letters, 0)...)
}

// Leftovers says how many messages of a run are in quarantine, and how many dead letters and abandoned requests it has.
func Leftovers(run workqueue.RunID, quarantined, letters, givenUp int64) (said []string) {
	for _, s := range []struct {
		n    int64
		text string
	}{
		{quarantined, "messages about it are in quarantine; see: `tranche quarantine list --run " + run.String() + "`"},
		{letters, "of its dead letters wait for an operator; see: `tranche dlq list`"},
		{givenUp, "requests of it were abandoned, and their items continued in smaller ones; see: `tranche dlq list`"},
	} {
		if s.n > 0 {
			said = append(said, fmt.Sprintf("%d %s", s.n, s.text))
		}
	}
	return said
}

func (r *runFacts) advice(e *Explanation) []Advice {
	switch {
	case r.open && r.unplaced > 0: // a group says what to do
		return nil
	case r.open:
		return []Advice{{adviseSeal.Do, "tranche run seal " + r.id.String()}}
	case e.Failed == 0:
		return nil
	case r.state == "completed" && e.Key != "":
		return []Advice{
			{"run it again", fmt.Sprintf("tranche run rerun %s --key %s", r.id, ShellWord(e.Key))},
			correctAdvice(r.id),
		}
	case r.state == "completed":
		all := append([]Advice{{"see why items failed", fmt.Sprintf("tranche run errors %s", r.id)}},
			r.again("rerun the failed items")...)
		return append(all, correctAdvice(r.id))
	case r.state == "running" && !e.heldForFailures():
		return []Advice{{"see why items failed", fmt.Sprintf("tranche run errors %s", r.id)}}
	default:
		return nil
	}
}

func correctAdvice(run workqueue.RunID) Advice {
	return Advice{"or, when its data is wrong, correct that", fmt.Sprintf("tranche run correct %s --items FILE", run)}
}

// loading explains an unsealed run, which has no items and so no groups.
func (r *runFacts) loading(f *facts) string {
	s := f.sessions[r.loader]
	if r.state == "loading" && s != nil && s.Alive {
		why := fmt.Sprintf("the run is still loading: %s so far, loaded by %s since %s. It starts when the upload "+
			"ends, and is undone when the upload is interrupted", Count(r.loaded, "item"), s.Name(), clock(r.createdAt))
		if r.hold != "" {
			why += ". It is paused already, and waits for `tranche run resume` then"
		}
		return why
	}
	by := f.leaderText() + " undoes them within seconds"
	switch {
	case f.readOnly || f.awaitsStandby:
		by = "the leader undoes them when PostgreSQL takes writes again"
	case len(f.alive) == 0:
		by = "no node is alive to undo them; start one with: `tranche serve`"
	}
	return fmt.Sprintf("the run's load was interrupted and it never started: %s had arrived, and %s. Start it again",
		Count(r.loaded, "item"), by)
}

func servers(key string) string {
	kind, _ := workqueue.TargetKind(key)
	return map[workqueue.Kind]string{workqueue.KindSQL: "the database of ", workqueue.KindLocal: "the nodes that have ",
		workqueue.KindEndpoint: "the services of "}[kind] + workqueue.TargetText(key)
}

// someNodeHas reports whether a live node has a local function. One that has not listed its functions may.
func (f *facts) someNodeHas(key string) bool {
	_, function := workqueue.TargetKind(key)
	return slices.ContainsFunc(f.alive, func(n *Node) bool { return n.Has(function) })
}

func (f *facts) unplacedGroup(r *runFacts) MissingGroup {
	g := MissingGroup{run: r.id, State: "waiting", Items: r.unplaced, Counted: r.unplaced, Since: &r.createdAt}
	row := Row{"overdue": r.overdueAt != nil}
	if r.sealDeadline != nil {
		row["deadline"] = *r.sealDeadline
	}
	g.Say(ReasonUnplaced, row)
	if r.overdueAt == nil {
		g.When = r.sealDeadline
	}
	return g
}

func (r *runFacts) openNote() string {
	note := "the run is open: it takes items, and does not end until it is sealed"
	switch {
	case r.overdueAt != nil:
		note = fmt.Sprintf("%s; it should have been by %s, which was reported at %s: `tranche run seal %s`, or cancel it",
			note, clock(*r.sealDeadline), clock(*r.overdueAt), r.id)
		if r.onOverdue == string(start.OverdueReport) {
			note += fmt.Sprintf("; it is cancelled after %d days without any activity",
				start.AbandonedAfter/(24*time.Hour))
		}
		return note
	case r.sealDeadline != nil:
		return fmt.Sprintf("%s, by %s (then: %s)", note, clock(*r.sealDeadline), r.onOverdue)
	default:
		return note
	}
}
