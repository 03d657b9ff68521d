package modeltest_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const simulatedTTL = 5 * time.Second // of sessions and of the lease

// node is what a node has in memory.
type node struct {
	name    string
	session workqueue.SessionID
	claimed []*request       // and not published
	sent    []workqueue.Sent // published, and not marked as sent
}

// request is a slice, and its request while it lies in the work stream.
type request struct {
	workqueue.Slice
	work    workqueue.StepWork
	seq     int64 // 0: not published
	handed  bool
	results map[workqueue.Ordinal]seen // what the request carried of each item
}

// seen is what a service sees of an item.
type seen struct {
	payload string
	parts   []string
}

// reply is a message of the reply stream.
type reply struct{ settle.Answer }

func (s *simulation) node() *node {
	n := &s.nodes[s.r.IntN(len(s.nodes))]
	s.say("by %s", n.name)
	return n
}

// restart is how a node begins, with nothing in memory.
func (s *simulation) restart(n *node) {
	id, err := session.New(s.Store).StartSession(s.Context(), session.NodeInfo{Host: n.name, PID: 1, Version: "test"},
		simulatedTTL)
	s.must(err)
	*n = node{name: n.name, session: id}
}

// over has a node that has lost its session begin again.
func (s *simulation) over(n *node, err error) bool {
	if errors.Is(err, workqueue.ErrSessionLost) {
		s.say("(session lost)")
		s.restart(n)
		return true
	}
	s.must(err)
	return false
}

func (s *simulation) claim() { s.claimFor(s.node()) }

func (s *simulation) claimFor(n *node) {
	found, err := dispatch.New(s.Store).RunnableSteps(s.Context(), dispatch.Search{})
	s.must(err)
	var reqs []dispatch.ClaimRequest
	for _, st := range found.Steps {
		reqs = append(reqs, dispatch.ClaimRequest{Session: n.session, Run: st.Run, Step: st.Step,
			MaxSlices: 1 + s.r.IntN(5), MaxBytes: 1 << 20})
	}
	if len(reqs) == 0 {
		return
	}
	all, err := dispatch.New(s.Store).ClaimAll(s.Context(), reqs, 1+s.r.IntN(8))
	if s.over(n, err) {
		return
	}
	var got []*request
	for _, c := range all {
		for _, slice := range c.Slices {
			got = append(got, &request{Slice: slice, work: c.Work})
		}
	}
	slices.SortFunc(got, func(a, b *request) int { // ids are drawn by the store, not by the seed
		return int(a.Step-b.Step)*s.items + int(storetest.Ordinals(a.Slice)[0]-storetest.Ordinals(b.Slice)[0])
	})
	for _, q := range got {
		s.allowed(q)
		s.asked[q.ID] = q
		s.say("%s", q)
	}
	n.claimed = append(n.claimed, got...)
	s.withinLimits(got, true)
}

const beyondLimits = `
SELECT count(*) FROM work_slice c JOIN run_step st USING (run_id, step)
LEFT JOIN endpoint_setting e ON e.endpoint = c.endpoint
WHERE c.id = ANY ($1) AND (bit_count(c.mask) > st.chunk OR $2 AND NOT EXISTS (
        SELECT FROM node_session n WHERE n.id = c.session_id AND n.ended_at IS NULL AND n.expires_at > tranche_now())
    OR c.not_before > tranche_now() AND c.cause <> 'probe' OR st.in_flight < (
        SELECT count(*) FROM work_slice s
        WHERE s.run_id = c.run_id AND s.step = c.step AND s.state IN ('claimed', 'sent'))
    OR e.max_in_flight > 0 AND e.max_in_flight < (
        SELECT count(*) FROM work_slice s WHERE s.endpoint = c.endpoint AND s.state IN ('claimed', 'sent')) + (
        SELECT count(*) FROM collector_key k JOIN collector o ON o.id = k.collector
        WHERE o.endpoint = c.endpoint AND k.flush IS NOT NULL))`

