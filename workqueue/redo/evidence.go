package redo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Evidence narrows a selection by facts about items and their newest parts, or selects alone. An empty field does not
// narrow.
type Evidence struct {
	States      []workqueue.Outcome // done or failed: the part is a result or an error
	Service     string              // that answered, as "name", "name@version" or "name@version instance"
	Since       time.Time           // the request ended at this time or later; in flight: was sent
	Until       time.Time           // it ended before
	Where       string              // an SQL/JSON path that holds for the payload: `$.branch == "12"`
	WhereResult string              // the same for a JSON result
	Corrected   bool                // the item's payload was corrected
}

func (e *Evidence) ofParts() bool {
	return len(e.States) > 0 || e.Service != "" || !e.Since.IsZero() || !e.Until.IsZero() || e.WhereResult != ""
}

func (e *Evidence) ofItems() bool { return e.Where != "" || e.Corrected }

func (e *Evidence) empty() bool { return !e.ofParts() && !e.ofItems() }

func (e *Evidence) validate() error {
	for _, s := range e.States {
		if s != workqueue.OutcomeDone && s != workqueue.OutcomeFailed {
			return workqueue.BadSetting("state %.40q: it must be done or failed", s)
		}
	}
	for name, text := range map[string]string{"service": e.Service, "where": e.Where, "where_result": e.WhereResult} {
		if !pg.Storable(text) {
			return workqueue.BadSetting("%s is not text that PostgreSQL takes: leave out NUL and what is not UTF-8", name)
		}
	}
	if !e.Since.IsZero() && !e.Until.IsZero() && !e.Since.Before(e.Until) {
		return workqueue.BadSetting("since is not before until; between them nothing was recorded")
	}
	return nil
}

func (e *Evidence) audit(detail map[string]any) {
	for name, text := range map[string]string{"service": e.Service, "where": e.Where, "where_result": e.WhereResult} {
		if text != "" {
			detail[name] = pg.Plain(text)
		}
	}
	for name, at := range map[string]time.Time{"since": e.Since, "until": e.Until} {
		if !at.IsZero() {
			detail[name] = at
		}
	}
	if len(e.States) > 0 {
		detail["states"] = e.States
	}
	if e.Corrected {
		detail["corrected"] = true
	}
}

const (
	// pathHolds is an SQL condition on d, a JSON text and a path: the first value that the path yields exists and is
	// neither false nor null. So it may be a predicate, a filter or a field.
	pathHolds = `coalesce(jsonb_path_query_first(
        (CASE WHEN strpos(d.json, '\u0000') = 0 THEN d.json
         ELSE regexp_replace(d.json, ` + pg.EscapedNUL + `) END)::jsonb,
        d.path::jsonpath, '{}', true) NOT IN ('false', 'null'), false)`

	// itemsWhere scans work_queue's primary key.
	itemsWhere = `
SELECT q.ordinal FROM work_queue q CROSS JOIN LATERAL (SELECT q.payload AS json, $2::text AS path) d
WHERE q.run_id = $1 AND CASE WHEN $2 = '' THEN true ELSE ` + pathHolds + ` END
    AND (NOT $3 OR EXISTS (SELECT FROM work_correction c WHERE c.run_id = $1 AND c.ordinal = q.ordinal))`

	// partsWhere reads the newest parts of some steps with their slices. A result that is not JSON matches no path. One
	// in pieces is only put together for a path.
	partsWhere = `
SELECT p.step, p.ordinal FROM work_result p LEFT JOIN work_slice w ON w.id = p.slice_id
CROSS JOIN LATERAL (SELECT convert_from(CASE WHEN p.large_id IS NULL THEN p.result
    ELSE (SELECT string_agg(c.bytes, '' ORDER BY c.piece) FROM work_piece c WHERE c.large_id = p.large_id) END,
    'UTF8') AS json, $6::text AS path) d
WHERE p.run_id = $1 AND p.step = ANY ($2) AND ($9::int[] IS NULL OR p.ordinal = ANY ($9)) AND ` + newestPart + `
    AND ($3::text = '' OR w.service = $3 OR starts_with(w.service, $3 || ' ') OR starts_with(w.service, $3 || '@'))
    AND ($4::timestamptz IS NULL OR coalesce(w.ended_at, w.sent_at) >= $4)
    AND ($5::timestamptz IS NULL OR coalesce(w.ended_at, w.sent_at) < $5)
    AND ($7 OR p.error_code IS NOT NULL) AND ($8 OR p.error_code IS NULL)
    AND CASE WHEN $6 = '' THEN true WHEN p.error_code IS NOT NULL OR p.content_type IS NOT NULL THEN false
        ELSE ` + pathHolds + ` END`
)

