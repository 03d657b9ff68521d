package endpoints

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

type memory struct {
	N     int   `json:"n"`
	Trail []int `json:"trail,omitempty"`
}

type chunkMemory struct {
	Stages int `json:"stages"`
}

type (
	numberStage  = Stage[number, square, memory, chunkMemory]
	numberStages = []func(context.Context, *numberStage) error
	numberItem   = StageItem[number, square, memory, chunkMemory]
)

var (
	toDouble = To[number, number]("double")
	toSquare = To[number, square]("square")
)

func doubleOf(_ context.Context, in number) (number, error) {
	if in.N == 13 {
		return number{}, Fail("unlucky", "no %d", in.N)
	}
	return number{2 * in.N}, nil
}

// services runs HandleEach endpoints double and square.
func (b *bundle) callees() {
	b.t.Helper()
	svc := b.service()
	check(b.t, HandleEach(svc, "double", doubleOf))
	check(b.t, HandleEach(svc, "square", squares))
	b.Run(svc)
}

// left returns how many messages there are in a stream.
func (b *bundle) left(stream string) int {
	b.t.Helper()
	s := testenv.Must(b.js.Stream(b.ctx, stream))(b.t)
	info := testenv.Must(s.Info(b.ctx))(b.t)
	return int(info.State.Msgs)
}

// nothingLeft waits until no stream of flows has anything.
func (b *bundle) nothingLeft() {
	b.t.Helper()
	for _, stream := range []string{wire.StreamWork, wire.StreamStage, wire.StreamFlow} {
		eventually(b.t, stream+" is empty", func() bool { return b.left(stream) == 0 })
	}
}

func TestFlowsAskFlowsThreeDeep(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	svc := b.service()
	var mu sync.Mutex
	keys := map[string]bool{}
	check(t, HandleEach(svc, "leaf", func(ctx context.Context, in number) (number, error) {
		info := ItemOf(ctx)
		mu.Lock()
		defer mu.Unlock()
		keys[strings.TrimPrefix(info.IdempotencyKey(), info.Run.String())] = true
		if info.Root == info.Slice || info.Key != fmt.Sprintf("KEY-%d", info.Ordinal) || info.Param("year") != "2026" {
			return number{}, fmt.Errorf("info is %+v", info)
		}
		return number{in.N + 1}, nil
	}))
	names := []string{"leaf", "a", "b", "c"}
	for n, name := range names[1:] {
		below := To[number, number](names[n])
		check(t, HandleFlow(svc, name, []func(context.Context, *Stage[number, number, None, None]) error{
			perItem(func(item *StageItem[number, number, None, None]) { below.Ask(item, item.In) }),
			perItem(func(item *StageItem[number, number, None, None]) {
				item.Reply(number{below.Answer(item).N * 10})
			}),
		}))
	}
	b.Run(svc)
	builder := wire.NewRequestBuilder("c", newMeta(), 1<<20)
	builder.SetParams([]byte(`{"year":"2026"}`))
	for _, item := range numbers(20) {
		builder.Add(item.ordinal, fmt.Sprintf("KEY-%d", item.ordinal), []byte(item.json))
	}
	b.publish(builder.Msg())
	for _, w := range b.collect(1) {
		for i := range 20 {
			testenv.MustSame(t, string(w.slots[i].Data), fmt.Sprintf(`{"n":%d}`, (i+1)*1000), "slot %d, %v", i, w.slots[i].Err)
		}
	}
	b.nothingLeft()
	mu.Lock()
	defer mu.Unlock()
	if !keys["/0/7/1/a53b1019c55b4f8e/c:1,b:1,a:1"] || len(keys) != 20 {
		t.Errorf("idempotency keys: %v", keys)
	}
}

