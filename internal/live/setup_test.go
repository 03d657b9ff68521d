package live_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// soon is more than anything here takes on a busy machine.
const soon = 2 * time.Minute

// world is a store, hubs on it, and a count of what the hubs ask.
type world struct {
	*storetest.Bench
	hubs   *live.Hubs
	source *counted

	noDocument atomic.Bool
}

// counted is the store as a source, which may fail.
type counted struct {
	inspect.Store
	looks, reads atomic.Int64
	away         atomic.Bool
}

func (c *counted) Marks(ctx context.Context, run workqueue.RunID) (inspect.RunMarks, error) {
	if c.away.Load() {
		return inspect.RunMarks{}, io.ErrUnexpectedEOF
	}
	c.looks.Add(1)
	return c.Store.Marks(ctx, run)
}

func (c *counted) States(ctx context.Context, run workqueue.RunID, steps []string, blocks []workqueue.Block,
	f func(inspect.BlockStates) error,
) error {
	c.reads.Add(1)
	return c.Store.States(ctx, run, steps, blocks, f)
}

func quick() live.Config {
	return live.Config{
		PollInterval: 3 * time.Millisecond, RestedInterval: 3 * time.Millisecond, Settle: 20 * time.Millisecond,
		Explain: func(error) string { return "it is unavailable" },
	}
}

func setup(t *testing.T, config live.Config) *world {
	t.Helper()
	b := storetest.Setup(t)
	w := &world{Bench: b, source: &counted{Store: inspect.New(b.Store)}}
	w.restart(config)
	return w
}

// restart makes new hubs, as a server does that starts.
func (w *world) restart(config live.Config) {
	w.Helper()
	config.Document = func(ctx context.Context, id workqueue.RunID) ([]byte, error) {
		if w.noDocument.Load() {
			return nil, io.ErrUnexpectedEOF
		}
		run, err := inspect.New(w.Store).Run(ctx, id)
		if err != nil {
			return nil, err
		}
		return json.Marshal(map[string]any{"state": run.State, "done": run.Done, "failed": run.Failed})
	}
	hubs := testenv.Must(live.New(w.source, config))(w)
	if w.hubs != nil {
		w.hubs.Close()
	}
	w.hubs = hubs
	w.Cleanup(hubs.Close)
}

// load starts a run of one step, or of two of which the second needs the first.
func (w *world) load(items, chunk int, steps ...string) workqueue.RunID {
	w.Helper()
	req := start.LoadRequest{Plan: "test", CreatedBy: "test"}
	for i, name := range steps {
		spec := workqueue.StepSpec{
			Name: name, Endpoint: "e", StepSettings: workqueue.StepSettings{Chunk: chunk, InFlight: 100, MaxAttempts: 2,
				Timeout: time.Minute},
		}
		if i > 0 {
			spec.Needs = []int{i - 1}
			spec.Inputs = spec.Needs
		}
		req.Steps = append(req.Steps, spec)
	}
	return w.Load(req, items)
}

// answer records a reply: each item by what of says of it: a result, an error, or one to be retried.
func (w *world) answer(s workqueue.Slice, of func(workqueue.Ordinal) int) {
	w.Helper()
	a := settle.Answer{Slice: s.ID, Endpoint: s.Endpoint, Service: "test", Answered: s.Mask.Count()}
	for bit := range s.Mask.All() {
		slot := settle.Slot{Ordinal: s.Block.Ordinal(bit)}
		switch of(slot.Ordinal) {
		case isDone:
			slot.Result = fmt.Appendf(nil, `%d`, slot.Ordinal)
		case isAnother:
			slot.Result = fmt.Appendf(nil, `"%s"`, s.ID)
		default:
			slot.Err = &workqueue.SlotError{Code: "bad", Message: "m", Retry: of(slot.Ordinal) == isLater}
		}
		a.Slots = append(a.Slots, slot)
	}
	testenv.Must(settle.New(w.Store).Record(w.Context(), []settle.Answer{a}))(w)
}

// What becomes of an item.
const (
	isDone    = iota
	isAnother // done, with a result that is never the same
	isFailed
	isLater
)

func (w *world) planes(run workqueue.RunID, step string) []byte {
	w.Helper()
	p := testenv.Must(inspect.New(w.Store).Planes(w.Context(), inspect.PlanesRequest{Run: run, Step: step,
		Blocks: inspect.MaxPlaneBlocks}))(w)
	return p.Bytes
}

// page is what a browser makes of events: it opens the stream, reads the planes, and applies what has come since.
type page struct {
	*world
	run     workqueue.RunID
	step    string
	watcher *live.Watcher
	last    string
	states  []byte
	early   []live.Delta // that came before the planes were read
	events  []string
	resyncs int
	ended   bool
	away    []live.Database
}

func (w *world) page(run workqueue.RunID, step string) *page {
	p := &page{world: w, run: run, step: step}
	p.open()
	return p
}

func (p *page) open() {
	p.Helper()
	p.watcher = testenv.Must(p.hubs.Watch(p.Context(), p.run, []string{p.step}, p.last))(p)
}

func (p *page) close() { p.watcher.Close() }

// fetch reads the planes, some time after the stream was opened.
func (p *page) fetch() {
	p.Helper()
	p.states = p.planes(p.run, p.step)
	for _, d := range p.early {
		p.apply(d)
	}
	p.early = nil
}

func (p *page) apply(d live.Delta) {
	if p.states == nil {
		p.early = append(p.early, d)
		return
	}
	for i := 0; i < len(d.Changes); i += 3 {
		for o := d.Changes[i]; o < d.Changes[i]+d.Changes[i+1]; o++ {
			p.states[o] = byte(d.Changes[i+2])
		}
	}
}

func (p *page) read(ctx context.Context) error {
	p.Helper()
	events, err := p.watcher.Next(ctx)
	for _, e := range events {
		p.take(e)
	}
	return err
}

func (p *page) take(e live.Event) {
	p.Helper()
	p.events = append(p.events, e.Name)
	if e.ID != "" {
		p.last = e.ID
	}
	switch e.Name {
	case live.EventDelta:
		var d live.Delta
		if err := json.Unmarshal(e.Data, &d); err != nil || d.Step != p.step || len(d.Changes)%3 != 0 {
			p.Fatalf("delta %s: %v", e.Data, err)
		}
		p.ended = false
		p.apply(d)
	case live.EventResync:
		p.resyncs++
		p.early = nil
		if p.states != nil {
			p.fetch()
		}
	case live.EventEnd:
		p.ended = true
	case live.EventDatabase:
		var d live.Database
		testenv.NoError(p, json.Unmarshal(e.Data, &d))
		p.away = append(p.away, d)
	}
}

func (p *page) until(what string, holds func() bool) {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), soon)
	defer cancel()
	for !holds() {
		testenv.MustSame(p, p.read(ctx), nil, "waiting until %s; events were %v", what, p.events[max(0, len(p.events)-20):])
	}
}

func (p *page) drain() {
	p.Helper()
	ctx, cancel := context.WithTimeout(p.Context(), 10*time.Millisecond)
	defer cancel()
	for p.read(ctx) == nil {
	}
}

// wantTruth reads on until the page shows what the database has.
func (p *page) wantTruth() {
	p.Helper()
	want := p.planes(p.run, p.step)
	what := fmt.Sprintf("the page of step %q shows the truth", p.step)
	p.until(what, func() bool { return slices.Equal(p.states, want) })
}
