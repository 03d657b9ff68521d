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
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

type wrapChunk = Chunk[numberIn, numberOut]

type numberIn struct {
	N int `json:"n"`
}

type numberOut struct {
	Twice int `json:"twice"`
}

// double answers each item.
func double(_ context.Context, chunk *wrapChunk) error {
	for _, item := range chunk.Items() {
		item.Reply(numberOut{2 * item.In.N})
	}
	return nil
}

func pass(ctx context.Context, _ *Work, next func(context.Context) error) error { return next(ctx) }

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
	if want := "1 2 3 4 4 ends 3 ends 2 ends 1 ends"; strings.Join(order, " ") != want {
		t.Errorf("called in order %v, want %s", order, want)
	}
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
		chunk.Items()[0].Reply(numberOut{})
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
	if header.Get(wire.HeaderRun) != seen.Meta().Run.String() {
		t.Errorf("the headers are %v", header)
	}
	header[wire.HeaderRun][0] = "changed"
	if seen.Header().Get(wire.HeaderRun) == "changed" {
		t.Error("the headers are not a copy")
	}
}

// remember answers item 1 and a binary item 2 in the handler's place.
func remember(ctx context.Context, w *Work, next func(context.Context) error) error {
	for _, slot := range []wire.Slot{
		{Ordinal: 1, Data: []byte(`{"twice":42}`)}, {Ordinal: 2, Data: []byte("%PDF"), ContentType: "application/pdf"},
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

func TestWrapperAnswers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleList(svc, "list", double, Wrap(remember)))
	check(t, HandleEach(svc, "each", func(_ context.Context, in numberIn) (numberOut, error) {
		return numberOut{2 * in.N}, nil
	}, Wrap(remember)))
	b.Run(svc)
	for _, endpoint := range []string{"list", "each"} {
		got := b.reply(endpoint, numbers(4))
		if got.failure != nil || len(got.slots) != 4 || string(got.slots[1].Data) != `{"twice":42}` ||
			string(got.slots[2].Data) != "%PDF" || got.slots[2].ContentType != "application/pdf" ||
			string(got.slots[3].Data) != `{"twice":6}` {
			t.Errorf("%s: got %+v", endpoint, got)
		}
	}
}

func TestWrapperAnswersAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	answer := func(ctx context.Context, w *Work, next func(context.Context) error) error {
		for _, item := range w.Items() {
			slot := wire.Slot{Ordinal: item.Ordinal, Err: &wire.SlotError{Code: "known", Message: "by heart"}}
			if err := w.Answer(slot); err != nil {
				return err
			}
		}
		return next(ctx)
	}
	check(t, HandleList(svc, "list", func(context.Context, *wrapChunk) error { panic("called") }, Wrap(answer)))
	check(t, HandleEach(svc, "each", func(context.Context, numberIn) (numberOut, error) { panic("called") }, Wrap(answer)))
	b.Run(svc)
	for _, endpoint := range []string{"list", "each"} {
		for range 2 * DefaultEachConcurrency { // no slot may be lost
			got := b.reply(endpoint, numbers(2))
			if got.failure != nil || len(got.slots) != 2 || got.slots[0].Err == nil || got.slots[0].Err.Code != "known" {
				t.Fatalf("%s: got %+v", endpoint, got)
			}
		}
	}
}

func TestWrapperDoesNotCallNext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	refuse := func(context.Context, *Work, func(context.Context) error) error { return Retry("busy", "not now") }
	serveEach(b, "each", func(context.Context, numberIn) (numberOut, error) { panic("called") },
		Wrap(refuse), Concurrency(1))
	for range 3 { // the slot is given back each time
		if got := b.reply("each", numbers(2)); got.failure == nil || got.failure.Code != "busy" || !got.failure.Retry {
			t.Fatalf("got %+v", got)
		}
	}
}

func TestHold(t *testing.T) {
	t.Parallel()
	b := setup(t)
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
		return nil
	}
	handler := func(_ context.Context, chunk *wrapChunk) error {
		for _, item := range chunk.Items() {
			if item.Ordinal%10 == 9 {
				item.Retry("busy", "later")
				continue
			}
			item.Reply(numberOut{2 * item.In.N})
			chunk.Flush()
		}
		return nil
	}
	serveList(b, "hold", handler, Wrap(pass), Wrap(hold), FlushBytes(200))
	meta := b.ask("hold", append(numbers(100), payload{100, `""`}))
	recorder := b.recorder()
	early := b.next(recorder) // the payload that does not fit is not the handler's to answer
	reply := testenv.Must(wire.ParseReply(early.Subject(), early.Headers(), early.Data(), wire.Limits{}))(t)
	if len(reply.Slots) != 1 || reply.Slots[0].Ordinal != 100 {
		t.Errorf("while the answers are held, there came %+v", reply)
	}
	check(t, early.Nak())
	close(released)
	got := b.collect(1)[meta.Slice]
	if len(got.slots) != 101 || got.answered != 101 || got.failure != nil {
		t.Errorf("got %d slots of %d, failure %v", len(got.slots), got.answered, got.failure)
	}
	answers := await(t, "answers", held)
	if len(answers) != 100 {
		t.Fatalf("the wrapper saw %d answers", len(answers))
	}
	for i, slot := range answers {
		sent := got.slots[i]
		if slot.Ordinal != i || !bytes.Equal(sent.Data, slot.Data) || (sent.Err == nil) != (slot.Err == nil) {
			t.Fatalf("answer %d is %+v for the wrapper and %+v in the reply", i, slot, sent)
		}
	}
}

