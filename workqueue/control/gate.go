package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Gate is a step that begins when what it needs has ended for all items, and somebody has approved.
type Gate struct {
	Run        workqueue.RunID `json:"run"`
	Step       workqueue.Step  `json:"-"`
	Name       string          `json:"step"`
	State      GateState       `json:"state" enum:"shut,waiting,approved" doc:"shut: what it needs has not ended"`
	ApproveBy  string          `json:"approve_by" enum:"anyone,other" doc:"other: not by whoever started the run"`
	StartedBy  string          `json:"started_by" doc:"who started the run"`
	Since      *time.Time      `json:"since,omitempty" doc:"when it began to wait for somebody"`
	ApprovedBy string          `json:"approved_by,omitempty"`
	ApprovedAt *time.Time      `json:"approved_at,omitempty"`
}

// GateState is where a gate is.
type GateState string

// The states of a gate.
const (
	GateShut     GateState = "shut"
	GateWaiting  GateState = "waiting"
	GateApproved GateState = "approved"
)

// FourEyesError is returned when who started a run would let a step of it begin that somebody else has to look at.
type FourEyesError struct {
	Run   workqueue.RunID
	Step  string
	Actor string
}

func (e *FourEyesError) Error() string {
	return fmt.Sprintf("%s started run %s, and its plan wants step %s approved by somebody else (approve_by: other)",
		e.Actor, e.Run, e.Step)
}

// Refused says why an actor may not approve now; nil when they may.
func (g *Gate) Refused(actor string) error {
	again := "approve step " + g.Name
	switch {
	case g.State == GateApproved:
		return &workqueue.StateError{Run: g.Run, State: "past this gate, which " + g.ApprovedBy + " has approved", Op: again,
			Fix: "there is nothing to do"}
	case g.State == GateShut:
		return &workqueue.StateError{Run: g.Run, State: "not there yet: steps before have not ended for all items", Op: again,
			Fix: "see what it waits for with tranche run explain " + g.Run.String()}
	case g.ApproveBy == workqueue.ApproveOther && actor == g.StartedBy:
		return &FourEyesError{Run: g.Run, Step: g.Name, Actor: actor}
	}
	return nil
}

// notAsSeen refuses an approval of what somebody has looked at and what is there no more: whatever is taken back before
// a gate has it wait anew. The gate waits.
func (g *Gate) notAsSeen(since time.Time) error {
	if since.IsZero() || g.Since != nil && g.Since.Equal(since) {
		return nil
	}
	return &workqueue.StateError{Run: g.Run, State: "waiting with other items or results than were looked at",
		Op: "approve step " + g.Name, Fix: fmt.Sprintf("look again with tranche run approve %s --step %s --dry-run", g.Run,
			g.Name)}
}

// StartedBy is who started a batchrun r: of a schedule that somebody had run at once, that person.
const StartedBy = `coalesce((SELECT max(f.asked_by) FROM schedule_fire f
        WHERE f.run_id = r.id AND f.kind = 'now' AND f.asked_by <> ''), r.created_by)`

const readGates = `
SELECT st.run_id, st.step, st.name,
    CASE WHEN st.barrier_passed THEN 'approved' WHEN st.gate_since IS NOT NULL THEN 'waiting' ELSE 'shut' END,
    st.approval, ` + StartedBy + `, st.gate_since, st.approved_by, st.approved_at
FROM run_step st JOIN batchrun r ON r.id = st.run_id
WHERE st.run_id = $1 AND st.approval IS NOT NULL ORDER BY st.step`

// Gates reads the gates of a run, in the order of their steps.
func Gates(ctx context.Context, tx pgx.Tx, run workqueue.RunID) ([]Gate, error) {
	gates, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[Gate], readGates, run)
	if err != nil {
		return nil, fmt.Errorf("read the gates of run %s: %w", run, err)
	}
	return gates, nil
}

// NoGateError is returned for a gate that a run does not have, or where one has to be named.
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

// GateOf chooses one of the gates of a run: the one of a name, or without a name the one that waits, or the only one.
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
	// The lock of the step has come before; the state fences it all the same.
	passGate = `
UPDATE run_step SET barrier_passed = true, gate_since = NULL, approved_at = tranche_now(), approved_by = $3
WHERE run_id = $1 AND step = $2 AND approval IS NOT NULL AND gate_since IS NOT NULL AND NOT barrier_passed`

	readyAtStep = `
SELECT coalesce(sum(bit_count(ready)), 0)::bigint FROM work_block WHERE run_id = $1 AND step = $2`
)

// approveStep lets a step of a run begin that waits for it: what it needs has ended for all items, and somebody has
// looked. The error is a *FourEyesError when that has to be somebody else, and a *NoGateError when there is no such
// gate. Items of Controlled is how many go on.
func (s Store) approveStep(ctx context.Context, c *Control) (out Controlled, err error) {
	if c.All {
		return out, &workqueue.SettingError{Detail: "a step is approved of one run at a time; name the run"}
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
				Fix: "there is nothing to let go"}
		}
		if err := cmp.Or(gate.Refused(c.Actor), gate.notAsSeen(c.Seen)); err != nil {
			return err
		}
		out.Items, err = gate.pass(ctx, tx, r.Generation, c)
		return err
	})
	if err != nil {
		return Controlled{}, fmt.Errorf("approve: %w", err)
	}
	return out, nil
}

func (g *Gate) pass(
	ctx context.Context, tx pgx.Tx, generation workqueue.Generation, c *Control,
) (items int64, err error) {
	if err := tx.QueryRow(ctx, readyAtStep, g.Run, g.Step).Scan(&items); err != nil {
		return 0, fmt.Errorf("count the items of step %s: %w", g.Name, err)
	}
	tag, err := tx.Exec(ctx, passGate, g.Run, g.Step, pg.Plain(c.Actor))
	if err == nil && tag.RowsAffected() != 1 {
		err = workqueue.ErrFence
	}
	if err != nil {
		return 0, fmt.Errorf("let step %s begin: %w", g.Name, err)
	}
	detail := map[string]any{"step": g.Name, "items": items, "reason": pg.Plain(c.Reason), "by": pg.Plain(c.Actor)}
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.Actor, Name: "approve", Run: g.Run, Detail: detail,
		Before: map[string]any{"step": g.Name, "gate": GateWaiting},
		After:  map[string]any{"step": g.Name, "gate": GateApproved}})
	if err != nil {
		return 0, err
	}
	return items, ledger.AddEvent(ctx, tx, g.Run, generation, workqueue.EventApproved, detail)
}

// waitsAtGates says what a run waits for that has nothing else to approve; nothing when no gate of it waits.
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
