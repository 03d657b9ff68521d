package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

type wrapChunk = Chunk[number, square]

var double = each(func(item *Item[number, square]) { item.Reply(square{2 * item.In.N}) })

func TestWrappersNest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	calls := make(chan string, 8)
	named := func(name string) Wrapper {
		return func(ctx context.Context, _ *Work, next func(context.Context) error) error {
			calls <- name
			err := next(ctx)
			calls <- name + " ends"
			return err
		}
	}
	svc := b.service(func(c *Config) { c.Wrap = []Wrapper{named("1"), named("2")} })
	check(t, HandleList(svc, "double", double, Wrap(named("3")), Wrap(named("4"))))
	b.Run(svc)
	if got := b.reply("double", numbers(3)); len(got.slots) != 3 || got.failure != nil {
		t.Fatalf("got %+v", got)
	}
	var order []string
	for range cap(calls) {
		order = append(order, await(t, "call", calls))
	}
	testenv.Same(t, strings.Join(order, " "), "1 2 3 4 4 ends 3 ends 2 ends 1 ends", "called in order")
}

func TestWrapperSeesTheWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type sight struct {
		work          *Work
		before, after []ItemInfo
	}
	sights := make(chan sight, 1)
	serveList(b, "some", func(_ context.Context, chunk *wrapChunk) error {
		chunk.Items()[0].Reply(square{})
		return nil
	}, Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
		before := w.Items()
		err := next(ctx)
		sights <- sight{w, before, w.Items()}
		return err
	}))
	got := b.reply("some", append(numbers(3), payload{7, `"no number"`}))
	if len(got.slots) != 2 || got.slots[7].Err == nil {
		t.Fatalf("got %+v", got)
	}
	saw := await(t, "sight", sights)
	seen, before := saw.work, saw.before
	ordinals := func(infos []ItemInfo) (list []int) {
		for _, info := range infos {
			list = append(list, info.Ordinal)
		}
		return list
	}
	if !slices.Equal(ordinals(before), []int{0, 1, 2}) || !slices.Equal(ordinals(saw.after), []int{1, 2}) {
		t.Errorf("items %v before, %v after", ordinals(before), ordinals(saw.after))
	}
	if before[0].Key != "KEY-0" || before[0].Run != seen.Meta().Run || seen.Endpoint() != "some" || seen.Stage() != 0 {
		t.Errorf("the work is %s/%d of %v, its item %+v", seen.Endpoint(), seen.Stage(), seen.Meta(), before[0])
	}
	header := seen.Header()
	testenv.Same(t, header.Get(wire.HeaderRun), seen.Meta().Run.String(), "the run's header")
	header[wire.HeaderRun][0] = "changed"
	if seen.Header().Get(wire.HeaderRun) == "changed" {
		t.Error("the headers are not a copy")
	}
}

// remember answers item 1 and a binary item 2 in the handler's place.
func remember(ctx context.Context, w *Work, next func(context.Context) error) error {
	for _, slot := range []wire.Slot{
		{Ordinal: 1, Data: []byte(`{"square":42}`)}, {Ordinal: 2, Data: []byte("%PDF"), ContentType: "application/pdf"},
	} {
		if err := w.Answer(slot); err != nil {
			return err
		}
	}
	for _, slot := range []wire.Slot{{Ordinal: 1, Data: []byte(`1`)}, {Ordinal: 99, Data: []byte(`1`)}, {Ordinal: 0}} {
		if err := w.Answer(slot); err == nil {
			return Fail("taken", "slot %d was taken", slot.Ordinal)
		}
	}
	return next(ctx)
}

func refuse(context.Context, *Work, func(context.Context) error) error {
	return Retry("busy", "not now")
}

// holding has a wrapper hold the answers, and end so once the handler has.
func holding(end func() error) Option {
	return Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
		w.Hold()
		if err := next(ctx); err != nil {
			return err
		}
		return end()
	})
}

// answersAll answers in the handler's place.
func answersAll(ctx context.Context, w *Work, next func(context.Context) error) error {
	for _, item := range w.Items() {
		slot := wire.Slot{Ordinal: item.Ordinal, Err: &wire.SlotError{Code: "known", Message: "by heart"}}
		if err := w.Answer(slot); err != nil {
			return err
		}
	}
	return next(ctx)
}

// keepsItsOwn answers before it holds and after, and outlives the failure of the wrapper within.
func keepsItsOwn(ctx context.Context, w *Work, next func(context.Context) error) error {
	if err := w.Answer(wire.Slot{Ordinal: 0, Data: []byte(`0`)}); err != nil {
		return err
	}
	w.Hold()
	if err := w.Answer(wire.Slot{Ordinal: 1, Data: []byte(`1`)}); err != nil {
		return err
	}
	if err := next(ctx); err == nil {
		return errors.New("the inner wrapper did not fail")
	}
	if kept, err := w.Answers(); err != nil || len(kept) != 1 {
		return errors.New("the outer wrapper's answer is gone")
	}
	return nil
}

