package endpoints

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Chunk is what one call of a HandleList handler works on. It is safe for concurrent use, and must not be used after
// the handler has returned: answers that come later are logged and dropped.
type Chunk[In, Out any] struct {
	job   *serve.Job
	items []*Item[In, Out]
	index map[int]*Item[In, Out] // of items by ordinal; made when a wrapper answers one
	out   Out                    // where a result stands while it is written; guarded by job.answers.mu
}

// Item is one item of a chunk.
type Item[In, Out any] struct {
	Ordinal int    // its place in the run, from 0
	Key     string // the caller's id of it
	In      In     // its payload; zero when the step does not see it

	chunk    *Chunk[In, Out]
	parts    wire.Parts
	answered bool // guarded by job.answers.mu
}

// newChunk decodes the payloads. An item whose payload does not fit In is answered at once and left out.
func newChunk[In, Out any](j *serve.Job) *Chunk[In, Out] {
	raw := j.Request.Items
	c := &Chunk[In, Out]{job: j, items: make([]*Item[In, Out], 0, len(raw))}
	all := make([]Item[In, Out], len(raw))
	for i := range raw {
		item := &all[i]
		item.Ordinal, item.Key, item.chunk, item.parts = raw[i].Ordinal, raw[i].Key, c, raw[i].Parts
		if err := wire.DecodePayload(raw[i].Payload, &item.In); err != nil {
			item.reject(wire.PayloadError(err, reflect.TypeFor[In]()))
			continue
		}
		c.items = append(c.items, item)
	}
	return c
}

// Items returns the items in the order of the request. Those whose payload does not fit In are not among them.
func (c *Chunk[In, Out]) Items() []*Item[In, Out] { return c.items }

// Keys returns the keys of Items, in the same order: the parameter of "WHERE id = ANY($1)".
func (c *Chunk[In, Out]) Keys() []string {
	keys := make([]string, len(c.items))
	for i, item := range c.items {
		keys[i] = item.Key
	}
	return keys
}

// Meta returns what the request's headers say.
func (c *Chunk[In, Out]) Meta() wire.Meta { return c.job.Request.Meta }

// Param returns a parameter of the run, or "" when the run has none of that name.
func (c *Chunk[In, Out]) Param(name string) string { return c.job.Request.Params[name] }

// Params returns a copy of the run's parameters.
func (c *Chunk[In, Out]) Params() map[string]string { return maps.Clone(c.job.Request.Params) }

// Flush sends what has been answered so far, without waiting for it to arrive. Use it when the rest will take long.
// Once the handler has returned it does nothing.
func (c *Chunk[In, Out]) Flush() {
	a := &c.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.Closed { // then buf may be the final message, which is on its way
		a.Flush()
	}
}

// Reply answers the item with a result. One that is too large for a message, of up to wire.MaxResult bytes, goes in
// pieces. A result that cannot be written as JSON, or is larger, becomes an error slot. Only the first answer to an
// item counts.
func (i *Item[In, Out]) Reply(result Out) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !i.claim() {
		return
	}
	i.chunk.out = result // pointing there, and not to result, keeps result off the heap
	if err := a.Result(i.Ordinal, &i.chunk.out); err != nil {
		a.Fault(i.Ordinal, wire.Unwritten(err))
	}
}

// Fail answers the item with an error that trying again would not help. See the function Fail.
func (i *Item[In, Out]) Fail(code, format string, args ...any) {
	i.answer(wire.NewSlotError(code, fmt.Sprintf(format, args...), false))
}

// Retry answers the item with an error that may pass. See the function Retry.
func (i *Item[In, Out]) Retry(code, format string, args ...any) {
	i.answer(wire.NewSlotError(code, fmt.Sprintf(format, args...), true))
}

// Info identifies the item.
func (i *Item[In, Out]) Info() ItemInfo { return infoOf(i.facts()) }

func (i *Item[In, Out]) facts() serve.Item {
	return serve.Item{Request: i.chunk.job.Request, Ordinal: i.Ordinal, Key: i.Key, Parts: i.parts}
}

func (i *Item[In, Out]) answer(e *wire.SlotError) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if i.claim() {
		a.Fail(i.Ordinal, e)
	}
}

// fault answers with an error that the handler has not decided.
func (i *Item[In, Out]) fault(e *wire.SlotError) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if i.claim() {
		a.Fault(i.Ordinal, e)
	}
}

// reject answers while the chunk is being made.
func (i *Item[In, Out]) reject(e *wire.SlotError) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	i.answered = true
	a.Fault(i.Ordinal, e)
}

// claim reports whether the item may be answered now, and notes that it is. Called with answers.mu held.
func (i *Item[In, Out]) claim() bool {
	j := i.chunk.job
	switch {
	case j.Answers.Closed:
		j.Log.Warn("an answer came after the handler had returned and is dropped", zap.Int("ordinal", i.Ordinal))
	case i.answered:
		j.Log.Warn("an item was answered twice; the first answer stands", zap.Int("ordinal", i.Ordinal))
	default:
		i.answered = true
		return true
	}
	return false
}