// withinLimits checks that a claim leaves no more in flight than its steps and endpoints may have, and is of a session
// that lives. A split may be of one that has just ended.
func (s *simulation) withinLimits(claimed []*request, fresh bool) {
	var ids []workqueue.SliceID
	for _, q := range claimed {
		ids = append(ids, q.ID)
	}
	if n := s.Number(beyondLimits, ids, fresh); n > 0 {
		s.failf("%d slices were claimed beyond a chunk, a limit in flight, a budget or a session's end, or too early", n)
	}
}

// allowed checks that a slice may be asked for, and that no failure counts against an item that it did not have.
func (s *simulation) allowed(q *request) {
	if s.paused || s.cancelled {
		s.failf("%s was claimed of a run that is held or cancelled", q)
	}
	if q.Failures >= s.attempts {
		s.failf("%s is attempt %d, and %d are allowed", q, q.Failures+1, s.attempts)
	}
	for _, n := range s.steps[q.Step].Needs {
		all := s.known.steps[n].settled()
		if s.steps[q.Step].Barrier && all.Count() < s.items {
			s.failf("%s was claimed behind a barrier, when %d items had ended at step %d", q, all.Count(), n)
		}
	}
	for _, o := range storetest.Ordinals(q.Slice) {
		if n := len(s.at(q.Step, o).faults); q.Failures > n {
			s.failf("%s: %d failures count against item %d, which had %d", q, q.Failures, o, n)
		}
		if s.invalid[o] {
			s.failf("%s asks about item %d, which is invalid", q, o)
		}
		first := s.generation == 1 || len(s.steps) == 1 && q.Cause == workqueue.CauseReady
		for before := o - 4; s.ordered && first && before >= 0; before -= 4 {
			if !s.known.ended(int(before)) {
				s.failf("%s asks about item %d before item %d of the same lane ended", q, o, before)
			}
		}
	}
}

func (q *request) String() string {
	return fmt.Sprintf("[step %d %s %v f%d]", q.Step, q.Cause, storetest.Ordinals(q.Slice), q.Failures)
}

func (s *simulation) publish() {
	n := s.node()
	for range min(len(n.claimed), 1+s.r.IntN(4)) {
		q := n.claimed[0]
		n.claimed = n.claimed[1:]
		s.say("%s", q)
		switch {
		case s.odd(16):
			s.say("postponed")
			s.must(settle.New(s.Store).Postpone(s.Context(), n.session, q.ID, time.Second, errors.New("no stream")))
		case s.odd(15):
			s.say("abandoned")
			s.must(settle.New(s.Store).GiveUpClaim(s.Context(), n.session, q.ID))
			if s.odd(2) {
				s.put(q) // the server took it, and did not come to say so
			}
		case s.odd(6) && q.Mask.Count() > 1:
			s.say("split")
			made, err := settle.New(s.Store).Split(s.Context(), n.session, q.ID, q.Mask.Split(1+s.r.IntN(3)), time.Minute, "cut")
			s.must(err)
			if made != nil {
				piece := &request{Slice: *made, work: q.work}
				s.asked[made.ID] = piece
				n.claimed = append(n.claimed, piece)
				s.withinLimits([]*request{piece}, false)
			}
		default:
			s.put(q)
			n.sent = append(n.sent, workqueue.Sent{ID: q.ID, StreamSeq: q.seq, StreamsEpoch: s.epoch})
		}
	}
	if s.r.IntN(2) == 0 {
		s.markFor(n)
	}
}

// put publishes a request with what the store has for its items now.
func (s *simulation) put(q *request) {
	q.results = map[workqueue.Ordinal]seen{}
	err := dispatch.New(s.Store).EachInput(s.Context(), dispatch.InputRequest{Run: q.Run, Block: q.Block, Mask: &q.Mask,
		Inputs: q.work.Inputs, NoItem: q.work.NoItem}, func(in dispatch.Input) bool {
		sees := seen{payload: string(in.Payload)}
		for _, p := range in.Parts {
			sees.parts = append(sees.parts, part(string(p.Data), !p.Missing))
		}
		q.results[in.Ordinal] = sees
		return true
	})
	s.must(err)
	s.seq++
	q.seq = s.seq
	s.work = append(s.work, q)
}

