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

// Chunk is the items of one call of a HandleList handler. It is safe for concurrent use until the handler returns;
// later answers are logged and dropped.
type Chunk[In, Out any] struct {
	job   *serve.Job
	items []*Item[In, Out]
	index map[int]*Item[In, Out] // items by ordinal, built when a wrapper answers one
	out   Out                    // buffer for the result being encoded; guarded by job.Answers.Mu
}

// Item is one item of a chunk.
type Item[In, Out any] struct {
	Ordinal int    // position in the run, from 0
	Key     string // the caller's ID
	In      In     // payload; zero if the step does not receive it

	chunk    *Chunk[In, Out]
	parts    wire.Parts
	answered bool // guarded by job.Answers.Mu
}

// newChunk decodes the payloads. An item whose payload does not fit In is answered with an error and left out.
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

// Items returns the items in request order, without those whose payload does not fit In.
func (c *Chunk[In, Out]) Items() []*Item[In, Out] { return c.items }

// Keys returns the keys of Items in the same order, for "WHERE id = ANY($1)".
func (c *Chunk[In, Out]) Keys() []string {
	keys := make([]string, len(c.items))
	for i, item := range c.items {
		keys[i] = item.Key
	}
	return keys
}

// Meta returns the metadata in the request's headers.
func (c *Chunk[In, Out]) Meta() wire.Meta { return c.job.Request.Meta }

// Param returns a parameter of the run, or "" if it is not set.
func (c *Chunk[In, Out]) Param(name string) string { return c.job.Request.Params[name] }

// Params returns a copy of the run's parameters.
func (c *Chunk[In, Out]) Params() map[string]string { return maps.Clone(c.job.Request.Params) }

// Flush sends the answers so far without waiting for delivery. Use it when the rest will take long. It does nothing
// once the handler has returned.
func (c *Chunk[In, Out]) Flush() {
	a := &c.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.Closed { // otherwise buf may be the final message, being published
		a.Flush()
	}
}

// Reply answers the item with a result. Results too large for a message are sent in pieces. One that cannot be
// written as JSON, or exceeds wire.MaxResult, becomes an error slot. Only the first answer to an item counts.
func (i *Item[In, Out]) Reply(result Out) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !i.claim() {
		return
	}
	i.chunk.out = result // encode from here: keeps result off the heap
	if err := a.Result(i.Ordinal, &i.chunk.out); err != nil {
		a.Fault(i.Ordinal, wire.Unwritten(err))
	}
}

// Fail answers the item with a permanent error. See the function Fail.
func (i *Item[In, Out]) Fail(code, format string, args ...any) {
	i.answer(wire.NewSlotError(code, fmt.Sprintf(format, args...), false))
}

// Retry answers the item with a retryable error. See the function Retry.
func (i *Item[In, Out]) Retry(code, format string, args ...any) {
	i.answer(wire.NewSlotError(code, fmt.Sprintf(format, args...), true))
}

// Info identifies the item.
func (i *Item[In, Out]) Info() ItemInfo { return infoOf(i.facts()) }

func (i *Item[In, Out]) facts() serve.Item {
	return serve.Item{Job: i.chunk.job, Ordinal: i.Ordinal, Key: i.Key, Parts: i.parts}
}

func (i *Item[In, Out]) answer(e *wire.SlotError) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if i.claim() {
		a.Fail(i.Ordinal, e)
	}
}

// fault answers with an error that the handler did not choose.
func (i *Item[In, Out]) fault(e *wire.SlotError) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if i.claim() {
		a.Fault(i.Ordinal, e)
	}
}

// reject answers while the chunk is being built.
func (i *Item[In, Out]) reject(e *wire.SlotError) {
	a := &i.chunk.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	i.answered = true
	a.Fault(i.Ordinal, e)
}

// claim marks the item as answered and reports whether it may be answered now. Answers.Mu must be held.
func (i *Item[In, Out]) claim() bool {
	j := i.chunk.job
	switch {
	case j.Answers.Closed:
		j.Log.Warn("an answer came after the handler had returned and is dropped", zap.Int("ordinal", i.Ordinal))
	case i.answered:
		j.Log.Warn("an item was answered twice; the first answer counts", zap.Int("ordinal", i.Ordinal))
	default:
		i.answered = true
		return true
	}
	return false
}

