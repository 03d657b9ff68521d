package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Gate is a step that starts when its needed steps have ended for all items, and an operator has approved.
type Gate struct {
	Run        workqueue.RunID `json:"run"`
	Step       workqueue.Step  `json:"-"`
	Name       string          `json:"step"`
	State      GateState       `json:"state" enum:"shut,waiting,approved" doc:"shut: what it needs has not ended"`
	Approvers  string          `json:"approvers" enum:"anyone,other" doc:"other: by no one named in acts"`
	Acts       []GateAct       `json:"acts" nullable:"false" doc:"who has a part in what waits, newest first"`
	Since      *time.Time      `json:"since,omitempty" doc:"since when it waits for approval in this state"`
	ApprovedBy string          `json:"approved_by,omitempty"`
	ApprovedAt *time.Time      `json:"approved_at,omitempty"`
}

// GateState is the state of a gate.
type GateState string

// The states of a gate.
const (
	GateClosed   GateState = "shut"
	GateWaiting  GateState = "waiting"
	GateApproved GateState = "approved"
)

// GateAct is a user's involvement in a run: starting it, writing its plan or schedule, or changing its items' results.
type GateAct struct {
	Actor  string    `json:"actor"`
	Action string    `json:"action" example:"correct" doc:"as in the audit log; plan and schedule: wrote it"`
	At     time.Time `json:"at" doc:"when last"`
}

// FourEyesError is returned if a user involved in a run approves a step that others must approve.
type FourEyesError struct {
	Run  workqueue.RunID
	Step string
	Act  GateAct
}

func (e *FourEyesError) Error() string {
	acted := map[string]string{
		"start": "started", "plan": "wrote the plan of", "schedule": "wrote the schedule of", "add": "added items to",
		"seal": "sealed", "resume": "resumed", "set": "changed settings of", "correct": "corrected items of",
		"reset": "reset items of", "rerun": "reran items of",
		"accept": "accepted failures of", "accept_withdraw": "withdrew an acceptance of",
	}
	return fmt.Sprintf("%s %s run %s, or one that it continues, and its plan wants step %s approved by another user "+
		"(approvers: other)", e.Act.Actor, acted[e.Act.Action], e.Run, e.Step)
}

// Refused returns why a caller may not approve now; nil if they may. Eyes are all names of theirs (identity.Eyes).
func (g *Gate) Refused(eyes ...string) error {
	again := "approve step " + g.Name
	switch {
	case g.State == GateApproved:
		return &workqueue.StateError{Run: g.Run, State: "past this gate, which " + g.ApprovedBy + " has approved", Op: again,
			Fix: "there is nothing to do"}
	case g.State == GateClosed:
		return &workqueue.StateError{Run: g.Run, State: "not there yet: steps before have not ended for all items", Op: again,
			Fix: "see what it waits for with tranche run explain " + g.Run.String()}
	case g.Approvers == workqueue.ApproveOther:
		if i := slices.IndexFunc(g.Acts, func(a GateAct) bool {
			return slices.ContainsFunc(eyes, func(name string) bool { return strings.EqualFold(name, a.Actor) })
		}); i >= 0 {
			return &FourEyesError{Run: g.Run, Step: g.Name, Act: g.Acts[i]}
		}
	}
	return nil
}

// notAsSeen refuses an approval of an outdated view: a reset before the gate starts a new wait.
func (g *Gate) notAsSeen(since time.Time) error {
	if since.IsZero() || g.Since != nil && g.Since.Equal(since) {
		return nil
	}
	return &workqueue.StateError{Run: g.Run, State: "waiting with other items or results than were looked at",
		Op: "approve step " + g.Name, Fix: fmt.Sprintf("look again with tranche run approve %s --step %s --dry-run", g.Run,
			g.Name)}
}

// StartedBy is the user who started a batchrun r; for a schedule run on request, the requester.
const StartedBy = `coalesce((SELECT max(f.asked_by) FROM schedule_occurrence f
        WHERE f.run_id = r.id AND f.kind = 'now' AND f.asked_by <> ''), r.created_by)`

