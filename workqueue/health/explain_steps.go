package health

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// StepStanding is where the items of one step are, in an explanation of a run with several.
type StepStanding struct {
	Name     string         `json:"name"`
	Kind     workqueue.Kind `json:"kind" enum:"endpoint,direct,http,sql,local"`
	Endpoint string         `json:"endpoint" doc:"or another target, like http:HOST, sql:SOURCE or local:FUNCTION"`
	Needs    []string       `json:"needs,omitempty"`
	Optional bool           `json:"optional,omitempty"`
	Barred   bool           `json:"barred,omitempty" doc:"it waits at its barrier"`
	Items    int64          `json:"items"`
	Done     int64          `json:"done"`
	Failed   int64          `json:"failed"`
	Skipped  int64          `json:"skipped" doc:"left out"`
	Missing  int64          `json:"missing" doc:"the items of its groups and of groups without a step add up to it"`
	LeftOut  []LeftOut      `json:"left_out,omitempty" doc:"the step whose failure left items out"`
}

// LeftOut is items that a step skips because another step failed for them.
type LeftOut struct {
	Because string `json:"because" doc:"the step that failed; the first one, if several did"`
	Items   int64  `json:"items"`
}

func (f *facts) standings(r *runFacts) []StepStanding {
	all := make([]StepStanding, len(r.steps))
	for i, st := range r.steps {
		all[i] = StepStanding{Name: st.name, Kind: st.kind, Endpoint: st.endpoint, Needs: r.names(setOf(st.needs)),
			Optional: st.optional, Barred: st.barred, Done: st.done, Failed: st.failed, Skipped: st.skipped,
			Missing: st.missing.items + r.unplaced}
		all[i].Items = all[i].Done + all[i].Failed + all[i].Skipped + all[i].Missing
		for _, other := range r.steps {
			if n := st.leftOut[other.step]; n > 0 {
				all[i].LeftOut = append(all[i].LeftOut, LeftOut{other.name, n})
			}
		}
	}
	return all
}

// stepSet is a set of a run's steps, at most 64.
type stepSet uint64

func setOf(steps []workqueue.Step) (set stepSet) {
	for _, s := range steps {
		set |= 1 << s
	}
	return set
}

func (r *runFacts) names(set stepSet) []string {
	names := make([]string, 0, bits.OnesCount64(uint64(set)))
	for _, st := range r.steps {
		if set&(1<<st.step) != 0 {
			names = append(names, st.name)
		}
	}
	return names
}

// forStep is the flag that selects a step, or empty in a run of one step.
func (r *runFacts) forStep(st *stepFacts) string {
	if len(r.steps) < 2 {
		return ""
	}
	return " --step " + ShellWord(st.name)
}

// explainWaits returns the items in no plane and no slice, block by block, with what their steps need.
const explainWaits = explainPlanes + `, live AS (
    SELECT run_id, step, block, bit_or(remaining) AS bits FROM work_slice
    WHERE run_id = ANY ($1) AND state IN ('scheduled', 'claimed', 'sent') GROUP BY run_id, step, block
)
SELECT p.run_id, p.block, p.step, p.missing, p.counted, p.failed, p.skipped,
    p.missing & ~p.ready & ~coalesce(p.held, ` + plane.NoBits + `) & ~coalesce(l.bits, ` + plane.NoBits + `)
FROM planes p LEFT JOIN live l USING (run_id, step, block)
ORDER BY p.run_id, p.block, p.step`

type waitPlanes struct {
	step                                       *stepFacts
	missing, counted, failed, skipped, waiting bitfield.Set
	blocked                                    map[workqueue.Step]bitfield.Set // by the step that blocks them
}

