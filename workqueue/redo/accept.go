package redo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// AcceptRequest selects failures to accept, or acceptances to withdraw.
type AcceptRequest struct {
	Run      workqueue.RunID
	Select   Selection // only its failed items count
	Withdraw bool
	DryRun   bool   // change nothing, and return what would be done
	Reason   string // required, except for a withdrawal
	Actor    string
}

// Acceptance is what an acceptance or withdrawal changed, or would change.
type Acceptance struct {
	Items    int64          `json:"items" doc:"whose failure was accepted, or no longer is"`
	Examples []string       `json:"examples" nullable:"false" doc:"the first ten keys of items"`
	Steps    []StepAccepted `json:"steps" nullable:"false" doc:"how many that were at which step"`
	Failed   int64          `json:"failed" doc:"failed items of the run"`
	Accepted int64          `json:"accepted" doc:"of those: their failures are all accepted now"`
}

// StepAccepted is how many failures of a step were accepted or withdrawn.
type StepAccepted struct {
	Step  string `json:"step"`
	Items int64  `json:"items"`
}

func (a *acceptance) nothing(failed int64) error {
	verb, why := "accept", "none of the items chosen has failed"
	switch {
	case a.Withdraw:
		verb, why = "withdraw", "none of the items chosen is accepted"
	case failed > 0:
		why = "all that failed of the items chosen is accepted already"
	}
	return workqueue.Nothing("%s in run %s: %s; see: tranche run errors %[2]s", verb, a.run, why)
}

// Accept marks failures of a run as accepted: they stay failed, but need no attention. Already accepted ones keep
// their accepter. A rerun or reset ends the acceptance. A dry run does everything and rolls back.
func (s Store) Accept(ctx context.Context, req AcceptRequest) (Acceptance, error) {
	if err := req.validate(); err != nil {
		return Acceptance{}, fmt.Errorf("accept: %w", err)
	}
	if err := s.see(ctx, req.Run, &req.Select); err != nil {
		return Acceptance{}, fmt.Errorf("accept: %w", err)
	}
	var a *acceptance
	err := s.db.RedoOrTry(ctx, req.DryRun, func(ctx context.Context, tx pgx.Tx) error {
		a = &acceptance{AcceptRequest: &req, redo: redo{tx: tx, run: req.Run, sel: &req.Select}}
		return a.do(ctx, database.Kept[plane.GraphCache](s.db))
	})
	if err != nil {
		return Acceptance{}, fmt.Errorf("accept: %w", err)
	}
	return a.out, nil
}

func (req *AcceptRequest) validate() error {
	if err := req.Select.validate(); err != nil || req.Select.All {
		return cmp.Or(err, errors.New("choose all failed items, or some of them"))
	}
	if strings.TrimSpace(req.Reason) == "" && !req.Withdraw {
		return workqueue.BadSetting("say why, by a reason: it is shown with each failure that is accepted")
	}
	return control.CheckReason(req.Reason)
}

// acceptance is one in progress. It finds the items, then locks steps, blocks, tracker batch and run.
type acceptance struct {
	*AcceptRequest
	redo

	out Acceptance
}

