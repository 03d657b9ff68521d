package pace

import (
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// RootKind is what a chunk that failed turned out to be.
type RootKind string

// The kinds of chunks that failed as a whole.
const (
	KindBadEntity      RootKind = "bad_entity"      // items of it fail alone
	KindTooBig         RootKind = "too_big"         // it works in pieces, as other chunks of its endpoint do
	KindBadCombination RootKind = "bad_combination" // it works in pieces, and it is the only one
	KindServiceDown    RootKind = "service_down"    // its endpoint was down
	KindUndecided      RootKind = "undecided"       // its pieces are under way
)

// tooBigRoots is how many chunks must work in pieces only before their size is to blame.
const tooBigRoots = 3

// member is one slice of a chunk's family.
type member struct {
	id, parent workqueue.SliceID
	items      int
	cause      workqueue.Cause
	live       bool
	how        endedHow          // of one that has ended
	counts     bool              // it ended by what its service did, or did not do
	at         workqueue.Ordinal // of the item, when it holds one
	code       string
	message    string
	created    time.Time
	ended      *time.Time
}

// family is a chunk that failed and all that came of it.
type family struct {
	root     workqueue.SliceID
	run      workqueue.RunID
	step     workqueue.Step
	block    workqueue.Block
	endpoint string
	pieces   []member
}

// summary is what the pieces say together.
func (f *family) summary() Bisection {
	b := Bisection{Root: f.root, Run: f.run, Step: f.step, Block: f.block, Endpoint: f.endpoint,
		Slices: len(f.pieces) - 1, Kind: KindBadCombination}
	followed := map[workqueue.SliceID]bool{}
	for i := range f.pieces {
		followed[f.pieces[i].parent] = true
	}
	live, down, halved := false, false, false
	for i := range f.pieces {
		p := &f.pieces[i]
		b.Items = max(b.Items, p.items)
		live, down = live || p.live, down || p.cause == workqueue.CauseBreaker
		halved = halved || p.cause == workqueue.CauseBisect || p.cause == workqueue.CauseExhausted
		b.extend(p)
		b.outcome(p, followed[p.id])
	}
	switch {
	case b.Culprits > 0:
		b.Kind = KindBadEntity
	case live:
		b.Kind = KindUndecided
	case !halved, down && b.WorkedAt >= b.FailedAt: // what failed worked later, as it was
		b.Kind = KindServiceDown
	}
	return b
}

// outcome takes what became of a piece. One item that failed its chunk and was not tried again is a culprit; one that
// got an error in its slot, also after having been tried again and again, has failed by itself, and no chunk with it.
func (b *Bisection) outcome(p *member, followed bool) {
	switch {
	case p.live || !p.counts || p.how == EndedRefused:
	case p.how == endedWell && p.code == "":
		b.WorkedAt = max(b.WorkedAt, p.items)
	default:
		b.failure(p)
		if p.items == 1 && !followed {
			b.culprit(p.at)
		}
	}
}

func (b *Bisection) extend(p *member) {
	if b.Began.IsZero() || p.created.Before(b.Began) {
		b.Began = p.created
	}
	if p.ended != nil && p.ended.After(b.Ended) {
		b.Ended = *p.ended
	}
}

func (b *Bisection) failure(p *member) {
	if b.FailedAt == 0 || p.items < b.FailedAt {
		b.FailedAt = p.items
		b.Code, b.Message = p.code, p.message
	}
}

func (b *Bisection) culprit(at workqueue.Ordinal) {
	b.Culprits++
	if len(b.Ordinals) < workqueue.MaxNamed {
		b.Ordinals = append(b.Ordinals, at)
	}
}

// tellSizes tells chunks that are too big from bad combinations: several that failed at a size at which nothing of
// their endpoint worked. worked is what is known from elsewhere of the largest size that did, by endpoint.
func tellSizes(all []Bisection, worked map[string]int) {
	for i := range all {
		b := &all[i]
		if b.Kind == KindBadCombination {
			worked[b.Endpoint] = max(worked[b.Endpoint], b.WorkedAt)
		}
	}
	alike := map[string]int{}
	for i := range all {
		if all[i].mayBeTooBig(worked) {
			alike[all[i].Endpoint]++
		}
	}
	for i := range all {
		if all[i].mayBeTooBig(worked) && alike[all[i].Endpoint] >= tooBigRoots {
			all[i].Kind = KindTooBig
		}
	}
}

func (b *Bisection) mayBeTooBig(worked map[string]int) bool {
	return b.Kind == KindBadCombination && b.FailedAt > worked[b.Endpoint]
}