func TestHoldDrops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	with := func(end func() error) Option {
		return Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.Hold()
			if err := next(ctx); err != nil {
				return err
			}
			return end()
		})
	}
	check(t, HandleList(svc, "fails", double, FlushBytes(1), with(func() error { return Fail("rolled_back", "no") })))
	check(t, HandleList(svc, "plain", double, FlushBytes(1), with(func() error { return errors.New("no") })))
	check(t, HandleList(svc, "panics", double, with(func() error { panic("no") })))
	check(t, HandleList(svc, "inner", double, FlushBytes(1),
		Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
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
		}), with(func() error { return errors.New("no") })))
	b.Run(svc)
	for endpoint, code := range map[string]string{
		"fails": "rolled_back", "plain": wire.CodeHandlerError, "panics": wire.CodePanic,
	} {
		got := b.reply(endpoint, numbers(20))
		retry := endpoint != "fails"
		if len(got.slots) != 0 || got.failure == nil || got.failure.Code != code || got.failure.Retry != retry {
			t.Errorf("%s: got %+v", endpoint, got)
		}
	}
	if got := b.reply("inner", numbers(20)); len(got.slots) != 2 || got.failure != nil {
		t.Errorf("inner: got %+v", got)
	}
}

func TestHoldIsBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	text := strings.Repeat("x", 512<<10)
	handler := func(ctx context.Context, chunk *Chunk[numberIn, string]) error {
		for _, item := range chunk.Items() {
			item.Reply(text)
		}
		if ctx.Err() == nil {
			t.Error("the handler's context goes on")
		}
		return nil
	}
	serveList(b, "huge", handler,
		Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.Hold()
			_ = next(ctx) // even so, nothing may be sent
			return nil
		}))
	got := b.reply("huge", numbers(150))
	if len(got.slots) != 0 || got.failure == nil || got.failure.Code != wire.CodeHeldTooLarge || got.failure.Retry {
		t.Errorf("got %d slots, failure %v", len(got.slots), got.failure)
	}
}

func TestWrapperSeesHowTheHandlerEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	plain := errors.New("plain")
	ends := make(chan error, 1)
	watch := func(ctx context.Context, _ *Work, next func(context.Context) error) error {
		err := next(ctx)
		ends <- err
		return err
	}
	check(t, HandleList(svc, "plain", func(context.Context, *wrapChunk) error { return plain }, Wrap(watch)))
	check(t, HandleList(svc, "panics", func(context.Context, *wrapChunk) error { panic("no") }, Wrap(watch)))
	check(t, HandleList(svc, "late", func(ctx context.Context, _ *wrapChunk) error {
		<-ctx.Done()
		return nil
	}, Wrap(watch), Timeout(20*time.Millisecond)))
	twice := func(ctx context.Context, _ *Work, next func(context.Context) error) error {
		return errors.Join(next(ctx), next(ctx))
	}
	check(t, HandleList(svc, "twice", double, Wrap(twice)))
	b.Run(svc)
	for endpoint, code := range map[string]string{
		"plain": wire.CodeHandlerError, "panics": wire.CodePanic, "late": wire.CodeTimeout,
	} {
		got := b.reply(endpoint, numbers(2))
		if got.failure == nil || got.failure.Code != code || !got.failure.Retry {
			t.Errorf("%s: got %+v", endpoint, got)
		}
		var slot *wire.SlotError
		if err := await(t, "end", ends); endpoint == "plain" && err != plain || //nolint:errorlint // the very same
			endpoint != "plain" && (!errors.As(err, &slot) || slot.Code != code) {
			t.Errorf("%s: the wrapper saw %v", endpoint, err)
		}
	}
	if got := b.reply("twice", numbers(2)); len(got.slots) != 2 { // the answers stand
		t.Errorf("twice: got %+v", got)
	}
}

