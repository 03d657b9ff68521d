package endpoints

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// letters waits for n dead letters and returns all that there are.
func (b *bundle) letters(n int) []wire.DeadLetter {
	b.t.Helper()
	stream, err := b.js.Stream(b.ctx, wire.StreamDead)
	check(b.t, err)
	eventually(b.t, "the letters are there", func() bool {
		info, err := stream.Info(b.ctx)
		return err == nil && info.State.Msgs >= uint64(n)
	})
	var letters []wire.DeadLetter
	for seq := uint64(1); ; seq++ {
		msg, err := stream.GetMsg(b.ctx, seq)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			break
		}
		check(b.t, err)
		letter, err := wire.ParseDeadLetter(msg.Subject, msg.Header, msg.Data)
		check(b.t, err)
		letters = append(letters, letter)
	}
	if len(letters) != n {
		b.t.Fatalf("there are %d letters, want %d: %+v", len(letters), n, letters)
	}
	return letters
}

// askSingle publishes a request of one item, for a node that waits.
func (b *bundle) askSingle(endpoint, payload string, deliveries int) wire.Meta {
	b.t.Helper()
	meta := newMeta()
	meta.Mode, meta.Deliveries = wire.ModeSingle, deliveries
	builder := wire.NewRequestBuilder(endpoint, meta, int(b.nc.MaxPayload()))
	builder.Add(0, "KEY-0", []byte(payload))
	b.publish(builder.Msg())
	return meta
}

func (b *bundle) settled(endpoint string) {
	b.t.Helper()
	eventually(b.t, "no request is left", func() bool { return b.backlog(endpoint) == 0 })
}

func TestSingleRequestIsTriedAgainUntilItWorks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var tries atomic.Int64
	serveEach(b, "work", func(context.Context, number) (square, error) {
		switch tries.Add(1) {
		case 1:
			return square{}, Retry("locked", "row 7")
		default:
			return square{42}, nil
		}
	})
	begun := time.Now()
	out, err := Call[number, square](b.ctx, b.nc, "work", "k", number{1})
	if err != nil || out.Square != 42 || tries.Load() != 2 {
		t.Errorf("%+v, %v after %d tries", out, err, tries.Load())
	}
	if took := time.Since(begun); took < serve.FirstRetry*3/4 {
		t.Errorf("tried again after %s", took)
	}
	b.settled("work")
	b.letters(0)
}

func TestSingleRequestThatDies(t *testing.T) {
	t.Parallel()
	type outcome struct {
		code    string
		dead    bool
		tries   int64
		message string
	}
	for name, tc := range map[string]struct {
		payload string
		handler func(context.Context, number) (square, error)
		want    outcome
	}{
		"fail": {`{"n":1}`, func(context.Context, number) (square, error) { return square{}, Fail(wire.CodeTimeout, "no") },
			outcome{wire.CodeTimeout, false, 1, "no"}},
		"retry": {`{"n":1}`, func(context.Context, number) (square, error) { return square{}, Retry(wire.CodePanic, "busy") },
			outcome{wire.CodePanic, false, 2, "busy"}},
		"panic": {`{"n":1}`, func(context.Context, number) (square, error) { panic("boom") },
			outcome{wire.CodePanic, true, 1, "the handler panicked: boom"}},
		"plain": {`{"n":1}`, func(context.Context, number) (square, error) { return square{}, errors.New("plain") },
			outcome{wire.CodeHandlerError, true, 1, "plain"}},
		"timeout": {`{"n":1}`, func(ctx context.Context, _ number) (square, error) {
			<-ctx.Done()
			return square{}, ctx.Err()
		},
			outcome{wire.CodeTimeout, true, 2, "the handler did not end within its time"}},
		"payload": {`"one"`, nil, outcome{wire.CodeBadPayload, true, 0, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			var tries atomic.Int64
			limit := DefaultTimeout
			if tc.want.code == wire.CodeTimeout && tc.want.dead {
				limit = time.Second // enough to begin in
			}
			serveEach(b, "work", func(ctx context.Context, in number) (square, error) {
				tries.Add(1)
				return tc.handler(ctx, in)
			}, Timeout(limit))
			meta := b.askSingle("work", tc.payload, 2)
			w := b.collect(1)[meta.Slice]
			e := w.slots[0].Err
			if e == nil || e.Code != tc.want.code || tries.Load() != tc.want.tries || w.messages != 1 {
				t.Fatalf("%v after %d tries in %d messages", e, tries.Load(), w.messages)
			}
			b.settled("work")
			if !tc.want.dead {
				b.letters(0)
				return
			}
			letter := b.letters(1)[0]
			if letter.Cause != tc.want.code || letter.Slice != meta.Slice || letter.Run != meta.Run || letter.Items != 1 ||
				letter.Mode != wire.ModeSingle || letter.Endpoint != "work" ||
				!strings.HasPrefix(letter.Service, "tester@1.2.3 ") ||
				letter.Deliveries != max(int(tc.want.tries), 1) || !strings.Contains(letter.Message, tc.want.message) ||
				time.Since(letter.At) > patience || !strings.Contains(string(letter.Body), tc.payload) {
				t.Errorf("%+v", letter)
			}
		})
	}
}

