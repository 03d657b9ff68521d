package explain

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// aheadOf has the items that are worked on in the lanes of some others. Primary keys.
const aheadOf = `
SELECT DISTINCT q.item_key, l.head FROM work_order o
JOIN work_lane l ON l.run_id = o.run_id AND l.lane = o.lane
JOIN work_queue q ON q.run_id = o.run_id AND q.ordinal = l.head
WHERE o.run_id = $1 AND o.ordinal = ANY ($2) AND l.head <> o.ordinal
ORDER BY l.head LIMIT 3`

// readAhead finds out behind which items those stand that were asked about.
func (f *facts) readAhead(
	ctx context.Context, tx pgx.Tx, run workqueue.RunID, masks map[workqueue.Block]bitfield.Set,
) error {
	r := f.runs[run]
	if r == nil || !r.ordered {
		return nil
	}
	var items []workqueue.Ordinal
	for block, mask := range masks {
		for bit := range mask.All() {
			items = append(items, block.Ordinal(bit))
		}
	}
	rows := pg.Rows(ctx, tx, aheadOf, run, items)
	var key string
	var head workqueue.Ordinal
	_, err := pgx.ForEachRow(rows, []any{&key, &head}, func() error {
		r.ahead = append(r.ahead, key)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what stands in front: %w", err)
	}
	return nil
}

// lineGroup explains items that wait for those before them in their lanes.
func (f *facts) lineGroup(r *runFacts, st *stepFacts) MissingGroup {
	g := f.group(r, st, st.endpoint, "held", st.held)
	g.Since = r.startedAt
	const why = "items of the same lane are worked on one after the other, and these wait for one before them"
	switch {
	case r.hold != "":
		f.holdGroup(r, &g)
		g.by = []cameBy{{why, g.Items}}
		return g
	case len(f.alive) == 0:
		g.by = []cameBy{{why, g.Items}}
		f.noNode(&g)
		return g
	}
	g.Reason, g.Owner, g.Who, g.Why = ReasonLane, OwnerStep, "the items before them", why
	g.Next = "an item is made ready in the transaction that records the last outcome of the one before it"
	if len(r.ahead) > 0 {
		key := r.ahead[0]
		g.Who, g.Why = fmt.Sprintf("item %.80q", key), fmt.Sprintf("it waits for item %.80q of the same lane, the one that "+
			"is worked on", key)
		g.Advice = []Advice{{"see what that item waits for",
			"tranche run explain " + r.id.String() + " --item " + shellQuote(key)}}
	}
	return g
}