func TestItemsOfAFlowEndAndGoOnOneByOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	serveFlow(b, "flow", numberStages{
		func(_ context.Context, s *numberStage) error {
			for n, item := range s.Items() {
				item.State.N = item.In.N
				switch n % 6 {
				case 0:
					item.Reply(square{1})
				case 1:
					item.Fail("bad", "no")
				case 2:
					item.Retry("busy", "later")
				case 3:
					item.Next()
				case 4:
					toDouble.Ask(item, number{item.In.N})
				} // 5 is forgotten
			}
			return nil
		},
		func(_ context.Context, s *numberStage) error {
			for _, item := range s.Items() {
				if toDouble.Asked(item) != (item.State.N%6 == 4) {
					return fmt.Errorf("item %d", item.State.N)
				}
				item.State.N += 1000
				item.Next()
			}
			return nil
		},
		perItem(func(item *numberItem) { item.Reply(square{item.State.N}) }),
	})
	w := b.reply("flow", append(numbers(12), payload{12, `{"n":"x"}`}))
	want := map[int]string{0: `{"square":1}`, 3: `{"square":1003}`, 4: `{"square":1004}`, 6: `{"square":1}`,
		9: `{"square":1009}`, 10: `{"square":1010}`, 1: "bad", 2: "busy", 7: "bad", 8: "busy", 12: wire.CodeBadPayload}
	w.holds(t, "one by one", "", want)
}

func TestJoinOfTwoTargetsAndTwoQuestionsToOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	more := toDouble.As("more")
	serveFlow(b, "flow", []func(context.Context, *Stage[number, []int, None, None]) error{
		perItem(func(item *StageItem[number, []int, None, None]) {
			toDouble.Ask(item, item.In)
			toDouble.Ask(item, number{-1}) // dropped
			toSquare.Ask(item, item.In)
			if item.In.N != 5 {
				more.Ask(item, number{item.In.N + 1})
			}
		}),
		perItem(func(item *StageItem[number, []int, None, None]) {
			item.Reply([]int{toDouble.Answer(item).N, toSquare.Answer(item).Square, more.Answer(item).N})
		}),
	})
	w := b.reply("flow", numbers(10))
	want := map[int]string{}
	for i := range 10 {
		want[i] = fmt.Sprintf("[%d,%d,%d]", 2*i, i*i, 2*(i+1))
	}
	want[5] = "[10,25,0]"
	w.holds(t, "joined", "", want)
	b.nothingLeft()
}

func TestFailureOfACalleesChunkIsTheFlowsFailure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleList(svc, "double", func(_ context.Context, chunk *Chunk[number, number]) error {
		chunk.Items()[0].Reply(number{7})
		return Fail("db_down", "no connection")
	}))
	check(t, HandleFlow(svc, "flow", numberStages{
		perItem(func(item *numberItem) {
			if item.In.N == 3 {
				item.Next()
				return
			}
			toDouble.Ask(item, item.In)
		}),
		perItem(func(item *numberItem) { item.Reply(square{toDouble.Answer(item).N}) }),
	}))
	b.Run(svc)
	w := b.reply("flow", numbers(5))
	w.holds(t, "two items", "db_down", map[int]string{0: `{"square":7}`, 3: `{"square":0}`})
	if w.failure.Message != "double: no connection" || w.failure.Retry {
		t.Errorf("failure %v", w.failure)
	}
}

func TestErrorsPanicsAndMistakesOfStages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	svc := b.service()
	flow := func(name string, last func(s *numberStage) error) {
		check(t, HandleFlow(svc, name, numberStages{
			perItem(func(item *numberItem) { toDouble.Ask(item, item.In) }),
			func(_ context.Context, s *numberStage) error { return last(s) },
		}))
	}
	flow("error", func(s *numberStage) error {
		s.Items()[0].Reply(square{1})
		return errors.New("plain")
	})
	flow("panic", func(*numberStage) error { panic("no such thing") })
	flow("beyond", func(s *numberStage) error {
		toDouble.Ask(s.Items()[0], number{})
		s.Items()[1].Next()
		return nil
	})
	flow("misfit", func(s *numberStage) error {
		wrong := To[number, string]("double")
		for _, item := range s.Items() {
			_ = wrong.Answer(item)
			item.Reply(square{})
		}
		return nil
	})
	b.Run(svc)
	w := b.reply("error", numbers(3))
	w.holds(t, "error", wire.CodeHandlerError, map[int]string{0: `{"square":1}`})
	if w.failure.Message != "plain" || !w.failure.Retry {
		t.Errorf("failure %v", w.failure)
	}
	b.reply("panic", numbers(3)).holds(t, "panic", wire.CodePanic, nil)
	b.reply("beyond", numbers(3)).holds(t, "beyond", "", map[int]string{0: wire.CodeNoNextStage, 1: wire.CodeNoNextStage})
	b.reply("misfit", numbers(2)).holds(t, "misfit", "", map[int]string{0: wire.CodeBadAnswer, 1: wire.CodeBadAnswer})
}

func TestBinaryAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "pdf", func(_ context.Context, in number) (any, error) {
		if in.N == 0 {
			return wire.Binary{ContentType: "application/pdf", Data: []byte("%PDF")}, nil
		}
		return in, nil
	}))
	pdf := To[number, wire.Binary]("pdf")
	check(t, HandleFlow(svc, "flow", []func(context.Context, *Stage[number, string, None, None]) error{
		perItem(func(item *StageItem[number, string, None, None]) { pdf.Ask(item, item.In) }),
		perItem(func(item *StageItem[number, string, None, None]) {
			item.Reply(pdf.Answer(item).ContentType + " " + string(pdf.Answer(item).Data))
		}),
	}))
	b.Run(svc)
	w := b.reply("flow", numbers(2))
	if string(w.slots[0].Data) != `"application/pdf %PDF"` || string(w.slots[1].Data) != `"application/json {\"n\":1}"` {
		t.Errorf("slots %s, %s", w.slots[0].Data, w.slots[1].Data)
	}
}

func TestQuestionsAndStatesOfAnySize(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	type big struct{ Text string }
	text := func(n int) string { return strings.Repeat("x", n) }
	ask := To[big, int]("length")
	svc := b.service()
	check(t, HandleEach(svc, "length", func(_ context.Context, in big) (int, error) { return len(in.Text), nil }))
	check(t, HandleFlow(svc, "flow", []func(context.Context, *Stage[number, int, big, None]) error{
		perItem(func(item *StageItem[number, int, big, None]) {
			item.State.Text = text(item.In.N)
			size := item.In.N
			if item.In.N > 1<<18 {
				size = 1
			}
			ask.Ask(item, big{text(size)})
		}),
		perItem(func(item *StageItem[number, int, big, None]) {
			item.Reply(ask.Answer(item) + len(item.State.Text))
		}),
	}))
	const most = 1 << 20
	svc.endpoints[1].flow.Most = most
	b.Run(svc)
	var items []payload
	for i := range 20 {
		items = append(items, payload{i, `{"n":20000}`}) // ten requests, and a state of seven parts
	}
	items = append(items, payload{20, `{"n":70000}`}, payload{21, fmt.Sprintf(`{"n":%d}`, most)},
		payload{22, `{"n":400000}`})
	w := b.reply("flow", items)
	for i := range 20 {
		testenv.Same(t, string(w.slots[i].Data), "40000", "slot %d: %v", i, w.slots[i].Err)
	}
	if e := w.slots[20].Err; e == nil || e.Code != wire.CodeQueryTooLarge || e.Retry {
		t.Errorf("slot 20: %v", e)
	}
	if e := w.slots[21].Err; e == nil || e.Code != wire.CodeStateTooLarge || e.Retry {
		t.Errorf("slot 21: %v", e)
	}
	if string(w.slots[22].Data) != "400001" || w.answered != 23 {
		t.Errorf("slot 22 is %s, answered %d", w.slots[22].Data, w.answered)
	}
	b.nothingLeft()

	items = items[:0]
	for i := range 3 {
		items = append(items, payload{i, fmt.Sprintf(`{"n":%d}`, most*2/5)})
	}
	items = append(items, payload{3, `{"n":"x"}`})
	w = b.reply("flow", items)
	w.fails(t, wire.CodeStateTooLarge, false, 1)
}

