package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// both calls f over JetStream, and then over core NATS. The log of a test that fails says over which. They are no
// subtests: a parallel one waits for its turn among all tests, while the time of its bundle runs out.
func both(t *testing.T, f func(opts ...CallOption)) {
	t.Helper()
	t.Log("through JetStream")
	f()
	t.Log("over core NATS")
	f(Direct())
}

// listening waits until an endpoint takes requests both ways.
func (b *bundle) listening(endpoint string) {
	b.t.Helper()
	eventually(b.t, endpoint+" listens", func() bool {
		consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName(endpoint))
		subs := testenv.Must(b.server.Subsz(&server.SubszOptions{Subscriptions: true, Limit: 10000,
			Account: b.account.Name}))(b.t)
		direct := func(sub server.SubDetail) bool { return sub.Subject == wire.DirectSubject(endpoint) }
		return err == nil && consumer.CachedInfo().NumWaiting > 0 && slices.ContainsFunc(subs.Subs, direct)
	})
}

func callItems(n int) []CallItem[number] {
	items := make([]CallItem[number], n)
	for i := range items {
		items[i] = CallItem[number]{fmt.Sprintf("KEY-%d", i), number{i}}
	}
	return items
}

func TestCallGivesTheAnswer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveEach(b, "square", func(ctx context.Context, in number) (square, error) {
		info := ItemOf(ctx)
		switch {
		case in.N < 0:
			return square{}, Fail("negative", "%d is below 0", in.N)
		case info.Key != "k" || info.Param("year") != "2026" || info.Origin != "me" || info.ReplyTo.Asker != "web" ||
			TraceOf(ctx).Parent != someParent:
			return square{}, Fail("info", "%+v", info)
		}
		return square{in.N * in.N}, nil
	})
	b.listening("square")
	both(t, func(opts ...CallOption) {
		opts = append(opts, CallParams(map[string]string{"year": "2026"}), CallOrigin("me"), CallerName("web"))
		ctx := ContextWithTrace(b.ctx, wire.Trace{Parent: someParent})
		out := testenv.Must(Call[number, square](ctx, b.nc, "square", "k", number{7}, opts...))(t)
		testenv.Same(t, out.Square, 49, "the square")
		_, err := Call[number, square](b.ctx, b.nc, "square", "k", number{-1}, opts...)
		slot := testenv.As[*wire.SlotError](t, err, "a number that is refused")
		testenv.Same(t, *slot, wire.SlotError{Code: "negative", Message: "-1 is below 0"}, "the error")
		_, err = Call[string, square](b.ctx, b.nc, "square", "k", "seven", opts...)
		fails(t, err, wire.CodeBadPayload, false)
		_, err = Call[number, string](ctx, b.nc, "square", "k", number{1}, opts...)
		fails(t, err, wire.CodeBadAnswer, false)
		raw, err := Call[number, wire.Binary](ctx, b.nc, "square", "k", number{2}, opts...)
		if err != nil || raw.ContentType != wire.ContentTypeJSON || string(raw.Data) != `{"square":4}` {
			t.Errorf("%+v, %v", raw, err)
		}
	})
	b.done(wire.StreamWork, "square")
}

func TestCallListOfManyItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveList(b, "list", each(func(item *Item[number, square]) {
		switch item.In.N % 5000 {
		case 17:
			item.Fail("bad", "%s", item.Key)
		case 18: // left out
		default:
			item.Reply(square{item.In.N * item.In.N})
		}
	}), Compress(1<<10), FlushBytes(16<<10))
	b.listening("list")
	both(t, func(opts ...CallOption) {
		results := testenv.Must(CallList[number, square](b.ctx, b.nc, "list", callItems(10_000), opts...))(t)
		for n, r := range results {
			switch n % 5000 {
			case 17:
				if r.Err == nil || *r.Err != (wire.SlotError{Code: "bad", Message: r.Key, Retry: false}) {
					t.Fatalf("item %d: %v", n, r.Err)
				}
			case 18:
				if r.Err == nil || r.Err.Code != wire.CodeUnanswered || !r.Err.Retry {
					t.Fatalf("item %d: %v", n, r.Err)
				}
			default:
				if r.Err != nil || r.Out.Square != n*n || r.Key != fmt.Sprintf("KEY-%d", n) {
					t.Fatalf("item %d: %+v", n, r)
				}
			}
		}
	})
}

