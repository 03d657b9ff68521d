package plane

import (
	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// Planes are the bits of one block at one step. A bit in none of them is in a live slice, or waits for other steps.
type Planes struct {
	Ready, Held           bitfield.Set
	Done, Failed, Skipped bitfield.Set
}

// Final is the items that are done, failed or skipped at the step.
func (p *Planes) Final() bitfield.Set { return p.Done.Or(p.Failed).Or(p.Skipped) }

// Leave removes bits from the final planes.
func (p *Planes) Leave(bits bitfield.Set) {
	p.Done, p.Failed, p.Skipped = p.Done.AndNot(bits), p.Failed.AndNot(bits), p.Skipped.AndNot(bits)
}

// Eligibility is the state of a block's items at each step, as derived from the final planes:
//
//	settled  final here and at every step that it needs
//	open     each needed step is done or, if optional, settled
//	shut     a needed required step failed or was skipped
//
// An item that is neither open nor shut waits; its part of an earlier generation is kept meanwhile.
type Eligibility struct{ Settled, Open, Shut []bitfield.Set }

// Eligibility computes it from the planes of all steps.
func (g *Graph) Eligibility(at []Planes) Eligibility {
	n := len(g.Steps)
	st := Eligibility{make([]bitfield.Set, n), make([]bitfield.Set, n), make([]bitfield.Set, n)}
	for s := range g.Steps {
		g.Stand(&st, at, workqueue.Step(s))
	}
	return st
}

// Stand computes one step, after those that it needs.
func (g *Graph) Stand(st *Eligibility, at []Planes, s workqueue.Step) {
	open, settled, shut := bitfield.Full(bitfield.Size), at[s].Final(), bitfield.Set{}
	for _, n := range g.Steps[s].Needs {
		settled = settled.And(st.Settled[n])
		if g.Steps[n].Optional {
			open = open.And(st.Settled[n])
			continue
		}
		open = open.And(st.Settled[n].And(at[n].Done))
		shut = shut.Or(at[n].Failed).Or(at[n].Skipped)
	}
	st.Settled[s], st.Open[s], st.Shut[s] = settled, open, shut
}

// Provisional returns, for each step with new outcomes, the items for which a step that sees them has an outcome of
// an earlier generation: there it matters whether the part changed. at is from before the outcomes.
func (g *Graph) Provisional(at []Planes, news map[workqueue.Step]*Outcome) map[workqueue.Step]bitfield.Set {
	var all map[workqueue.Step]bitfield.Set
	for s, o := range news {
		var has bitfield.Set
		for _, seer := range g.sees(s) {
			has = has.Or(at[seer].Done).Or(at[seer].Failed)
		}
		if has = has.And(o.All()); !has.Empty() {
			if all == nil {
				all = map[workqueue.Step]bitfield.Set{}
			}
			all[s] = has
		}
	}
	return all
}

// Unlock settles outcomes of one block at some of its steps. It returns the planes of all steps after that, and the
// items that have now become final. In the ready planes it sets only what became ready; it does not set held planes.
// changed is the items whose new part differs from the previous one, as far as [Graph.Provisional] requests it.
//
// In step order, and only for the items with outcomes:
//
//  1. A step's result of an earlier generation is dropped if a part that it sees changed.
//  2. An item that is shut out moves to skipped.
//  3. An item no longer shut out leaves skipped, and waits.
//  4. An item that became open, without a kept outcome, is ready.
//
// It is correct because an outcome at a step means that its dependents were not open for the item before, as it was
// in flight. So no bit that moves here is ready, held or in flight at a dependent.
func (g *Graph) Unlock(at []Planes, news map[workqueue.Step]*Outcome, changed map[workqueue.Step]bitfield.Set) (
	now []Planes, final bitfield.Set,
) {
	was := g.Eligibility(at)
	now = make([]Planes, len(at))
	altered := make([]bitfield.Set, len(at)) // parts that differ from what later steps have seen
	st := Eligibility{make([]bitfield.Set, len(at)), make([]bitfield.Set, len(at)), make([]bitfield.Set, len(at))}
	var touched bitfield.Set
	for s, o := range news {
		touched = touched.Or(o.All())
		altered[s] = changed[s]
	}
	final, before := bitfield.Full(bitfield.Size), bitfield.Full(bitfield.Size)
	for s := range g.Steps {
		p := &now[s]
		p.Done, p.Failed, p.Skipped = at[s].Done, at[s].Failed, at[s].Skipped
		if o := news[workqueue.Step(s)]; o != nil {
			p.Done, p.Failed = p.Done.Or(o.Done), p.Failed.Or(o.Failed)
		}
		g.Stand(&st, now, workqueue.Step(s))
		var stale bitfield.Set
		for _, n := range g.Steps[s].inputs {
			stale = stale.Or(altered[n])
		}
		out := st.Shut[s].And(touched).AndNot(p.Skipped)
		altered[s] = altered[s].Or(out.And(p.Done)) // steps that used the part now have none
		p.Leave(stale.And(touched).And(p.Done.Or(p.Failed)))
		p.Leave(out.Or(p.Skipped.And(touched).AndNot(st.Shut[s])))
		p.Skipped = p.Skipped.Or(out)
		p.Ready = st.Open[s].AndNot(was.Open[s]).And(touched).AndNot(p.Final())
		g.Stand(&st, now, workqueue.Step(s))
		final, before = final.And(p.Final()), before.And(at[s].Final())
	}
	return now, final.AndNot(before)
}
