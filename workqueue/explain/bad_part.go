package explain

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// codeMissingValue is how a template says of a part what a service or a function says by [workqueue.CodeBadPart].
const codeMissingValue = "missing_value"

// badPart is that items fail at a step for what another one made. To run them again there gives them the same part.
type badPart struct {
	step, of *stepFacts
	code     string
}

// maxBadParts bounds the failures of a step that are read for the names in their messages.
const maxBadParts = 1000

// A range of the partial index on error codes. What was repaired meanwhile has no bit or another part.
const explainBadParts = `
SELECT DISTINCT p.error_code, left(p.error_message, 200) FROM (
    SELECT run_id, step, ordinal, generation, error_code, error_message FROM work_part
    WHERE run_id = $1 AND step = $2 AND error_code = ANY ($3) LIMIT $4) p
JOIN work_block b ON b.run_id = p.run_id AND b.step = p.step AND b.block = p.ordinal / 8192
WHERE get_bit(b.failed, p.ordinal % 8192) = 1 AND p.generation = (
    SELECT max(n.generation) FROM work_part n
    WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)`

// readBadParts finds the parts of a run that steps after say are bad.
func (f *facts) readBadParts(ctx context.Context, tx pgx.Tx, runs []workqueue.RunID) error {
	if len(runs) != 1 || f.runs[runs[0]] == nil {
		return nil
	}
	r := f.runs[runs[0]]
	for _, st := range r.steps {
		if st.failed == 0 || len(st.needs) == 0 {
			continue
		}
		rows := pg.Rows(ctx, tx, explainBadParts, r.id, st.step, []string{workqueue.CodeBadPart, codeMissingValue},
			maxBadParts)
		var code, message string
		_, err := pgx.ForEachRow(rows, []any{&code, &message}, func() error {
			of := r.partNamed(st, message)
			if of != nil && !slices.ContainsFunc(r.bad, func(b badPart) bool { return b.step == st && b.of == of }) {
				r.bad = append(r.bad, badPart{st, of, code})
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("read the parts that are bad: %w", err)
		}
	}
	return nil
}

// partOf is how messages name a part, quoted or not.
var partOf = regexp.MustCompile(`\bpart (?:of )?"?([A-Za-z0-9_.-]+)`)

// partNamed is the step, of those that a step needs, whose part a message is about.
func (r *runFacts) partNamed(st *stepFacts, message string) *stepFacts {
	named := partOf.FindStringSubmatch(message)
	if named == nil {
		return nil
	}
	at := slices.IndexFunc(r.steps, func(s *stepFacts) bool {
		return s.name == named[1] && slices.Contains(st.needs, s.step)
	})
	if at < 0 {
		return nil
	}
	return r.steps[at]
}

// again is how what failed is done again: at the step whose part is bad, or where it failed.
func (r *runFacts) again(do string) (all []Advice) {
	for _, b := range r.bad {
		all = append(all, Advice{
			fmt.Sprintf("step %s fails for the part of step %s (%s), which a re-run of what failed would give it again: when "+
				"the source of that part is mended, have step %s make it again", b.step.name, b.of.name, b.code, b.of.name),
			fmt.Sprintf("tranche run reset %s --step %s --code %s --failed-at %s", r.id, shellQuote(b.of.name), b.code,
				shellQuote(b.step.name)),
		})
	}
	if len(all) > 0 {
		return all
	}
	return []Advice{{do, fmt.Sprintf("tranche run rerun %s --failed", r.id)}}
}