func (sel *Selection) narrow(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step,
	found map[workqueue.Step]blockMasks,
) (map[workqueue.Step]blockMasks, error) {
	f := sel.seen
	var err error
	if f == nil {
		f = &seen{}
		err = f.read(ctx, tx, run, steps, &sel.Evidence)
	} else if f.parts != nil {
		err = f.catchUp(ctx, tx, run, steps, &sel.Evidence)
	}
	if err != nil {
		return nil, err
	}
	for s := range found {
		if f.items != nil {
			found[s] = found[s].and(f.items)
		}
		if f.parts != nil {
			found[s] = found[s].and(f.parts[s])
		}
	}
	return found, nil
}

func (e *Evidence) itemsThatFit(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (blockMasks, error) {
	masks := blockMasks{}
	var o workqueue.Ordinal
	if err := pg.Each(pg.Rows(ctx, tx, itemsWhere, run, e.Where, e.Corrected),
		[]any{&o}, func() { masks.add(o) }); err != nil {
		return nil, e.explain("find items", err)
	}
	return masks, nil
}

func (e *Evidence) partsThatFit(ctx context.Context, tx pgx.Tx, run workqueue.RunID, steps []workqueue.Step,
	among []workqueue.Ordinal,
) (map[workqueue.Step]blockMasks, error) {
	done := len(e.States) == 0 || slices.Contains(e.States, workqueue.OutcomeDone)
	failed := len(e.States) == 0 || slices.Contains(e.States, workqueue.OutcomeFailed)
	made, err := masksAt(pg.Rows(ctx, tx, partsWhere, run, steps, e.Service, pg.UnlessZero(e.Since),
		pg.UnlessZero(e.Until), e.WhereResult, done, failed, among))
	if err != nil {
		return nil, e.explain("find parts", err)
	}
	return made, nil
}

const encrypted = `SELECT EXISTS (SELECT FROM batchrun WHERE id = $1 AND data_key IS NOT NULL)`

func (e *Evidence) checkPaths(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
	for _, p := range []struct{ name, path string }{{"where", e.Where}, {"where_result", e.WhereResult}} {
		if p.path == "" {
			continue
		}
		sealed, err := pg.One(ctx, tx, pgx.RowTo[bool], encrypted, run)
		if sealed {
			return workqueue.BadSetting("%s cannot look into the values of run %s: they are encrypted; choose by other "+
				"evidence, or by keys", p.name, run)
		}
		if err == nil {
			_, err = tx.Exec(ctx, `SELECT $1::text::jsonpath`, p.path)
		}
		if said, ok := errors.AsType[*pgconn.PgError](err); ok && said.Code[:2] != "57" {
			return workqueue.BadSetting(`%s is %.200q, which is not a path of SQL/JSON: %s; write one like $.branch == "12"`,
				p.name, p.path, said.Message)
		}
		if err != nil {
			return fmt.Errorf("check %s: %w", p.name, err)
		}
	}
	return nil
}

// explain reports data that PostgreSQL cannot process: its numbers have bounds that JSON's do not.
func (e *Evidence) explain(op string, err error) error {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok && said.Code[:2] == "22" {
		return &workqueue.SettingError{Detail: "where and where_result: PostgreSQL cannot look into some of the data: " +
			said.Message + "; choose by other evidence, or by keys"}
	}
	return fmt.Errorf("%s: %w", op, err)
}

const keysOfItems = `
SELECT item_key FROM work_queue WHERE run_id = $1 AND ordinal = ANY ($2) ORDER BY ordinal`

func (r *redo) examples(ctx context.Context, items blockMasks) ([]string, error) {
	blocks := slices.Sorted(maps.Keys(items))
	var first []workqueue.Ordinal
	for _, b := range blocks {
		for bit := range items[b].All() {
			if len(first) < Examples {
				first = append(first, b.Ordinal(bit))
			}
		}
	}
	keys, err := pg.Collect(ctx, r.tx, pgx.RowTo[string], keysOfItems, r.run, first)
	return keys, pg.Wrap(err, "read keys")
}

func (r *redo) taken() blockMasks {
	items := blockMasks{}
	for i := range r.moved {
		items[workqueue.Block(r.moved[i].Group)] = &r.moved[i].Mask
	}
	return items
}

// Items without an outcome at a step are being done, or will be: their newest part no longer counts.
const settledPlanes = `SELECT step, block, done | failed FROM work_block WHERE run_id = $1 AND step = ANY($2)`

// Items finds the items that the selection matches at any of some steps, for reading.
func (sel Selection) Items(ctx context.Context, tx pgx.Tx, run workqueue.RunID, items int64, steps []workqueue.Step,
) (map[workqueue.Block]*bitfield.Set, error) {
	if err := sel.validate(); err != nil {
		return nil, workqueue.BadSetting("%v", err)
	}
	found, err := sel.find(ctx, tx, run, items, steps)
	if err != nil {
		return nil, err
	}
	settled, err := planesAt(pg.Rows(ctx, tx, settledPlanes, run, steps))
	if err != nil {
		return nil, fmt.Errorf("find outcomes: %w", err)
	}
	all := blockMasks{}
	for s, masks := range found {
		if sel.ofParts() || sel.byError() {
			masks = masks.and(settled[s])
		}
		for b, mask := range masks {
			both := *mask
			if all[b] != nil {
				both = both.Or(*all[b])
			}
			all[b] = &both
		}
	}
	return all, nil
}

// Empty reports whether it selects nothing.
func (sel *Selection) Empty() bool {
	return sel.alone() && sel.Evidence.empty()
}

func (r *redo) explain(c *blockPlan, s workqueue.Step, sum *stepSum) {
	p := &c.at[s]
	rest := c.wanted[s].AndNot(c.moves[s].reset)
	if rest.Empty() {
		return
	}
	pending, out := rest.And(p.Ready.Or(p.Held)), rest.And(c.live[s])
	sum.pending += int64(pending.Count())
	sum.out += int64(out.Count())
	invalid := rest.And(c.never[s])
	sum.invalid += int64(invalid.Count())
	if sum.waits == nil {
		sum.waits, sum.causes = map[workqueue.Step]int64{}, map[workqueue.Step]int64{}
	}
	r.culprits(c, s, rest.And(p.Skipped), sum.causes)
	waiting := rest.AndNot(pending).AndNot(out).AndNot(p.Final())
	if r.take.live { // otherwise slices were not searched
		r.awaited(c, s, waiting, sum.waits)
	}
}

func (r *redo) culprits(c *blockPlan, s workqueue.Step, items bitfield.Set, causes map[workqueue.Step]int64) {
	if items.Empty() {
		return
	}
	for _, n := range r.graph.Steps[s].Needs {
		if r.graph.Steps[n].Optional {
			continue
		}
		if failed := items.And(c.at[n].Failed); !failed.Empty() {
			causes[n] += int64(failed.Count())
		}
		r.culprits(c, n, items.And(c.at[n].Skipped), causes)
	}
}

// awaited counts waiting items, by the earlier steps that have no outcome for them and wait for none themselves.
func (r *redo) awaited(c *blockPlan, s workqueue.Step, items bitfield.Set, waits map[workqueue.Step]int64) {
	if items.Empty() {
		return
	}
	for _, e := range r.graph.Before[s] {
		missing := items.AndNot(c.at[e].Final())
		for _, n := range r.graph.Before[e] {
			missing = missing.And(c.at[n].Final())
		}
		if !missing.Empty() {
			waits[e] += int64(missing.Count())
		}
	}
}

// notes explains what was wanted of the named steps and left unchanged.
func (r *redo) notes() (notes []string) {
	for _, s := range r.named {
		sum, name := &r.sums[s], r.steps[s].Name
		say := func(n int64, format string, args ...any) {
			if n > 0 {
				notes = append(notes, countOf(n)+fmt.Sprintf(format, args...))
			}
		}
		say(sum.pending, " to be done at step %s anyway", name)
		say(sum.invalid, " invalid: what does not fit the run's schema is not sent; correct that data: "+
			"tranche run correct %s --items FILE", r.run)
		if !r.take.live {
			say(sum.out, " out at step %s", name)
		}
		for _, cause := range slices.Sorted(maps.Keys(sum.causes)) {
			failed := r.steps[cause].Name
			say(sum.causes[cause], " left out of step %s, because step %s failed for them; reset that step: "+
				"tranche run reset %s --step %s", name, failed, r.run, failed)
		}
		for _, first := range slices.Sorted(maps.Keys(sum.waits)) {
			say(sum.waits[first], " at step %s waiting for step %s", name, r.steps[first].Name)
		}
	}
	return notes
}

func countOf(n int64) string {
	if n == 1 {
		return "1 item is"
	}
	return control.Grouped(n) + " items are"
}

func (r *reset) nothing() error {
	why := strings.Join(r.notes(), ", and ")
	switch {
	case why != "":
	case !r.Select.empty():
		why = "the evidence is true of no item that could be reset"
	case len(r.Select.Codes) > 0:
		why = "no item of it failed with code " + strings.Join(r.Select.Codes, " or ") + r.Select.where()
	case len(r.Select.Groups) > 0:
		why = "no item of it failed with a message of group " + strings.Join(r.Select.Groups, " or ") + r.Select.where()
	default:
		why = "it has no items"
	}
	return workqueue.Nothing("reset at step %s of run %s: %s", r.out.Step, r.run, why)
}
