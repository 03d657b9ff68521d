package live_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// story does to a run what nodes, services and operators do, in a random order, while pages look on.
type story struct {
	*world
	run     workqueue.RunID
	items   int
	steps   []string
	random  *rand.Rand
	out     []workqueue.Slice
	pages   []*page
	resumed int
}

func (s *story) fate() int {
	if s.random.IntN(10) < 8 {
		return isDone
	}
	return s.random.IntN(4)
}

// act does one thing. What the store refuses as things are is not a mistake.
func (s *story) act() error {
	ctx, actor := s.Context(), "test"
	switch s.random.IntN(14) {
	case 0, 1, 2:
		step := workqueue.Step(s.random.IntN(len(s.steps)))
		s.out = append(s.out, s.ClaimStep(s.run, step, 1+s.random.IntN(4)).Slices...)
	case 3, 4, 5, 6:
		for range min(len(s.out), 3) {
			i := s.random.IntN(len(s.out))
			one := s.out[i]
			s.out = append(s.out[:i], s.out[i+1:]...)
			fates := make(map[workqueue.Ordinal]int)
			for bit := range one.Mask.All() {
				fates[one.Block.Ordinal(bit)] = s.fate()
			}
			s.answer(one, func(o workqueue.Ordinal) int { return fates[o] })
		}
	case 7:
		_, err := redo.New(s.Store).Reset(ctx, redo.ResetRequest{
			Run: s.run, Actor: actor, Cascade: s.random.IntN(2) == 0,
			Select: redo.Selection{Step: s.steps[s.random.IntN(len(s.steps))], Keys: s.keys()},
		})
		return err
	case 8:
		_, err := redo.New(s.Store).Rerun(ctx, redo.RerunRequest{
			Run: s.run, Actor: actor, Canary: s.random.IntN(3), Select: redo.Selection{Failed: true},
		})
		return err
	case 9:
		_, err := redo.New(s.Store).Rerun(ctx, redo.RerunRequest{
			Run: s.run, Actor: actor,
			Select: redo.Selection{Step: s.steps[s.random.IntN(len(s.steps))], Keys: s.keys()},
		})
		return err
	case 10:
		_, err := control.New(s.Store).Pause(ctx, control.Control{Run: s.run, Actor: actor})
		return err
	case 11, 12:
		_, err := control.New(s.Store).Resume(ctx, control.Control{Run: s.run, Actor: actor}, nil)
		_, other := control.New(s.Store).Approve(ctx, control.Control{Run: s.run, Actor: actor})
		return errors.Join(err, other)
	default:
		return s.comeAndGo()
	}
	return nil
}

func (s *story) keys() (keys []string) {
	from, n := s.random.IntN(s.items), 1+s.random.IntN(300)
	for i := from; i < min(from+n, s.items); i++ {
		keys = append(keys, "C"+strconv.Itoa(i))
	}
	return keys
}

// comeAndGo cuts a page off, and has it come back with what it has; or has a new one come.
func (s *story) comeAndGo() error {
	p := s.pages[s.random.IntN(len(s.pages))]
	p.close()
	if s.random.IntN(4) == 0 {
		p.last, p.states, p.early = "", nil, nil
	} else if p.last != "" {
		s.resumed++
	}
	p.open()
	return nil
}

// must fails the test, unless the store said no.
func (s *story) must(err error) {
	s.Helper()
	var state *workqueue.StateError
	var nothing *workqueue.ConflictError
	if err != nil && !errors.As(err, &state) && !errors.As(err, &nothing) {
		s.Fatal(err)
	}
}

// tell goes through a story, and then wants every page to show the truth.
func (s *story) tell(acts int) {
	for range acts {
		s.must(s.act())
		for _, p := range s.pages {
			switch s.random.IntN(3) {
			case 0:
				p.drain()
			case 1:
				if p.states == nil {
					p.fetch()
				}
			}
		}
	}
	if s.random.IntN(2) == 0 {
		_, err := control.New(s.Store).Cancel(s.Context(), control.Control{Run: s.run, Actor: "test"})
		s.must(err)
	}
	for _, p := range s.pages {
		if p.states == nil {
			p.fetch()
		}
		p.wantTruth()
		p.close()
	}
}

func TestChangesLeadToTheTruth(t *testing.T) {
	t.Parallel()
	w := setup(t, quick())
	resumed, deltas := 0, 0
	for seed := range uint64(6) {
		steps := []string{"only"}
		if seed%2 == 1 {
			steps = []string{"first", "second"}
		}
		s := &story{world: w, items: 8192 + 500, steps: steps, random: rand.New(rand.NewPCG(seed, 0))}
		s.run = w.load(s.items, 900, steps...)
		for _, step := range append([]string{"", ""}, steps...) {
			s.pages = append(s.pages, w.page(s.run, step))
		}
		s.tell(40)
		resumed += s.resumed
		for _, p := range s.pages {
			for _, name := range p.events {
				if name == live.EventDelta {
					deltas++
				}
			}
		}
	}
	if resumed == 0 || deltas < 50 {
		t.Errorf("only %d deltas and %d resumed streams: the stories show little", deltas, resumed)
	}
}

// What changes and changes back between two looks of a hub was seen by who read the planes in between.
func TestWhatCameAndWentIsSetRight(t *testing.T) {
	t.Parallel()
	config := quick()
	config.PollInterval, config.RestedInterval = time.Second, time.Second
	config.Settle = time.Millisecond
	w := setup(t, config)
	run := w.load(100, 100, "only")
	fail := func(workqueue.Ordinal) int { return isFailed }
	w.answer(w.One(run), fail)
	p := w.page(run, "")
	defer p.close()
	again := redo.RerunRequest{Run: run, Select: redo.Selection{Failed: true}, Actor: "test"}
	testenv.Must(redo.New(w.Store).Rerun(t.Context(), again))(t)
	p.fetch()
	testenv.MustSame(t, p.states[7], inspect.ItemReady, "the planes, when nothing is tried")
	w.answer(w.One(run), fail)
	p.wantTruth()
	testenv.Same(t, p.states[7], inspect.ItemFailed, "item 7")
}

func TestAServerThatRestartsIsToldApart(t *testing.T) {
	t.Parallel()
	w := setup(t, quick())
	run := w.load(100, 10, "only")
	p := w.page(run, "only")
	p.fetch()
	w.answer(w.One(run), func(workqueue.Ordinal) int { return isDone })
	p.wantTruth()
	w.restart(quick())
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	var err error
	for err == nil {
		err = p.read(ctx)
	}
	testenv.Is(t, err, live.ErrClosed, "the server stopped")
	p.close()
	w.answer(w.One(run), func(workqueue.Ordinal) int { return isFailed })
	p.open()
	defer p.close()
	p.until("it is told to read again", func() bool { return p.resyncs == 1 })
	p.wantTruth()
}
