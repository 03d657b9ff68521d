package modeltest_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/order"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Settings of go test: see the Makefile.
var (
	seeds   = flag.Int("simulate.seeds", 32, "histories of TestSimulationAgainstAnOracle")
	oneSeed = flag.Uint64("simulate.seed", 0, "the only history to repeat; 0: all")
)

const (
	doctorEvery = 6  // moves
	healRounds  = 60 // after which a run ends, with all faults over
	shrinkTries = 150
	shrinkTime  = time.Minute
)

// move is one of a history. Its seed alone decides what it does, so that dropping others does not change it.
type move struct {
	kind kind
	seed uint64
}

// kind is a sort of move. What may happen without any fault makes up calm histories.
type kind struct {
	name   string
	weight int
	calm   bool
	do     func(*simulation)
}

func kinds() []kind {
	return []kind{
		{"claim", 10, true, (*simulation).claim},
		{"publish", 10, true, (*simulation).publish},
		{"mark", 5, true, (*simulation).mark},
		{"serve", 14, true, (*simulation).serve},
		{"continue", 3, true, (*simulation).goOn},
		{"record", 10, true, (*simulation).record},
		{"round", 6, true, (*simulation).round},
		{"day", 3, true, (*simulation).day},
		{"sweep", 7, true, (*simulation).sweep},
		{"tick", 5, true, (*simulation).tick},
		{"jump", 4, false, (*simulation).jump},
		{"crash", 3, false, (*simulation).crash},
		{"cut", 4, false, (*simulation).cut},
		{"stop", 1, false, (*simulation).stop},
		{"lose", 2, false, (*simulation).lose},
		{"double", 2, false, (*simulation).double},
		{"wipe", 1, false, (*simulation).wipe},
		{"backup", 1, false, (*simulation).backup},
		{"rewind", 2, false, (*simulation).rewind},
		{"store", 3, true, (*simulation).store},
		{"flush", 4, true, (*simulation).flush},
		{"settle", 4, true, (*simulation).settle},
		{"operate", 1, true, (*simulation).operate},
		{"approve", 4, true, (*simulation).approve},
		{"pause", 1, true, (*simulation).pause},
		{"resume", 2, true, (*simulation).resume},
		{"set", 2, true, (*simulation).set},
		{"budget", 2, true, (*simulation).budget},
		{"rerun", 2, false, (*simulation).rerun},
		{"reset", 3, false, (*simulation).reset},
		{"correct", 3, false, (*simulation).correct},
		{"accept", 2, false, (*simulation).accept},
		{"cancel", 1, false, (*simulation).cancel},
		{"erase", 1, false, (*simulation).erase},
	}
}

// history draws the moves of a seed. Each has some kinds often and others never; one in eight is calm.
func history(seed uint64) (moves []move, calm bool) {
	r := rand.New(rand.NewPCG(seed, 0))
	calm = r.IntN(8) == 0
	var hat []kind
	for _, k := range kinds() {
		times := k.weight
		if k.weight < 5 {
			times *= []int{0, 1, 1, 3}[r.IntN(4)]
		}
		if !calm || k.calm {
			hat = append(hat, slices.Repeat([]kind{k}, times)...)
		}
	}
	for range 15 + r.IntN(45) {
		moves = append(moves, move{hat[r.IntN(len(hat))], r.Uint64()})
	}
	return moves, calm
}

// red is how a move says that something is not as it must be.
type red string

// run lives through moves and what follows them, and returns what was wrong.
func (b *bench) run(seed uint64, moves []move, calm bool) (wrong string, story []string) {
	s := &simulation{bench: b, calm: calm}
	defer func() {
		story = s.story
		if r := recover(); r != nil {
			text, is := r.(red)
			if wrong = string(text); !is {
				panic(r)
			}
		}
	}()
	s.begin(rand.New(rand.NewPCG(seed, 1)))
	for i, m := range moves {
		s.r, s.redone, s.opened = rand.New(rand.NewPCG(m.seed, 0)), false, false
		s.story = append(s.story, m.kind.name)
		m.kind.do(s)
		s.check()
		if i%doctorEvery == doctorEvery-1 {
			s.examine()
		}
	}
	s.r = rand.New(rand.NewPCG(seed, 2))
	s.end()
	return "", nil
}

// shrink drops moves for as long as what is left is red, and returns it. why is empty when nothing could be dropped.
func shrink(t *testing.T, seed uint64, moves []move, calm bool) (least []move, why string, story []string) {
	t.Helper()
	least = moves
	tries, until := 0, time.Now().Add(shrinkTime)
	for size := (len(moves) + 1) / 2; size > 0; size /= 2 {
		for from := 0; from < len(least) && tries < shrinkTries && time.Now().Before(until); tries++ {
			fewer := slices.Delete(slices.Clone(least), from, min(from+size, len(least)))
			if w, s := setupFused(t).run(seed, fewer, calm); w != "" {
				least, why, story = fewer, w, s
				continue
			}
			from += size
		}
	}
	return least, why, story
}

