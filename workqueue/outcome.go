package workqueue

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

const (
	// noBits is a plane with nothing in it, in SQL.
	noBits = `B'0'::bit(8192)`

	// settledBits is the items of a block b that its step has an outcome for: a part, or that they are left out.
	settledBits = `(b.done | b.failed | coalesce(b.skipped, ` + noBits + `))`

	// outcomePlanes is, for each block of a run r, the items that every step has an outcome for, and those that have
	// failed: in a step that is not optional. An item has failed as soon as one step has failed it, though others may
	// still be at it; it is done when it is settled and has not failed. parts of all_parts are settled. It is a range of
	// work_block's primary key.
	outcomePlanes = `
    SELECT b.block, max(b.size) AS size, bit_and(` + settledBits + `) AS settled,
        coalesce(bit_or(b.failed) FILTER (WHERE NOT s.optional), ` + noBits + `) AS failed,
        sum(bit_count(` + settledBits + `)) AS parts, sum(b.size) AS all_parts
    FROM work_block b JOIN run_step s USING (run_id, step) WHERE b.run_id = r.id GROUP BY b.block`
)

// resultSteps are the steps whose parts are the results of a run: those that no other step needs. needs has the needs
// of each of the steps.
func resultSteps(steps []Step, needs [][]Step) []Step {
	var results []Step
	for _, step := range steps {
		needed := slices.ContainsFunc(needs, func(of []Step) bool { return slices.Contains(of, step) })
		if !needed {
			results = append(results, step)
		}
	}
	return results
}

// outcomeSteps is what has to be known of the steps of a run to tell the outcomes of its items.
type outcomeSteps struct {
	all      []Step
	names    []string
	optional []bool
	results  []Step // whose parts are the results
}

const readStepsOfRun = `SELECT step, name, needs, optional FROM run_step WHERE run_id = $1 ORDER BY step`

func (s *Store) readOutcomeSteps(ctx context.Context, run RunID) (outcomeSteps, error) {
	rows, err := s.pool.Query(ctx, readStepsOfRun, run)
	if err != nil {
		return outcomeSteps{}, err
	}
	var out outcomeSteps
	var step Step
	var name string
	var needs []Step
	var optional bool
	var all [][]Step
	_, err = pgx.ForEachRow(rows, []any{&step, &name, &needs, &optional}, func() error {
		out.all, out.names, out.optional = append(out.all, step), append(out.names, name), append(out.optional, optional)
		all = append(all, slices.Clone(needs))
		return nil
	})
	out.results = resultSteps(out.all, all)
	return out, err
}

// isOptional reports whether what a step fails is no failure of the item.
func (o *outcomeSteps) isOptional(step Step) bool {
	i := slices.Index(o.all, step)
	return i >= 0 && o.optional[i]
}

// stepPlanes is the outcomes of one block of a step, as it is read.
type stepPlanes struct {
	step                  Step
	size                  int
	done, failed, skipped bitfield.Set
}

func (p *stepPlanes) into() []any {
	return []any{&p.step, &p.size, pgbits.Into(&p.done), pgbits.Into(&p.failed), pgbits.Into(&p.skipped)}
}

// blockOutcomes is what has become of the items of a block over all steps.
type blockOutcomes struct {
	steps   int
	settled bitfield.Set // every step has an outcome for them
	failed  []failedIn   // in the order of the steps
}

// failedIn is items that a step which is not optional has failed.
type failedIn struct {
	step  Step
	items bitfield.Set
}

// add takes in the next step.
func (b *blockOutcomes) add(of *outcomeSteps, p *stepPlanes) {
	settled := p.done.Or(p.failed).Or(p.skipped)
	if b.steps == 0 {
		b.settled = settled
	} else {
		b.settled = b.settled.And(settled)
	}
	b.steps++
	if !p.failed.Empty() && !of.isOptional(p.step) {
		b.failed = append(b.failed, failedIn{p.step, p.failed})
	}
}

// of is where an item stands, and the first step that has failed it if it is failed.
func (b *blockOutcomes) of(bit int) (outcome Outcome, failed Step) {
	for i := range b.failed {
		if b.failed[i].items.Has(bit) {
			return OutcomeFailed, b.failed[i].step
		}
	}
	if b.settled.Has(bit) {
		return OutcomeDone, 0
	}
	return OutcomeMissing, 0
}
