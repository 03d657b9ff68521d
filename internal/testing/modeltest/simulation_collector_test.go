package modeltest_test

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// operations are what must have become of all that was added to the simulation's collector.
type operations struct {
	id     int32
	folds  bool // operations of a key are folded, those of even numbers and those of odd ones
	strict bool
	number int
	state  map[string]string
	keyOf  map[string]string
	into   map[string]string // what they were folded into
	stood  map[string]string // what was sent last of those of a key that are folded into one
	idOf   map[int64]string
	live   map[uuid.UUID]bool // flushes that have their keys
}

func (o *operations) copied() *operations {
	if o == nil {
		return nil
	}
	c := *o
	c.state, c.keyOf, c.into, c.stood = maps.Clone(o.state), maps.Clone(o.keyOf), maps.Clone(o.into), maps.Clone(o.stood)
	c.idOf, c.live = maps.Clone(o.idOf), maps.Clone(o.live)
	return &c
}

const (
	opWaits  = "waits"
	opDone   = "done"
	opParked = "parked"
	opGone   = "dropped"
	// triesOfOp are of an operation.
	triesOfOp = 2
)

// flush is one that a node has claimed, with the ids of what each of its operations stands for, its own last.
type flush struct {
	collector.FlushEnd
	members [][]string
}

func (s *simulation) collect() {
	spec := collector.CollectorSpec{Endpoint: storetest.Endpoint, MinSize: 1 + s.r.IntN(2), MaxSize: 4,
		MaxAge: collector.Span(time.Minute), MaxAttempts: triesOfOp, InFlight: 1 + s.r.IntN(5),
		Dedupe: collector.DefaultDedupe, Timeout: collector.Span(time.Minute), Order: collector.OrderFIFO,
		MaxBackoff: collector.Span(time.Minute), Fold: []string{"", "", collector.FoldLast, collector.FoldMerge}[s.r.IntN(4)]}
	if spec.Strict = spec.Fold != "" || s.r.IntN(3) > 0; spec.Fold == "" {
		spec.Backoff = collector.Span(s.r.IntN(3)) * collector.Span(10*time.Second)
	}
	_, err := collector.New(s.Store).ApplyCollector(s.Context(), collector.Text{Name: "c", Spec: spec, Source: "c"}, "ann")
	s.must(err)
	s.ops = &operations{id: int32(s.Number(`SELECT id FROM collector`)), folds: spec.Fold != "", strict: spec.Strict,
		state: map[string]string{}, keyOf: map[string]string{}, into: map[string]string{}, stood: map[string]string{},
		idOf: map[int64]string{}, live: map[uuid.UUID]bool{}}
}

// store adds operations of a few keys, some of them again.
func (s *simulation) store() {
	if s.ops == nil {
		s.collect()
	}
	o := s.ops
	var ops []collector.Op
	fresh := 0
	for range 1 + s.r.IntN(6) {
		n := o.number
		if n > 0 && s.r.IntN(5) == 0 {
			n = s.r.IntN(n)
		} else {
			o.number++
			fresh++
		}
		id := fmt.Sprint("op", n)
		if _, known := o.keyOf[id]; !known {
			o.keyOf[id], o.state[id] = fmt.Sprint("k", s.r.IntN(4)), opWaits
		}
		ops = append(ops, collector.Op{ID: id, Key: o.keyOf[id], Fold: o.fold(n), Payload: []byte(`{"n":1}`)})
	}
	out, _, err := collector.New(s.Store).AddOps(s.Context(), "c", 0, [][]collector.Op{ops})
	s.must(err)
	if out[0].Added != fresh || out[0].Added+out[0].Duplicates != len(ops) {
		s.failf("added %+v of %d, of which %d are new", out[0], len(ops), fresh)
	}
}

func (o *operations) fold(number int) string {
	if !o.folds {
		return ""
	}
	return []string{"even", "odd"}[number%2]
}

func (s *simulation) flush() {
	if s.ops != nil {
		s.flushFor(s.node())
	}
}