func TestCallListCutsByMaxPayload(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	var requests atomic.Int64
	serveList(b, "echo", func(_ context.Context, chunk *Chunk[string, string]) error {
		requests.Add(1)
		for _, item := range chunk.Items() {
			item.Reply(item.In + item.In) // so that the reply takes more messages than the requests
		}
		return nil
	})
	b.listening("echo")
	both(t, func(opts ...CallOption) {
		items := make([]CallItem[string], 300)
		for n := range items {
			items[n] = CallItem[string]{"k", strings.Repeat("x", 10_000)}
		}
		items[7].In = strings.Repeat("x", 100_000)
		results := testenv.Must(CallList[string, string](b.ctx, b.nc, "echo", items, opts...))(t)
		for n, r := range results {
			switch {
			case n == 7 && (r.Err == nil || r.Err.Code != wire.CodeQueryTooLarge):
				t.Fatalf("item %d: %v", n, r.Err)
			case n != 7 && (r.Err != nil || len(r.Out) != 20_000):
				t.Fatalf("item %d: %v", n, r.Err)
			}
		}
	})
	if n := requests.Load(); n < 100 {
		t.Errorf("%d requests", n)
	}
}

func TestFailureOfAChunkIsTheErrorOfItsItems(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveList(b, "list", func(_ context.Context, chunk *Chunk[number, square]) error {
		chunk.Items()[0].Reply(square{1})
		return Retry("db", "down")
	})
	b.listening("list")
	both(t, func(opts ...CallOption) {
		results := testenv.Must(CallList[number, square](b.ctx, b.nc, "list", callItems(3), opts...))(t)
		want := wire.SlotError{Code: "db", Message: "down", Retry: true}
		if results[0].Err != nil || *results[1].Err != want || *results[2].Err != want || results[1].Err == results[2].Err {
			t.Errorf("%+v", results)
		}
	})
}

func TestCallWithoutListeners(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun := time.Now()
	_, err := Call[number, square](b.ctx, b.nc, "nobody", "k", number{1}, Direct())
	var nobody *NoListenersError
	if !errors.As(err, &nobody) || nobody.Endpoint != "nobody" || time.Since(begun) > patience/2 {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
	var results []CallResult[square]
	for late := true; late && b.ctx.Err() == nil; { // on a slow machine the stream may not take the request in time
		ctx, cancel := context.WithTimeout(b.ctx, 2*time.Second)
		results, err = CallList[number, square](ctx, b.nc, "nobody", callItems(2))
		cancel()
		_, late = errors.AsType[*RequestError](err)
	}
	var unanswered *UnansweredError
	if !errors.As(err, &unanswered) || !errors.Is(err, context.DeadlineExceeded) || unanswered.Items != 2 ||
		unanswered.Answered != 0 || results[1].Err == nil || results[1].Err.Code != wire.CodeUnanswered {
		t.Errorf("%v, %+v", err, results)
	}
	stream := testenv.Must(b.js.Stream(b.ctx, wire.StreamWork))(t)
	eventually(t, "the request vanishes with its time", func() bool {
		info, err := stream.Info(b.ctx)
		return err == nil && info.State.Msgs == 0
	})
}

func TestCallThatIsCancelled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	begun, end := make(chan struct{}, 2), make(chan struct{})
	serveEach(b, "slow", func(context.Context, number) (square, error) {
		begun <- struct{}{}
		<-end
		return square{1}, nil
	})
	b.listening("slow")
	var calls sync.WaitGroup
	for _, opts := range [][]CallOption{nil, {Direct()}} {
		ctx, cancel := context.WithCancel(b.ctx)
		calls.Go(func() {
			_, err := Call[number, square](ctx, b.nc, "slow", "k", number{1}, opts...)
			testenv.Is(t, err, context.Canceled, "a call that is cancelled")
		})
		await(t, "handler", begun)
		cancel()
	}
	calls.Wait()
	close(end)
	b.done(wire.StreamWork, "slow")
}

