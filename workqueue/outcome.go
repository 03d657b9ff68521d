package workqueue

import "slices"

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