const (
	readGates = `
SELECT st.run_id, st.step, st.name,
    CASE WHEN st.barrier_passed THEN 'approved' WHEN st.gate_since IS NOT NULL THEN 'waiting' ELSE 'shut' END,
    st.approval, NULL, st.gate_since, st.approved_by, st.approved_at
FROM run_step st JOIN batchrun r ON r.id = st.run_id
WHERE st.run_id = $1 AND st.approval IS NOT NULL ORDER BY st.step`

	// Starting a run, or writing its plan or schedule, counts permanently; other acts since the step's last approval.
	// Those in the runs that it continues count, too. A schedule starts its newest text. Settings of pace change no
	// outcome.
	gateActs = `
SELECT st.step, a.actor, a.action, max(a.at)
FROM run_step st JOIN batchrun r ON r.id = st.run_id
CROSS JOIN LATERAL (
    WITH RECURSIVE up (id) AS (SELECT r.id UNION ALL SELECT e.from_run FROM up JOIN batchrun e ON e.id = up.id)
    SELECT ` + StartedBy + ` AS actor, 'start' AS action, r.created_at AS at FROM up JOIN batchrun r ON r.id = up.id
    UNION ALL
    SELECT p.created_by, 'plan', p.created_at FROM up JOIN batchrun e ON e.id = up.id
    JOIN plan p ON p.name = e.plan AND p.version = e.plan_version
    UNION ALL
    SELECT l.actor, 'schedule', l.at FROM up JOIN batchrun e ON e.id = up.id
    JOIN schedule_occurrence f ON f.run_id = e.id JOIN audit_log l ON l.action = 'schedule_apply'
        AND l.subject = f.schedule AND (l.after ->> 'version')::int >= f.version AND l.at <= e.created_at
    UNION ALL
    SELECT s.changed_by, 'schedule', s.changed_at FROM up JOIN schedule_occurrence f ON f.run_id = up.id
    JOIN schedule s ON s.name = f.schedule
    UNION ALL
    SELECT l.actor, l.action, l.at FROM up JOIN audit_log l ON l.run_id = up.id
    WHERE (l.run_id <> r.id OR l.id > coalesce((SELECT max(p.id) FROM audit_log p
            WHERE p.run_id = r.id AND p.action = 'approve' AND p.detail ->> 'step' = st.name), 0))
        AND (l.action IN ('add', 'seal', 'correct', 'reset', 'rerun', 'accept', 'accept_withdraw')
            OR l.action = 'resume' AND l.before ->> 'state' = 'cancelled'
            OR l.action = 'set' AND EXISTS (SELECT FROM jsonb_object_keys(l.after) k WHERE k <> ALL ($2)))) a
WHERE st.run_id = $1 AND st.approval IS NOT NULL
GROUP BY st.step, a.actor, a.action ORDER BY max(a.at) DESC, a.action`
)

// Gates reads the gates of a run in step order.
func Gates(ctx context.Context, tx pgx.Tx, run workqueue.RunID) ([]Gate, error) {
	gates, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[Gate], readGates, run)
	if err != nil {
		return nil, fmt.Errorf("read the gates of run %s: %w", run, err)
	}
	if len(gates) == 0 {
		return nil, nil
	}
	var step workqueue.Step
	var act GateAct
	paces := append(workqueue.StepSettings{}.Paces(), "priority")
	err = pg.Each(pg.Rows(ctx, tx, gateActs, run, paces), []any{&step, &act.Actor, &act.Action, &act.At}, func() {
		for i := range gates {
			g := &gates[i]
			if g.Step != step {
				continue
			}
			g.Acts = append(g.Acts, act)
			if act.Action == "set" && g.Since != nil && act.At.After(*g.Since) {
				g.Since = new(act.At) // what was viewed before has changed
			}
		}
	})
	return gates, pg.Wrap(err, "read who had a part in run %s", run)
}

// NoGateError is returned for a gate that a run does not have, or if one must be named.
type NoGateError struct {
	Run   workqueue.RunID
	Name  string // empty: none was named
	Gates []string
}