func TestCallThatTheStreamDoesNotTake(t *testing.T) {
	t.Parallel()
	for says, spoil := range map[string]func(*bundle){
		"start a Tranche node":    func(b *bundle) { check(b.t, b.js.DeleteStream(b.ctx, wire.StreamWork)) },
		"services do not keep up": func(b *bundle) { b.bound(wire.StreamWork, 1) },
	} {
		b := setup(t)
		spoil(b)
		ctx, cancel := context.WithTimeout(b.ctx, 2*time.Second)
		_, err := Call[number, square](ctx, b.nc, "square", "k", number{1})
		cancel()
		testenv.Says(t, testenv.As[*RequestError](t, err, "%s", says), says, "the call")
	}
}

func TestCallWithoutPermission(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) {
		o.Users, o.NoAuthUser = []*server.User{{Username: "all", Password: "p"}}, "all"
		for user, hears := range map[string][]string{"mute": {"_INBOX.>", "tranche.call.web.>"},
			"deaf": {"tranche.call.web.>"}} {
			o.Users = append(o.Users, &server.User{Username: user, Password: "p", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: []string{"tranche.work.open", "tranche.direct.open"}},
				Subscribe: &server.SubjectPermission{Allow: hears},
			}})
		}
	})
	for name, tc := range map[string]struct {
		user, endpoint, subject string
		opts                    []CallOption
	}{
		"request":         {"mute", "shut", "tranche.work.shut", []CallOption{CallerName("web")}},
		"direct request":  {"mute", "shut", "tranche.direct.shut", []CallOption{CallerName("web"), Direct()}},
		"answers":         {"mute", "open", "tranche.call.caller.>", nil},
		"acknowledgement": {"deaf", "open", "_INBOX.>", []CallOption{CallerName("web")}},
	} {
		nc := testenv.Must(nats.Connect(b.server.ClientURL(), nats.UserInfo(tc.user, "p"), nats.Timeout(patience)))(t)
		t.Cleanup(nc.Close)
		begun := time.Now()
		_, err := Call[number, square](b.ctx, nc, tc.endpoint, "k", number{1}, tc.opts...)
		var denied *stream.PermissionError
		if !errors.As(err, &denied) || denied.Subject != tc.subject || time.Since(begun) > patience/2 {
			t.Errorf("%s: %v after %s", name, err, time.Since(begun))
		}
	}
}

// answerer is a service without the SDK: it answers each direct request with what f makes of it.
func (b *bundle) answerer(endpoint string, f func(request *nats.Msg) []*nats.Msg) {
	b.t.Helper()
	nc := b.connect()
	testenv.Must(nc.QueueSubscribe(wire.DirectSubject(endpoint), wire.DirectQueue, func(request *nats.Msg) {
		for _, msg := range f(request) {
			msg.Subject = request.Header.Get(wire.HeaderReplyTo)
			for name, values := range request.Header {
				if _, set := msg.Header[name]; !set {
					msg.Header[name] = values
				}
			}
			_ = nc.PublishMsg(msg)
		}
	}))(b.t)
	check(b.t, nc.Flush())
}

func slotsMsg(body string, header ...string) *nats.Msg {
	msg := &nats.Msg{Header: nats.Header{}, Data: []byte(body)}
	for n := 0; n < len(header); n += 2 {
		msg.Header[header[n]] = []string{header[n+1]}
	}
	return msg
}

func TestCallTakesTheFirstOfSeveralAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.answerer("odd", func(*nats.Msg) []*nats.Msg {
		return []*nats.Msg{
			slotsMsg(`{"slots":[{"i":1,"d":1},{"i":1,"d":2},{"i":99,"d":3}]}`),
			slotsMsg(`{"slots":[{"i":0,"d":5}]}`, wire.HeaderSlice, "5b0c4c1e-8f2c-4a57-9d3e-1f60a7c2d9b4"),
			slotsMsg(`{"slots":[{"i":1,"d":4}],"error":{"code":"first","message":"","retry":false}}`, wire.HeaderFinal, "3"),
			slotsMsg(`{"slots":[],"error":{"code":"second","message":"","retry":false}}`, wire.HeaderFinal, "0"),
			slotsMsg(`{"slots":[{"i":2,"d":6}]}`),
		}
	})
	b.answerer("whole", func(*nats.Msg) []*nats.Msg {
		return []*nats.Msg{slotsMsg(`{"slots":[{"i":1,"d":1},{"i":1,"d":2}]}`, wire.HeaderFinal, "2")}
	})
	results := testenv.Must(CallList[number, int](b.ctx, b.nc, "odd", callItems(4), Direct()))(t)
	if results[1].Out != 1 || results[2].Out != 6 || results[0].Err == nil || results[0].Err.Code != "first" ||
		results[3].Err == nil || results[3].Err.Code != "first" {
		t.Errorf("%+v", results)
	}
	results = testenv.Must(CallList[number, int](b.ctx, b.nc, "whole", callItems(2), Direct()))(t)
	if results[1].Out != 1 || results[0].Err == nil || results[0].Err.Code != wire.CodeUnanswered {
		t.Errorf("%+v", results)
	}
}

func TestCallNamesAReplyThatCannotBeRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.answerer("broken", func(*nats.Msg) []*nats.Msg {
		return []*nats.Msg{slotsMsg(`{"slots":[{`, wire.HeaderService, "broken@1.0.0 x")}
	})
	_, err := Call[number, int](b.ctx, b.nc, "broken", "k", number{1}, Direct())
	var bad *BadReplyError
	var why *wire.MalformedError
	if !errors.As(err, &bad) || bad.Service != "broken@1.0.0 x" || !errors.As(err, &why) || why.Reason != wire.ReasonJSON {
		t.Errorf("%v", err)
	}
}

func TestHandlerThatCallsItselfIsStopped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	nc := b.connect()
	var depth atomic.Int64
	serveEach(b, "circle", func(ctx context.Context, in number) (number, error) {
		depth.Add(1)
		info := ItemOf(ctx)
		if info.Stack.Depth() > 0 && (info.Root == info.Slice || info.ReplyTo.Asker != "circle" || info.Origin != "me") {
			return number{}, Fail("info", "%+v", info)
		}
		return Call[number, number](ctx, nc, "circle", "k", in, Direct())
	}, Concurrency(2*wire.MaxStack))
	b.listening("circle")
	_, err := Call[number, number](b.ctx, b.nc, "circle", "k", number{1}, Direct(), CallOrigin("me"))
	var slot *wire.SlotError
	if !errors.As(err, &slot) || slot.Code != wire.CodeStackTooDeep || slot.Retry || depth.Load() != wire.MaxStack+1 {
		t.Errorf("%v at a depth of %d", err, depth.Load())
	}
}

func TestCallRefusesWhatCannotBe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, call := range map[string]func() error{
		"endpoint": func() error { _, err := Call[int, int](b.ctx, b.nc, "a.b", "k", 1); return err },
		"caller":   func() error { _, err := Call[int, int](b.ctx, b.nc, "a", "k", 1, CallerName("a b")); return err },
		"params": func() error {
			params := map[string]string{"a": strings.Repeat("x", maxParams)}
			_, err := Call[int, int](b.ctx, b.nc, "a", "k", 1, CallParams(params))
			return err
		},
		"payload": func() error { _, err := Call[chan int, int](b.ctx, b.nc, "a", "k", nil); return err },
	} {
		testenv.Fails(t, call(), "%s was taken", name)
	}
	nc := b.connect()
	nc.Close()
	_, err := Call[int, int](b.ctx, nc, "a", "k", 1)
	testenv.Is(t, err, nats.ErrConnectionClosed, "a call on a closed connection")
}

func FuzzAnswerBox(f *testing.F) {
	f.Add([]byte(`{"slots":[{"i":0,"d":1}]}`), "1", "")
	f.Add([]byte(`{"slots":[],"error":{"code":"x"}}`), "0", "503")
	f.Add([]byte(nil), "", "503")
	f.Fuzz(func(t *testing.T, body []byte, final, status string) {
		taken := map[int]bool{}
		box := newAnswerBox("e", 4, func(n int, _ wire.Slot) {
			if taken[n] {
				t.Fatal("an item was answered twice")
			}
			taken[n] = true
		})
		var ended error
		box.begin(func(err error) { ended = err })
		meta := newMeta()
		completed := 0
		box.expect(meta.Slice, 1, 3, func() { completed++ })
		h := meta.Reply()
		h[wire.HeaderFinal], h["Status"] = []string{final}, []string{status}
		for range 2 {
			box.receive(&nats.Msg{Header: h, Data: body})
		}
		if completed > 1 || taken[0] || taken[3] || completed == 1 && len(taken) != 2 {
			t.Fatalf("completed %d times, taken %v", completed, taken)
		}
		box.giveUp(errors.Join(ended, jetstream.ErrNoStreamResponse))
		testenv.Same(t, len(taken), 4, "taken")
	})
}