func part(data string, there bool) string {
	if !there {
		return "missing"
	}
	return data
}

func (s *simulation) mark() { s.markFor(s.node()) }

func (s *simulation) markFor(n *node) {
	if len(n.sent) == 0 {
		return
	}
	left, err := settle.New(s.Store).MarkSent(s.Context(), n.sent)
	s.must(err)
	if len(left) > 0 {
		s.failf("%d marks are left over, and no one holds the slices", len(left))
	}
	n.sent = nil
}

func digest(of ...any) uint64 {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, of...)
	return h.Sum64()
}

// makes is what a step makes of an item: a result, or a failure permanently.
func (s *simulation) makes(step workqueue.Step, o workqueue.Ordinal, sees seen) (result string, fails bool) {
	version := s.versions[step][o]
	if digest("fails", step, o, version)%6 == 0 && !s.calm {
		return "", true
	}
	return fmt.Sprintf("%x", digest(step, o, version, sees.payload, sees.parts)), false
}

// serve has a service take a request, mostly the next one, and answer it, or not.
func (s *simulation) serve() {
	for range 1 + s.r.IntN(3) {
		waiting := func(q *request) bool { return !q.handed }
		i := slices.IndexFunc(s.work, waiting)
		if again := slices.ContainsFunc(s.work, func(q *request) bool { return q.handed }); again && (i < 0 || s.odd(4)) {
			i = slices.IndexFunc(s.work, func(q *request) bool { return q.handed })
		}
		if i >= 0 {
			s.answer(s.work[i])
		}
	}
}

// answer takes a request, executes it and replies.
func (s *simulation) answer(q *request) {
	q.handed = true
	s.upTo[q.Endpoint] = max(s.upTo[q.Endpoint], q.seq)
	s.say("%s", q)
	for _, o := range storetest.Ordinals(q.Slice) {
		s.at(q.Step, o).executions++
	}
	a := settle.Answer{Slice: q.ID, Endpoint: q.Endpoint, Service: "test", Answered: q.Mask.Count()}
	switch {
	case s.odd(12):
		s.say("never answers")
		return
	case s.odd(16):
		s.say("its reply is lost")
	case s.odd(10):
		s.say("suspends it")
		s.flow = append(s.flow, q)
	case s.odd(30):
		s.say("has too much to do")
		a.Failure, a.Answered = &workqueue.SlotError{Code: "busy", Message: "m", Retry: true}, 0
		s.replies = append(s.replies, reply{a})
	case s.odd(29):
		s.say("sends what no one can read")
		a.Failure, a.Unreadable = &workqueue.SlotError{Code: "unreadable", Message: "m", Retry: true}, true
		a.Answered = -1
		s.blame(q, a.Failure, storetest.Ordinals(q.Slice)...)
		s.replies = append(s.replies, reply{a})
	case s.odd(15):
		a.Failure = &workqueue.SlotError{Code: "crash", Message: "m", Retry: s.odd(2)}
		s.say("fails whole, %+v", *a.Failure)
		a.Answered = 0
		s.blame(q, a.Failure, storetest.Ordinals(q.Slice)...)
		s.replies = append(s.replies, reply{a})
	default:
		s.reply(q, a)
	}
	if !s.odd(8) {
		s.take(q)
	}
}

// goOn has a flow end a chunk that it has suspended, or lose it.
func (s *simulation) goOn() {
	if len(s.flow) == 0 {
		return
	}
	i := s.r.IntN(len(s.flow))
	q := s.flow[i]
	s.say("%s", q)
	if s.flow = slices.Delete(s.flow, i, i+1); !s.odd(6) {
		s.reply(q, settle.Answer{Slice: q.ID, Endpoint: q.Endpoint, Service: "test"})
	}
}

