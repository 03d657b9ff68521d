package runs

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
)

type timelineInput struct {
	kernel.RunPath
	Step    string `query:"step" doc:"its name; absent: every step"`
	Buckets int    `query:"buckets" minimum:"1" maximum:"1000" default:"120" doc:"into how many lengths the time is cut"`
	All     bool   `query:"all" doc:"from the start of the run, and not only of its present generation"`
}

func (s *Routes) registerTimeline(api huma.API) {
	op := kernel.Broad(kernel.Get("get-timeline", "/runs/{run}/timeline", "How a run has gone, for charts"))
	op.Description = "Items that were done and that failed, requests and how long they took, in equal lengths of time, " +
		"from the start of the present generation until now or the end of the run. Items count where their last request " +
		"of the generation ended. It may be two seconds old."
	kernel.Register(s.Kernel, api, op, s.getTimeline)
}

func (s *Routes) getTimeline(ctx context.Context, in *timelineInput) (*report.Timeline, error) {
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return nil, err
	}
	req := report.TimelineRequest{Run: id, Step: in.Step, Buckets: in.Buckets, All: in.All}
	timeline, err := s.timelines.get(ctx, req, timelineAge,
		func() (*report.Timeline, error) { return report.New(s.Store).Timeline(ctx, req) })
	return timeline, kernel.Seen(err, "tranche run show "+id.String())
}
