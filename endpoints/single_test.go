package endpoints

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// suspect asks for something that was given up before.
func (b *bundle) suspect(endpoint string) wire.Meta {
	b.t.Helper()
	return b.ask(endpoint, []payload{{0, `{"n":3}`}}, func(m *wire.Meta) { m.Deliveries = wire.SuspectDeliveries })
}

func TestSuspectRunsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	bystander, suspect := newGate(t), newGate(t)
	check(t, HandleList(svc, "bystander", bystander.handle, Concurrency(4)))
	check(t, HandleList(svc, "suspect", suspect.handle))
	b.Run(svc)
	b.ask("bystander", numbers(1))
	await(t, "bystander", bystander.begun)
	meta := b.suspect("suspect")
	waits := func() bool {
		svc.host.Suspects.Mu.Lock()
		defer svc.host.Suspects.Mu.Unlock()
		return len(svc.host.Suspects.Queue) == 1
	}
	eventually(t, "the suspect waits to be alone", waits)
	if len(suspect.begun) != 0 {
		t.Fatal("the suspect runs beside another")
	}
	bystander.let()
	await(t, "suspect", suspect.begun)
	eventually(t, "the first bystander has gone", func() bool { return svc.endpoints[0].Held() == 0 })
	eventually(t, "it is marked", func() bool { return b.mark("suspect", meta.Slice) == 1 })
	b.ask("bystander", numbers(1))
	eventually(t, "the next is there", func() bool { return svc.endpoints[0].Held() == 1 })
	if n := bystander.calls.Load(); n != 1 {
		t.Errorf("another runs beside the suspect: %d calls", n)
	}
	suspect.let()
	b.collect(3)
	if n := b.mark("suspect", meta.Slice); n != 0 {
		t.Errorf("the mark says %d after the end", n)
	}
}

// mark returns what stands in the mark of a suspect, or 0.
func (b *bundle) mark(endpoint string, slice uuid.UUID) int {
	b.t.Helper()
	stream, err := b.js.Stream(b.ctx, wire.StreamFlow)
	check(b.t, err)
	msg, err := stream.GetLastMsgForSubject(b.ctx, "tranche.flow."+endpoint+"."+slice.String()+".begun")
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(string(msg.Data))
	check(b.t, err)
	return n
}

// TestSuspectThatKillsTwiceIsGivenUp has services lose all they have while they run a request.
func TestSuspectThatKillsTwiceIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("killer", time.Second)
	meta := b.ask("killer", numbers(2))
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, "killer")
	check(t, err)
	for range serve.SuspectFrom - 1 {
		b.next(consumer)
	}
	var calls atomic.Int32
	for n := range serve.MaxBegun + 1 {
		svc := b.service(func(c *Config) { c.DrainTimeout = time.Millisecond })
		begun := make(chan struct{}, 1)
		check(t, HandleList(svc, "killer", func(ctx context.Context, _ *Chunk[number, square]) error {
			calls.Add(1)
			begun <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}))
		stop := b.Run(svc)
		if n == serve.MaxBegun {
			w := b.collect(1)[meta.Slice]
			if w.failure == nil || w.failure.Code != wire.CodeDeliveries || !w.failure.Retry || w.answered != 0 {
				t.Errorf("answered %d, failure %v", w.answered, w.failure)
			}
			if s := svc.Stats()[0]; s.GivenUp != 1 || s.Redelivered != 1 {
				t.Errorf("stats %+v", s)
			}
			break
		}
		await(t, "suspect", begun)
		eventually(t, "it is marked", func() bool { return b.mark("killer", meta.Slice) == n+1 })
		svc.host.NC.Close()
		_ = stop()
	}
	if n := calls.Load(); n != serve.MaxBegun {
		t.Errorf("it was begun %d times", n)
	}
}

func TestSuspectRunsWithoutAMark(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamFlow))
	serveEach(b, "square", squares)
	meta := b.suspect("square")
	if w := b.collect(1)[meta.Slice]; w.failure != nil || w.answered != 1 {
		t.Errorf("answered %d, failure %v", w.answered, w.failure)
	}
}

// TestSuspectThatAsksItsOwnProcess has the handler of a suspect wait for what another endpoint of the process does.
func TestSuspectThatAsksItsOwnProcess(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	svc.host.Suspects.Timeout = 100 * time.Millisecond
	helped := make(chan struct{}, 2)
	check(t, HandleEach(svc, "helper", func(ctx context.Context, in number) (square, error) {
		helped <- struct{}{}
		return squares(ctx, in)
	}))
	check(t, HandleEach(svc, "suspect", func(ctx context.Context, in number) (square, error) {
		b.ask("helper", numbers(1)) // for no one that could be known
		await(t, "help", helped)
		return squares(ctx, in)
	}))
	b.Run(svc)
	b.suspect("suspect")
	b.collect(2)
	if n := b.logged.FilterMessageSnippet("others are handled beside it").Len(); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

func TestSuspectIsHandedBackAtTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc, other := b.service(), b.service()
	bystander := newGate(t)
	check(t, HandleList(svc, "bystander", bystander.handle))
	check(t, HandleEach(svc, "square", squares))
	check(t, HandleEach(other, "square", squares))
	stop := b.Run(svc)
	b.ask("bystander", numbers(1))
	await(t, "bystander", bystander.begun)
	meta := b.suspect("square")
	eventually(t, "the suspect waits", func() bool { return svc.endpoints[1].Held() == 1 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	b.Run(other)
	if w := b.collect(1)[meta.Slice]; w == nil || w.answered != 1 {
		t.Errorf("the suspect: %+v", w)
	}
	bystander.let()
	check(t, await(t, "end of Run", stopped))
}

// TestSuspectFlowWaitsForNothingOfItsOwn has a flow and what it asks in one process, all of it suspect.
func TestSuspectFlowWaitsForNothingOfItsOwn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleFlow(svc, "flow", threeStages()))
	check(t, HandleEach(svc, "double", doubleOf))
	check(t, HandleEach(svc, "square", squares))
	b.Run(svc)
	meta := b.suspect("flow")
	if w := b.collect(1)[meta.Slice]; w == nil || w.answered != 1 || string(w.slots[0].Data) != `{"square":36}` {
		t.Errorf("reply %+v", w)
	}
	alone := b.logged.FilterMessage("a suspect is handled").FilterField(zap.Bool("alone", true))
	if alone.Len() < 3 {
		t.Errorf("%d stages ran alone", alone.Len())
	}
	if n := svc.Stats()[0].Stages; n != 3 {
		t.Errorf("the flow has %d stages", n)
	}
}

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
func (b *bundle) askSingle(endpoint, text string, deliveries int) wire.Meta {
	b.t.Helper()
	return b.ask(endpoint, []payload{{0, text}}, func(m *wire.Meta) { m.Mode, m.Deliveries = wire.ModeSingle, deliveries })
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
		t.Errorf("retried after %s", took)
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
			return Fail("gone", "permanently")
		default:
			return nil // and leaves the item out
		}
	})
	for n, want := range []wire.SlotError{{Code: wire.CodeHandlerError, Message: "no database", Retry: true},
		{Code: "gone", Message: "permanently", Retry: false},
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
	b.nak("work", 5)
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