func TestSingleRequestOfAListThatDies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var tries atomic.Int64
	serveList(b, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
		switch tries.Add(1); chunk.Items()[0].In.N {
		case 0:
			return errors.New("no database")
		case 1:
			return Fail("gone", "for good")
		default:
			return nil // and leaves the item out
		}
	})
	for n, want := range []wire.SlotError{{Code: wire.CodeHandlerError, Message: "no database", Retry: true},
		{Code: "gone", Message: "for good", Retry: false},
		{Code: wire.CodeUnanswered, Message: "the handler left the item out", Retry: true}} {
		meta := b.askSingle("list", strings.Replace(`{"n":N}`, "N", string(rune('0'+n)), 1), 1)
		if w := b.collect(1)[meta.Slice]; w.failure == nil || *w.failure != want {
			t.Errorf("%d: %v", n, w.failure)
		}
	}
	b.settled("list")
	letters := b.letters(2)
	if letters[0].Cause != wire.CodeHandlerError || letters[1].Cause != wire.CodeUnanswered {
		t.Errorf("%+v", letters)
	}
}

// TestCallIsAnsweredWhenNoFurtherTryFits has a call be tried that was delivered so often that it would rest for longer
// than its caller waits.
func TestCallIsAnsweredWhenNoFurtherTryFits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, stream.EnsureConsumer(b.ctx, b.js, "work", stream.ConsumerSettings{}))
	ctx, cancel := context.WithTimeout(b.ctx, serve.LongestRetry*2/3) // it rests for three quarters at least
	defer cancel()
	answer := make(chan error, 1)
	go func() {
		_, err := Call[number, square](ctx, b.nc, "work", "k", number{1})
		answer <- err
	}()
	b.handBack("work", 5)
	serveEach(b, "work", func(context.Context, number) (square, error) {
		return square{}, Retry("locked", "row 7")
	})
	err := await(t, "answer", answer)
	var slot *wire.SlotError
	if !errors.As(err, &slot) || slot.Code != "locked" {
		t.Errorf("%v", err)
	}
}

