package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/internal/reply"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

type number struct {
	N int `json:"n"`
}

type square struct {
	Square int `json:"square"`
}

func squares(_ context.Context, in number) (square, error) { return square{in.N * in.N}, nil }

func TestHandleEachAnswersEveryItem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "square", squares, Concurrency(4)))
	stop := b.Run(svc)
	w := b.reply("square", numbers(500))
	if w.answered != 500 || w.failure != nil || w.messages != 1 {
		t.Fatalf("answered %d, failure %v, messages %d", w.answered, w.failure, w.messages)
	}
	for i := range 500 {
		if want := fmt.Sprintf(`{"square":%d}`, i*i); string(w.slots[i].Data) != want {
			t.Fatalf("slot %d is %s, want %s", i, w.slots[i].Data, want)
		}
	}
	if !strings.HasPrefix(w.service, "tester@1.2.3 ") {
		t.Errorf("service %q", w.service)
	}
	check(t, stop())
	b.settled("square")
}

func TestHandleListRepliesAndFails(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleList(svc, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
		for n, item := range chunk.Items() {
			if chunk.Keys()[n] != item.Key || item.Info().Key != item.Key {
				return errors.New("keys are mixed up")
			}
			switch item.In.N {
			case 0:
				item.Fail("odd/code", "bad %s", "thing")
			case 1:
				item.Retry("busy", "later")
			case 2: // forgotten
			default:
				item.Reply(square{item.In.N * item.In.N})
				item.Reply(square{-1})
			}
		}
		return nil
	}))
	b.Run(svc)
	w := b.reply("list", numbers(5))
	if w.answered != 4 || w.failure != nil || len(w.slots) != 4 {
		t.Fatalf("answered %d, failure %v, slots %v", w.answered, w.failure, w.slots)
	}
	if e := w.slots[0].Err; e == nil || *e != (wire.SlotError{Code: "odd_code", Message: "bad thing", Retry: false}) {
		t.Errorf("slot 0: %v", e)
	}
	if e := w.slots[1].Err; e == nil || *e != (wire.SlotError{Code: "busy", Message: "later", Retry: true}) {
		t.Errorf("slot 1: %v", e)
	}
	if string(w.slots[3].Data) != `{"square":9}` {
		t.Errorf("slot 3: %s", w.slots[3].Data)
	}
	if b.logged.FilterMessageSnippet("answered twice").Len() != 2 {
		t.Error("the second answers were not logged")
	}
}

func TestHandlersSeeTheParamsOfTheRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "each", func(ctx context.Context, _ number) (string, error) {
		info := ItemOf(ctx)
		return fmt.Sprint(info.Param("year"), info.Param("month"), info.Params()), nil
	}))
	check(t, HandleList(svc, "list", func(_ context.Context, chunk *Chunk[number, string]) error {
		chunk.Params()["year"] = "0" // a copy
		item := chunk.Items()[0]
		item.Reply(fmt.Sprint(chunk.Param("year"), item.Info().Param("month"), chunk.Params()))
		return nil
	}))
	b.Run(svc)
	for _, endpoint := range []string{"each", "list"} {
		for params, want := range map[string]string{`{"year":"2026"}`: `"2026map[year:2026]"`, "": `"map[]"`} {
			builder := wire.NewRequestBuilder(endpoint, newMeta(), 1<<20)
			builder.SetParams([]byte(params))
			builder.Add(0, "k", []byte("{}"))
			b.publish(builder.Msg())
			for _, w := range b.collect(1) {
				if got := string(w.slots[0].Data); got != want {
					t.Errorf("%s with params %q: %s, want %s", endpoint, params, got, want)
				}
			}
		}
	}
}

func TestErrorsAndPanicsOfItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "each", func(ctx context.Context, in number) (square, error) {
		switch in.N {
		case 0:
			panic("no such thing")
		case 1:
			return square{}, errors.New("plain")
		case 2:
			return square{}, fmt.Errorf("read account: %w", Retry("locked", "row %d", 7))
		case 3:
			return square{}, Fail("unknown", "nobody")
		}
		if info := ItemOf(ctx); info.Key != "KEY-4" || info.Ordinal != 4 || info.Attempt != 1 {
			return square{}, fmt.Errorf("info is %+v", info)
		}
		return square{}, nil
	}))
	b.Run(svc)
	w := b.reply("each", append(numbers(5), payload{5, `{"n":"five"}`}, payload{6, `[]`}))
	want := map[int]wire.SlotError{
		0: {Code: wire.CodePanic, Message: "the handler panicked: no such thing", Retry: false},
		1: {Code: wire.CodeHandlerError, Message: "plain", Retry: false},
		2: {Code: "locked", Message: "read account: locked: row 7", Retry: true},
		3: {Code: "unknown", Message: "nobody", Retry: false},
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
}