// What wrappers answer, hold, refuse and end with, and what they see of the handler's end. Each endpoint is asked twice
// and has one slot, which is given back each time.
func TestWrappersDecideWhatIsAnswered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	plain := errors.New("no")
	ends := make(chan error, 100)
	watch := Wrap(func(ctx context.Context, _ *Work, next func(context.Context) error) error {
		err := next(ctx)
		ends <- err
		return err
	})
	panics := func(context.Context, *wrapChunk) error { panic("called") }
	twice := map[int]string{0: `{"square":0}`, 1: `{"square":2}`, 2: `{"square":4}`, 3: `{"square":6}`}
	svc := b.service()
	cases := map[string]struct {
		handler func(context.Context, *wrapChunk) error
		opts    []Option
		slots   map[int]string
		failure string
		final   bool // it is not to be retried
	}{
		"answers": {double, []Option{Wrap(remember)}, map[int]string{0: `{"square":0}`, 1: `{"square":42}`, 2: "%PDF",
			3: `{"square":6}`}, "", false},
		"all": {panics, []Option{Wrap(answersAll)}, map[int]string{0: "known", 1: "known", 2: "known", 3: "known"}, "",
			false},
		"refuse": {panics, []Option{holding(nil), Wrap(refuse)}, nil, "busy", false},
		"inner": {double, []Option{Wrap(keepsItsOwn), holding(func() error { return plain })},
			map[int]string{0: "0", 1: "1"}, "", false},
		"fails":  {double, []Option{holding(func() error { return Fail("rolled_back", "no") })}, nil, "rolled_back", true},
		"errs":   {double, []Option{holding(func() error { return plain })}, nil, wire.CodeHandlerError, false},
		"breaks": {double, []Option{holding(func() error { panic("no") })}, nil, wire.CodePanic, false},
		"twice": {double, []Option{Wrap(func(ctx context.Context, _ *Work, next func(context.Context) error) error {
			return errors.Join(next(ctx), next(ctx))
		})}, twice, "", false}, // the answers stand
		"plain": {func(context.Context, *wrapChunk) error { return plain }, []Option{watch}, nil, wire.CodeHandlerError,
			false},
		"panics": {panics, []Option{watch}, nil, wire.CodePanic, false},
		"late": {func(ctx context.Context, _ *wrapChunk) error { <-ctx.Done(); return nil },
			[]Option{watch, Timeout(20 * time.Millisecond)}, nil, wire.CodeTimeout, false},
	}
	for name, tc := range cases {
		check(t, HandleList(svc, name, tc.handler, append(tc.opts, FlushBytes(1), Concurrency(1))...))
	}
	for name, opt := range map[string]Option{"each-answers": Wrap(remember), "each-all": Wrap(answersAll),
		"each-refuse": Wrap(refuse)} {
		check(t, HandleEach(svc, name, func(_ context.Context, in number) (square, error) {
			if name != "each-answers" {
				panic("called")
			}
			return square{2 * in.N}, nil
		}, opt, Concurrency(1)))
		cases[name] = cases[strings.TrimPrefix(name, "each-")]
	}
	b.Run(svc)
	for name, tc := range cases {
		for range 2 {
			got := b.reply(name, numbers(4))
			if got.holds(t, name, tc.failure, tc.slots); got.failure != nil && got.failure.Retry == tc.final {
				t.Errorf("%s: the failure is %v", name, got.failure)
			}
			if name != "plain" && name != "panics" && name != "late" {
				continue
			}
			var slot *wire.SlotError
			if err := await(t, "end", ends); name == "plain" && err != plain || //nolint:errorlint // the very same
				name != "plain" && (!errors.As(err, &slot) || slot.Code != tc.failure) {
				t.Errorf("%s: the wrapper saw %v", name, err)
			}
		}
	}
}