func TestUnreadableRequestsAreBuried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveEach(b, "work", squares)
	single, batch := newMeta(), newMeta()
	single.Mode = wire.ModeSingle
	headless := batch.Request()
	delete(headless, wire.HeaderRun)
	headless[wire.HeaderMsgID] = []string{"headless"}
	other := newMeta()
	other.ReplyTo = wire.Return{Asker: "me", Callee: "other", Call: "x"}
	for _, h := range []nats.Header{nil, headless, other.Request(), batch.Request(), single.Request()} {
		b.publish(&nats.Msg{Subject: wire.WorkSubject("work"), Header: h, Data: []byte(`{"items":[`)})
	}
	for _, w := range b.collect(2) {
		if w.failure == nil || w.failure.Code != wire.CodeBadRequest {
			t.Errorf("%+v", w.failure)
		}
	}
	b.settled("work")
	ids := map[string]bool{}
	for _, letter := range b.letters(4) {
		ids[letter.MsgID] = true
		if letter.Cause != wire.CodeBadRequest || string(letter.Body) != `{"items":[` || letter.Slice == batch.Slice &&
			letter.Run != uuid.Nil {
			t.Errorf("%+v", letter)
		}
	}
	if len(ids) != 4 || !ids["dead.headless"] {
		t.Errorf("%v", ids)
	}
}

func TestRequestIsKeptWhileItCannotBeBuried(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.bound(wire.StreamDead, 1)
	serveEach(b, "work", func(context.Context, number) (square, error) { panic("boom") })
	meta := b.askSingle("work", `{"n":1}`, wire.DefaultDeliveries)
	if w := b.collect(1)[meta.Slice]; w.slots[0].Err == nil {
		t.Errorf("the caller waits for the stream of letters: %+v", w)
	}
	eventually(t, "the request is handed back", func() bool {
		return b.logged.FilterMessageSnippet("a dead letter could not be sent").Len() > 0
	})
	if b.backlog("work") != 1 {
		t.Fatal("the request is gone, and there is no letter")
	}
	b.bound(wire.StreamDead, stream.DefaultDeadMaxBytes)
	if letter := b.letters(1)[0]; letter.Slice != meta.Slice || letter.Cause != wire.CodePanic {
		t.Errorf("%+v", letter)
	}
	b.settled("work")
	b.letters(1)
}

// TestSingleRequestThatKillsItsService delivers a request to services that die with it, until the next one gives it up.
func TestSingleRequestThatKillsItsService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("deadly", 50*time.Millisecond)
	const deliveries = 2
	meta := b.askSingle("deadly", `{"n":1}`, deliveries)
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, "deadly")
	check(t, err)
	for range deliveries {
		b.next(consumer)
	}
	serveEach(b, "deadly", func(context.Context, number) (square, error) {
		t.Error("it was begun again")
		return square{}, nil
	})
	if w := b.collect(1)[meta.Slice]; w.failure == nil || w.failure.Code != wire.CodeDeliveries {
		t.Errorf("%+v", w)
	}
	letter := b.letters(1)[0]
	if letter.Cause != wire.CodeDeliveries || letter.Deliveries <= deliveries || letter.Slice != meta.Slice {
		t.Errorf("%+v", letter)
	}
}

func TestSingleRequestOfAFlowThatDies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var tries atomic.Int64
	serveFlow(b, "flow", []func(context.Context, *Stage[number, square, None, None]) error{
		func(_ context.Context, s *Stage[number, square, None, None]) error {
			tries.Add(1)
			switch item := s.Items()[0]; item.In.N {
			case 0:
				panic("boom")
			case 1:
				item.Fail("no", "way")
			default:
				item.Reply(square{item.In.N})
			}
			return nil
		},
	})
	for payload, code := range map[string]string{
		`{"n":0}`: wire.CodePanic, `{"n":1}`: "no", `{"n":2}`: "", `"x"`: wire.CodeBadPayload,
	} {
		meta := b.askSingle("flow", payload, 2)
		w := b.collect(1)[meta.Slice]
		got := ""
		if w.failure != nil {
			got = w.failure.Code
		} else if w.slots[0].Err != nil {
			got = w.slots[0].Err.Code
		}
		if got != code {
			t.Errorf("%s: %q, want %q", payload, got, code)
		}
	}
	b.settled("flow")
	causes := map[string]bool{}
	for _, letter := range b.letters(2) {
		causes[letter.Cause] = true
	}
	if !causes[wire.CodePanic] || !causes[wire.CodeBadPayload] || tries.Load() != 4 {
		t.Errorf("%v after %d tries", causes, tries.Load())
	}
}