func TestFailureOfAListSpeaksForTheRest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		end  func() error
		want wire.SlotError
	}{
		"panic": {func() error { panic("boom") }, wire.SlotError{Code: wire.CodePanic,
			Message: "the handler panicked: boom", Retry: true}},
		"error": {func() error { return errors.New("no database") },
			wire.SlotError{Code: wire.CodeHandlerError, Message: "no database", Retry: true}},
		"fail": {func() error { return fmt.Errorf("open: %w", Fail("gone", "for good")) },
			wire.SlotError{Code: "gone", Message: "open: gone: for good", Retry: false}},
		"retry": {func() error { return Retry("db", "down") }, wire.SlotError{Code: "db", Message: "down", Retry: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			svc := b.service()
			check(t, HandleList(svc, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
				chunk.Items()[0].Reply(square{1})
				return tc.end()
			}))
			b.Run(svc)
			w := b.reply("list", numbers(3))
			if w.answered != 1 || w.failure == nil || *w.failure != tc.want || w.slots[0].Err != nil {
				t.Errorf("answered %d, failure %v", w.answered, w.failure)
			}
		})
	}
}

func TestPartialReplies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	seen := make(chan struct{})
	check(t, HandleList(svc, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
		for i, item := range chunk.Items() {
			item.Reply(square{i})
			if i == 4 {
				chunk.Flush()
				await(t, "first part", seen)
			}
		}
		return nil
	}))
	b.Run(svc)
	meta := b.ask("list", numbers(10))
	recorder, err := stream.EnsureRecorder(b.ctx, b.js)
	check(t, err)
	msg := b.next(recorder)
	reply, err := wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{})
	check(t, err)
	if len(reply.Slots) != 5 || reply.Answered != -1 {
		t.Fatalf("the first part has %d slots and answered %d", len(reply.Slots), reply.Answered)
	}
	close(seen)
	check(t, msg.NakWithDelay(time.Millisecond)) // so that it may come after the final one
	w := b.collect(1)[meta.Slice]
	if w.messages != 2 || w.answered != 10 || len(w.slots) != 10 {
		t.Errorf("messages %d, answered %d, slots %d", w.messages, w.answered, len(w.slots))
	}
}

// TestLateFlushSendsNothing flushes a chunk whose final message is on its way.
func TestLateFlushSendsNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	kept := make(chan *Chunk[number, square], 1)
	check(t, HandleList(svc, "list", func(ctx context.Context, chunk *Chunk[number, square]) error {
		for _, item := range chunk.Items() {
			item.Reply(square{1})
		}
		kept <- chunk
		return b.js.DeleteStream(ctx, wire.StreamReply) // so that the final message stays on its way
	}))
	b.Run(svc)
	meta := b.ask("list", numbers(3))
	chunk := await(t, "chunk", kept)
	a := &chunk.job.Answers
	eventually(t, "the final message is written", func() bool {
		a.Mu.Lock()
		defer a.Mu.Unlock()
		return a.Closed && a.Buf != nil && bytes.HasSuffix(a.Buf.Bytes(), []byte(reply.ReplyClose))
	})
	chunk.Flush()
	b.streams()
	if w := b.collect(1)[meta.Slice]; w.messages != 1 || w.answered != 3 {
		t.Errorf("messages %d, answered %d", w.messages, w.answered)
	}
	eventually(t, "the request is acknowledged", func() bool { return b.backlog("list") == 0 })
	stream, err := b.js.Stream(b.ctx, wire.StreamReply)
	check(t, err)
	if n := stream.CachedInfo().State.LastSeq; n != 1 {
		t.Errorf("%d messages were sent", n)
	}
}

