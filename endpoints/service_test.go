package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

type number struct {
	N int `json:"n"`
}

type square struct {
	Square int `json:"square"`
}

func squares(_ context.Context, in number) (square, error) { return square{in.N * in.N}, nil }

func TestErrorsAndPanicsOfItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveEach(b, "each", func(ctx context.Context, in number) (square, error) {
		switch in.N {
		case 0:
			panic("no such thing")
		case 1:
			return square{}, errors.New("plain")
		case 2:
			return square{}, fmt.Errorf("read account: %w", Retry("locked", "row %d", 7))
		case 3:
			return square{}, Fail("un/known", "nobody")
		}
		if info := ItemOf(ctx); info.Key != "KEY-4" || info.Ordinal != 4 || info.Attempt != 1 {
			return square{}, fmt.Errorf("info is %+v", info)
		}
		return square{}, nil
	})
	w := b.reply("each", append(numbers(5), payload{5, `{"n":"five"}`}, payload{6, `[]`}))
	want := map[int]wire.SlotError{
		0: {Code: wire.CodePanic, Message: "the handler panicked: no such thing", Retry: false},
		1: {Code: wire.CodeHandlerError, Message: "plain", Retry: false},
		2: {Code: "locked", Message: "read account: locked: row 7", Retry: true},
		3: {Code: "un_known", Message: "nobody", Retry: false},
		5: {
			Code:    wire.CodeBadPayload,
			Message: "the payload does not fit endpoints.number at /n: a JSON string does not fit Go type int",
		},
		6: {Code: wire.CodeBadPayload,
			Message: "the payload does not fit endpoints.number at its root: a JSON array does not fit Go type endpoints.number",
		},
	}
	for i, e := range want {
		if got := w.slots[i].Err; got == nil || *got != e {
			t.Errorf("slot %d: %v, want %v", i, got, e)
		}
	}
	if w.answered != 7 || w.slots[4].Err != nil {
		t.Errorf("answered %d, slot 4: %v", w.answered, w.slots[4].Err)
	}
	b.letters(0) // a batch request has none
}

// TestLateFlushSendsNothing flushes a chunk whose final message is on its way.
func TestLateFlushSendsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	kept := make(chan *Chunk[number, square], 1)
	serveList(b, "list", func(ctx context.Context, chunk *Chunk[number, square]) error {
		for _, item := range chunk.Items() {
			item.Reply(square{1})
		}
		kept <- chunk
		return b.js.DeleteStream(ctx, wire.StreamReply) // so that the final message stays on its way
	})
	meta := b.ask("list", numbers(3))
	chunk := await(t, "chunk", kept)
	a := &chunk.job.Answers
	eventually(t, "the final message is written", func() bool {
		a.Mu.Lock()
		defer a.Mu.Unlock()
		return a.Closed && a.Buf != nil && bytes.HasSuffix(a.Buf.Bytes(), []byte(serve.ReplyClose))
	})
	chunk.Flush()
	b.streams()
	if w := b.collect(1)[meta.Slice]; w.messages != 1 || w.answered != 3 {
		t.Errorf("messages %d, answered %d", w.messages, w.answered)
	}
	b.done(wire.StreamWork, "list")
	testenv.Same(t, b.stored(wire.StreamReply), 1, "messages were sent")
}

type moody struct{ bad bool }

func (m moody) MarshalJSON() ([]byte, error) {
	if m.bad {
		panic("cannot")
	}
	return []byte(`"fine"`), nil
}

func TestResultsOfEveryKind(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pdf := []byte("%PDF-1.7\x00\xff")
	nested := func(deep int) jsontext.Value {
		return jsontext.Value(strings.Repeat("[", deep) + strings.Repeat("]", deep))
	}
	serveEach(b, "kinds", func(_ context.Context, in number) (any, error) {
		return []any{
			wire.Binary{ContentType: "application/pdf",
				Data: pdf}, &wire.Binary{Data: pdf}, nil, moody{}, moody{bad: true}, make(chan int),
			wire.Binary{ContentType: "no\nsuch"}, "<&\u2028>",
			nested(wire.DefaultMaxDepth), nested(wire.DefaultMaxDepth + 1),
		}[in.N], nil
	}, Concurrency(1), Compress(1))
	w := b.reply("kinds", numbers(10))
	for i, contentType := range []string{"application/pdf", wire.DefaultBinaryType} {
		if s := w.slots[i]; s.ContentType != contentType || !bytes.Equal(s.Data, pdf) {
			t.Errorf("slot %d: %q %q", i, s.ContentType, s.Data)
		}
	}
	for i, want := range map[int]string{2: "null", 3: `"fine"`, 7: "\"<&\u2028>\"",
		8: string(nested(wire.DefaultMaxDepth))} {
		testenv.Same(t, string(w.slots[i].Data), want, "slot %d", i)
	}
	for i, want := range map[int]string{4: wire.CodeBadResult, 5: wire.CodeBadResult, 6: wire.CodeBadResult,
		9: wire.CodeTooDeep} {
		if e := w.slots[i].Err; e == nil || e.Code != want {
			t.Errorf("slot %d: %v", i, e)
		}
	}
}