const (
	// The blocks are locked. Already accepted failures keep their accepter.
	acceptFailed = `
WITH taken AS (
    SELECT b.step, b.block, b.failed & u.items AS failed,
        b.failed & ~coalesce(b.accepted, B'0'::bit(8192)) & u.items AS items
    FROM work_block b JOIN unnest($2::smallint[], $3::int[], $4::bit(8192)[]) AS u (step, block, items)
        USING (step, block)
    WHERE b.run_id = $1 AND (b.failed & u.items) <> B'0'::bit(8192)
), moved AS (
    UPDATE work_block b SET accepted = coalesce(b.accepted, B'0'::bit(8192)) | t.items
    FROM taken t
    WHERE b.run_id = $1 AND b.step = t.step AND b.block = t.block AND t.items <> B'0'::bit(8192)
), noted AS (
    INSERT INTO run_acceptance (run_id, step, block, at, actor, reason, items)
    SELECT $1, step, block, tranche_now(), $5, $6, items FROM taken WHERE items <> B'0'::bit(8192)
)
SELECT step, block, failed, items FROM taken`

	// The accepter stays recorded, but no longer counts.
	withdrawAccepted = `
WITH taken AS (
    SELECT b.step, b.block, b.failed & u.items AS failed, b.accepted & u.items AS items
    FROM work_block b JOIN unnest($2::smallint[], $3::int[], $4::bit(8192)[]) AS u (step, block, items)
        USING (step, block)
    WHERE b.run_id = $1 AND (b.accepted & u.items) <> B'0'::bit(8192)
), moved AS (
    UPDATE work_block b SET accepted = nullif(b.accepted & ~t.items, B'0'::bit(8192))
    FROM taken t
    WHERE b.run_id = $1 AND b.step = t.step AND b.block = t.block
)
SELECT step, block, failed, items FROM taken`

	// lockBatch serializes with completion, which locks this row first, so that one sees the other.
	lockBatch = `SELECT id FROM tracker_batch WHERE id = $1 FOR NO KEY UPDATE`

	acceptedOfRun = `
SELECT o.failed, o.accepted FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomeOfRun + `) o WHERE r.id = $1`

	setAccepted = `UPDATE batchrun SET accepted = $2 WHERE id = $1 AND state = 'completed'`
)

func (a *acceptance) do(ctx context.Context, graphs *plane.GraphCache) error {
	versions, err := a.choose(ctx, graphs)
	if err != nil {
		return err
	}
	if err := a.lock(ctx); err != nil {
		return err
	}
	if err := a.chooseAgain(ctx, versions); err != nil {
		return err
	}
	_, before, err := a.count(ctx)
	if err != nil {
		return err
	}
	if err := a.mark(ctx); err != nil {
		return err
	}
	if a.out.Failed, a.out.Accepted, err = a.count(ctx); err != nil {
		return err
	}
	return a.finish(ctx, before)
}

// choose finds the items without locks, while claims continue, and returns the earlier block versions.
func (a *acceptance) choose(ctx context.Context, graphs *plane.GraphCache) (versions map[partOfRun]string, err error) {
	if a.steps, err = control.ReadSteps(ctx, a.tx, a.run); err != nil {
		return nil, err
	}
	if a.graph, err = graphs.Of(ctx, a.tx, a.run); err != nil {
		return nil, err
	}
	if _, err := a.readState(ctx); err != nil {
		return nil, err
	}
	a.named = a.graph.Numbers()
	if a.Select.Step != "" {
		step, err := control.StepNamed(a.steps, a.run, a.Select.Step)
		if err != nil {
			return nil, err
		}
		a.named = []workqueue.Step{step.Step}
	}
	if versions, err = a.versions(ctx, nil); err != nil {
		return nil, err
	}
	return versions, a.find(ctx)
}

func (a *acceptance) lock(ctx context.Context) error {
	if _, err := control.LockSteps(ctx, a.tx, a.run); err != nil {
		return err
	}
	if _, err := a.tx.Exec(ctx, lockRedoBlocks, a.run, a.named, a.blocks); err != nil {
		return fmt.Errorf("lock %d blocks: %w", len(a.blocks), err)
	}
	_, err := a.tx.Exec(ctx, lockBatch, a.run)
	return pg.Wrap(err, "lock the tracker of run %s", a.run)
}

type partOfRun struct {
	step  workqueue.Step
	block workqueue.Block
}

// A row's xmin changes with every update.
const versionsOfBlocks = `
SELECT step, block, xmin::text FROM work_block
WHERE run_id = $1 AND step = ANY($2) AND ($3::int[] IS NULL OR block = ANY($3))`

// versions reads the versions of some blocks, or all. None if the items' errors do not matter.
func (a *acceptance) versions(ctx context.Context, blocks []workqueue.Block) (map[partOfRun]string, error) {
	found := map[partOfRun]string{}
	if !a.Select.byError() {
		return found, nil
	}
	var part partOfRun
	var version string
	err := pg.Each(pg.Rows(ctx, a.tx, versionsOfBlocks, a.run, a.named, blocks),
		[]any{&part.step, &part.block, &version}, func() {
			found[part] = version
		})
	return found, pg.Wrap(err, "read the versions of the blocks of run %s", a.run)
}

// chooseAgain removes items that failed differently before their block was locked. Marking removes those not failed.
func (a *acceptance) chooseAgain(ctx context.Context, before map[partOfRun]string) error {
	now, err := a.versions(ctx, a.blocks)
	if err != nil {
		return err
	}
	changed := map[workqueue.Block]bool{}
	for part, version := range now {
		if before[part] != version {
			changed[part.block] = true
		}
	}
	if len(changed) == 0 {
		return nil
	}
	found, err := a.Select.findErrors(ctx, a.tx, a.run, a.named, plane.Sorted(changed))
	if err != nil {
		return err
	}
	for _, s := range a.named {
		for b, mask := range a.wanted[s] {
			switch still := found[s][b]; {
			case !changed[b]:
			case still == nil:
				delete(a.wanted[s], b)
			default:
				left := mask.And(*still)
				a.wanted[s][b] = &left
			}
		}
	}
	return nil
}

func (a *acceptance) count(ctx context.Context) (failed, accepted int64, err error) {
	err = a.tx.QueryRow(ctx, acceptedOfRun, a.run).Scan(&failed, &accepted)
	if err != nil {
		err = fmt.Errorf("count what is accepted of run %s: %w", a.run, err)
	}
	return failed, accepted, err
}

func (a *acceptance) mark(ctx context.Context) error {
	var steps []workqueue.Step
	var blocks []workqueue.Block
	var masks []bitfield.Set
	for _, s := range a.named {
		for b, mask := range a.wanted[s] {
			steps, blocks, masks = append(steps, s), append(blocks, b), append(masks, *mask)
		}
	}
	statement, args := acceptFailed, []any{a.run, steps, blocks, pgbits.Slice(masks), pg.Plain(a.Actor),
		pg.Plain(a.Reason)}
	if a.Withdraw {
		statement, args = withdrawAccepted, args[:4]
	}
	var step workqueue.Step
	var block workqueue.Block
	var failed, items bitfield.Set
	var before int64
	byStep, byBlock := make([]int64, len(a.steps)), map[workqueue.Block]bitfield.Set{}
	err := pg.Each(pg.Rows(ctx, a.tx, statement, args...),
		[]any{&step, &block, pgbits.Into(&failed), pgbits.Into(&items)}, func() {
			before += int64(failed.Count())
			byStep[step] += int64(items.Count())
			byBlock[block] = byBlock[block].Or(items)
		})
	if err != nil {
		return fmt.Errorf("mark failures of run %s: %w", a.run, err)
	}
	taken := blockMasks{}
	for block, items := range byBlock {
		a.out.Items += int64(items.Count())
		if !items.Empty() {
			taken[block] = &items
		}
	}
	if a.out.Examples, err = a.examples(ctx, taken); err != nil {
		return err
	}
	for s, n := range byStep {
		if n > 0 {
			a.out.Steps = append(a.out.Steps, StepAccepted{a.steps[s].Name, n})
		}
	}
	if a.out.Items == 0 {
		return a.nothing(before)
	}
	return nil
}

func (a *acceptance) finish(ctx context.Context, before int64) error {
	if _, err := a.tx.Exec(ctx, setAccepted, a.run, a.out.Accepted); err != nil {
		return fmt.Errorf("count what is accepted of run %s: %w", a.run, err)
	}
	name := "accept"
	if a.Withdraw {
		name = "accept_withdraw"
	}
	detail := map[string]any{"items": a.out.Items, "failed": a.Select.Failed, "codes": a.Select.Codes,
		"groups": a.Select.Groups, "keys": len(a.Select.Keys), "step": a.Select.Step}
	a.Select.audit(detail)
	ledger.AddReason(detail, a.Reason)
	return ledger.AuditChange(ctx, a.tx, ledger.Action{Actor: a.Actor, Name: name, Run: a.run, Detail: detail,
		Before: map[string]any{"failed": a.out.Failed, "accepted": before},
		After:  map[string]any{"failed": a.out.Failed, "accepted": a.out.Accepted}})
}
