package modeltest_test

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/erasure"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// refused reports whether an operator was told that something cannot be done now, or that there is nothing to do.
func (s *simulation) refused(err error) bool {
	for _, is := range []func(error) bool{
		isA[*workqueue.StateError], isA[*workqueue.ConflictError], isA[*control.NoGateError], isA[*erasure.UnderWayError],
	} {
		if is(err) {
			s.say("refused")
			return true
		}
	}
	s.must(err)
	return false
}

func isA[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

func (s *simulation) wish() control.Control { return control.Control{Run: s.run, Actor: "ann"} }

func (s *simulation) pause() {
	if _, err := control.New(s.Store).Pause(s.Context(), s.wish()); !s.refused(err) {
		s.paused = true
	}
}

func (s *simulation) resume() {
	var all *string
	if s.healing || s.r.IntN(3) == 0 {
		all = new("100%")
	}
	if s.cancelled {
		s.redone = true
	}
	if _, err := control.New(s.Store).Resume(s.Context(), s.wish(), all); s.refused(err) {
		return
	}
	if s.paused = false; s.cancelled {
		s.touchAll()
		s.cancelled = false
		s.generation++
	}
}

func (s *simulation) cancel() {
	if _, err := control.New(s.Store).Cancel(s.Context(), s.wish()); !s.refused(err) {
		s.cancelled = true
	}
}

// approve lets a sample's others go, or the steps begin that wait for it.
func (s *simulation) approve() {
	_, err := control.New(s.Store).Approve(s.Context(), s.wish())
	s.refused(err)
	for _, spec := range s.steps {
		if spec.Approval != "" {
			c := s.wish()
			c.Step, c.Actor = spec.Name, "bob" // ann has changed much of it
			_, err := control.New(s.Store).Approve(s.Context(), c)
			s.refused(err)
		}
	}
}

func (s *simulation) set() {
	step := s.steps[s.r.IntN(len(s.steps))]
	change := control.RunChange{Run: s.run, Step: step.Name, Actor: "ann",
		Settings: storetest.Chunking(1+s.r.IntN(9), []int{0, 1, 4, 50}[s.r.IntN(4)])}
	if s.r.IntN(4) == 0 {
		change.MaxFailed = new([]string{"", "1", "50%"}[s.r.IntN(3)])
	}
	_, err := control.New(s.Store).SetRun(s.Context(), change)
	s.refused(err)
}

// budget limits the requests in flight at an endpoint.
func (s *simulation) budget() {
	s.setBudget([]string{storetest.Endpoint, elsewhere}[s.r.IntN(2)], []int{0, 1, 2, 5}[s.r.IntN(4)])
}

func (s *simulation) setBudget(endpoint string, n int) {
	_, err := pacestore.New(s.Store).ChangeEndpoint(s.Context(),
		pacestore.EndpointChange{Endpoint: endpoint, MaxInFlight: &n}, "ann")
	s.must(err)
}

// keys draws some items that stand next to each other, without those of which no one knows the keys any more.
func (s *simulation) keys() (items []workqueue.Ordinal, keys []string) {
	from := s.r.IntN(s.items)
	to := from + 1 + s.r.IntN(s.items-from)
	for o := from; o < to; o++ {
		if !s.erased[o] {
			items, keys = append(items, workqueue.Ordinal(o)), append(keys, storetest.Names(s.items)[o])
		}
	}
	s.say("%v", items)
	return items, keys
}

// began notes that a move opened a generation, in which outcomes may have been undone.
func (s *simulation) began(g workqueue.Generation) {
	s.redone, s.opened = true, true
	if int(g) != s.generation+1 {
		s.failf("it opened generation %d after %d", g, s.generation)
	}
	if s.generation++; s.known.state == "completed" {
		s.paused = false
	}
}

func (s *simulation) rerun() {
	sel := redo.Selection{Failed: true}
	if items, keys := s.keys(); len(items) > 0 && s.r.IntN(2) == 0 {
		sel = redo.Selection{Keys: keys}
	}
	req := redo.RerunRequest{Run: s.run, Select: sel, Actor: "ann", DryRun: true}
	if s.r.IntN(4) == 0 && !s.ordered {
		req.Canary, req.CanaryAutoApprove = 1+s.r.IntN(s.items), s.r.IntN(2) == 0
	}
	out, ok := tried(s, func(dry bool) (redo.Rerun, error) {
		req.DryRun = dry
		return redo.New(s.Store).Rerun(s.Context(), req)
	})
	if !ok {
		return
	}
	s.touchAll()
	if s.began(out.Generation); req.Canary > 0 && out.Items-out.Held > int64(req.Canary) {
		s.failf("a canary of %d is of %d items", req.Canary, out.Items-out.Held)
	}
	if now := s.read(); sel.Failed && len(s.steps) == 1 {
		if again := s.known.steps[0].accepted.AndNot(now.steps[0].accepted); !again.Empty() {
			s.failf("%d accepted failures are run again with those that are not", again.Count())
		}
	}
}

const traces = `
SELECT (SELECT count(*) FROM audit_log WHERE run_id = $1) + (SELECT count(*) FROM run_event WHERE run_id = $1)`

// tried does something in a dry run, mostly again in earnest, and reports whether it was done. A dry run leaves no
// trace, and says what comes of it.
func tried[T any](s *simulation, do func(dry bool) (T, error)) (out T, ok bool) {
	before := s.Number(traces, s.run)
	said, refusal := do(true)
	if n := s.Number(traces, s.run); n != before {
		s.failf("a dry run left %d rows", n-before)
	}
	if s.check(); s.r.IntN(5) == 0 {
		s.say("(dry)")
		return out, false
	}
	out, err := do(false)
	if fmt.Sprint(said, refusal) != fmt.Sprint(out, err) {
		s.failf("a dry run said %+v, %v, and then came %+v, %v", said, refusal, out, err)
	}
	return out, !s.refused(err)
}

func (s *simulation) reset() {
	step := s.r.IntN(len(s.steps))
	sel := redo.Selection{Step: s.steps[step].Name}
	var items []workqueue.Ordinal
	if items, sel.Keys = s.keys(); len(items) == 0 {
		return
	}
	cascade := s.r.IntN(4) == 0
	out, ok := tried(s, func(dry bool) (redo.Reset, error) {
		return redo.New(s.Store).Reset(s.Context(), redo.ResetRequest{Run: s.run, Select: sel, Actor: "ann",
			Cascade: cascade, DryRun: dry})
	})
	if !ok {
		return
	}
	s.touch(items...)
	for _, o := range items {
		s.versions[step][o] += s.r.IntN(2)
	}
	s.began(out.Generation)
}

func (s *simulation) correct() {
	items, keys := s.keys()
	if len(items) == 0 {
		return
	}
	was := slices.Clone(s.data)
	for _, o := range items {
		s.data[o] = s.generation
	}
	i := 0
	next := func(c *redo.Correction) error {
		if i == len(items) {
			return io.EOF
		}
		c.Key, c.Payload = keys[i], []byte(s.payload(int(items[i])))
		i++
		return nil
	}
	out, err := redo.New(s.Store).Correct(s.Context(), redo.CorrectRequest{Run: s.run, Actor: "ann",
		Cascade: s.r.IntN(4) == 0, Items: func() (func(*redo.Correction) error, error) {
			i = 0
			return next, nil
		}})
	if s.refused(err) {
		s.data = was
		return
	}
	s.touch(items...)
	for _, o := range items {
		s.invalid[o] = false
	}
	s.began(out.Generation)
}

func (s *simulation) accept() {
	some := slices.ContainsFunc(s.known.steps, func(p planes) bool { return !p.accepted.Empty() })
	req := redo.AcceptRequest{Run: s.run, Select: redo.Selection{Failed: true}, Actor: "ann", Reason: "r",
		Withdraw: some && s.r.IntN(3) == 0}
	out, err := redo.New(s.Store).Accept(s.Context(), req)
	if !s.refused(err) && (out.Items == 0 || out.Accepted > out.Failed || !req.Withdraw && out.Accepted != out.Failed) {
		s.failf("accept: %+v", out)
	}
}

func (s *simulation) erase() {
	o := s.r.IntN(s.items)
	if s.r.IntN(3) > 0 {
		return // it takes long on purpose
	}
	key := storetest.Names(s.items)[o]
	s.say("%s", key)
	_, err := erasure.New(s.Store).Erase(s.Context(), erasure.Request{Key: key, Actor: "ann", Reason: "they asked"})
	if s.erased[o] || s.refused(err) {
		return
	}
	s.touch(workqueue.Ordinal(o))
	s.erased[o] = true
	if n := s.Number(`SELECT (SELECT count(*) FROM work_queue WHERE run_id = $1 AND (item_key = $2 OR ordinal = $3
		AND payload::text <> '{"erased":true}')) + (SELECT count(*) FROM work_result WHERE run_id = $1
		AND ordinal = $3 AND result <> 'null')`, s.run, key, o); n > 0 {
		s.failf("%d rows of an erased item are there", n)
	}
}