func (s *simulation) take(q *request) {
	s.work = slices.DeleteFunc(s.work, func(o *request) bool { return o.ID == q.ID })
}

// blame notes that an attempt may count against items.
func (s *simulation) blame(q *request, e *workqueue.SlotError, all ...workqueue.Ordinal) {
	for _, o := range all {
		t := s.at(q.Step, o)
		if e == nil || e.Retry {
			t.faults[q.ID] = true
		} else {
			t.fatal[e.Code] = true
		}
	}
}

// reply answers a request with slots, in one message or in several, once or more.
func (s *simulation) reply(q *request, a settle.Answer) {
	busy := s.odd(3)
	for _, o := range storetest.Ordinals(q.Slice) {
		slot := settle.Slot{Ordinal: o}
		result, fails := s.makes(q.Step, o, q.results[o])
		switch {
		case busy && s.odd(3):
			slot.Err = &workqueue.SlotError{Code: []string{"later", "later", "busy"}[s.r.IntN(3)], Message: "m", Retry: true}
		case fails:
			slot.Err = &workqueue.SlotError{Code: "bad", Message: fmt.Sprint(s.r.Uint32())}
		case s.odd(40):
			s.blame(q, nil, o) // left out
			continue
		default:
			slot.Result = []byte(result)
		}
		if slot.Err != nil && slot.Err.Code != "busy" {
			s.blame(q, slot.Err, o)
		}
		a.Slots = append(a.Slots, slot)
	}
	a.Answered = len(a.Slots)
	s.say("%d slots", len(a.Slots))
	switch {
	case s.odd(19):
		s.say("and a foreign one")
		a.Slots = append(a.Slots, settle.Slot{Ordinal: workqueue.Ordinal(s.r.IntN(40)), Result: []byte(`"foreign"`)})
		if q.Mask.Has(int(a.Slots[len(a.Slots)-1].Ordinal)) {
			a.Slots = a.Slots[:len(a.Slots)-1]
		}
	case s.odd(20):
		s.say("from elsewhere")
		a.Endpoint = "nowhere"
	case len(a.Slots) > 1 && s.odd(18):
		s.say("of which the last is the first again")
		last := len(a.Slots) - 1
		s.blame(q, nil, a.Slots[last].Ordinal)
		a.Slots[last] = settle.Slot{Ordinal: a.Slots[0].Ordinal, Result: []byte(`"second"`)}
	case len(a.Slots) > 1 && s.odd(17):
		s.say("of which it loses the last, and fails")
		last := len(a.Slots) - 1
		a.Failure, a.Answered = &workqueue.SlotError{Code: "crash", Message: "m", Retry: true}, last
		s.blame(q, a.Failure, storetest.Ordinals(q.Slice)...)
		a.Slots = a.Slots[:last]
	case len(a.Slots) > 1 && s.r.IntN(4) == 0:
		first := a
		cut := 1 + s.r.IntN(len(a.Slots)-1)
		first.Slots, a.Slots, first.Answered = a.Slots[:cut], a.Slots[cut:], -1
		if s.r.IntN(2) == 0 {
			first, a = a, first // the final message comes before the other
		}
		s.replies = append(s.replies, reply{first})
	}
	s.replies = append(s.replies, reply{a})
	if s.odd(8) {
		s.say("twice")
		s.replies = append(s.replies, reply{a})
	}
}

// record has a node take some replies, in any order, and acknowledge them, unless it crashes before that.
func (s *simulation) record() {
	s.node()
	var picked []int
	for range min(len(s.replies), 1+s.r.IntN(4)) {
		if i := s.r.IntN(len(s.replies)); !slices.Contains(picked, i) {
			picked = append(picked, i)
		}
	}
	s.recordThese(picked)
}

