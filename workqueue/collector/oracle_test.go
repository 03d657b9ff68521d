package collector_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// opsOracle knows what has to have become of every operation.
type opsOracle struct {
	*opsBench
	rnd      *rand.Rand
	session  workqueue.SessionID
	lease    workqueue.Lease
	folds    bool // operations of a key are folded, those of even numbers and those of odd ones
	forges   bool // late flushes are recorded under the id of the one after them, as if there were no fence
	state    map[string]string
	keyOf    map[string]string
	idOf     map[int64]string
	into     map[string]string // what they were folded into
	stood    map[string]string // what was sent last of those of a key that are folded into one
	number   int
	under    map[string]*flushOf // by key
	late     []*flushOf          // their node was lost
	problems []string
	stale    int
}

const (
	opWaits  = "waits"
	opDone   = "done"
	opParked = "parked"
	opGone   = "dropped"
)

func (o *opsOracle) problem(format string, args ...any) {
	o.problems = append(o.problems, fmt.Sprintf(format, args...))
}

func (o *opsOracle) add() {
	var ops []collector.Op
	fresh := 0
	for range 1 + o.rnd.IntN(6) {
		n := o.number
		if n > 0 && o.rnd.IntN(5) == 0 {
			n = o.rnd.IntN(n) // again
		} else {
			o.number++
			fresh++
		}
		id := fmt.Sprint("op", n)
		if _, known := o.keyOf[id]; !known {
			o.keyOf[id], o.state[id] = fmt.Sprint("k", o.rnd.IntN(4)), opWaits
		}
		ops = append(ops, collector.Op{ID: id, Key: o.keyOf[id], Fold: o.fold(n)})
	}
	if out := o.addOps(ops...); out.Added != fresh || out.Added+out.Duplicates != len(ops) {
		o.problem("added %+v of %d, of which %d are new", out, len(ops), fresh)
	}
}

func (o *opsOracle) fold(number int) string {
	if !o.folds {
		return ""
	}
	return []string{"even", "odd"}[number%2]
}

// members are the ids of what an operation of a flush stands for, its own last.
func (o *opsOracle) members(op *collector.FlushOp) []string {
	ids := make([]string, 0, len(op.Folded)+1)
	for _, seq := range op.Folded {
		ids = append(ids, o.idOf[seq])
	}
	return append(ids, op.ID)
}

// know has the oracle know the ids of all operations by their numbers.
func (o *opsOracle) know() {
	ops, err := collector.New(o.Store).Ops(o.Context(), "c", collector.OpsFilter{})
	if err != nil {
		o.Fatal(err)
	}
	for _, op := range ops {
		o.idOf[op.Number] = op.ID
	}
}

// checkFolded holds a flush that folds to what waits: of a value, all that stands before what is sent is sent with it.
func (o *opsOracle) checkFolded(f *flushOf) {
	sent := map[string]bool{}
	for i := range f.end.Ops {
		for _, id := range o.members(&f.end.Ops[i]) {
			if sent[id] || o.state[id] != opWaits || o.keyOf[id] != f.end.Flush.Key {
				o.problem("%s goes for %s, and is %s", id, f.end.Flush.Key, o.state[id])
			}
			sent[id] = true
		}
	}
	for i := range f.end.Ops {
		op := &f.end.Ops[i]
		of := o.keyOf[op.ID] + o.fold(int(op.ID[len(op.ID)-1]))
		if before := o.stood[of]; o.folds && o.state[before] == opWaits && !sent[before] {
			o.problem("%s goes after %s, which may have been carried out", op.ID, before)
		}
		o.stood[of] = op.ID
		for seq, id := range o.idOf {
			same := o.keyOf[id] == f.end.Flush.Key && (id[len(id)-1]-op.ID[len(op.ID)-1])%2 == 0
			if o.folds && same && seq < op.Seq && o.state[id] == opWaits && !sent[id] {
				o.problem("%s does not go with %s", id, op.ID)
			}
		}
	}
}

