package workqueue_test

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
	forges   bool // late flushes are recorded under the id of the one after them, as if there were no fence
	state    map[string]string
	keyOf    map[string]string
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
		ops = append(ops, collector.Op{ID: id, Key: o.keyOf[id]})
	}
	if out := o.addOps(ops...); out.Added != fresh || out.Added+out.Duplicates != len(ops) {
		o.problem("added %+v of %d, of which %d are new", out, len(ops), fresh)
	}
}

func (o *opsOracle) claim() {
	o.wait()
	for _, f := range o.claimAs(o.session, 1+o.rnd.IntN(4)) {
		key := f.end.Flush.Key
		if o.under[key] != nil {
			o.problem("key %s is flushed twice at once", key)
		}
		o.under[key] = f
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
		switch last := op.Attempts+1 >= 2; o.rnd.IntN(6) {
		case 0:
			e := retried("later")
			slot.Err, parks[op.ID] = &e, last
		case 1:
			e := refused("bad")
			slot.Err, parks[op.ID] = &e, true
		case 2:
			slot.Came, parks[op.ID] = false, last // left out
		default:
			if o.state[op.ID] != opGone {
				o.state[op.ID] = opDone
			}
		}
	}
	for id, parked := range parks {
		if parked && o.state[id] == opWaits {
			o.state[id] = opParked
		}
	}
	if got := o.recordAs(f); got.Stale {
		o.problem("the flush of key %s is stale, and nobody else has it", key)
	}
}

// lose has the node of all flushes be gone.
func (o *opsOracle) lose() {
	o.expire(o.session)
	if _, err := collector.New(o.store).SweepCollectors(o.Context(), o.lease); err != nil {
		o.Fatal(err)
	}
	for _, f := range o.under {
		o.late = append(o.late, f)
	}
	clear(o.under)
	o.session = o.open()
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
		n, err := collector.New(o.store).RequeueOps(o.Context(), "c", collector.OpsSelection{IDs: ids}, "ann")
		if err != nil || n != int64(len(ids)) {
			o.problem("requeued %d of %d, %v", n, len(ids), err)
		}
		for _, id := range ids {
			o.state[id] = opWaits
		}
	case len(waits) > 0:
		id := waits[o.rnd.IntN(len(waits))]
		n, err := collector.New(o.store).DropOps(o.Context(), "c", collector.OpsSelection{IDs: []string{id}, Waiting: true},
			"ann")
		if err != nil || n != 1 {
			o.problem("dropped %d, %v", n, err)
		}
		o.state[id] = opGone
	}
	o.checkKeys()
}

// check holds what is stored against what is known.
func (o *opsOracle) check() {
	ops, err := collector.New(o.store).Ops(o.Context(), "c", collector.OpsFilter{})
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

func playOps(t *testing.T, seed uint64, forges bool) *opsOracle {
	t.Helper()
	spec := gatherOps()
	spec.MinSize, spec.MaxSize = 1, 4
	c := collect(t, spec)
	o := &opsOracle{opsBench: c, rnd: rand.New(rand.NewPCG(seed, 7)), session: c.session, lease: c.lead(), forges: forges,
		state: map[string]string{}, keyOf: map[string]string{}, under: map[string]*flushOf{}}
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
	for seed := range uint64(1) {
		o := playOps(t, seed, false)
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
		if o := playOps(t, seed, true); len(o.problems) > 0 {
			t.Log(o.problems[0])
			return
		}
	}
	t.Error("late flushes were recorded for others, and nobody has seen it")
}