func (e *NoGateError) Error() string {
	switch {
	case len(e.Gates) == 0:
		return fmt.Sprintf("no step of run %s waits for an approval: its plan has no barrier: approve", e.Run)
	case e.Name == "":
		return fmt.Sprintf("name the step of run %s: %s", e.Run, strings.Join(e.Gates, ", "))
	default:
		return fmt.Sprintf("step %.80q of run %s waits for no approval; these do: %s", e.Name, e.Run,
			strings.Join(e.Gates, ", "))
	}
}

// Unwrap makes it an ErrNotFound.
func (e *NoGateError) Unwrap() error { return workqueue.ErrNotFound }

// GateOf returns the gate with a name, or without one the waiting gate, or the only one.
func GateOf(run workqueue.RunID, gates []Gate, name string) (*Gate, error) {
	var waiting []*Gate
	missing := &NoGateError{Run: run, Name: name}
	for i := range gates {
		if gates[i].Name == name {
			return &gates[i], nil
		}
		if gates[i].State == GateWaiting {
			waiting = append(waiting, &gates[i])
		}
		missing.Gates = append(missing.Gates, gates[i].Name)
	}
	switch {
	case name == "" && len(waiting) == 1:
		return waiting[0], nil
	case name == "" && len(gates) == 1:
		return &gates[0], nil
	}
	return nil, missing
}

const (
	// The step was locked before; the state fences it anyway.
	passGate = `
UPDATE run_step SET barrier_passed = true, gate_since = NULL, approved_at = tranche_now(), approved_by = $3
WHERE run_id = $1 AND step = $2 AND approval IS NOT NULL AND gate_since IS NOT NULL AND NOT barrier_passed`

	readyAtStep = `
SELECT coalesce(sum(bit_count(ready)), 0)::bigint FROM work_block WHERE run_id = $1 AND step = $2`
)

// approveStep starts a step whose needed steps have ended for all items. The error is a *FourEyesError if another
// user must approve, and a *NoGateError if there is no such gate. Controlled.Items is how many items continue.
func (s Store) approveStep(ctx context.Context, c *Control) (out Controlled, err error) {
	if c.All {
		return out, workqueue.BadSetting("a step is approved of one run at a time; name the run")
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out = Controlled{Runs: []workqueue.RunID{c.Run}}
		if _, err := tx.Exec(ctx, plane.LockStepsOfCanary, c.Run); err != nil {
			return fmt.Errorf("lock steps: %w", err)
		}
		r, err := readHold(ctx, tx, c.Run)
		if err != nil {
			return err
		}
		gates, err := Gates(ctx, tx, c.Run)
		if err != nil {
			return err
		}
		gate, err := GateOf(c.Run, gates, c.Step)
		if err != nil {
			return err
		}
		if r.state != "running" {
			return &workqueue.StateError{Run: c.Run, State: r.state, Op: "approve step " + gate.Name,
				Fix: "nothing waits for approval"}
		}
		if err := cmp.Or(gate.Refused(append(c.Eyes, c.Actor)...), gate.notAsSeen(c.Seen)); err != nil {
			return err
		}
		out.Items, err = gate.pass(ctx, tx, r, c)
		return err
	})
	return out, pg.Wrap(err, "approve")
}

func (g *Gate) pass(ctx context.Context, tx pgx.Tx, r *RunHold, c *Control) (items int64, err error) {
	if err := tx.QueryRow(ctx, readyAtStep, g.Run, g.Step).Scan(&items); err != nil {
		return 0, fmt.Errorf("count the items of step %s: %w", g.Name, err)
	}
	if err := pg.CheckRows(1)(tx.Exec(ctx, passGate, g.Run, g.Step, pg.Plain(c.Actor))); err != nil {
		return 0, fmt.Errorf("begin step %s: %w", g.Name, err)
	}
	detail := map[string]any{"step": g.Name, "items": items, "reason": pg.Plain(c.Reason), "by": pg.Plain(c.Actor),
		"hold": r.Hold}
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.Actor, Name: "approve", Run: g.Run, Detail: detail,
		Before: map[string]any{"step": g.Name, "gate": GateWaiting},
		After:  map[string]any{"step": g.Name, "gate": GateApproved}})
	if err != nil {
		return 0, err
	}
	return items, ledger.AddEvent(ctx, tx, g.Run, r.Generation, workqueue.EventApproved, detail)
}