func TestAFlowThatAsksItselfIsStopped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	self := To[number, number]("self")
	check(t, HandleFlow(svc, "self", []func(context.Context, *Stage[number, number, None, None]) error{
		perItem(func(item *StageItem[number, number, None, None]) { self.Ask(item, item.In) }),
		perItem(func(item *StageItem[number, number, None, None]) { item.Reply(self.Answer(item)) }),
	}))
	check(t, HandleEach(svc, "deep", squares))
	b.Run(svc)
	w := b.reply("self", numbers(2))
	e := w.slots[0].Err
	if e == nil || e.Code != wire.CodeStackTooDeep || e.Retry ||
		!strings.Contains(e.Message, strings.Repeat("self:1,", 15)) {
		t.Errorf("slot 0: %v", e)
	}

	meta := b.ask("deep", numbers(1), func(m *wire.Meta) {
		m.Stack = wire.Stack(strings.Join(slices.Repeat([]string{"x:1"}, wire.MaxStack+1), ","))
	})
	w = b.collect(1)[meta.Slice]
	w.fails(t, wire.CodeStackTooDeep, false)
}

// TestTargetsOfOneName has a package mix up the names of its targets, and ask with and without KeepErrors.
func TestTargetsOfOneName(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	double, squared := To[number, number]("double").As("x"), To[number, square]("square").As("x")
	kept := toDouble.KeepErrors()
	stages := numberStages{
		perItem(func(item *numberItem) {
			switch item.State.N = item.In.N; item.In.N {
			case 0:
				double.Ask(item, number{5})
			case 1:
				squared.Ask(item, number{5})
			case 2:
				double.Ask(item, number{5})
				squared.Ask(item, number{5})
			case 3:
				kept.Ask(item, number{13})
			default:
				toDouble.Ask(item, number{13})
			}
		}),
		perItem(func(item *numberItem) {
			switch item.State.N {
			case 0:
				item.Reply(square{double.Answer(item).N})
			case 1:
				item.Reply(square{squared.Answer(item).Square})
			case 3:
				item.Fail("kept", "%s", kept.Err(item).Code)
			default:
				item.Reply(square{-1})
			}
		}),
	}
	serveFlow(b, "flow", stages)
	w := b.reply("flow", numbers(5))
	w.holds(t, "targets", "", map[int]string{0: `{"square":10}`, 1: `{"square":25}`, 2: wire.CodeBadQuery, 3: "kept",
		4: "unlucky"})
}

// TestAStageThatAsksInAnotherOrderMakesTheSameRequests repeats a stage whose items are asked for in another order, and
// of another target first.
func TestAStageThatAsksInAnotherOrderMakesTheSameRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var times atomic.Int64
	stages := twoStages(true)
	stages[0] = func(_ context.Context, s *numberStage) error {
		forth := times.Add(1)%2 == 0
		for n := range s.Items() {
			item := s.Items()[n]
			if !forth {
				item = s.Items()[len(s.Items())-1-n]
				toSquare.Ask(item, item.In)
			}
			toDouble.Ask(item, item.In)
			if forth {
				toSquare.Ask(item, item.In)
			}
		}
		return nil
	}
	serveFlow(b, "flow", stages)
	check(t, stream.EnsureConsumer(b.ctx, b.js, "double", stream.ConsumerSettings{}))
	builder := wire.NewRequestBuilder("flow", newMeta(), 1<<20)
	for i := range 20 {
		builder.Add(i, "k", fmt.Appendf(nil, `{"n":%d}`, i))
	}
	var bodies [2][2]string
	for n := range bodies {
		msg := builder.Msg()
		msg.Header.Set(wire.HeaderMsgID, fmt.Sprint("again", n))
		heard := map[string]string{}
		sub := testenv.Must(b.nc.SubscribeSync(wire.WorkPrefix + ">"))(t)
		b.publish(msg)
		for len(heard) < 2 {
			msg := testenv.Must(sub.NextMsg(patience))(t)
			if msg.Header.Get(wire.HeaderStack) != "" {
				heard[msg.Header.Get(wire.HeaderReplyTo)] = string(msg.Data)
			}
		}
		check(t, sub.Unsubscribe())
		bodies[n] = [2]string{heard["tranche.stage.flow.1.0.double"], heard["tranche.stage.flow.1.1.square"]}
	}
	if bodies[0] != bodies[1] || bodies[0][0] == "" || bodies[0][1] == "" {
		t.Errorf("the requests are\n%s\nand then\n%s", bodies[0], bodies[1])
	}
}

