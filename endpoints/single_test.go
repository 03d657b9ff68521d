package endpoints

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
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
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// suspect asks for something that was abandoned before.
func (b *bundle) suspect(endpoint string) wire.Meta {
	b.t.Helper()
	return b.ask(endpoint, []payload{{0, `{"n":3}`}}, func(m *wire.Meta) { m.Deliveries = wire.SuspectDeliveries })
}

// mark returns what stands in the mark of a suspect, or 0.
func (b *bundle) mark(endpoint string, slice uuid.UUID) int {
	b.t.Helper()
	stream := testenv.Must(b.js.Stream(b.ctx, wire.StreamFlow))(b.t)
	msg, err := stream.GetLastMsgForSubject(b.ctx, "tranche.flow."+endpoint+"."+slice.String()+".begun")
	if err != nil {
		return 0
	}
	return testenv.Must(strconv.Atoi(string(msg.Data)))(b.t)
}

// TestSuspectThatKillsTwiceIsGivenUp has services lose all they have while they run a request.
func TestSuspectThatKillsTwiceIsGivenUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("killer", time.Second)
	meta := b.ask("killer", numbers(2))
	consumer := testenv.Must(b.js.Consumer(b.ctx, wire.StreamWork, "killer"))(t)
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
			w.fails(t, wire.CodeDeliveries, true, 0)
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
	testenv.Same(t, calls.Load(), serve.MaxBegun, "how often it was begun")
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
	check(t, HandleFlow(svc, "flow", joined()))
	check(t, HandleEach(svc, "double", doubleOf))
	check(t, HandleEach(svc, "square", squares))
	b.Run(svc)
	meta := b.suspect("flow")
	if w := b.collect(1)[meta.Slice]; w == nil || w.answered != 1 || string(w.slots[0].Data) != `{"square":21}` {
		t.Errorf("reply %+v", w)
	}
	alone := b.logged.FilterMessage("a suspect is handled").FilterField(zap.Bool("alone", true))
	if alone.Len() < 3 {
		t.Errorf("%d stages ran alone", alone.Len())
	}
	testenv.Same(t, svc.Stats()[0].Stages, 3, "stages of the flow")
}

// letters waits for n dead letters and returns all that there are.
func (b *bundle) letters(n int) []wire.DeadLetter {
	b.t.Helper()
	stream := testenv.Must(b.js.Stream(b.ctx, wire.StreamDead))(b.t)
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
		letter := testenv.Must(wire.ParseDeadLetter(msg.Subject, msg.Header, msg.Data))(b.t)
		letters = append(letters, letter)
	}
	testenv.MustSame(b.t, len(letters), n, "letters: %+v", letters)
	return letters
}

// askSingle publishes a request of one item, for a node that waits.
func (b *bundle) askSingle(endpoint, text string, deliveries int) wire.Meta {
	b.t.Helper()
	return b.ask(endpoint, []payload{{0, text}}, func(m *wire.Meta) { m.Mode, m.Deliveries = wire.ModeSingle, deliveries })
}