// waitsAtGates returns an error that names a run's waiting gate; nil if none waits.
func waitsAtGates(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
	gates, err := Gates(ctx, tx, run)
	if err != nil {
		return err
	}
	gate, err := GateOf(run, gates, "")
	if errors.Is(err, workqueue.ErrNotFound) || err == nil && gate.State != GateWaiting {
		return nil
	}
	if err != nil {
		return err
	}
	return &workqueue.StateError{Run: run, State: "waiting at step " + gate.Name, Op: "approve",
		Fix: fmt.Sprintf("name the step: tranche run approve %s --step %s", run, gate.Name)}
}

// GateView is what an operator checks before approving a step.
type GateView struct {
	Gate
	Items   int64       `json:"items" doc:"those that continue"`
	LeftOut int64       `json:"left_out" doc:"those that do not: a step before has failed for them"`
	Before  []GateStep  `json:"before" nullable:"false" doc:"the steps that it needs, and how they ended"`
	Sample  []GateItem  `json:"sample" nullable:"false" doc:"some items that continue, others each time"`
	Earlier *EarlierRun `json:"earlier,omitempty" doc:"the run of the plan that completed last before this one was made"`
}

// GateStep is the progress of a step before a gate.
type GateStep struct {
	Step    string `json:"step"`
	Done    int64  `json:"done"`
	Failed  int64  `json:"failed"`
	Skipped int64  `json:"skipped"`
}

// GateItem is a sampled item, with the results that the gated step needs.
type GateItem struct {
	Ordinal workqueue.Ordinal `json:"ordinal"`
	Key     string            `json:"key"`
	Results []GateResult      `json:"results" nullable:"false" doc:"to be had from GET /runs/{run}/items/{key}/result"`
}

// GateResult is a result of a sampled item.
type GateResult struct {
	Step        string `json:"step"`
	ContentType string `json:"content_type,omitempty" doc:"absent: application/json"`
	Bytes       int64  `json:"bytes"`
}

// EarlierRun is a run to compare with.
type EarlierRun struct {
	Run        workqueue.RunID `json:"run"`
	Name       string          `json:"name,omitempty"`
	FinishedAt time.Time       `json:"finished_at"`
	Items      int64           `json:"items"`
	Done       int64           `json:"done"`
	Failed     int64           `json:"failed"`
}

// MaxGateSample bounds the items of a sample.
const MaxGateSample = 100

const (
	gatePlanes = `
SELECT b.block, b.ready | b.done | b.failed, coalesce(bit_count(b.skipped), 0)
FROM work_block b WHERE b.run_id = $1 AND b.step = $2 ORDER BY b.block`

	gateBefore = `
SELECT st.name, coalesce(sum(bit_count(b.done)), 0)::bigint, coalesce(sum(bit_count(b.failed)), 0)::bigint,
    coalesce(sum(bit_count(b.skipped)), 0)::bigint
FROM run_step st LEFT JOIN work_block b USING (run_id, step)
WHERE st.run_id = $1 AND st.step = ANY ($2) GROUP BY st.step, st.name ORDER BY st.step`

	gateKeys = `SELECT ordinal, item_key FROM work_queue WHERE run_id = $1 AND ordinal = ANY ($2) ORDER BY ordinal`

	// Points of work_result's primary key, the newest generation of each.
	gateResults = `
SELECT u.ordinal, st.name, coalesce(p.content_type, ''),
    CASE WHEN p.large_id IS NULL THEN octet_length(p.result)::bigint - CASE WHEN r.data_key IS NULL THEN 0 ELSE $4 END
        ELSE (SELECT l.bytes FROM large_result l WHERE l.id = p.large_id) END
FROM run_step g JOIN run_step st ON st.run_id = g.run_id AND st.step = ANY (g.needs) JOIN batchrun r ON r.id = g.run_id
CROSS JOIN unnest($3::int[]) AS u (ordinal)
CROSS JOIN LATERAL (SELECT result, content_type, large_id FROM work_result
    WHERE run_id = g.run_id AND step = st.step AND ordinal = u.ordinal ORDER BY generation DESC LIMIT 1) p
WHERE g.run_id = $1 AND g.step = $2 AND p.result IS NOT NULL
ORDER BY u.ordinal, st.step`

	// By batchrun_plan if the plan is saved. The earlier run must have the step, to be compared.
	gateEarlier = `
SELECT e.id, coalesce(e.name, ''), e.finished_at, e.items, e.done, e.failed
FROM batchrun r JOIN batchrun e USING (namespace, plan)
WHERE r.id = $1 AND e.id < r.id AND e.state = 'completed'
    AND EXISTS (SELECT FROM run_step st WHERE st.run_id = e.id AND st.name = $2)
ORDER BY e.id DESC LIMIT 1`
)