// shortWait gives an endpoint a consumer that delivers again soon.
func (b *bundle) shortWait(endpoint string, d time.Duration) {
	b.t.Helper()
	config := stream.ConsumerConfig(wire.ConsumerName(endpoint), wire.WorkSubject(endpoint))
	config.AckWait = d
	testenv.Must(b.js.CreateConsumer(b.ctx, wire.StreamWork, config))(b.t)
}

func TestDrainTimeoutGivesTheRestBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service(func(c *Config) { c.DrainTimeout = 20 * time.Millisecond })
	begun := make(chan struct{})
	check(t, HandleEach(svc, "work", func(ctx context.Context, in number) (square, error) {
		if in.N == 1 {
			close(begun)
			<-ctx.Done()
			return square{}, ctx.Err()
		}
		return square{}, nil
	}, Concurrency(1)))
	stop := b.Run(svc)
	meta := b.ask("work", numbers(4))
	await(t, "second item", begun)
	check(t, stop())
	w := b.collect(1)[meta.Slice]
	if e := w.slots[1].Err; e == nil || e.Code != wire.CodeShutdown || !e.Retry {
		t.Errorf("slot 1: %v", e)
	}
	w.fails(t, wire.CodeShutdown, true, 2)
}

// listed waits for the one listener of endpoint square to be as it should.
func (b *bundle) listed(what string, as func(wire.Listener) bool) wire.Listener {
	b.t.Helper()
	var found wire.Listener
	eventually(b.t, what, func() bool {
		all := testenv.Must(wire.Discover(b.ctx, b.nc, 100*time.Millisecond))(b.t)
		for _, l := range all {
			if l.Endpoint == "square" && as(l) {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

// A service says that it waits, listens, drains and is gone, and is ready while it listens.
func TestListenersSayHowTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	svc := b.service()
	if svc.Ready() == nil {
		t.Error("a service without endpoints is ready")
	}
	check(t, HandleEach(svc, "square", squares, Concurrency(3)))
	var not *NotReadyError
	if err := svc.Ready(); !errors.As(err, &not) || not.Endpoint != "square" || not.State != "" {
		t.Errorf("before it runs: %v", err)
	}
	stop := b.Run(svc)
	b.listed("it waits, and says what for", func(l wire.Listener) bool {
		return l.State == wire.StateWaiting && l.Reason == "waiting for a Tranche node to create stream "+wire.StreamWork
	})
	b.streams()
	b.listed("it listens", func(l wire.Listener) bool { return l.State == wire.StateListening && l.Reason == "" })
	b.reply("square", numbers(100))
	testenv.Same(t, svc.Ready(), nil, "while it listens")
	l := b.listed("the chunk is counted", func(l wire.Listener) bool { return l.Processed == 100 })
	if l.Rate <= 0 || l.P50 <= 0 || l.P99 < l.P50 || l.Concurrency != 3 || l.Stages != 0 || l.Errors != 0 {
		t.Errorf("after a chunk: %+v", l)
	}
	stats := svc.Stats()
	if len(stats) != 1 || stats[0].Endpoint != "square" || stats[0].Items != 100 || stats[0].Chunks != 1 {
		t.Errorf("stats: %+v", stats)
	}
	check(t, stop())
	if err := svc.Ready(); svc.Stats()[0].State != wire.StateDraining || !errors.As(err, &not) ||
		not.State != wire.StateDraining {
		t.Errorf("after the end: %+v, %v", svc.Stats()[0], err)
	}
	for _, line := range []string{"listening", "draining: taking no more chunks, finishing those in progress", "gone"} {
		if b.logged.FilterMessage(line).Len() == 0 {
			t.Errorf("%q is not said", line)
		}
	}
}

// A missing server is reported once, without the password.
func TestANATSThatIsNotThereIsToldOf(t *testing.T) {
	t.Parallel()
	core, said := observer.New(zap.InfoLevel)
	nc := testenv.Must(nats.Connect("nats://u:canary@127.0.0.1:1", append(Options(), LogTo(zap.New(core)))...))(t)
	defer nc.Close()
	eventually(t, "it is reported", func() bool {
		return said.FilterMessageSnippet("NATS cannot be reached; trying until it can: start `tranche serve`").Len() == 1
	})
	for _, line := range said.All() {
		for _, field := range line.Context {
			if strings.Contains(fmt.Sprint(field.String, field.Interface), "canary") {
				t.Errorf("the password is said: %v", line)
			}
		}
	}
}

// Lines about a chunk, and about an item of it, say which.
func TestLinesAboutChunksSayWhich(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "each", func(context.Context, map[string]int) (int, error) { panic("each") }))
	check(t, HandleList(svc, "list", func(context.Context, *wrapChunk) error { panic("list") }))
	b.Run(svc)
	each, list := b.ask("each", numbers(1)), b.ask("list", numbers(1))
	b.collect(2)
	b.publish(&nats.Msg{Subject: wire.WorkSubject("list"), Header: nats.Header{wire.HeaderRun: {"some run"},
		wire.HeaderVersion: {"1"}}})
	b.logs("whom to tell", 1)
	testenv.Same(t, b.logged.FilterMessageSnippet("whom to tell").All()[0].ContextMap()["run"], "some run",
		"the unreadable request is of run")
	seen := map[any]map[string]any{}
	for _, line := range b.logged.FilterMessageSnippet("panicked").All() {
		seen[line.ContextMap()["endpoint"]] = line.ContextMap()
	}
	for endpoint, meta := range map[string]wire.Meta{"each": each, "list": list} {
		line := seen[endpoint]
		_, item := line["ordinal"]
		if line["run"] != meta.Run.String() || line["slice"] != meta.Slice.String() || item != (endpoint == "each") {
			t.Errorf("%s: %v", endpoint, line)
		}
	}
}

// A service says how long it worked: without the time that the chunk waited its turn, and in a flow over all stages.
func TestRepliesSayHowLongTheServiceWorked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const nap = 150 * time.Millisecond
	svc := b.service()
	type end struct {
		slice uuid.UUID
		at    time.Time
	}
	ended := make(chan end, 10)
	check(t, HandleList(svc, "list", func(ctx context.Context, chunk *Chunk[number, square]) error {
		_ = backoff.Sleep(ctx, nap)
		for _, item := range chunk.Items() {
			item.Reply(square{})
		}
		ended <- end{chunk.Meta().Slice, time.Now()}
		return nil
	}, Concurrency(1)))
	check(t, HandleEach(svc, "each", func(ctx context.Context, _ number) (square, error) {
		_ = backoff.Sleep(ctx, nap)
		return square{}, nil
	}, Concurrency(1)))
	toList := To[number, square]("list")
	check(t, HandleFlow(svc, "flow", numberStages{
		perItem(func(item *numberItem) { toList.Ask(item, number{}) }),
		perItem(func(item *numberItem) { item.Reply(square{}) }),
	}))
	b.Run(svc)
	b.ask("list", numbers(2))
	b.ask("list", numbers(2))
	replies := b.collect(2)
	first, second := await(t, "end of the first", ended), await(t, "end of the second", ended)
	one, other := replies[first.slice].took, replies[second.slice].took
	// They were worked on one at a time.
	if since := time.Since(first.at); one < nap || other < nap || other > since {
		t.Errorf("two lists took %s and %s, the second within %s; each was worked on for %s", one, other, since, nap)
	}
	if took := b.reply("each", numbers(2)).took; took < 2*nap {
		t.Errorf("two items after one another took %s", took)
	}
	if took := b.reply("flow", numbers(2)).took; took < nap {
		t.Errorf("a flow took %s", took)
	}
}

// finished counts how often each slice was handled to its end.
type finished struct {
	mu sync.Mutex
	by map[uuid.UUID]int
}

func (f *finished) handle(_ context.Context, chunk *Chunk[number, square]) error {
	for _, item := range chunk.Items() {
		item.Reply(square{item.In.N})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by[chunk.Meta().Slice]++
	return nil
}

func (f *finished) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.by)
}