func TestLargeReplyIsSplitAndAnOversizeResultGoesInPieces(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 32 << 10 })
	svc := b.service()
	check(t, HandleEach(svc, "big", func(_ context.Context, in number) (string, error) {
		if in.N == 7 {
			return strings.Repeat("x", 40<<10), nil
		}
		return strings.Repeat("x", 10<<10), nil
	}, FlushBytes(1<<30)))
	b.Run(svc)
	w := b.reply("big", numbers(20))
	if w.answered != 20 || w.messages < 7 {
		t.Errorf("answered %d in %d messages", w.answered, w.messages)
	}
	for i := range 20 {
		slot := w.slots[i]
		if i == 7 {
			if string(slot.Data) != `"`+strings.Repeat("x", 40<<10)+`"` || slot.ContentType != wire.ContentTypeJSON {
				t.Errorf("slot 7: %d bytes of %q, %v", len(slot.Data), slot.ContentType, slot.Err)
			}
		} else if slot.Err != nil || len(slot.Data) != 10<<10+2 {
			t.Errorf("slot %d: %v", i, slot.Err)
		}
	}
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
	svc := b.service()
	pdf := []byte("%PDF-1.7\x00\xff")
	nested := func(deep int) jsontext.Value {
		return jsontext.Value(strings.Repeat("[", deep) + strings.Repeat("]", deep))
	}
	check(t, HandleEach(svc, "kinds", func(_ context.Context, in number) (any, error) {
		return []any{
			wire.Binary{ContentType: "application/pdf",
				Data: pdf}, &wire.Binary{Data: pdf}, nil, moody{}, moody{bad: true}, make(chan int),
			wire.Binary{ContentType: "no\nsuch"}, "<&\u2028>",
			nested(wire.DefaultMaxDepth), nested(wire.DefaultMaxDepth + 1),
		}[in.N], nil
	}, Concurrency(1), Compress(1)))
	b.Run(svc)
	w := b.reply("kinds", numbers(10))
	for i, contentType := range []string{"application/pdf", wire.DefaultBinaryType} {
		if s := w.slots[i]; s.ContentType != contentType || !bytes.Equal(s.Data, pdf) {
			t.Errorf("slot %d: %q %q", i, s.ContentType, s.Data)
		}
	}
	for i, want := range map[int]string{2: "null", 3: `"fine"`, 7: "\"<&\u2028>\"",
		8: string(nested(wire.DefaultMaxDepth))} {
		if got := string(w.slots[i].Data); got != want {
			t.Errorf("slot %d: %s, want %s", i, got, want)
		}
	}
	for _, i := range []int{4, 5, 6, 9} {
		if e := w.slots[i].Err; e == nil || e.Code != wire.CodeBadResult {
			t.Errorf("slot %d: %v", i, e)
		}
	}
}

func TestUnreadableRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	b.Run(svc)
	bad := newMeta()
	b.publish(&nats.Msg{Subject: wire.WorkSubject("square"), Header: bad.Request(), Data: []byte(`{"items":[{"i":1}]}`)})
	b.publish(&nats.Msg{Subject: wire.WorkSubject("square"), Data: []byte(`garbage`)})
	good := b.ask("square", numbers(1))
	found := b.collect(2)
	if w := found[bad.Slice]; w == nil || w.failure == nil || w.failure.Code != wire.CodeBadRequest || w.failure.Retry {
		t.Errorf("the unreadable request: %+v", w)
	}
	if w := found[good.Slice]; w == nil || w.answered != 1 {
		t.Errorf("the good request: %+v", w)
	}
	eventually(t, "the stream is empty", func() bool { return b.backlog("square") == 0 })
}

// shortWait gives an endpoint a consumer that delivers again soon.
func (b *bundle) shortWait(endpoint string, d time.Duration) {
	b.t.Helper()
	config := stream.ConsumerConfig(wire.ConsumerName(endpoint), wire.WorkSubject(endpoint))
	config.AckWait = d
	_, err := b.js.CreateConsumer(b.ctx, wire.StreamWork, config)
	check(b.t, err)
}

func TestSlowWorkIsNotDeliveredTwice(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("slow", time.Second)
	svc := b.service()
	var calls atomic.Int32
	check(t, HandleEach(svc, "slow", func(ctx context.Context, _ number) (square, error) {
		calls.Add(1)
		return square{}, backoff.Sleep(ctx, 4*time.Second)
	}))
	b.Run(svc)
	if w := b.reply("slow", numbers(1)); w.answered != 1 || w.messages != 1 {
		t.Errorf("answered %d in %d messages", w.answered, w.messages)
	}
	if n := calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

func TestRequestThatKillsServicesIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("killer", 50*time.Millisecond)
	meta := b.ask("killer", numbers(3))
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, "killer")
	check(t, err)
	for range wire.DefaultDeliveries { // services that die while they hold it
		b.next(consumer)
	}
	svc := b.service()
	check(t, HandleEach(svc, "killer", func(context.Context, number) (square, error) {
		t.Error("the handler was called")
		return square{}, nil
	}))
	b.Run(svc)
	w := b.collect(1)[meta.Slice]
	if w.failure == nil || w.failure.Code != wire.CodeDeliveries || !w.failure.Retry || w.answered != 0 {
		t.Errorf("answered %d, failure %v", w.answered, w.failure)
	}
}