func (s *simulation) flushFor(n *node) {
	s.readOps()
	was := maps.Clone(s.ops.live)
	claimed, err := collector.New(s.Store).ClaimFlushes(s.Context(), collector.FlushRequest{Session: n.session,
		Collector: s.ops.id, Max: 1 + s.r.IntN(4)})
	if s.over(n, err) {
		return
	}
	ops, err := collector.New(s.Store).ReadFlushes(s.Context(), &claimed, 1<<20)
	s.must(err)
	s.readOps()
	for i, taken := range claimed.Flushes {
		f := &flush{FlushEnd: collector.FlushEnd{Claim: &claimed, Flush: taken, Ops: ops[i],
			Slots: make([]collector.FlushSlot, len(ops[i]))}}
		for j := range ops[i] {
			f.members = append(f.members, s.ops.membersOf(&ops[i][j]))
		}
		s.say("%s %v", taken.Key, f.members)
		s.flushes = append(s.flushes, f)
		s.checkFlush(f)
	}
	maps.DeleteFunc(was, func(id uuid.UUID, _ bool) bool { return s.ops.live[id] })
	if len(was) > 0 {
		s.failf("%d flushes lost their keys to others", len(was))
	}
}

// membersOf are the ids of what an operation of a flush stands for, its own last.
func (o *operations) membersOf(op *collector.FlushOp) []string {
	ids := make([]string, 0, len(op.Folded)+1)
	for _, seq := range op.Folded {
		ids = append(ids, o.idOf[seq])
	}
	return append(ids, op.ID)
}

// checkFlush holds a flush against what waits: it goes in order, and of what is folded, all that stands before what is
// sent is sent with it.
func (s *simulation) checkFlush(f *flush) {
	o, sent, last := s.ops, map[string]bool{}, int64(0)
	for i := range f.Ops {
		for _, id := range f.members[i] {
			if sent[id] || o.state[id] != opWaits || o.keyOf[id] != f.Flush.Key {
				s.failf("%s goes for %s, and is %s", id, f.Flush.Key, o.state[id])
			}
			sent[id] = true
		}
		if f.Ops[i].Seq <= last {
			s.failf("key %s: out of order: %v", f.Flush.Key, f.members)
		}
		last = f.Ops[i].Seq
	}
	for seq, id := range o.idOf {
		if o.strict && !o.folds && seq < last && o.keyOf[id] == f.Flush.Key && o.state[id] == opWaits && !sent[id] {
			s.failf("%v pass %s", f.members, id)
		}
	}
	for i := 0; o.folds && i < len(f.Ops); i++ {
		op := &f.Ops[i]
		of := o.keyOf[op.ID] + o.fold(int(op.ID[len(op.ID)-1]))
		if before := o.stood[of]; o.state[before] == opWaits && !sent[before] {
			s.failf("%s goes after %s, which may have been carried out", op.ID, before)
		}
		o.stood[of] = op.ID
		for seq, id := range o.idOf {
			same := o.keyOf[id] == f.Flush.Key && (id[len(id)-1]-op.ID[len(op.ID)-1])%2 == 0
			if same && seq < op.Seq && o.state[id] == opWaits && !sent[id] {
				s.failf("%s does not go with %s", id, op.ID)
			}
		}
	}
}

