package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
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
	serveList(b, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
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
	})
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
			return square{}, Fail("unknown", "nobody")
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
	b.letters(0) // a batch request has none
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
			serveList(b, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
				chunk.Items()[0].Reply(square{1})
				return tc.end()
			})
			w := b.reply("list", numbers(3))
			if w.answered != 1 || w.failure == nil || *w.failure != tc.want || w.slots[0].Err != nil {
				t.Errorf("answered %d, failure %v", w.answered, w.failure)
			}
		})
	}
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
	eventually(t, "the request is acknowledged", func() bool { return b.backlog("list") == 0 })
	stream, err := b.js.Stream(b.ctx, wire.StreamReply)
	check(t, err)
	if n := stream.CachedInfo().State.LastSeq; n != 1 {
		t.Errorf("%d messages were sent", n)
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

// shortWait gives an endpoint a consumer that delivers again soon.
func (b *bundle) shortWait(endpoint string, d time.Duration) {
	b.t.Helper()
	config := stream.ConsumerConfig(wire.ConsumerName(endpoint), wire.WorkSubject(endpoint))
	config.AckWait = d
	_, err := b.js.CreateConsumer(b.ctx, wire.StreamWork, config)
	check(b.t, err)
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
	serveEach(b, "square", squares)
	if w := b.collect(1)[meta.Slice]; w.failure != nil || w.answered != 3 {
		t.Errorf("answered %d, failure %v", w.answered, w.failure)
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