// While answers are held, none but those that are not the handler's are sent, and the wrapper sees them in their order;
// then they are sent as it saw them, those in pieces among them, or dropped.
func TestHold(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	held, released := make(chan []wire.Slot, 1), make(chan struct{})
	hold := func(ctx context.Context, w *Work, next func(context.Context) error) error {
		w.Hold()
		if err := next(ctx); err != nil {
			return err
		}
		answers, err := w.Answers()
		if err != nil {
			return err
		}
		for i := range answers { // they may not outlive the wrapper
			answers[i].Data = bytes.Clone(answers[i].Data)
		}
		held <- answers
		<-released
		if w.Endpoint() == "dropped" {
			return Fail("rolled_back", "it was")
		}
		return nil
	}
	handler := func(_ context.Context, chunk *Chunk[number, string]) error {
		for _, item := range chunk.Items() {
			if item.Ordinal%10 == 9 {
				item.Retry("busy", "later")
				continue
			}
			item.Reply(strings.Repeat("x", 10+item.Ordinal/99*200_000))
			chunk.Flush()
		}
		return nil
	}
	svc := b.service()
	for _, name := range []string{"hold", "dropped"} {
		check(t, HandleList(svc, name, handler, Wrap(hold), FlushBytes(200)))
	}
	b.Run(svc)
	meta := b.ask("hold", append(numbers(101), payload{101, `""`}))
	recorder := b.recorder()
	early := b.next(recorder) // the payload that does not fit is not the handler's to answer
	reply := testenv.Must(wire.ParseReply(early.Subject(), early.Headers(), early.Data(), wire.Limits{}))(t)
	if len(reply.Slots) != 1 || reply.Slots[0].Ordinal != 101 {
		t.Errorf("while the answers are held, there came %+v", reply)
	}
	check(t, early.Nak())
	close(released)
	got := b.collect(1)[meta.Slice]
	if len(got.slots) != 102 || got.answered != 102 || got.failure != nil {
		t.Errorf("got %d slots of %d, failure %v", len(got.slots), got.answered, got.failure)
	}
	answers := await(t, "answers", held)
	if len(answers) != 101 || len(answers[100].Data) != 200_012 {
		t.Fatalf("the wrapper saw %d answers", len(answers))
	}
	for i, slot := range answers {
		sent := got.slots[i]
		if slot.Ordinal != i || !bytes.Equal(sent.Data, slot.Data) || (sent.Err == nil) != (slot.Err == nil) {
			t.Fatalf("answer %d is %+v for the wrapper and %+v in the reply", i, slot, sent)
		}
	}
	dropped := b.reply("dropped", append(numbers(2), payload{100, `{}`}))
	if dropped.holds(t, "dropped", "rolled_back", nil); dropped.messages != 1 {
		t.Errorf("of what was dropped %d messages came", dropped.messages)
	}
}

func TestHoldIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := strings.Repeat("x", 512<<10)
	handler := func(ctx context.Context, chunk *Chunk[number, string]) error {
		for _, item := range chunk.Items() {
			item.Reply(text)
		}
		testenv.Fails(t, ctx.Err(), "the handler's context continues")
		return nil
	}
	serveList(b, "huge", handler, Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
		w.Hold()
		_ = next(ctx) // even so, nothing may be sent
		return nil
	}))
	got := b.reply("huge", numbers(130))
	if got.holds(t, "huge", wire.CodeHeldTooLarge, nil); got.failure.Retry {
		t.Errorf("the failure is %v", got.failure)
	}
}

func TestSetTrace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	set := func(parent, state string) Option {
		return Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.SetTrace(parent, state)
			return next(ctx)
		})
	}
	check(t, HandleList(svc, "traced", double, set(someParent, "vendor=1")))
	check(t, HandleList(svc, "broken", double, set("two\r\nlines", strings.Repeat("x", 600))))
	b.Run(svc)
	recorder := b.recorder()
	for endpoint, want := range map[string][2]string{"traced": {someParent, "vendor=1"}, "broken": {}} {
		_, msg := b.request(endpoint, numbers(1))
		msg.Header[wire.HeaderTrace] = []string{"00-from-the-request-00"}
		b.publish(msg)
		reply := b.next(recorder)
		check(t, reply.Ack())
		if h := reply.Headers(); h.Get(wire.HeaderTrace) != want[0] || h.Get(wire.HeaderTraceState) != want[1] {
			t.Errorf("%s: got %q and %q", endpoint, h.Get(wire.HeaderTrace), h.Get(wire.HeaderTraceState))
		}
	}
}

// A result of the most bytes that fit a message stands in one; a byte more, and it comes in pieces.
func TestTheLargestResultThatFits(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	serveList(b, "exact", func(_ context.Context, chunk *Chunk[number, any]) error {
		limit := chunk.job.Answers.Limit
		item := chunk.Items()[0]
		text := limit - len(`{"slots":[{"i":0,"d":""}]}`)
		bytes := (limit - len(`{"slots":[{"i":0,"t":"application/octet-stream","b":""}]}`)) / 4 * 3
		switch item.In.N {
		case 0, 1:
			item.Reply(strings.Repeat("x", text+item.In.N))
		default:
			item.Reply(wire.Binary{Data: make([]byte, bytes+item.In.N-2)})
		}
		return nil
	})
	for n, pieces := range []int{0, 1, 0, 1} {
		w := b.reply("exact", []payload{{0, numbers(4)[n].json}})
		if slot := w.slots[0]; slot.Err != nil || w.answered != 1 || len(w.slots) != 1 {
			t.Errorf("%d: %d slots, %v", n, len(w.slots), slot.Err)
		}
		testenv.Same(t, w.messages-1, pieces, "pieces of %d bytes", n)
	}
}

