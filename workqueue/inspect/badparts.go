package inspect

import (
	"context"
	"fmt"
	"regexp"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// BadPart is a part that makes items fail at a later step. A re-run cannot help: the step that made it must be reset.
type BadPart struct {
	Run  workqueue.RunID
	Step string // fails
	Of   string // made the part
	Code string
}

// Why describes the bad part.
func (b *BadPart) Why() string {
	return fmt.Sprintf("step %s fails for the part of step %s (%s), which a re-run of what failed would give it again: "+
		"when the source of that part is fixed, have step %s make it again", b.Step, b.Of, b.Code, b.Of)
}

// Command returns the command that recomputes the part.
func (b *BadPart) Command() string {
	return fmt.Sprintf("tranche run reset %s --step %s --code %s --failed-at %s", b.Run, b.Of, b.Code,
		b.Step)
}

// codeMissingValue is the code of a template for a bad part; services and functions use [workqueue.CodeBadPart].
const codeMissingValue = "missing_value"

const maxBadParts = 1000

// Ranges of the partial index on error codes. Repaired items have no failed bit, or a newer part.
const badParts = `
SELECT DISTINCT s.run_id, s.step, s.name, p.error_code, left(p.error_message, 200),
    ARRAY(SELECT n.name FROM run_step n WHERE n.run_id = s.run_id AND n.step = ANY (s.needs))
FROM run_step s CROSS JOIN LATERAL (
    SELECT run_id, step, ordinal, generation, error_code, error_message FROM work_result
    WHERE run_id = s.run_id AND step = s.step AND error_code = ANY ($2) LIMIT $3) p
JOIN work_block b ON b.run_id = p.run_id AND b.step = p.step AND b.block = p.ordinal / 8192
WHERE s.run_id = ANY ($1) AND s.needs <> '{}' AND get_bit(b.failed, p.ordinal % 8192) = 1 AND p.generation = (
    SELECT max(n.generation) FROM work_result n
    WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)
ORDER BY s.run_id, s.step`

// ReadBadParts finds the parts of runs that later steps report as bad. It decides between a re-run and a reset.
func ReadBadParts(ctx context.Context, db pg.Querier, runs []workqueue.RunID) (all []BadPart, err error) {
	var b BadPart
	var step workqueue.Step
	var message string
	var needs []string
	err = pg.Each(pg.Rows(ctx, db, badParts, runs, []string{workqueue.CodeBadPart, codeMissingValue}, maxBadParts),
		[]any{&b.Run, &step, &b.Step, &b.Code, &message, &needs}, func() {
			b.Of = partNamed(message)
			if slices.Contains(needs, b.Of) && !slices.Contains(all, b) {
				all = append(all, b)
			}
		})
	return all, pg.Wrap(err, "read the parts that are bad")
}

// partOf matches the name of a part in a message, quoted or not.
var partOf = regexp.MustCompile(`\bpart (?:of )?"?([A-Za-z0-9_.-]+)`)

func partNamed(message string) string {
	if named := partOf.FindStringSubmatch(message); named != nil {
		return named[1]
	}
	return ""
}

func addResets(ctx context.Context, tx pgx.Tx, run workqueue.RunID, groups []ErrorGroup) error {
	bad, err := ReadBadParts(ctx, tx, []workqueue.RunID{run})
	for i := range groups {
		g := &groups[i]
		for _, e := range g.Examples {
			of := BadPart{Run: run, Step: g.Step, Of: partNamed(e.Message), Code: g.Code}
			if slices.Contains(bad, of) && !slices.Contains(g.Resets, of.Of) {
				g.Resets = append(g.Resets, of.Of)
			}
		}
	}
	return err
}