// listed is a Chunk as wrappers see it.
type listed[In, Out any] Chunk[In, Out]

// Unanswered implements workItems.
func (c *listed[In, Out]) Unanswered() []serve.Item {
	items := make([]serve.Item, 0, len(c.items))
	for _, item := range c.items {
		if !item.answered {
			items = append(items, item.facts())
		}
	}
	return items
}

// ClaimFor implements workItems.
func (c *listed[In, Out]) ClaimFor(ordinal int) bool {
	if c.index == nil {
		c.index = make(map[int]*Item[In, Out], len(c.items))
		for _, item := range c.items {
			c.index[item.Ordinal] = item
		}
	}
	item := c.index[ordinal]
	if item == nil || item.answered {
		return false
	}
	item.answered = true
	return true
}

// LeaveOut implements workItems.
func (c *listed[In, Out]) LeaveOut() {
	a := &c.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	c.items = slices.DeleteFunc(c.items, func(item *Item[In, Out]) bool { return item.answered })
}

// ItemInfo identifies an item and the attempt at it.
type ItemInfo struct {
	wire.Meta
	Ordinal int
	Key     string

	params map[string]string
	parts  wire.Parts
}

func infoOf(i serve.Item) ItemInfo {
	return ItemInfo{Meta: i.Request.Meta, Ordinal: i.Ordinal, Key: i.Key, params: i.Request.Params, parts: i.Parts}
}

func infosOf(items []serve.Item) []ItemInfo {
	infos := make([]ItemInfo, len(items))
	for n, item := range items {
		infos[n] = infoOf(item)
	}
	return infos
}

// Param returns a parameter of the run, or "" when the run has none of that name.
func (i ItemInfo) Param(name string) string { return i.params[name] }

// Params returns a copy of the run's parameters.
func (i ItemInfo) Params() map[string]string { return maps.Clone(i.params) }

// IdempotencyKey is the same for every attempt at the item in one generation of its run, and differs after a re-run. A
// service whose work must not be done twice remembers it together with that work.
//
// In a request of a flow it ends with the stack: what a flow has asked for an item is another thing to do than the item
// itself, and than what another stage asks.
func (i ItemInfo) IdempotencyKey() string {
	key := fmt.Sprintf("%s/%d/%d/%d", i.Run, i.Step, i.Ordinal, i.Generation)
	if i.Stack == "" {
		return key
	}
	return key + "/" + string(i.Stack)
}

// ItemOf returns the item that a HandleEach handler was called for, given the handler's context or one made from it.
// With any other context it returns the zero ItemInfo.
func ItemOf(ctx context.Context) ItemInfo {
	info, _ := ctx.Value(itemKey{}).(ItemInfo)
	return info
}

type itemKey struct{}

// itemContext is the context of a HandleEach handler. The info is made only when it is asked for.
type itemContext struct {
	context.Context //nolint:containedctx // it is a context
	item            serve.Item
}

// Value answers for itemKey and passes on the rest.
func (c *itemContext) Value(key any) any {
	if key == (itemKey{}) {
		return infoOf(c.item)
	}
	return c.Context.Value(key)
}

// Part returns what the step of a name has made of the item, or false when the item comes without it: the step is
// optional and has failed, or is none of the inputs that the plan declares.
func (i *Item[In, Out]) Part(name string) (wire.Part, bool) { return i.parts.Find(name) }

// Part returns what the step of a name has made of the item, as [Item.Part] does. Like In it is there in the first
// stage only; what a later one needs belongs in State.
func (i *StageItem[In, Out, State, Shared]) Part(name string) (wire.Part, bool) {
	return i.core.Parts.Find(name)
}

// Part returns what the step of a name has made of the item, as [Item.Part] does.
func (i ItemInfo) Part(name string) (wire.Part, bool) { return i.parts.Find(name) }

// HasParts is what parts can be asked of: an Item, a StageItem, an ItemInfo.
type HasParts interface {
	Part(name string) (wire.Part, bool)
}

// PartOf reads a part as T. With T = Binary it takes one of any content type, JSON included; any other T takes JSON
// only. there is false, with the zero T, when the item comes without the part.
//
// The error is a *SlotError of CodeBadPart that trying again would not help, fit to be answered as it is. It names the
// part, the place in it and the types, never a value.
func PartOf[T any](item HasParts, name string) (value T, there bool, err error) {
	part, there := item.Part(name)
	if !there {
		return value, false, nil
	}
	if binary, ok := any(&value).(*wire.Binary); ok {
		*binary = wire.Binary{ContentType: part.ContentType, Data: part.Data}
		if part.ContentType == "" {
			binary.ContentType = wire.ContentTypeJSON
		}
		return value, true, nil
	}
	if err := part.Decode(&value); err != nil {
		var none T
		return none, true, wire.NewSlotError(wire.CodeBadPart, fmt.Sprintf("part %.80q: %v", name, err), false)
	}
	return value, true, nil
}