// held returns how many items the slices have still that answers are about.
func (s *simulation) held(answers []settle.Answer) map[workqueue.SliceID]int {
	var ids []workqueue.SliceID
	for i := range answers {
		ids = append(ids, answers[i].Slice)
	}
	rows, err := s.Pool.Query(s.Context(), `SELECT id, bit_count(remaining) FROM work_slice
		WHERE id = ANY($1) AND state IN ('claimed', 'sent')`, ids)
	s.must(err)
	items := map[workqueue.SliceID]int{}
	var id workqueue.SliceID
	var n int
	_, err = pgx.ForEachRow(rows, []any{&id, &n}, func() error {
		items[id] = n
		return nil
	})
	s.must(err)
	return items
}

func (s *simulation) recordThese(picked []int) {
	if len(picked) == 0 {
		return
	}
	var answers []settle.Answer
	for _, i := range picked {
		answers = append(answers, s.replies[i].Answer)
	}
	held := s.held(answers)
	s.redone = true // a part that changes has what was made of it redone
	out, err := settle.New(s.Store).Record(s.Context(), answers)
	s.must(err)
	left := s.held(answers)
	for i, v := range out.Verdicts {
		q := s.asked[answers[i].Slice]
		if a := &answers[i]; left[q.ID] > 0 && a.Endpoint == q.Endpoint &&
			(a.Unreadable || a.Answered >= 0 && len(a.Slots) >= a.Answered) {
			s.failf("all of the reply about %s has come, and it waits for %d items", q, left[q.ID])
		}
		s.say("%s: %d taken, %d twice, stale %v", q, v.Taken, v.Duplicates, v.Stale)
		if s.taken[q.ID] += v.Taken; s.taken[q.ID] > q.Mask.Count() {
			s.failf("%d slots of %s were taken", s.taken[q.ID], q)
		}
		s.accounted(q, &answers[i], v, held)
		if v.Taken > 0 && (s.cancelled || answers[i].Endpoint != q.Endpoint || v.Taken > held[q.ID]) {
			s.failf("%d slots from %s about %s were taken, which holds %d items", v.Taken, answers[i].Endpoint, q, held[q.ID])
		}
	}
	if s.odd(6) {
		s.say("and crashes before it acknowledges")
		return
	}
	slices.Sort(picked)
	for _, i := range slices.Backward(picked) {
		s.replies = slices.Delete(s.replies, i, i+1)
	}
	if s.r.IntN(2) == 0 {
		s.follow(out.Look)
	}
}

// accounted checks that a verdict says the outcome of each slot.
func (s *simulation) accounted(q *request, a *settle.Answer, v settle.Verdict, held map[workqueue.SliceID]int) {
	foreign := 0
	for _, slot := range a.Slots {
		if !q.Mask.Has(int(slot.Ordinal)) {
			foreign++
		}
	}
	_, live := held[q.ID]
	switch {
	case v.Stale != !live:
		s.failf("the reply about %s is stale: %v; it is live: %v", q, v.Stale, live)
	case live && (v.Endpoint != "") != (a.Endpoint != q.Endpoint):
		s.failf("the reply from %s about %s of %s is refused for its endpoint: %q", a.Endpoint, q, q.Endpoint, v.Endpoint)
	case live && v.Endpoint == "" && (len(v.Foreign) != foreign || v.Taken+v.Duplicates+foreign != len(a.Slots)):
		s.failf("of %d slots about %s %d are taken, %d twice, %d foreign; want %d foreign", len(a.Slots), q, v.Taken,
			v.Duplicates, len(v.Foreign), foreign)
	}
}

// follow is what a node looks at after a commit, and the leader anyway.
func (s *simulation) follow(l settle.FollowUp) {
	for _, name := range l.Endpoints {
		_, err := pacestore.New(s.Store).CheckBreaker(s.Context(), name)
		s.must(err)
	}
	for _, name := range l.Halved {
		_, err := pacestore.New(s.Store).CheckTooBig(s.Context(), name)
		s.must(err)
	}
	for _, run := range l.Runs {
		held, err := control.New(s.Store).CheckThreshold(s.Context(), run)
		s.must(err)
		if n, limit := s.failures(); held && n <= limit {
			s.failf("%d items have failed, %d may, and the run is held for it", n, limit)
		}
	}
	for _, run := range l.Barriers {
		_, err := dispatch.New(s.Store).CheckBarriers(s.Context(), run)
		s.must(err)
	}
}