// listed is the view of a Chunk for wrappers.
type listed[In, Out any] Chunk[In, Out]

// Unanswered implements serve.WorkItems.
func (c *listed[In, Out]) Unanswered() []serve.Item {
	items := make([]serve.Item, 0, len(c.items))
	for _, item := range c.items {
		if !item.answered {
			items = append(items, item.facts())
		}
	}
	return items
}

// ClaimFor implements serve.WorkItems.
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

// LeaveOut implements serve.WorkItems.
func (c *listed[In, Out]) LeaveOut() {
	a := &c.job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	c.items = slices.DeleteFunc(c.items, func(item *Item[In, Out]) bool { return item.answered })
}

// ItemInfo identifies an item and its attempt.
type ItemInfo struct {
	wire.Meta
	Ordinal int
	Key     string

	params map[string]string
	item   serve.Item
}

func infoOf(i serve.Item) ItemInfo {
	return ItemInfo{Meta: i.Job.Request.Meta, Ordinal: i.Ordinal, Key: i.Key, params: i.Job.Request.Params, item: i}
}

// Param returns a parameter of the run, or "" if it is not set.
func (i ItemInfo) Param(name string) string { return i.params[name] }

// Params returns a copy of the run's parameters.
func (i ItemInfo) Params() map[string]string { return maps.Clone(i.params) }

// IdempotencyKey is the same for every attempt at the item in one generation of its run, and changes when the item is
// rerun. To make an effect happen once, store the key in the same transaction.
//
// In a flow's request it ends with the stack, so it differs from the item's own key and from those of other stages.
func (i ItemInfo) IdempotencyKey() string { return i.Meta.IdempotencyKey(i.Ordinal, i.Key) }

// ItemOf returns the item of a HandleEach handler from its context or one derived from it, else the zero ItemInfo.
func ItemOf(ctx context.Context) ItemInfo {
	info, _ := ctx.Value(itemKey{}).(ItemInfo)
	return info
}

type itemKey struct{}

// itemContext is the context of a HandleEach handler. It builds the ItemInfo only when requested.
type itemContext struct {
	context.Context //nolint:containedctx // it is a context
	item            serve.Item
}

// Value returns the ItemInfo for itemKey, and the parent's value for other keys.
func (c *itemContext) Value(key any) any {
	if key == (itemKey{}) {
		return infoOf(c.item)
	}
	return c.Context.Value(key)
}

// Part returns the named step's result for the item. It returns false if the item comes without it: the step is
// optional and failed, or is not an input declared in the plan. A part that did not fit the request is fetched from a
// node, by each call. If that fails, the error is a retryable *SlotError, ready to be answered, or that of ctx.
func (i *Item[In, Out]) Part(ctx context.Context, name string) (wire.Part, bool, error) {
	return i.facts().Part(ctx, name)
}

// Part returns the named step's result for the item, like [Item.Part], in the first stage only; keep what later
// stages need in State.
func (i *StageItem[In, Out, State, Shared]) Part(ctx context.Context, name string) (wire.Part, bool, error) {
	return i.core.Facts().Part(ctx, name)
}

// Part returns the named step's result for the item, like [Item.Part].
func (i ItemInfo) Part(ctx context.Context, name string) (wire.Part, bool, error) {
	return i.item.Part(ctx, name)
}

// HasParts is an item with parts: an Item, StageItem or ItemInfo.
type HasParts interface {
	Part(ctx context.Context, name string) (wire.Part, bool, error)
}

// PartOf decodes a part as T. T = Binary accepts any content type; any other T accepts JSON only. there is false if
// the item comes without the part.
//
// The error is that of [Item.Part], or a permanent *SlotError of CodeBadPart, ready to be answered. It names the part,
// the position and the types, never a value.
func PartOf[T any](ctx context.Context, item HasParts, name string) (value T, there bool, err error) {
	part, there, err := item.Part(ctx, name)
	if !there || err != nil {
		return value, there, err
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