// together are those of some states that were folded into one in their last try with some of ids, and ids.
func (o *opsOracle) together(ids []string, states ...string) (all []string) {
	heads := slices.Clone(ids)
	for _, id := range ids {
		if o.into[id] != "" {
			heads = append(heads, o.into[id])
		}
	}
	for id, state := range o.state {
		if slices.Contains(states, state) && (slices.Contains(heads, id) || slices.Contains(heads, o.into[id])) {
			all = append(all, id)
		}
	}
	return all
}

func (o *opsOracle) claim() {
	o.know()
	o.wait()
	for _, f := range o.claimAs(o.session, 1+o.rnd.IntN(4)) {
		key := f.end.Flush.Key
		if o.under[key] != nil {
			o.problem("key %s is flushed twice at once", key)
		}
		o.under[key] = f
		o.checkFolded(f)
		var last int64
		for _, op := range f.end.Ops {
			if op.Seq <= last {
				o.problem("key %s: out of order: %v", key, f.ids())
			}
			last = op.Seq
			if o.state[op.ID] != opWaits || o.keyOf[op.ID] != key {
				o.problem("%s is flushed for %s, and is %s", op.ID, key, o.state[op.ID])
			}
		}
	}
}

// anyKey returns a key that is being flushed.
func (o *opsOracle) anyKey() (string, bool) {
	var keys []string
	for key := range o.under {
		keys = append(keys, key)
	}
	if len(keys) == 0 {
		return "", false
	}
	slices.Sort(keys)
	return keys[o.rnd.IntN(len(keys))], true
}

// end records a flush with outcomes of every kind.
func (o *opsOracle) end() {
	key, is := o.anyKey()
	if !is {
		return
	}
	f := o.under[key]
	delete(o.under, key)
	parks := map[string]bool{}
	for i, op := range f.end.Ops {
		slot := &f.end.Slots[i]
		slot.Came = true
		members := o.members(&f.end.Ops[i])
		switch last := op.Attempts+1 >= 2; o.rnd.IntN(6) {
		case 0:
			e := retried("later")
			slot.Err = &e
			o.park(parks, members, last)
		case 1:
			e := refused("bad")
			slot.Err = &e
			o.park(parks, members, true)
		case 2:
			slot.Came = false // left out
			o.park(parks, members, last)
		default:
			for _, id := range members {
				if o.state[id] != opGone {
					o.state[id] = opDone
				}
			}
		}
	}
	for id, parked := range parks {
		if parked && o.state[id] == opWaits {
			o.state[id] = opParked
		}
	}
	if got := o.recordAs(f); got.Stale {
		o.problem("the flush of key %s is stale, and no one else has it", key)
	}
}

// park notes what failed as one.
func (o *opsOracle) park(parks map[string]bool, members []string, parked bool) {
	head := members[len(members)-1]
	for _, id := range members {
		parks[id], o.into[id] = parked, head
	}
	o.into[head] = ""
}

// lose has the node of all flushes be gone.
func (o *opsOracle) lose() {
	o.Expire(o.session)
	if _, err := collector.New(o.Store).SweepCollectors(o.Context(), o.lease); err != nil {
		o.Fatal(err)
	}
	for _, f := range o.under {
		o.late = append(o.late, f)
	}
	clear(o.under)
	o.session = o.Open()
}

// comeLate records a flush of a lost node, as if all of it had succeeded.
func (o *opsOracle) comeLate() {
	if len(o.late) == 0 {
		return
	}
	f := o.late[0]
	o.late = o.late[1:]
	for i := range f.end.Slots {
		f.end.Slots[i] = collector.FlushSlot{Came: true}
	}
	if next := o.under[f.end.Flush.Key]; o.forges && next != nil {
		f.end.Flush.ID = next.end.Flush.ID
	} else if o.forges {
		f.end.Flush.ID = uuid.Nil
	}
	if got := o.recordAs(f); got.Stale {
		o.stale++
	}
}