// View returns what waits for approval at a step, with a sample of items. Without a name, it is the waiting gate or
// the only one. The error wraps ErrNotFound if the run does not exist, or is a *NoGateError.
func (s Store) View(ctx context.Context, run workqueue.RunID, step string, sample int) (*GateView, error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, run)
	if err != nil {
		return nil, fmt.Errorf("view a gate of run %s: %w", run, err)
	}
	view := &GateView{Before: []GateStep{}, Sample: []GateItem{}}
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		gates, err := Gates(ctx, tx, run)
		if err != nil {
			return err
		}
		gate, err := GateOf(run, gates, step)
		if err != nil {
			return err
		}
		view.Gate = *gate
		return view.read(ctx, tx, g.Before[gate.Step], min(sample, MaxGateSample))
	})
	return view, pg.Wrap(err, "view a gate of run %s", run)
}

func (v *GateView) read(ctx context.Context, tx pgx.Tx, before []workqueue.Step, sample int) error {
	chosen, err := v.choose(ctx, tx, sample)
	if err != nil {
		return err
	}
	v.Before, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[GateStep], gateBefore, v.Run, before)
	if err != nil {
		return fmt.Errorf("count the steps before: %w", err)
	}
	if err := v.readSample(ctx, tx, chosen); err != nil {
		return fmt.Errorf("read the sample: %w", err)
	}
	var e EarlierRun
	err = tx.QueryRow(ctx, gateEarlier, v.Run, v.Name).Scan(&e.Run, &e.Name, &e.FinishedAt, &e.Items, &e.Done, &e.Failed)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find an earlier run: %w", err)
	}
	v.Earlier = &e
	return nil
}

// choose counts the continuing items and samples them uniformly (Vitter's algorithm R), reading one plane at a time.
func (v *GateView) choose(ctx context.Context, tx pgx.Tx, sample int) (chosen []workqueue.Ordinal, err error) {
	var block workqueue.Block
	var going bitfield.Set
	var skipped int64
	err = pg.Each(pg.Rows(ctx, tx, gatePlanes, v.Run, v.Step), []any{&block, pgbits.Into(&going), &skipped}, func() {
		v.LeftOut += skipped
		for bit := range going.All() {
			v.Items++
			if len(chosen) < sample {
				chosen = append(chosen, block.Ordinal(bit))
			} else if at := rand.Int64N(v.Items); at < int64(sample) {
				chosen[at] = block.Ordinal(bit)
			}
		}
	})
	return chosen, pg.Wrap(err, "read the planes")
}

func (v *GateView) readSample(ctx context.Context, tx pgx.Tx, chosen []workqueue.Ordinal) error {
	at := map[workqueue.Ordinal]int{}
	item := GateItem{Results: []GateResult{}}
	err := pg.Each(pg.Rows(ctx, tx, gateKeys, v.Run, chosen), []any{&item.Ordinal, &item.Key}, func() {
		at[item.Ordinal] = len(v.Sample)
		v.Sample = append(v.Sample, item)
	})
	if err != nil {
		return err
	}
	var ordinal workqueue.Ordinal
	var r GateResult
	return pg.Each(pg.Rows(ctx, tx, gateResults, v.Run, v.Step, chosen, database.SealOverhead),
		[]any{&ordinal, &r.Step, &r.ContentType, &r.Bytes}, func() {
			of := &v.Sample[at[ordinal]]
			of.Results = append(of.Results, r)
		})
}