func TestPartOf(t *testing.T) {
	t.Parallel()
	info := ItemInfo{item: serve.Item{Parts: wire.Parts{{Name: "json", Part: wire.Part{Data: []byte(`{"n":7}`)}},
		{Name: "png", Part: wire.Part{Data: []byte{9}, ContentType: "image/png"}}}}}
	if n, there, err := PartOf[number](t.Context(), info, "json"); n.N != 7 || !there || err != nil {
		t.Errorf("%+v, %v, %v", n, there, err)
	}
	if n, there, err := PartOf[number](t.Context(), info, "other"); n.N != 0 || there || err != nil {
		t.Errorf("a part that does not exist: %+v, %v, %v", n, there, err)
	}
	for name, want := range map[string]wire.Binary{
		"json": {ContentType: "application/json", Data: []byte(`{"n":7}`)}, "png": {ContentType: "image/png",
			Data: []byte{9}},
	} {
		b, there, err := PartOf[wire.Binary](t.Context(), info, name)
		if !reflect.DeepEqual(b, want) || !there || err != nil {
			t.Errorf("%+v, %v, %v", b, there, err)
		}
	}
	for name, says := range map[string]string{"json": "does not fit", "png": "it is image/png, which does not fit"} {
		_, there, err := PartOf[struct {
			N string `json:"n"`
		}](t.Context(), info, name)
		var slot *wire.SlotError
		if !errors.As(err, &slot) || slot.Code != wire.CodeBadPart || slot.Retry || !there ||
			!strings.Contains(slot.Message, says) {
			t.Errorf("%s: %v, %v", name, there, err)
		}
	}
}

// Handlers of every form see the parts; a flow in its first stage only.
func TestHandlersSeeParts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type none struct{}
	type stage = Stage[none, string, string, None]
	sum := func(ctx context.Context, item HasParts) string {
		n, there, err := PartOf[int](ctx, item, "n")
		return fmt.Sprintf("%d %v %v", n, there, err)
	}
	svc := b.service()
	check(t, errors.Join(
		HandleEach(svc, "each", func(ctx context.Context, _ none) (string, error) { return sum(ctx, ItemOf(ctx)), nil }),
		HandleList(svc, "list", each(func(item *Item[none, string]) { item.Reply(sum(t.Context(), item)) })),
		HandleFlow(svc, "flow", []func(context.Context, *stage) error{
			perItem(func(item *StageItem[none, string, string, None]) {
				item.State = sum(t.Context(), item)
				item.Next()
			}),
			func(ctx context.Context, s *stage) error {
				for _, item := range s.Items() {
					if _, there, _ := item.Part(ctx, "n"); there {
						return errors.New("the part is there in a later stage")
					}
					item.Reply(item.State)
				}
				return nil
			},
		})))
	b.Run(svc)
	for _, endpoint := range []string{"each", "list", "flow"} {
		request := wire.NewRequestBuilder(endpoint, newMeta(), 1<<20)
		request.Part("n", wire.Part{Data: []byte("5")})
		request.AddParts(0, "A", nil)
		request.AddParts(1, "B", nil)
		b.publish(request.Msg())
		got := map[int]string{}
		for ordinal, slot := range b.collect(1)[request.Meta.Slice].slots {
			got[ordinal] = string(slot.Data)
		}
		if want := (map[int]string{0: `"5 true <nil>"`, 1: `"0 false <nil>"`}); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: got %v", endpoint, got)
		}
	}
}

const someParent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

func TestTraceOf(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	if got := TraceOf(ctx); !got.IsZero() {
		t.Errorf("got %+v of nothing", got)
	}
	want := wire.Trace{Parent: someParent, State: "a=1"}
	testenv.Same(t, TraceOf(ContextWithTrace(ctx, want)), want, "the trace")
	if got := TraceOf(ContextWithTrace(ctx, wire.Trace{Parent: "garbage"})); !got.IsZero() {
		t.Errorf("got %+v of garbage", got)
	}
	type key struct{}
	late := ContextWithTracer(ctx, func(ctx context.Context) wire.Trace {
		parent, _ := ctx.Value(key{}).(string)
		return wire.Trace{Parent: parent}
	})
	testenv.Same(t, TraceOf(context.WithValue(late, key{}, someParent)).Parent, someParent, "the parent of a later span")
}