func TestSetTrace(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	set := func(parent, state string) Option {
		return Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.SetTrace(parent, state)
			return next(ctx)
		})
	}
	check(t, HandleList(svc, "traced", double, set(parent, "vendor=1")))
	check(t, HandleList(svc, "broken", double, set("two\r\nlines", strings.Repeat("x", 600))))
	b.Run(svc)
	recorder := b.recorder()
	for endpoint, want := range map[string][2]string{"traced": {parent, "vendor=1"}, "broken": {}} {
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

// TestNoWrapperCostsNothing holds runWrapped to no allocation where there is nothing to call.
func TestNoWrapperCostsNothing(t *testing.T) {
	j := &serve.Job{Request: &wire.Request{}, Header: nats.Header{}}
	chunk := &wrapChunk{job: j, items: []*Item[numberIn, numberOut]{{}}}
	w := &listWork[numberIn, numberOut]{job: j, chunk: chunk,
		handler: func(context.Context, *wrapChunk) error { return nil }}
	ctx := t.Context()
	if n := testing.AllocsPerRun(100, func() { _ = serve.RunWrapped(ctx, j, 0, w) }); n != 0 {
		t.Errorf("%v allocations", n)
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
		if got := w.messages - 1; got != pieces {
			t.Errorf("%d came in %d messages beside the final one, want %d pieces", n, got, pieces)
		}
	}
}

// Results in pieces are held like others: a transaction that fails takes them back, and one that succeeds sends them in
// their order among the others.
func TestLargeResultsAreHeld(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	svc := b.service()
	text := func(n int) string { return strings.Repeat("x", 10+n%2*200_000) }
	seen := make(chan []wire.Slot, 2)
	for endpoint, outcome := range map[string]error{"kept": nil, "dropped": Fail("rolled_back", "it was")} {
		hold := func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.Hold()
			if err := next(ctx); err != nil {
				return err
			}
			slots := testenv.Must(w.Answers())(t)
			seen <- slots
			return outcome
		}
		reply := each(func(item *Item[number, string]) { item.Reply(text(item.In.N)) })
		check(t, HandleList(svc, endpoint, reply, Wrap(hold)))
	}
	b.Run(svc)
	kept := b.reply("kept", numbers(4))
	for n := range 4 {
		if got := len(kept.slots[n].Data); got != len(text(n))+2 || kept.slots[n].Err != nil {
			t.Errorf("item %d has %d bytes, %v", n, got, kept.slots[n].Err)
		}
	}
	for n, slot := range await(t, "the held answers", seen) {
		if slot.Ordinal != n || len(slot.Data) != len(text(n))+2 || slot.ContentType != "" {
			t.Errorf("held answer %d is that of item %d, with %d bytes of %q", n, slot.Ordinal, len(slot.Data),
				slot.ContentType)
		}
	}
	dropped := b.reply("dropped", numbers(4))
	if len(dropped.slots) != 0 || dropped.failure == nil || dropped.messages != 1 {
		t.Errorf("of what was taken back %d messages came, with %d slots", dropped.messages, len(dropped.slots))
	}
}

func TestPartOf(t *testing.T) {
	t.Parallel()
	info := ItemInfo{parts: wire.Parts{{Name: "json", Part: wire.Part{Data: []byte(`{"n":7}`)}},
		{Name: "png", Part: wire.Part{Data: []byte{9}, ContentType: "image/png"}}}}
	type number struct {
		N int `json:"n"`
	}
	if n, there, err := PartOf[number](info, "json"); n.N != 7 || !there || err != nil {
		t.Errorf("%+v, %v, %v", n, there, err)
	}
	if n, there, err := PartOf[number](info, "other"); n.N != 0 || there || err != nil {
		t.Errorf("a part that is not there: %+v, %v, %v", n, there, err)
	}
	for name, want := range map[string]wire.Binary{
		"json": {ContentType: "application/json", Data: []byte(`{"n":7}`)}, "png": {ContentType: "image/png",
			Data: []byte{9}},
	} {
		if b, there, err := PartOf[wire.Binary](info, name); !reflect.DeepEqual(b, want) || !there || err != nil {
			t.Errorf("%+v, %v, %v", b, there, err)
		}
	}
	for name, says := range map[string]string{"json": "does not fit", "png": "it is image/png, which does not fit"} {
		_, there, err := PartOf[struct {
			N string `json:"n"`
		}](info, name)
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
	sum := func(item HasParts) string {
		n, there, err := PartOf[int](item, "n")
		return fmt.Sprintf("%d %v %v", n, there, err)
	}
	svc := b.service()
	check(t, errors.Join(
		HandleEach(svc, "each", func(ctx context.Context, _ none) (string, error) { return sum(ItemOf(ctx)), nil }),
		HandleList(svc, "list", each(func(item *Item[none, string]) { item.Reply(sum(item)) })),
		HandleFlow(svc, "flow", []func(context.Context, *stage) error{
			perItem(func(item *StageItem[none, string, string, None]) {
				item.State = sum(item)
				item.Next()
			}),
			func(_ context.Context, s *stage) error {
				for _, item := range s.Items() {
					if _, there := item.Part("n"); there {
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
	if got := TraceOf(ContextWithTrace(ctx, want)); got != want {
		t.Errorf("got %+v", got)
	}
	if got := TraceOf(ContextWithTrace(ctx, wire.Trace{Parent: "garbage"})); !got.IsZero() {
		t.Errorf("got %+v of garbage", got)
	}
	type key struct{}
	late := ContextWithTracer(ctx, func(ctx context.Context) wire.Trace {
		parent, _ := ctx.Value(key{}).(string)
		return wire.Trace{Parent: parent}
	})
	if got := TraceOf(context.WithValue(late, key{}, someParent)); got.Parent != someParent {
		t.Errorf("got %+v of a later span", got)
	}
}
