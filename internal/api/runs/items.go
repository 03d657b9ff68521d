package runs

import (
	"context"
	"math"
	"strconv"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

type itemsInput struct {
	kernel.RunPath
	From  int32    `query:"from" minimum:"0" doc:"the first ordinal"`
	To    int32    `query:"to" minimum:"0" default:"2147483647" doc:"the last ordinal, included; absent: to the end"`
	Step  string   `query:"step" doc:"its name; absent: the items over all steps"`
	State []string `query:"state,explode" enum:"waiting,held,ready,scheduled,in_flight,done,failed,skipped,stale" doc:"may stand more than once; absent: all"` //nolint:lll // a tag
	After int32    `query:"after" minimum:"-1" default:"-1" doc:"an ordinal: only items behind it"`
	Limit int      `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

// Resolve refuses what is beyond all ordinals, of which only the lower bits would be left.
func (in *itemsInput) Resolve(ctx huma.Context) []error {
	for _, name := range []string{"from", "to", "after"} {
		if n, err := strconv.ParseInt(ctx.Query(name), 10, 64); err == nil && n > math.MaxInt32 {
			return []error{&huma.ErrorDetail{Message: "expected number <= 2147483647", Location: "query." + name, Value: n}}
		}
	}
	return nil
}

func (s *Routes) registerItemsList(api huma.API) {
	op := kernel.Broad(kernel.Get("list-items", "/runs/{run}/items", "Items of a range, in order"))
	op.Description = "The items from one ordinal to another, with their states as in the planes. An item's whole story " +
		"is at /runs/{run}/items/{key}."
	kernel.Register(s.Kernel, api, op, s.listItems)
}

func (s *Routes) listItems(ctx context.Context, in *itemsInput) (*inspect.ItemRows, error) {
	if in.To < in.From {
		return nil, kernel.BadInput("to lies before from; both are ordinals, and both are included")
	}
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return nil, err
	}
	rows, err := inspect.New(s.Store).ItemsIn(ctx, inspect.ItemRange{
		Run: id, From: workqueue.Ordinal(in.From), To: workqueue.Ordinal(in.To), Step: in.Step,
		States: in.State, After: workqueue.Ordinal(in.After), Limit: in.Limit,
	})
	return rows, kernel.Seen(err, "tranche run show "+id.String())
}