// TestCleanStopsRepeatNothing has instances come and go under load, as in a deployment. What is redelivered is what was
// not begun.
func TestCleanStopsRepeatNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	names := []string{"one", "two", "three"}
	const rounds, each = 3, 150
	for _, name := range names {
		b.shortWait(name, patience/4) // so that what was not acknowledged comes back in this test
	}
	done, watch := &finished{by: map[uuid.UUID]int{}}, testenv.NewWatch(t)
	instance := func() (stop func() error) {
		svc := b.service()
		for _, name := range names {
			check(t, HandleList(svc, name, done.handle, Concurrency(3)))
		}
		return b.Run(svc)
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		for n := range rounds * each {
			_, msg := b.request(names[n%len(names)], numbers(3))
			if _, err := b.js.PublishMsg(b.ctx, msg); err != nil {
				t.Error(err)
				return
			}
		}
	})
	t.Cleanup(asking.Wait)
	for round := 1; round <= rounds; round++ {
		stop := instance()
		eventually(t, "it is at work", func() bool { return done.len() >= round*each/2 })
		check(t, stop()) // with pulls open, and chunks at work
	}
	asking.Wait()
	stop := instance()
	b.collect(rounds * each)
	for _, name := range names {
		b.done(wire.StreamWork, name)
	}
	check(t, stop())
	again := 0
	for slice, times := range done.by {
		if again += times - 1; times != 1 {
			t.Logf("slice %s was finished %d times", slice, times)
		}
	}
	// On a machine that is stalled the server may not say in time whom to acknowledge to.
	missed := b.logged.FilterMessageSnippet("could not acknowledge a request").Len()
	if stood := watch.Longest() > stream.AckTimeout/2; again > 0 && (!stood || again > missed) {
		t.Errorf("%d slices were finished again", again)
	}
	testenv.Same(t, len(done.by), rounds*each, "slices were finished")
}