// TestItemsThatOutliveTheirStage hands the items of a stage to goroutines that continue after it has returned, and
// keeps them for the next stage.
func TestItemsThatOutliveTheirStage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	var late sync.WaitGroup
	var mu sync.Mutex
	kept := map[int]*numberItem{}
	loose := func(s *numberStage, item *numberItem, until <-chan struct{}) {
		late.Go(func() {
			for over := false; !over; {
				select {
				case <-until:
					over = true
				default:
				}
				toDouble.Ask(item, number{item.Ordinal})
				toDouble.Asked(item)
				item.Next()
				s.Flush()
				runtime.Gosched()
			}
			item.Reply(square{-1})
			item.Fail("late", "late")
		})
	}
	answered := make(chan struct{})
	end := sync.OnceFunc(func() { close(answered) })
	t.Cleanup(func() { end(); late.Wait() })
	stages := numberStages{
		func(_ context.Context, s *numberStage) error {
			for _, item := range s.Items() {
				toDouble.Ask(item, item.In)
				mu.Lock()
				kept[item.Ordinal] = item
				mu.Unlock()
				loose(s, item, answered)
			}
			return nil
		},
		perItem(func(item *numberItem) {
			mu.Lock()
			old := kept[item.Ordinal]
			mu.Unlock()
			old.Reply(square{-2})
			item.Reply(square{toDouble.Answer(item).N})
		}),
	}
	serveFlow(b, "flow", stages)
	w := b.reply("flow", numbers(5))
	end()
	late.Wait()
	w.holds(t, "late", "", map[int]string{0: `{"square":0}`, 1: `{"square":2}`, 2: `{"square":4}`, 3: `{"square":6}`,
		4: `{"square":8}`})
	testenv.Same(t, len(b.drainReplies()), 0, "further replies")
}

// waitsInTheEnd asks once, and then answers one item and outlasts its time.
func waitsInTheEnd() numberStages {
	return numberStages{
		perItem(func(item *numberItem) { toDouble.Ask(item, item.In) }),
		func(ctx context.Context, s *numberStage) error {
			s.Items()[0].Reply(square{1})
			<-ctx.Done()
			return ctx.Err()
		},
	}
}

func TestAStageThatOutlastsItsTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.callees()
	svc := b.service()
	check(t, HandleFlow(svc, "flow", waitsInTheEnd()))
	svc.endpoints[0].Settings.Timeout = time.Second // of its stages only
	b.Run(svc)
	w := b.reply("flow", numbers(3))
	w.fails(t, wire.CodeTimeout, true)
	w.holds(t, "one", wire.CodeTimeout, map[int]string{0: `{"square":1}`})
	b.nothingLeft()
}

// No one serves the endpoint that a flow asks. What the flow has stored and asked goes when its time ends, and
// nothing is said to the node: the slice's deadline brings the items back.
func TestAFlowThatIsNotAnsweredInTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	asked := testenv.Must(b.nc.SubscribeSync(wire.WorkSubject("double")))(t)
	serveFlow(b, "flow", waitsInTheEnd(), Timeout(2*time.Second))
	b.ask("flow", numbers(3))
	testenv.Must(asked.NextMsg(patience))(t)
	b.nothingLeft()
	testenv.Same(t, len(b.drainReplies()), 0, "replies")
}
