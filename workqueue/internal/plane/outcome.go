package plane

import (
	"slices"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// NoBits is a plane with nothing in it, in SQL.
	NoBits = `B'0'::bit(8192)`

	// SettledBits is the items of a block b that its step has an outcome for: a part, or that they are left out.
	SettledBits = `(b.done | b.failed | coalesce(b.skipped, ` + NoBits + `))`

	// OutcomePlanes is, for each block of a run r, the items that every step has an outcome for, those that have failed,
	// in a step that is not optional, and of them those whose failures are all accepted. An item has failed as soon as
	// one step has failed it, though others may still be at it; it is done when it is settled and has not failed. parts
	// of all_parts are settled. It is a range of work_block's primary key.
	OutcomePlanes = `
    SELECT b.block, max(b.size) AS size, bit_and(` + SettledBits + `) AS settled,
        coalesce(bit_or(b.failed) FILTER (WHERE NOT s.optional), ` + NoBits + `) AS failed,
        coalesce(bit_or(b.failed) FILTER (WHERE NOT s.optional)
            & ~bit_or(b.failed & ~coalesce(b.accepted, ` + NoBits + `)) FILTER (WHERE NOT s.optional),
            ` + NoBits + `) AS accepted,
        sum(bit_count(` + SettledBits + `)) AS parts, sum(b.size) AS all_parts
    FROM work_block b JOIN run_step s USING (run_id, step) WHERE b.run_id = r.id GROUP BY b.block`
)

// ResultSteps are the steps whose parts are the results of a run: those that no other step needs. needs has the needs
// of each of the steps.
func ResultSteps(steps []workqueue.Step, needs [][]workqueue.Step) []workqueue.Step {
	var results []workqueue.Step
	for _, step := range steps {
		needed := slices.ContainsFunc(needs, func(of []workqueue.Step) bool { return slices.Contains(of, step) })
		if !needed {
			results = append(results, step)
		}
	}
	return results
}

// OutcomeSteps is what has to be known of the steps of a run to tell the outcomes of its items.
type OutcomeSteps struct {
	All      []workqueue.Step
	Names    []string
	Optional []bool
	Results  []workqueue.Step // whose parts are the results
}

// ReadStepsOfRun reads the steps of a run as outcomes need them.
const ReadStepsOfRun = `SELECT step, name, needs, optional FROM run_step WHERE run_id = $1 ORDER BY step`

// isOptional reports whether what a step fails is no failure of the item.
func (o *OutcomeSteps) isOptional(step workqueue.Step) bool {
	i := slices.Index(o.All, step)
	return i >= 0 && o.Optional[i]
}

// StepPlanes is the outcomes of one block of a step, as it is read.
type StepPlanes struct {
	step                  workqueue.Step
	size                  int
	done, failed, skipped bitfield.Set
}

// Into returns where to scan a row.
func (p *StepPlanes) Into() []any {
	return []any{&p.step, &p.size, pgbits.Into(&p.done), pgbits.Into(&p.failed), pgbits.Into(&p.skipped)}
}

// BlockOutcomes is what has become of the items of a block over all steps.
type BlockOutcomes struct {
	Steps   int
	settled bitfield.Set // every step has an outcome for them
	failed  []failedIn   // in the order of the steps
}

// failedIn is items that a step which is not optional has failed.
type failedIn struct {
	step  workqueue.Step
	items bitfield.Set
}

// Add takes in the next step.
func (b *BlockOutcomes) Add(of *OutcomeSteps, p *StepPlanes) {
	settled := p.done.Or(p.failed).Or(p.skipped)
	if b.Steps == 0 {
		b.settled = settled
	} else {
		b.settled = b.settled.And(settled)
	}
	b.Steps++
	if !p.failed.Empty() && !of.isOptional(p.step) {
		b.failed = append(b.failed, failedIn{p.step, p.failed})
	}
}

// Of is where an item stands, and the first step that has failed it if it is failed.
func (b *BlockOutcomes) Of(bit int) (outcome workqueue.Outcome, failed workqueue.Step) {
	for i := range b.failed {
		if b.failed[i].items.Has(bit) {
			return workqueue.OutcomeFailed, b.failed[i].step
		}
	}
	if b.settled.Has(bit) {
		return workqueue.OutcomeDone, 0
	}
	return workqueue.OutcomeMissing, 0
}