// round brings what can be claimed through to its recording, as on a day without many faults.
func (s *simulation) round() {
	for i := range s.nodes {
		n := &s.nodes[i]
		s.claimFor(n)
		for _, q := range n.claimed {
			s.put(q)
			n.sent = append(n.sent, workqueue.Sent{ID: q.ID, StreamSeq: q.seq, StreamsEpoch: s.epoch})
		}
		n.claimed = nil
		s.markFor(n)
	}
	for _, q := range slices.Clone(s.work) {
		s.answer(q)
	}
	for len(s.flow) > 0 {
		s.goOn()
	}
	for len(s.replies) > 0 {
		s.recordThese([]int{0, 1, 2, 3, 4, 5}[:min(len(s.replies), 1+s.r.IntN(6))])
	}
}

// day is some rounds, with a leader and an operator who lets steps begin.
func (s *simulation) day() {
	for range 2 + s.r.IntN(3) {
		s.pass(time.Second, 1)
		s.round()
		s.sweep()
		s.approve()
		s.check()
	}
}

// tick is a while in which all nodes show that they live.
func (s *simulation) tick() { s.pass(time.Duration(1+s.r.IntN(4000))*time.Millisecond, 1) }

// jump is a longer one, in which most of them do not.
func (s *simulation) jump() {
	s.pass([]time.Duration{6 * time.Second, 40 * time.Second, 2 * time.Minute, time.Hour}[s.r.IntN(4)], 2)
}

// pass moves the clock; every n-th node or so beats after it.
func (s *simulation) pass(d time.Duration, n int) {
	s.say("%s", d)
	testenv.Advance(s, s.Pool, d)
	for i := range s.nodes {
		if s.r.IntN(n) == 0 {
			_, err := session.New(s.Store).Heartbeat(s.Context(), s.nodes[i].session, simulatedTTL, nil)
			s.over(&s.nodes[i], err)
		}
	}
}

// crash takes a node's memory. Its session stays until its time ends.
func (s *simulation) crash() { s.restart(s.node()) }

func (s *simulation) stop() {
	n := s.node()
	_, err := collector.New(s.Store).EndFlushes(s.Context(), n.session)
	s.must(err)
	_, err = settle.New(s.Store).EndSession(s.Context(), n.session)
	s.must(err)
	s.restart(n)
}

func (s *simulation) lose() {
	if n := len(s.work); n > 0 && s.r.IntN(2) == 0 {
		s.take(s.work[s.r.IntN(n)])
	} else if n := len(s.replies); n > 0 {
		i := s.r.IntN(n)
		s.replies = slices.Delete(s.replies, i, i+1)
	}
}

func (s *simulation) double() {
	if n := len(s.work); n > 0 && s.r.IntN(2) == 0 {
		s.work = append(s.work, s.work[s.r.IntN(n)])
	} else if n := len(s.replies); n > 0 {
		s.replies = append(s.replies, s.replies[s.r.IntN(n)])
	}
}

// wipe makes the streams again. The next sweep sees it; until then requests are published under the old epoch.
func (s *simulation) wipe() { s.recreate() }

func (s *simulation) recreate() {
	s.work, s.flow, s.replies, s.seq = nil, nil, nil, 0
	s.upTo = map[string]int64{}
	s.created = time.Unix(int64(s.r.Uint32()), int64(s.r.IntN(1e6))*1000)
}

func (s *simulation) observe() {
	now, _, err := session.New(s.Store).ObserveStreams(s.Context(), session.Created{Work: s.created, Reply: s.created,
		Stage: s.created, Flow: s.created})
	s.must(err)
	s.epoch = now.Epoch
}