func (o *opsOracle) operate() {
	var parked, waits []string
	for id, state := range o.state {
		switch state {
		case opParked:
			parked = append(parked, id)
		case opWaits:
			waits = append(waits, id)
		}
	}
	slices.Sort(parked)
	slices.Sort(waits)
	switch {
	case len(parked) > 0 && o.rnd.IntN(2) == 0:
		ids := parked[:1+o.rnd.IntN(len(parked))]
		n, err := collector.New(o.Store).RequeueOps(o.Context(), "c", collector.OpsSelection{IDs: ids}, "ann")
		if ids = o.together(ids, opParked); err != nil || n != int64(len(ids)) {
			o.problem("requeued %d of %d, %v", n, len(ids), err)
		}
		for _, id := range ids {
			o.state[id] = opWaits
		}
	case len(waits) > 0:
		id := waits[o.rnd.IntN(len(waits))]
		n, err := collector.New(o.Store).DropOps(o.Context(), "c", collector.OpsSelection{IDs: []string{id}, Waiting: true},
			"ann")
		gone := o.together([]string{id}, opWaits, opParked)
		if err != nil || n != int64(len(gone)) {
			o.problem("dropped %d of %d, %v", n, len(gone), err)
		}
		for _, id := range gone {
			o.state[id] = opGone
		}
	}
	o.checkKeys()
}

// check holds what is stored against what is known.
func (o *opsOracle) check() {
	ops, err := collector.New(o.Store).Ops(o.Context(), "c", collector.OpsFilter{})
	if err != nil {
		o.Fatal(err)
	}
	there := map[string]string{}
	for _, op := range ops {
		if there[op.ID] = opWaits; op.State == collector.OpParked {
			there[op.ID] = opParked
		}
	}
	for id, state := range o.state {
		want := state
		if state == opDone || state == opGone {
			want = ""
		}
		if there[id] != want {
			o.problem("%s is %q, and should be %s", id, there[id], state)
		}
	}
}

func playOps(t *testing.T, seed uint64, fold string, forges bool) *opsOracle {
	t.Helper()
	spec := gatherOps()
	spec.MinSize, spec.MaxSize, spec.Fold, spec.Strict = 1, 4, fold, fold != ""
	c := collect(t, spec)
	o := &opsOracle{opsBench: c, rnd: rand.New(rand.NewPCG(seed, 7)), session: c.Session, lease: c.Lead(), forges: forges,
		folds: fold != "", state: map[string]string{}, keyOf: map[string]string{}, idOf: map[int64]string{},
		into: map[string]string{}, stood: map[string]string{}, under: map[string]*flushOf{}}
	moves := []func(){o.add, o.add, o.claim, o.claim, o.claim, o.end, o.end, o.end, o.lose, o.comeLate, o.comeLate,
		o.operate}
	for range 150 {
		moves[o.rnd.IntN(len(moves))]()
		if o.check(); len(o.problems) > 0 {
			return o
		}
	}
	for range 200 { // and in the end everything has left, or is parked
		if o.end(); len(o.under) == 0 {
			o.claim()
		}
		if len(o.under) == 0 {
			break
		}
	}
	o.check()
	for id, state := range o.state {
		if state == opWaits {
			o.problem("%s still waits", id)
		}
	}
	return o
}

func TestCollectorsAgainstAnOracle(t *testing.T) {
	t.Parallel()
	for seed, fold := range []string{"", collector.FoldLast, collector.FoldMerge} {
		o := playOps(t, uint64(seed), fold, false)
		for _, p := range o.problems {
			t.Errorf("seed %d: %s", seed, p)
		}
		if o.stale == 0 || o.number < 40 {
			t.Errorf("seed %d: %d operations, %d late flushes: the test shows too little", seed, o.number, o.stale)
		}
	}
}

func TestTheOracleSeesThatThereIsNoFence(t *testing.T) {
	t.Parallel()
	for seed := range uint64(5) {
		if o := playOps(t, seed, "", true); len(o.problems) > 0 {
			t.Log(o.problems[0])
			return
		}
	}
	t.Error("late flushes were recorded for others, and no one has seen it")
}