// A seed decides the order of nodes' moves, answers that come late, twice, wrongly or never, lost and doubled messages,
// crashes between any two moves, jumps of the clock, and what operators do. Nothing is lost or counted twice, every run
// ends once the faults are over, and every part is what it must be.
func TestSimulationAgainstAnOracle(t *testing.T) {
	t.Parallel()
	workers := min(2*runtime.GOMAXPROCS(0), 8) // each waits for PostgreSQL, or PostgreSQL for it
	first, last := uint64(1), uint64(*seeds)
	if *oneSeed != 0 {
		first, last, workers = *oneSeed, *oneSeed, 1
	}
	var found atomic.Bool
	for w := range workers {
		t.Run(fmt.Sprint("worker ", w), func(t *testing.T) {
			t.Parallel()
			b := setupFused(t)
			begun, n := time.Now(), 0
			for seed := first + uint64(w); seed <= last && !found.Load(); seed, n = seed+uint64(workers), n+1 {
				moves, calm := history(seed)
				wrong, story := b.run(seed, moves, calm)
				if wrong == "" {
					continue
				}
				found.Store(true)
				least, why, shorter := shrink(t, seed, moves, calm)
				if why != "" {
					wrong, story = why, shorter
				}
				t.Fatalf("seed %d: %s\n%d of its %d moves are enough:\n  %s\nrepeat it with: make simulate SEED=%d\n", seed,
					wrong, len(least), len(moves), strings.Join(story, "\n  "), seed)
			}
			t.Logf("%d histories, %.0f a minute", n, float64(n)/time.Since(begun).Minutes())
		})
	}
}

// simulation is a run on a real store among nodes, streams and services that are models. What a step makes of an item
// is a function of the item, its payload, a version that resets change, and the parts that the request carried. So the
// right value of every part is known.
type simulation struct {
	*bench
	belief

	calm    bool // no fault happens
	healing bool // no fault happens any more
	redone  bool // the move may take outcomes back
	opened  bool // a generation
	r       *rand.Rand
	story   []string

	run      workqueue.RunID
	steps    []workqueue.StepSpec
	items    int
	attempts int
	stops    bool    // a failure stops its line
	versions [][]int // of each step, by item
	ordered  bool    // items of the same v go one after the other

	nodes   [3]node
	lease   workqueue.Lease
	created time.Time // the streams
	epoch   int64     // of them, as nodes know it
	seq     int64
	upTo    map[string]int64 // how far services have come
	work    []*request
	flow    []*request // suspended between two stages
	replies []reply
	flushes []*flush // of nodes that may be gone

	asked map[workqueue.SliceID]*request
	told  map[at]*told

	back     *past        // nil: there is none
	touched  []bool       // items, since then
	doubted  []bool       // items whose changes the database has forgotten
	furthest session.Mark // of the database
}

// at is an item at a step.
type at struct {
	step workqueue.Step
	item workqueue.Ordinal
}

// told is what services, or their silence, have said of an item at a step.
type told struct {
	executions int
	fatal      map[string]bool            // codes that are final
	faults     map[workqueue.SliceID]bool // attempts that may count
}

func (s *simulation) failf(format string, args ...any) {
	s.Helper()
	panic(red(fmt.Sprintf(format, args...)))
}

func (s *simulation) must(err error) {
	s.Helper()
	if err == nil {
		return
	}
	s.fuse.mu.Lock()
	burnt := s.fuse.armed && s.fuse.burnt
	s.fuse.mu.Unlock()
	if burnt {
		panic(cutOff{})
	}
	s.failf("%v", err)
}

// say adds to what the last move did.
func (s *simulation) say(format string, args ...any) {
	s.story[len(s.story)-1] += " " + fmt.Sprintf(format, args...)
}

// odd decides whether a fault happens, one time in n.
func (s *simulation) odd(n int) bool { return !s.calm && !s.healing && s.r.IntN(n) == 0 }