const leftOver = `
SELECT count(*) FROM work_slice s WHERE s.state = 'sent' AND s.stream_epoch < (SELECT epoch FROM stream_epoch)
    OR s.state = 'claimed' AND s.session_id NOT IN (
        SELECT id FROM node_session WHERE ended_at IS NULL AND expires_at > tranche_now())`

// sweep is what the leader does at each beat, if a node can lead.
func (s *simulation) sweep() { s.sweepBy(s.node()) }

func (s *simulation) sweepBy(n *node) {
	lease, err := session.New(s.Store).Lead(s.Context(), n.session, simulatedTTL)
	if errors.Is(err, workqueue.ErrNotLeader) {
		s.say("(another leads)")
		return
	}
	s.must(err)
	if s.lease != lease && s.r.IntN(4) == 0 {
		s.fenced(s.lease)
	}
	s.lease = lease
	s.observe()
	s.raiseMark()
	if s.ops != nil {
		_, err := collector.New(s.Store).SweepCollectors(s.Context(), lease)
		s.must(err)
	}
	settling := settle.New(s.Store)
	_, err = settling.ReleaseDeadSessions(s.Context(), lease)
	s.must(err)
	_, err = settling.ReleaseLostStreams(s.Context(), lease)
	s.must(err)
	if n := s.Number(leftOver); n > 0 {
		s.failf("a sweep left %d slices with nodes or streams that are gone", n)
	}
	_, err = settling.EndStopped(s.Context(), lease)
	s.must(err)
	_, err = redo.New(s.Store).RepairLanes(s.Context(), lease)
	s.must(err)
	s.sweepHolds()
	s.heldByThreshold()
	var at []settle.Handed
	for name, seq := range s.upTo {
		at = append(at, settle.Handed{Endpoint: name, UpTo: seq})
	}
	if len(at) > 0 {
		s.must(settling.HandedOut(s.Context(), lease, at, s.epoch))
	}
	s.sweepLost(lease)
	s.sweepOverdue(lease)
}

// fenced checks that the work of a leader whose time is over changes nothing.
func (s *simulation) fenced(old workqueue.Lease) {
	all, settling := slices.Collect(maps.Keys(s.asked)), settle.New(s.Store)
	for i, do := range []func() (int, error){
		func() (int, error) { return settling.ReleaseDeadSessions(s.Context(), old) },
		func() (int, error) { return settling.ReleaseLostStreams(s.Context(), old) },
		func() (int, error) { return settling.Expire(s.Context(), old, all) },
		func() (int, error) { return settling.ReleaseUnsent(s.Context(), old, all) },
		func() (int, error) { return 0, settling.Extend(s.Context(), old, all) },
	} {
		n, err := do()
		if errors.Is(err, workqueue.ErrNotLeader) {
			continue
		}
		if s.must(err); len(all) > 0 {
			s.failf("work %d of a leader of before is done, for %d slices", i, n)
		}
	}
}

func (s *simulation) sweepHolds() {
	waiting, err := dispatch.New(s.Store).WaitingBarriers(s.Context())
	s.must(err)
	watched, err := settle.New(s.Store).WatchedEndpoints(s.Context())
	s.must(err)
	due, err := control.New(s.Store).DueHolds(s.Context())
	s.must(err)
	look := settle.FollowUp{Endpoints: watched, Halved: watched, Barriers: waiting}
	for _, d := range due {
		if d.Threshold {
			look.Runs = append(look.Runs, d.Run)
		}
		if d.Canary {
			_, err := control.New(s.Store).CheckCanary(s.Context(), d.Run)
			s.must(err)
		}
		if d.FailFast {
			_, err := control.New(s.Store).CheckFailFast(s.Context(), d.Run)
			s.must(err)
		}
	}
	s.follow(look)
}

const failedLimit = `SELECT coalesce(failed_limit, 1000000) FROM batchrun WHERE id = $1`