// set does what a node does for an operator.
func (b *bundle) set(endpoint string, settings stream.ConsumerSettings) {
	b.t.Helper()
	consumer := testenv.Must(b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName(endpoint)))(b.t)
	check(b.t, stream.SetConsumer(b.ctx, b.js, consumer, settings))
}

func TestConcurrencyChangesWhileRunning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("list", 300*time.Millisecond)
	svc, g := b.service(), newGate(t)
	check(t, HandleList(svc, "list", g.handle, Concurrency(1)))
	b.Run(svc)
	for range 8 {
		b.ask("list", numbers(1))
	}
	begun := func(more int) {
		t.Helper()
		for range more {
			await(t, "chunk", g.begun)
		}
		testenv.Same(t, len(g.begun), 0, "more are at work")
	}
	begun(1)
	check(t, svc.SetConcurrency("list", 3))
	begun(2)
	b.set("list", stream.ConsumerSettings{Concurrency: 5})
	begun(2)
	check(t, svc.SetConcurrency("list", 7)) // waits for its turn
	testenv.Same(t, svc.Stats()[0].Concurrency, 5, "the concurrency while an operator says 5")
	b.set("list", stream.ConsumerSettings{})
	begun(2)
	check(t, svc.SetConcurrency("list", 0))
	testenv.Same(t, svc.Stats()[0].Concurrency, 1, "the concurrency while the option says 1")
	g.let()
	b.collect(8)
	testenv.Same(t, b.logged.FilterMessageSnippet("the concurrency was changed").Len(), 4, "changes are logged")
}

// TestConcurrencyOfItemsChangesWithinAChunk has a chunk in progress get more workers, and fewer.
func TestConcurrencyOfItemsChangesWithinAChunk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	steps := make(chan struct{})
	svc := serveEach(b, "each", func(ctx context.Context, in number) (square, error) {
		<-steps
		return squares(ctx, in)
	}, Concurrency(1))
	b.ask("each", numbers(30))
	used := func(n int64) {
		t.Helper()
		eventually(t, "so many are at work", func() bool { return svc.endpoints[0].Slots.Used[serve.Chunks].Load() == n })
	}
	used(1)
	check(t, svc.SetConcurrency("each", 4))
	used(4)
	check(t, svc.SetConcurrency("each", 2))
	for range 4 {
		steps <- struct{}{}
	}
	used(2)
	close(steps)
	for _, w := range b.collect(1) {
		testenv.Same(t, w.answered, 30, "items answered")
	}
}

func TestSetConcurrencyRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	for want, err := range map[string]error{
		"it has no handler":  svc.SetConcurrency("other", 1),
		"-1 is not 0 to":     svc.SetConcurrency("square", -1),
		"1025 is not 0 to 1": svc.SetConcurrency("square", wire.MaxConcurrency+1),
	} {
		testenv.Says(t, err, want, "the error")
	}
}
