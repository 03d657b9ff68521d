package live_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// looksIn reports how many looks come in a while.
func (w *world) looksIn(d time.Duration) int64 {
	before := w.source.looks.Load()
	<-time.After(d)
	return w.source.looks.Load() - before
}

func TestWatchersShareOneHub(t *testing.T) {
	t.Parallel()
	config := quick()
	config.PollInterval, config.RestedInterval = 50*time.Millisecond, 50*time.Millisecond
	w := setup(t, config)
	run := w.load(20_000, 5000, "only")
	begun := time.Now()
	var pages []*page
	for range 40 {
		pages = append(pages, w.page(run, ""))
	}
	w.answer(w.One(run), func(workqueue.Ordinal) int { return isDone })
	for _, p := range pages {
		p.fetch()
		p.wantTruth()
	}
	looks, most := w.source.looks.Load(), int64(time.Since(begun)/config.PollInterval)+2
	if looks > most {
		t.Errorf("40 watchers made %d looks; one makes %d", looks, most)
	}
	for _, p := range pages {
		p.close()
		p.close()
	}
	if more := w.looksIn(10 * config.PollInterval); more > 1 { // one may just have begun
		t.Errorf("%d looks although no one watches", more)
	}
	again := w.page(run, "") // it comes back to a hub that remembers
	defer again.close()
	again.fetch()
	again.wantTruth()
}

func TestASlowWatcherGetsChangesPutTogether(t *testing.T) {
	t.Parallel()
	w := setup(t, quick())
	run := w.load(3000, 100, "only")
	slow, quick := w.page(run, ""), w.page(run, "")
	defer slow.close()
	defer quick.close()
	slow.fetch()
	quick.fetch()
	slow.until("it begins", func() bool { return len(slow.events) > 0 })
	for range 30 {
		w.answer(w.One(run), func(workqueue.Ordinal) int { return isDone })
		quick.wantTruth()
	}
	quick.until("the run ends", func() bool { return quick.ended })
	before := len(slow.events)
	slow.until("the run ends", func() bool { return slow.ended })
	deltas := 0
	for _, name := range slow.events[before:] {
		if name == live.EventDelta {
			deltas++
		}
	}
	testenv.Same(t, deltas, 1, "deltas of the slow one: %v", slow.events[before:])
	slow.wantTruth()
}

func TestAnOutageIsTold(t *testing.T) {
	t.Parallel()
	w := setup(t, quick())
	run := w.load(100, 100, "only")
	p := w.page(run, "")
	defer p.close()
	p.fetch()
	w.source.away.Store(true)
	p.until("the outage is reported", func() bool { return len(p.away) == 1 })
	if p.away[0].OK || p.away[0].Detail != "it is unavailable" {
		t.Errorf("told %+v", p.away[0])
	}
	w.answer(w.One(run), func(workqueue.Ordinal) int { return isDone })
	w.source.away.Store(false)
	p.until("the end of the outage is reported", func() bool { return len(p.away) == 2 })
	if !p.away[1].OK {
		t.Errorf("told %+v", p.away[1])
	}
	p.wantTruth()
}

// An outage is reported even if it is the first thing of all that there is to tell.
func TestAnOutageAtTheBeginningIsTold(t *testing.T) {
	t.Parallel()
	config := quick()
	config.Settle = time.Hour
	w := setup(t, config)
	w.noDocument.Store(true)
	p := w.page(w.load(100, 100, "only"), "")
	defer p.close()
	p.until("it begins", func() bool { return len(p.events) > 0 })
	p.drain()
	w.source.away.Store(true)
	p.until("the outage is reported", func() bool { return len(p.away) == 1 })
}

func TestWatchesThatCannotBe(t *testing.T) {
	t.Parallel()
	config := quick()
	config.MaxItems = 250
	w := setup(t, config)
	run := w.load(100, 100, "first", "second")
	watch := func(views ...string) error {
		watcher, err := w.hubs.Watch(t.Context(), run, views, "nonsense")
		if err == nil {
			watcher.Close()
		}
		return err
	}
	testenv.Is(t, watch("third"), workqueue.ErrNotFound, "an unknown step")
	testenv.Same(t, watch("first", "second"), nil, "two steps")
	testenv.Is(t, watch("", "first", "second"), live.ErrTooMuch, "more than may be remembered")
	w.source.away.Store(true)
	other := w.load(10, 10, "only")
	testenv.Same(t, watchNothing(w, other), nil, "without planes a stream may begin in an outage")
	_, err := w.hubs.Watch(t.Context(), other, []string{""}, "")
	_ = testenv.As[*live.OutageError](t, err, "while the database is unavailable")
	w.hubs.Close()
	testenv.Is(t, watch(), live.ErrClosed, "after the end")
}

func TestTopicsAreLookedAtWhileWatched(t *testing.T) {
	t.Parallel()
	looks, text := 0, make(chan string, 1)
	now := "1"
	topic := live.Topic{Name: "runs", Every: time.Millisecond, Look: func(context.Context) ([]byte, error) {
		looks++ // by one goroutine, and after the end by no one
		select {
		case now = <-text:
		default:
		}
		if now == "" {
			return nil, errors.New("away")
		}
		return []byte(now), nil
	}}
	topics := live.NewTopics(nil, func(error) string { return "it is unavailable" }, topic)
	_, err := topics.Watch([]string{"weather"})
	testenv.Fails(t, err, "a topic that does not exist can be watched")
	watcher := testenv.Must(topics.Watch([]string{"runs", "runs"}))(t)
	next := func(name, data string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), soon)
		defer cancel()
		events, err := watcher.Next(ctx)
		if err != nil || events[0].Name != name || data != "" && string(events[0].Data) != data {
			t.Fatalf("got %v, %v; want %s %s", events, err, name, data)
		}
	}
	next("runs", "1")
	text <- "2"
	next("runs", "2")
	text <- ""
	next(live.EventDatabase, "")
	text <- "2"
	next(live.EventDatabase, "")
	topics.Close()
	_, err = watcher.Next(t.Context())
	testenv.Is(t, err, live.ErrClosed, "after the end")
	watcher.Close()
	if looks < 4 {
		t.Errorf("%d looks", looks)
	}
}

func watchNothing(w *world, run workqueue.RunID) error {
	watcher, err := w.hubs.Watch(w.Context(), run, nil, "")
	if err == nil {
		watcher.Close()
	}
	return err
}