// begin loads a run as a seed has it.
func (s *simulation) begin(r *rand.Rand) {
	s.story, s.r = []string{"load"}, r
	s.items, s.attempts = 1+r.IntN(30), []int{1, 2, 3, 100}[r.IntN(4)]
	s.data, s.erased, s.invalid = make([]int, s.items), make([]bool, s.items), make([]bool, s.items)
	s.asked, s.taken = map[workqueue.SliceID]*request{}, map[workqueue.SliceID]int{}
	s.doubted = make([]bool, s.items)
	s.told, s.upTo = map[at]*told{}, map[string]int64{}
	req := storetest.Planned(s.draw()...)
	req.MaxFailed = []string{"", "", "0", "20%"}[r.IntN(4)]
	req.FailFast = []workqueue.FailFast{{}, {}, {Failures: 2, Within: 5}}[r.IntN(3)]
	if len(s.steps) > 1 || s.calm {
		req.FailFast = workqueue.FailFast{}
	}
	barrier := slices.ContainsFunc(s.steps, func(st workqueue.StepSpec) bool { return st.Barrier })
	optional := slices.ContainsFunc(s.steps, func(st workqueue.StepSpec) bool { return st.Optional })
	switch {
	case r.IntN(4) == 0 && !barrier:
		req.Order = &workqueue.RunOrder{Rule: order.Rule{By: "v"}, Stop: !optional && r.IntN(2) == 0}
		s.ordered, s.stops = true, req.Order.Stop
	case r.IntN(4) == 0 && s.items > 1:
		req.Canary, req.CanaryAutoApprove = 1+r.IntN(s.items-1), r.IntN(2) == 0
	}
	for o := range s.invalid {
		s.invalid[o] = !s.ordered && !optional && r.IntN(40) == 0
	}
	s.Exec(`DELETE FROM leader`)
	s.Exec(`DELETE FROM node_session`)
	s.Exec(`DELETE FROM endpoint_pace`)
	s.Exec(`DELETE FROM endpoint_setting`)
	testenv.StopClock(s, s.Pool, time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	for i := range s.nodes {
		s.nodes[i].name = string(rune('A' + i))
		s.restart(&s.nodes[i])
	}
	s.Session = s.nodes[0].session
	req.Session = s.Session
	loaded, err := start.New(s.Store).Load(s.Context(), req, s.load())
	s.must(err)
	s.run = loaded.Run
	s.generation = 1
	s.furthest, err = session.New(s.Store).ReadMark(s.Context())
	s.must(err)
	s.recreate()
	s.observe()
	s.say("%d items with %d attempts, canary %d, fail_fast %+v, max failed %q, order %+v", s.items, s.attempts, req.Canary,
		req.FailFast, req.MaxFailed, req.Order)
	for _, st := range s.steps {
		s.say("\n    %s needs %v: chunk %d, %d in flight, optional %v, barrier %v %s, no item %v", st.Name, st.Needs,
			st.Chunk, st.InFlight, st.Optional, st.Barrier, st.Approval, st.NoItem)
	}
	s.check()
}

func (s *simulation) load() func(*start.LoadItem) error {
	next := storetest.Keys(storetest.Names(s.items)...)
	o := 0
	return func(item *start.LoadItem) error {
		err := next(item)
		if item.Payload = []byte(s.payload(o)); err == nil && s.invalid[o] {
			item.Invalid = "it does not fit"
			for step := range s.steps {
				s.at(workqueue.Step(step), workqueue.Ordinal(o)).fatal[workqueue.CodeInvalid] = true
			}
		}
		o++
		return err
	}
}

// payload is an item's. Items of the same v go one at a time in runs with an order.
func (s *simulation) payload(o int) string {
	return fmt.Sprintf(`{"v":%d,"g":%d}`, o%4, s.data[min(o, s.items-1)])
}

func (s *simulation) draw() []workqueue.StepSpec {
	r := s.r
	for step := range 1 + r.IntN(5) {
		var needs []int
		for n := range step {
			if r.IntN(3) > 0 {
				needs = append(needs, n)
			}
		}
		spec := storetest.Need(fmt.Sprint("step", step), needs...)
		spec.Endpoint = []string{storetest.Endpoint, elsewhere}[r.IntN(2)]
		spec.Chunk, spec.InFlight, spec.MaxAttempts = 1+r.IntN(9), []int{1, 3, 100}[r.IntN(3)], s.attempts
		spec.RetryBackoff = time.Duration(r.IntN(3)) * time.Second
		spec.Optional = r.IntN(3) == 0
		spec.Barrier = len(needs) > 0 && r.IntN(3) == 0
		if spec.Barrier && r.IntN(2) == 0 {
			spec.Approval = []string{workqueue.ApproveAnyone, workqueue.ApproveOther}[r.IntN(2)]
		}
		spec.NoItem = r.IntN(2) == 0
		s.steps, s.versions = append(s.steps, spec), append(s.versions, make([]int, s.items))
	}
	return s.steps
}

func (s *simulation) at(step workqueue.Step, o workqueue.Ordinal) *told {
	a := at{step, o}
	if s.told[a] == nil {
		s.told[a] = &told{fatal: map[string]bool{}, faults: map[workqueue.SliceID]bool{}}
	}
	return s.told[a]
}

func TestMain(m *testing.M) { testenv.Main(m) }

const elsewhere = "elsewhere"

// bench has, in addition to what all tests of the store have, what those of this package need.
type bench struct {
	*storetest.Bench
	fuse *fuse     // of the store's connections; nil outside of the simulation
	past sync.Once // makes the place for a copy of the database
	// countLeft is a statement that counts rows of a run, in all tables.
	countLeft string
}