func TestFlowsAnswerCallers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	serveFlow(b, "flow", joined())
	nc := b.connect()
	for name, opts := range map[string][]CallOption{"JetStream": nil, "core NATS": {Direct()}} {
		if name != "JetStream" { // no one keeps a direct request until there is a listener
			eventually(t, "someone listens", func() bool {
				var none *NoListenersError
				_, err := Call[number, square](b.ctx, nc, "flow", "K", number{0}, opts...)
				return !errors.As(err, &none)
			})
		}
		got := testenv.Must(Call[number, square](b.ctx, nc, "flow", "K", number{6}, opts...))(t)
		testenv.Same(t, got.Square, joinedOf(6), "%s", name)
		_, err := Call[number, square](b.ctx, nc, "flow", "K", number{13}, opts...)
		fails(t, err, "unlucky", false)
		var items []CallItem[number]
		for i := range 30 {
			items = append(items, CallItem[number]{Key: fmt.Sprint(i), In: number{i}})
		}
		results := testenv.Must(CallList[number, square](b.ctx, nc, "flow", items, opts...))(t)
		for i, result := range results {
			if i != 13 && (result.Err != nil || result.Out.Square != joinedOf(i)) {
				t.Errorf("%s: item %d: %+v", name, i, result)
			}
		}
	}
	testenv.Same(t, b.left(wire.StreamDead), 0, "dead letters")
}

func TestAFailedLaterStageOfASingleRequestIsTold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	stages := joined()
	stages[1] = func(context.Context, *numberStage) error { return Fail("broken", "permanently") }
	serveFlow(b, "flow", stages)
	_, err := Call[number, square](b.ctx, b.connect(), "flow", "K", number{6})
	fails(t, err, "broken", false)
}

func TestWrappersSeeEachStage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	var mu sync.Mutex
	var seen []string
	serveFlow(b, "flow", joined(), Wrap(
		func(ctx context.Context, w *Work, next func(context.Context) error) error {
			before := len(w.Items())
			w.Hold()
			w.SetTrace(someParent, "")
			err := next(ctx)
			slots, answersErr := w.Answers()
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, fmt.Sprintf("stage %d: %d items, %d answered, %d continue", w.Stage(), before, len(slots),
				len(w.GoingOn())))
			if wire.TraceOfHeader(w.Header()).Parent != someParent && w.Stage() > 0 {
				t.Errorf("stage %d has trace %+v", w.Stage(), wire.TraceOfHeader(w.Header()))
			}
			return errors.Join(err, answersErr)
		}))
	checkJoined(t, "wrapped", b.reply("flow", numbers(30)), 30)
	mu.Lock()
	defer mu.Unlock()
	want := []string{"stage 0: 30 items, 6 answered, 24 continue", "stage 1: 23 items, 4 answered, 19 continue",
		"stage 2: 19 items, 19 answered, 0 continue"}
	testenv.SameList(t, seen, want, "wrappers saw")
}

func TestAWrapperThatFailsHasNothingAsked(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	serveFlow(b, "flow", joined(), Wrap(
		func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.Hold()
			return errors.Join(next(ctx), Retry("rolled_back", "no commit"))
		}))
	w := b.reply("flow", numbers(30))
	if w.answered != 0 || w.failure == nil || w.failure.Code != "rolled_back" || b.left(wire.StreamFlow) != 0 {
		t.Errorf("answered %d, failure %v, %d messages of state", w.answered, w.failure, b.left(wire.StreamFlow))
	}
}

func TestAFullFlowStreamHoldsChunksUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	_, err := stream.Ensure(b.ctx, b.js, stream.Config{FlowMaxBytes: 64 << 10}) // for about two states
	check(t, err)
	svc := b.service()
	stages := twoStages(false)
	first := stages[0]
	stages[0] = func(ctx context.Context, s *numberStage) error {
		for _, item := range s.Items() {
			item.State.Trail = make([]int, 100)
		}
		return first(ctx, s)
	}
	check(t, HandleFlow(svc, "flow", stages))
	svc.endpoints[0].flow.Timeout = 500 * time.Millisecond
	b.Run(svc)
	for range 8 {
		b.ask("flow", numbers(100))
	}
	for _, w := range b.collect(8) {
		if w.failure == nil && w.answered != 100 ||
			w.failure != nil && (w.failure.Code != wire.CodeFlowFull || !w.failure.Retry || w.answered > 1) {
			t.Errorf("answered %d, failure %v", w.answered, w.failure)
		}
	}
	b.nothingLeft()
	b.ask("flow", numbers(100))
	for _, w := range b.collect(1) {
		testenv.Same(t, w.failure, nil, "with room again")
	}
}

func TestDirectRequestsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	end := make(chan struct{})
	serveEach(b, "slow", func(context.Context, number) (square, error) {
		<-end
		return square{1}, nil
	}, Concurrency(1))
	b.listening("slow")
	const many = 3 * serve.LeastDirect
	failures := make(chan error, many)
	for range many {
		go func() {
			_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
			failures <- err
		}()
	}
	for range many - serve.LeastDirect {
		fails(t, await(t, "refusal", failures), wire.CodeOverloaded, true)
	}
	close(end)
	for range serve.LeastDirect {
		testenv.NoError(t, await(t, "answer", failures))
	}
	_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
	testenv.Same(t, err, nil, "after the rush")
}

func TestDirectRequestsNotBegunAreAnsweredOnShutdown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	begun, end := make(chan struct{}, 1), make(chan struct{})
	check(t, HandleEach(svc, "slow", func(context.Context, number) (square, error) {
		begun <- struct{}{}
		<-end
		return square{1}, nil
	}, Concurrency(1)))
	stop := b.Run(svc)
	b.listening("slow")
	answered := make(chan error, 1)
	call := func(into chan<- error) {
		_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
		into <- err
	}
	go call(answered)
	await(t, "handler", begun)
	const waiting = 5
	refused := make(chan error, waiting)
	for range waiting {
		go call(refused)
	}
	eventually(t, "they wait", func() bool { return svc.endpoints[0].HeldDirect() == waiting+1 })
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for range waiting {
		fails(t, await(t, "refusal", refused), wire.CodeShutdown, true)
	}
	close(end)
	testenv.Same(t, await(t, "answer", answered), nil, "what was begun")
	check(t, await(t, "end", stopped))
	_, err := Call[number, square](b.ctx, b.nc, "slow", "k", number{1}, Direct())
	_ = testenv.As[*NoListenersError](t, err, "a call after the end")
}

func TestGarbageOnTheDirectSubjectDoesNoHarm(t *testing.T) {
	t.Parallel()
	b := setup(t)
	serveEach(b, "square", squares)
	b.listening("square")
	call := wire.Return{Asker: "me", Callee: "square", Call: "token"}
	meta := newMeta()
	meta.ReplyTo = call
	good := meta.Request()
	other := newMeta()
	other.ReplyTo = wire.Return{Asker: "me", Callee: "other", Call: "token"}
	flow := newMeta()
	flow.ReplyTo = wire.Return{Asker: "me", Callee: "square", Stage: 1}
	foreign := meta.Request()
	foreign[wire.HeaderVersion] = []string{"9"}
	answers := testenv.Must(b.nc.SubscribeSync(call.String()))(t)
	for _, h := range []nats.Header{nil, {}, newMeta().Request(), other.Request(), flow.Request(), foreign,
		{wire.HeaderReplyTo: {call.String()}, wire.HeaderSlice: {uuid.NewString()}}, good} {
		check(t, b.nc.PublishMsg(&nats.Msg{Subject: wire.DirectSubject("square"), Header: h, Data: []byte("garbage")}))
	}
	msg := testenv.Must(answers.NextMsg(patience))(t)
	reply, err := wire.ParseReplyOf("square", msg.Header, msg.Data, wire.Limits{})
	if err != nil || reply.Failure == nil || reply.Failure.Code != wire.CodeBadRequest {
		t.Errorf("%+v, %v", reply, err)
	}
	for _, name := range []string{wire.StreamReply, wire.StreamStage, wire.StreamDead} {
		testenv.Same(t, b.stored(name), 0, "messages went to %s", name)
	}
}