// settle records one of the flushes, of nodes that may be gone, with outcomes of every kind.
func (s *simulation) settle() {
	if len(s.flushes) == 0 || s.ops == nil { // none, or the database went back to before the collector
		return
	}
	i := s.r.IntN(len(s.flushes))
	f := s.flushes[i]
	if s.flushes = slices.Delete(s.flushes, i, i+1); s.odd(8) {
		s.say("%s is never answered", f.Flush.Key)
		return
	}
	s.readOps()
	live, o := s.ops.live[f.Flush.ID], s.ops.copied()
	parks := map[string]bool{}
	for i, op := range f.Ops {
		slot := &f.Slots[i]
		slot.Came = true
		switch last := op.Attempts+1 >= triesOfOp; {
		case s.odd(6):
			slot.Err = &workqueue.SlotError{Code: "later", Message: "not now", Retry: true}
			o.park(parks, f.members[i], last)
		case s.odd(5):
			slot.Err = &workqueue.SlotError{Code: "bad", Message: "never"}
			o.park(parks, f.members[i], true)
		case s.odd(4):
			slot.Came = false // left out
			o.park(parks, f.members[i], last)
		default:
			for _, id := range f.members[i] {
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
	f.Replied = true
	s.say("%s %v", f.Flush.Key, f.members)
	out, err := collector.New(s.Store).RecordFlushes(s.Context(), []collector.FlushEnd{f.FlushEnd})
	s.must(err)
	if out[0].Stale == live {
		s.failf("the flush of key %s is stale: %v; it has its key: %v", f.Flush.Key, out[0].Stale, live)
	}
	if live {
		s.ops = o
	}
}

// park notes what failed as one.
func (o *operations) park(parks map[string]bool, members []string, parked bool) {
	head := members[len(members)-1]
	for _, id := range members {
		parks[id], o.into[id] = parked, head
	}
	o.into[head] = ""
}

// together are those of some states that were folded into one in their last try with some of ids, and ids.
func (o *operations) together(ids []string, states ...string) (all []string) {
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

func (o *operations) are(state string) (ids []string) {
	for id, is := range o.state {
		if is == state {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// operate has an operator requeue what is parked, or drop what waits.
func (s *simulation) operate() {
	if s.ops == nil {
		return
	}
	parked, waits, becomes := s.ops.are(opParked), s.ops.are(opWaits), ""
	var all []string
	var n int64
	var err error
	switch {
	case len(parked) > 0 && s.r.IntN(2) == 0:
		ids := parked[:1+s.r.IntN(len(parked))]
		all, becomes = s.ops.together(ids, opParked), opWaits
		n, err = collector.New(s.Store).RequeueOps(s.Context(), "c", collector.OpsSelection{IDs: ids}, "ann")
	case len(waits) > 0:
		ids := []string{waits[s.r.IntN(len(waits))]}
		all, becomes = s.ops.together(ids, opWaits, opParked), opGone
		n, err = collector.New(s.Store).DropOps(s.Context(), "c", collector.OpsSelection{IDs: ids, Waiting: true}, "ann")
	}
	s.must(err)
	if n != int64(len(all)) {
		s.failf("%d operations are changed; want %v", n, all)
	}
	for _, id := range all {
		s.ops.state[id] = becomes
	}
}

const (
	readOps     = `SELECT seq, op_id, parked_at IS NOT NULL FROM collector_op`
	readFlushes = `SELECT flush FROM collector_key WHERE flush IS NOT NULL`
)

func (s *simulation) readOps() (there map[string]string) {
	if s.ops == nil {
		return nil
	}
	there = map[string]string{}
	clear(s.ops.idOf)
	clear(s.ops.live)
	batch := &pgx.Batch{}
	batch.Queue(readOps).Query(func(rows pgx.Rows) error {
		var seq int64
		var id string
		var parked bool
		_, err := pgx.ForEachRow(rows, []any{&seq, &id, &parked}, func() error {
			s.ops.idOf[seq], there[id] = id, opWaits
			if parked {
				there[id] = opParked
			}
			return nil
		})
		return err
	})
	batch.Queue(readFlushes).Query(func(rows pgx.Rows) error {
		var id uuid.UUID
		_, err := pgx.ForEachRow(rows, []any{&id}, func() error {
			s.ops.live[id] = true
			return nil
		})
		return err
	})
	s.must(s.Pool.SendBatch(s.Context(), batch).Close())
	return there
}

// checkOps holds what is stored against what is known.
func (s *simulation) checkOps() {
	there := s.readOps()
	if s.ops == nil {
		return
	}
	for id, state := range s.ops.state {
		want := state
		if state == opDone || state == opGone {
			want = ""
		}
		if there[id] != want {
			s.failf("%s is %q, and should be %s", id, there[id], state)
		}
	}
}

// String tells what waits.
func (o *operations) String() string {
	if o == nil {
		return "no operations"
	}
	return fmt.Sprint(o.are(opWaits))
}

func (s *simulation) endOps() {
	_, err := collector.New(s.Store).SetCollector(s.Context(), "c", workqueue.DocumentDeleted, true, "ann")
	s.must(err)
	for more := true; more; {
		swept, err := collector.New(s.Store).SweepCollectors(s.Context(), s.lease)
		s.must(err)
		more = swept.More
	}
	if n := s.Number(`SELECT (SELECT count(*) FROM collector) + (SELECT count(*) FROM collector_key)
		+ (SELECT count(*) FROM collector_op) + (SELECT count(*) FROM collector_seen)`); n != 0 {
		s.failf("%d rows of a deleted collector are left", n)
	}
}
