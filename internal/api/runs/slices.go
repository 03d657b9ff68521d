package runs

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

type slicesInput struct {
	kernel.RunPath
	State []string `query:"state,explode" enum:"scheduled,claimed,sent" doc:"may stand more than once; absent: all"`
	After string   `query:"after" doc:"the id of a slice: only those behind it"`
	Limit int      `query:"limit" minimum:"1" maximum:"1000" default:"100"`
}

func (s *Routes) registerSlices(api huma.API) {
	op := kernel.Broad(kernel.Get("list-slices", "/runs/{run}/slices",
		"Requests that are out or wait for their time, and who holds them"))
	op.Description = "A slice is one request for a chunk of items. claimed: a node makes the request, or does the work " +
		"itself; sent: it is with a service, or on its way; scheduled: it waits to be tried again. They come by their ids, " +
		"which say nothing."
	kernel.Register(s.Kernel, api, op, s.listSlices)
}

func (s *Routes) listSlices(ctx context.Context, in *slicesInput) (*inspect.LiveSlices, error) {
	filter := inspect.LiveFilter{States: in.State, Limit: in.Limit}
	if in.After != "" {
		if err := filter.After.UnmarshalText([]byte(in.After)); err != nil {
			return nil, kernel.BadInput("after is not the id of a slice; use the value of next of the page before")
		}
	}
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return nil, err
	}
	filter.Run = id
	return inspect.New(s.Store).LiveSlices(ctx, filter)
}