// failures counts the items that have failed at a step that is not optional, and says how many may.
func (s *simulation) failures() (n, limit int) {
	now := s.read()
	var failed bitfield.Set
	for step := range now.steps {
		if !s.steps[step].Optional {
			failed = failed.Or(now.steps[step].failed)
		}
	}
	return failed.Count(), s.Number(failedLimit, s.run)
}

// heldByThreshold checks that a run with more failures than it may have continues no more.
func (s *simulation) heldByThreshold() {
	now := s.read()
	if n, limit := s.failures(); now.state == "running" && now.hold == "" && n > limit {
		s.failf("%d items have failed, %d may, and the run continues", n, limit)
	}
}

func (s *simulation) requestIs(id workqueue.SliceID) bool {
	return slices.ContainsFunc(s.work, func(q *request) bool { return q.ID == id })
}

func (s *simulation) replyIs(id workqueue.SliceID) bool {
	return slices.ContainsFunc(s.replies, func(r reply) bool { return r.Slice == id })
}

func (s *simulation) sweepLost(lease workqueue.Lease) {
	open, err := settle.New(s.Store).Unanswered(s.Context(), s.epoch, time.Second, 0, math.MaxInt64, storetest.Plenty)
	s.must(err)
	var lost []workqueue.SliceID
	for _, u := range open {
		suspended := slices.ContainsFunc(s.flow, func(q *request) bool { return q.ID == u.ID })
		if !suspended && !s.requestIs(u.ID) && !s.replyIs(u.ID) {
			lost = append(lost, u.ID)
		}
	}
	if len(lost) > 0 {
		_, err = settle.New(s.Store).ReleaseLost(s.Context(), lease, lost, s.epoch)
		s.must(err)
	}
}

// sweepOverdue sorts overdue slices as package sweep does.
func (s *simulation) sweepOverdue(lease workqueue.Lease) {
	settling := settle.New(s.Store)
	overdue, err := settling.OverdueSlices(s.Context(), storetest.Plenty)
	if s.must(err); len(overdue) == 0 {
		return
	}
	var gone, waiting, lost, expired, silent, excused []workqueue.SliceID
	for _, o := range overdue {
		there := s.requestIs(o.ID)
		switch {
		case o.StreamSeq == 0, !o.Handed && !there:
			gone = append(gone, o.ID)
		case !o.Handed:
			waiting = append(waiting, o.ID)
		case there:
			silent = append(silent, o.ID)
		case o.Spent:
			expired = append(expired, o.ID)
		default:
			lost = append(lost, o.ID)
		}
	}
	blamed, err := settling.Blamed(s.Context(), silent, nil)
	s.must(err)
	for _, id := range silent {
		if blamed[id] {
			expired = append(expired, id)
		} else {
			excused = append(excused, id)
		}
		s.take(s.asked[id])
	}
	for _, id := range expired {
		s.blame(s.asked[id], nil, storetest.Ordinals(s.asked[id].Slice)...)
	}
	s.say("%d overdue, %d blamed, %d lost", len(overdue), len(expired), len(lost)+len(gone))
	s.must(settling.Extend(s.Context(), lease, waiting))
	for _, part := range []struct {
		do  func() (int, error)
		all []workqueue.SliceID
	}{
		{func() (int, error) { return settling.ReleaseUnsent(s.Context(), lease, gone) }, gone},
		{func() (int, error) { return settling.ReleaseAcknowledged(s.Context(), lease, lost) }, lost},
		{func() (int, error) { return settling.Expire(s.Context(), lease, expired) }, expired},
		{func() (int, error) { return settling.ExpireWithoutPenalty(s.Context(), lease, excused) }, excused},
	} {
		if len(part.all) == 0 {
			continue
		}
		n, err := part.do()
		s.must(err)
		if n != len(part.all) {
			s.failf("%d slices were released of %d that are overdue", n, len(part.all))
		}
	}
}