// Requests of one item are retried where that may help, and leave a letter where the handler did not decide.
func TestSingleRequestsThatDie(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var mu sync.Mutex
	tries := map[string]int{}
	try := func(endpoint string, n int) int {
		mu.Lock()
		defer mu.Unlock()
		key := fmt.Sprint(endpoint, n)
		tries[key]++
		return tries[key]
	}
	svc := b.service()
	check(t, HandleEach(svc, "each", func(ctx context.Context, in number) (square, error) {
		switch n := try("each", in.N); in.N {
		case 0:
			return square{}, Fail(wire.CodeTimeout, "no")
		case 1:
			return square{}, Retry(wire.CodePanic, "busy")
		case 2:
			panic("boom")
		case 3:
			return square{}, errors.New("plain")
		case 4:
			<-ctx.Done()
			return square{}, ctx.Err()
		default:
			if n == 1 {
				return square{}, Retry("locked", "row 7")
			}
			return square{42}, nil
		}
	}, Timeout(time.Second))) // enough to begin in
	check(t, HandleList(svc, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
		n := chunk.Items()[0].In.N
		switch try("list", n); n {
		case 0:
			return errors.New("no database")
		case 1:
			return Fail("gone", "permanently")
		default:
			return nil // and leaves the item out
		}
	}))
	check(t, HandleFlow(svc, "flow", []func(context.Context, *Stage[number, square, None, None]) error{
		func(_ context.Context, s *Stage[number, square, None, None]) error {
			item := s.Items()[0]
			switch try("flow", item.In.N); item.In.N {
			case 0:
				panic("boom")
			case 1:
				item.Fail("no", "way")
			default:
				item.Reply(square{item.In.N})
			}
			return nil
		}}))
	b.Run(svc)
	type outcome struct {
		endpoint, payload string
		code              string // "": it is answered
		dead              bool
		tries             int
		message           string
	}
	asked := map[uuid.UUID]outcome{}
	dead := map[uuid.UUID]outcome{}
	for _, o := range []outcome{
		{"each", "0", wire.CodeTimeout, false, 1, "no"},
		{"each", "1", wire.CodePanic, false, 2, "busy"},
		{"each", "2", wire.CodePanic, true, 1, "the handler panicked: boom"},
		{"each", "3", wire.CodeHandlerError, true, 1, "plain"},
		{"each", "4", wire.CodeTimeout, true, 2, "the handler did not end within its time"},
		{"each", "5", "", false, 2, ""},
		{"each", `"one"`, wire.CodeBadPayload, true, 0, ""},
		{"list", "0", wire.CodeHandlerError, true, 2, "no database"},
		{"list", "1", "gone", false, 1, "permanently"},
		{"list", "2", wire.CodeUnanswered, true, 2, "the handler left the item out"},
		{"flow", "0", wire.CodePanic, true, 2, "boom"},
		{"flow", "1", "no", false, 1, "way"},
		{"flow", "2", "", false, 1, ""},
		{"flow", `"x"`, wire.CodeBadPayload, true, 0, ""},
	} {
		meta := b.askSingle(o.endpoint, `{"n":`+o.payload+`}`, 2)
		if asked[meta.Slice] = o; o.dead {
			dead[meta.Slice] = o
		}
	}
	for slice, w := range b.collect(len(asked)) {
		o, failure := asked[slice], w.failure
		if failure == nil {
			failure = w.slots[0].Err
		}
		if failure == nil && o.code != "" || failure != nil && (failure.Code != o.code ||
			!strings.Contains(failure.Message, o.message)) || w.messages != 1 {
			t.Errorf("%+v: %v in %d messages", o, failure, w.messages)
		}
	}
	for _, endpoint := range []string{"each", "list", "flow"} {
		b.done(wire.StreamWork, endpoint)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, o := range asked {
		testenv.Same(t, tries[o.endpoint+o.payload], o.tries, "how often %+v was tried", o)
	}
	for _, letter := range b.letters(len(dead)) {
		o := dead[letter.Slice]
		if letter.Cause != o.code || letter.Items != 1 || letter.Mode != wire.ModeSingle || letter.Endpoint != o.endpoint ||
			!strings.HasPrefix(letter.Service, "tester@1.2.3 ") || letter.Deliveries != max(o.tries, 1) ||
			!strings.Contains(letter.Message, o.message) || !strings.Contains(string(letter.Body), o.payload) {
			t.Errorf("%+v has the letter %+v", o, letter)
		}
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
	consumer := testenv.Must(b.js.Consumer(b.ctx, wire.StreamWork, "work"))(t)
	for range 5 {
		check(t, b.next(consumer).NakWithDelay(time.Millisecond))
	}
	serveEach(b, "work", func(context.Context, number) (square, error) {
		return square{}, Retry("locked", "row 7")
	})
	err := await(t, "answer", answer)
	fails(t, err, "locked", true)
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
		w.fails(t, wire.CodeBadRequest, false)
	}
	b.done(wire.StreamWork, "work")
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
	b.logs("a dead letter could not be sent", 1)
	testenv.MustSame(t, b.pending(wire.StreamWork, "work"), 1, "requests without a letter")
	b.bound(wire.StreamDead, stream.DefaultDeadMaxBytes)
	if letter := b.letters(1)[0]; letter.Slice != meta.Slice || letter.Cause != wire.CodePanic {
		t.Errorf("%+v", letter)
	}
	b.done(wire.StreamWork, "work")
	b.letters(1)
}

// TestSingleRequestThatKillsItsService delivers a request to services that die with it, until the next one gives it up.
func TestSingleRequestThatKillsItsService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("deadly", 50*time.Millisecond)
	const deliveries = 2
	meta := b.askSingle("deadly", `{"n":1}`, deliveries)
	consumer := testenv.Must(b.js.Consumer(b.ctx, wire.StreamWork, "deadly"))(t)
	for range deliveries {
		b.next(consumer)
	}
	serveEach(b, "deadly", func(context.Context, number) (square, error) {
		t.Error("it was begun again")
		return square{}, nil
	})
	b.collect(1)[meta.Slice].fails(t, wire.CodeDeliveries, true)
	letter := b.letters(1)[0]
	if letter.Cause != wire.CodeDeliveries || letter.Deliveries <= deliveries || letter.Slice != meta.Slice {
		t.Errorf("%+v", letter)
	}
}
