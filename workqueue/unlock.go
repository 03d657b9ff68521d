package workqueue

import "github.com/tranchehq/tranche/bitfield"

// planes are the bits of one block at one step. A bit in none of them is in a live slice, or waits for other steps.
type planes struct {
	ready, held           bitfield.Set
	done, failed, skipped bitfield.Set
}

// final is the items that have an outcome at the step, or none because they are left out.
func (p *planes) final() bitfield.Set { return p.done.Or(p.failed).Or(p.skipped) }

// leave takes bits out of the final planes.
func (p *planes) leave(bits bitfield.Set) {
	p.done, p.failed, p.skipped = p.done.AndNot(bits), p.failed.AndNot(bits), p.skipped.AndNot(bits)
}

// outlook is where the items of a block stand at each step, as far as that follows from the final planes:
//
//	settled  final, and so at every step that it needs
//	open     what the step needs is there: done, or, of an optional step, settled
//	shut     what it needs will never be there: a step that is not optional has failed, or is left out itself
//
// An item that is neither open nor shut waits, and what it may have of an earlier generation is kept meanwhile.
type outlook struct{ settled, open, shut []bitfield.Set }

// outlook works it out from the planes of all steps.
func (g *graph) outlook(at []planes) outlook {
	n := len(g.steps)
	st := outlook{make([]bitfield.Set, n), make([]bitfield.Set, n), make([]bitfield.Set, n)}
	for s := range g.steps {
		g.stand(&st, at, Step(s))
	}
	return st
}

// stand works out one step, after those that it needs.
func (g *graph) stand(st *outlook, at []planes, s Step) {
	open, settled, shut := bitfield.Full(bitfield.Size), at[s].final(), bitfield.Set{}
	for _, n := range g.steps[s].needs {
		settled = settled.And(st.settled[n])
		if g.steps[n].optional {
			open = open.And(st.settled[n])
			continue
		}
		open = open.And(st.settled[n].And(at[n].done))
		shut = shut.Or(at[n].failed).Or(at[n].skipped)
	}
	st.settled[s], st.open[s], st.shut[s] = settled, open, shut
}

// kept returns, for each step that got outcomes, the items of which a step that sees them already has an outcome of an
// earlier generation: for these it matters whether the part has changed. at is from before the outcomes.
func (g *graph) kept(at []planes, news map[Step]*outcome) map[Step]bitfield.Set {
	var all map[Step]bitfield.Set
	for s, o := range news {
		var has bitfield.Set
		for _, seer := range g.sees(s) {
			has = has.Or(at[seer].done).Or(at[seer].failed)
		}
		if has = has.And(o.all()); !has.Empty() {
			if all == nil {
				all = map[Step]bitfield.Set{}
			}
			all[s] = has
		}
	}
	return all
}

// unlock settles outcomes of one block at some of its steps: it returns the planes of all steps after them, and the
// items that are final now and were not before. Only what became ready is set in the ready planes; held planes are
// left out. changed says of which items the new part differs from the one before; it is looked at only where
// [graph.kept] asks for it.
//
// In the order of the steps, and for the items with outcomes only:
//
//  1. What a step has of an earlier generation leaves it when a part that it sees has changed.
//  2. An item that is shut out leaves the step's planes for skipped.
//  3. One that is not shut out any more leaves skipped, and waits.
//  4. One that has become open, and has no outcome that is kept, is ready.
//
// It is right because an outcome at a step means that its dependents were not open for the item before: it was in
// flight there. So no bit that moves here is ready, held or in flight at a dependent.
func (g *graph) unlock(at []planes, news map[Step]*outcome, changed map[Step]bitfield.Set) (
	now []planes, final bitfield.Set,
) {
	was := g.outlook(at)
	now = make([]planes, len(at))
	altered := make([]bitfield.Set, len(at)) // parts that are not what those who see them have seen
	st := outlook{make([]bitfield.Set, len(at)), make([]bitfield.Set, len(at)), make([]bitfield.Set, len(at))}
	var touched bitfield.Set
	for s, o := range news {
		touched = touched.Or(o.all())
		altered[s] = changed[s]
	}
	final, before := bitfield.Full(bitfield.Size), bitfield.Full(bitfield.Size)
	for s := range g.steps {
		p := &now[s]
		p.done, p.failed, p.skipped = at[s].done, at[s].failed, at[s].skipped
		if o := news[Step(s)]; o != nil {
			p.done, p.failed = p.done.Or(o.done), p.failed.Or(o.failed)
		}
		g.stand(&st, now, Step(s))
		var stale bitfield.Set
		for _, n := range g.steps[s].inputs {
			stale = stale.Or(altered[n])
		}
		out := st.shut[s].And(touched).AndNot(p.skipped)
		altered[s] = altered[s].Or(out.And(p.done)) // who went on with the part has none now
		p.leave(stale.And(touched).And(p.done.Or(p.failed)))
		p.leave(out.Or(p.skipped.And(touched).AndNot(st.shut[s])))
		p.skipped = p.skipped.Or(out)
		p.ready = st.open[s].AndNot(was.open[s]).And(touched).AndNot(p.final())
		g.stand(&st, now, Step(s))
		final, before = final.And(p.final()), before.And(at[s].final())
	}
	return now, final.AndNot(before)
}