// handBack takes the one request of an endpoint so many times, and hands it back.
func (b *bundle) handBack(endpoint string, times int) {
	b.t.Helper()
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName(endpoint))
	check(b.t, err)
	for range times {
		check(b.t, b.next(consumer).NakWithDelay(time.Millisecond))
	}
}

// TestRequestThatWasHandedBackIsStillServed has several services stop before they get to a request.
func TestRequestThatWasHandedBackIsStillServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, stream.EnsureConsumer(b.ctx, b.js, "square", stream.ConsumerSettings{}))
	meta := b.ask("square", numbers(3))
	b.handBack("square", 10)
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	b.Run(svc)
	if w := b.collect(1)[meta.Slice]; w.failure != nil || w.answered != 3 {
		t.Errorf("answered %d, failure %v", w.answered, w.failure)
	}
}

func TestDrainFinishesRunningWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.service()
	begun, finish := make(chan struct{}, 10), make(chan struct{})
	check(t, HandleList(first, "work", func(_ context.Context, chunk *Chunk[number, square]) error {
		begun <- struct{}{}
		<-finish
		for _, item := range chunk.Items() {
			item.Reply(square{1})
		}
		return nil
	}, Concurrency(1)))
	stop := b.Run(first)
	b.ask("work", numbers(2))
	b.ask("work", numbers(2))
	b.ask("work", numbers(2))
	await(t, "first chunk", begun)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()

	second := b.service()
	var others atomic.Int32
	check(t, HandleList(second, "work", func(_ context.Context, chunk *Chunk[number, square]) error {
		others.Add(1)
		for _, item := range chunk.Items() {
			item.Reply(square{2})
		}
		return nil
	}))
	b.Run(second)
	b.collect(2) // what the first had fetched, but not begun, was handed over at once
	close(finish)
	check(t, await(t, "end of Run", stopped))
	b.collect(1)
	b.settled("work")
	if n := others.Load(); n != 2 { // with none that was delivered again
		t.Errorf("the second service had %d chunks", n)
	}
	if len(begun) != 0 {
		t.Error("the first service began a chunk after it was told to stop")
	}
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
	if w.answered != 2 || w.failure == nil || w.failure.Code != wire.CodeShutdown || !w.failure.Retry {
		t.Errorf("answered %d, failure %v", w.answered, w.failure)
	}
}

func TestHandlerTimeout(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleList(svc, "work", func(ctx context.Context, chunk *Chunk[number, square]) error {
		chunk.Items()[0].Reply(square{})
		<-ctx.Done()
		return ctx.Err()
	}, Timeout(20*time.Millisecond)))
	b.Run(svc)
	w := b.reply("work", numbers(2))
	if w.answered != 1 || w.failure == nil || w.failure.Code != wire.CodeTimeout || !w.failure.Retry {
		t.Errorf("answered %d, failure %v", w.answered, w.failure)
	}
}

func TestInstancesShareTheWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const chunks, slots = 40, 2
	share := &shares{handedOut: chunks - 2*2*slots, met: make(chan struct{})}
	for instance := range 2 {
		svc := b.service()
		check(t, HandleList(svc, "shared", func(ctx context.Context, chunk *Chunk[number, square]) error {
			share.meet(ctx, instance)
			for _, item := range chunk.Items() {
				item.Reply(square{})
			}
			return nil
		}, Concurrency(slots)))
		b.Run(svc)
	}
	eventually(t, "both wait for work", func() bool {
		consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName("shared"))
		return err == nil && consumer.CachedInfo().NumWaiting >= 2
	})
	for range chunks {
		b.ask("shared", numbers(2))
	}
	b.collect(chunks)
	share.mu.Lock()
	defer share.mu.Unlock()
	if n := share.begun; n[0]+n[1] != chunks || min(n[0], n[1]) < chunks/4 {
		t.Errorf("shares %v", n)
	}
}

// shares has two instances keep pace: none ends a chunk before the other has begun one for it, until so many are begun
// that either may hold the rest. One that held more than it can begin would leave the other without, for ever.
type shares struct {
	handedOut int

	mu    sync.Mutex
	begun [2]int
	met   chan struct{} // closed and made anew with each chunk that is begun
}

func (s *shares) meet(ctx context.Context, instance int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[instance]++
	mine := s.begun[instance]
	close(s.met)
	s.met = make(chan struct{})
	for s.begun[1-instance] < mine && s.begun[0]+s.begun[1] < s.handedOut && ctx.Err() == nil {
		met := s.met
		s.mu.Unlock()
		select {
		case <-met:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
}