// readWaits finds what waiting items wait for and why items were skipped, by block: 6 KB for 8192 items of a step.
func (f *facts) readWaits(ctx context.Context, tx pgx.Tx) error {
	var several []workqueue.RunID
	for id, r := range f.runs {
		if len(r.steps) > 1 {
			several = append(several, id)
		}
	}
	if len(several) == 0 {
		return nil
	}
	rows := pg.Rows(ctx, tx, explainWaits, several, f.blocks, f.masks)
	var run, last workqueue.RunID
	var block, lastBlock workqueue.Block
	var step workqueue.Step
	var p waitPlanes
	var at []waitPlanes
	to := []any{&run, &block, &step, pgbits.Into(&p.missing), pgbits.Into(&p.counted), pgbits.Into(&p.failed),
		pgbits.OrEmpty(&p.skipped), pgbits.Into(&p.waiting)}
	_, err := pgx.ForEachRow(rows, to, func() error {
		if run != last || block != lastBlock {
			sortOut(at)
			at, last, lastBlock = at[:0], run, block
		}
		p.step = f.steps[stepKey{run, step}]
		at = append(at, p)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read what waits: %w", err)
	}
	sortOut(at)
	return nil
}

// sortOut counts, in one block of a run, what each step's waiting items wait for and why the rest were skipped.
func sortOut(planes []waitPlanes) {
	by := map[workqueue.Step]*waitPlanes{}
	for i := range planes {
		p := &planes[i]
		by[p.step.step] = p
		p.blocked = map[workqueue.Step]bitfield.Set{}
		for _, need := range p.step.needs {
			p.behind(need, by[need])
		}
		p.countWaits()
		p.countLeftOut(by)
	}
}

// behind adds the items that a needed step blocks: those that it misses. Where it has a result that will be recomputed,
// the steps that block it block this step, too.
func (p *waitPlanes) behind(need workqueue.Step, n *waitPlanes) {
	if n == nil {
		return
	}
	p.blocked[need] = p.blocked[need].Or(n.missing)
	for further, items := range n.blocked {
		p.blocked[further] = p.blocked[further].Or(items.AndNot(n.missing))
	}
}

func (p *waitPlanes) countWaits() {
	if p.waiting.Empty() {
		return
	}
	classes := map[stepSet]bitfield.Set{0: p.waiting}
	for step, items := range p.blocked {
		for set, of := range classes {
			if both := of.And(items); !both.Empty() {
				classes[set] = of.AndNot(items)
				classes[set|1<<step] = both
			}
		}
	}
	for set, of := range classes {
		if n := of.Count(); n > 0 && set != 0 {
			counted := of.And(p.counted)
			if p.step.waits == nil {
				p.step.waits = map[stepSet]share{}
			}
			p.step.waits[set] = p.step.waits[set].plus(share{int64(n), int64(counted.Count())})
		}
	}
}

// countLeftOut finds the steps whose failure caused items to be skipped: the first required steps upstream.
func (p *waitPlanes) countLeftOut(by map[workqueue.Step]*waitPlanes) {
	if p.skipped.Empty() {
		return
	}
	left := p.skipped
	var causes []workqueue.Step
	open := slices.Clone(p.step.needs)
	for len(open) > 0 {
		n := by[open[0]]
		open = open[1:]
		if n == nil || n.step.optional || slices.Contains(causes, n.step.step) {
			continue
		}
		causes, open = append(causes, n.step.step), append(open, n.step.needs...)
	}
	slices.Sort(causes)
	if p.step.leftOut == nil {
		p.step.leftOut = map[workqueue.Step]int64{}
	}
	for _, cause := range causes {
		hit := left.And(by[cause].failed)
		p.step.leftOut[cause] += int64(hit.Count())
		left = left.AndNot(hit)
	}
}

func (f *facts) needsGroup(r *runFacts, st *stepFacts, needs stepSet, items share) MissingGroup {
	g := f.group(r, st, st.endpoint, "waiting", items)
	names := r.names(needs)
	g.needs, g.needed, g.Since = needs, names, r.startedAt
	g.Say(ReasonNeeds, Row{"steps": stepsText(names), "gate": st.barred && st.gate != "", "barred": st.barred})
	return g
}

func stepsText(names []string) string {
	if len(names) == 1 {
		return "step " + names[0]
	}
	return "steps " + strings.Join(names, ", ")
}

// barrierGroup explains items that only their step's barrier keeps back.
func (f *facts) barrierGroup(r *runFacts, st *stepFacts, g *MissingGroup) {
	if st.gateSince != nil {
		g.Say(RunGate, Row{"other": st.gate == workqueue.ApproveOther})
		g.Since = st.gateSince
		return
	}
	var names, counts []string
	for _, other := range r.steps {
		if left := other.left + r.unplaced; left > 0 && r.before(st).has(other.step) {
			names, counts = append(names, other.name), append(counts, fmt.Sprintf("%s of step %s", control.Grouped(left),
				other.name))
		}
	}
	if len(names) == 0 {
		f.swept(g, ReasonBarrier, Row{"case": "passed"})
		return
	}
	g.Say(ReasonBarrier, Row{"steps": stepsText(names), "left": strings.Join(counts, ", "), "gate": st.gate})
}

// before is the steps upstream of a step, direct or not.
func (r *runFacts) before(st *stepFacts) (set stepSet) {
	for _, other := range slices.Backward(r.steps) {
		if other == st || set.has(other.step) {
			set |= setOf(other.needs)
		}
	}
	return set
}

func (s stepSet) has(step workqueue.Step) bool { return s&(1<<step) != 0 }

// aheadOf returns the items in work in the lanes of given items, by primary keys.
const aheadOf = `
SELECT DISTINCT q.item_key, l.head FROM work_order o
JOIN work_lane l ON l.run_id = o.run_id AND l.lane = o.lane
JOIN work_queue q ON q.run_id = o.run_id AND q.ordinal = l.head
WHERE o.run_id = $1 AND o.ordinal = ANY ($2) AND l.head <> o.ordinal
ORDER BY l.head LIMIT 3`

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
	err := pg.Each(rows, []any{&key, &head}, func() {
		r.ahead = append(r.ahead, key)
	})
	return pg.Wrap(err, "read the items ahead")
}

func (f *facts) lineGroup(r *runFacts, st *stepFacts) MissingGroup {
	g := f.group(r, st, st.endpoint, "held", st.held)
	g.Since = r.startedAt
	g.by = []cameBy{{laneWhy, g.Items}}
	switch {
	case r.hold != "":
		f.holdGroup(r, &g)
	case len(f.alive) == 0:
		f.noNode(&g)
	case len(r.ahead) > 0:
		g.by = nil
		g.Say(ReasonLane, Row{"case": "known", "ahead": r.ahead[0]})
	default:
		g.by = nil
		g.Say(ReasonLane, nil)
	}
	return g
}
