package endpoints

import (
	"context"
	"fmt"
	"maps"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

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
