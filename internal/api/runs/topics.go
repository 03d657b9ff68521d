package runs

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Topics of GET /events.
const (
	topicRuns   = "runs"
	topicHealth = "health"
)

// RunsTopic is the data of the event runs. The name is that of its schema.
type RunsTopic struct { //nolint:revive // as above
	Runs []inspect.RunSummary `json:"runs" doc:"the newest 50, and all that have not ended, up to 500; newest first"`
}

// HealthTopic is the data of the event health.
type HealthTopic struct {
	Status string         `json:"status" enum:"ok,warning,critical"`
	Counts map[string]int `json:"counts" doc:"conditions by their severity: info, warning, critical"`
}

type topicsInput struct {
	Topic []string `query:"topic,explode" enum:"runs,health" required:"true" doc:"may stand more than once"`
}

func (s *Routes) registerTopics(api huma.API) {
	op := kernel.Get("watch", "/events", "Follow the list of runs, or the system's health")
	op.Description = "A stream of server-sent events: each topic at once, and again whenever it has changed, at most " +
		"once a second. Every event is whole, so there is nothing to resume. A comment comes at least every 15 seconds."
	op.Responses = kernel.EventStream("How things are, as they change.",
		kernel.Described(api, topicRuns, "Topic runs.", RunsTopic{}),
		kernel.Described(api, topicHealth, "Topic health; GET /health says what the conditions are.", HealthTopic{}),
		kernel.Described(api, live.EventDatabase, "PostgreSQL does not answer, or does again.", live.Database{}))
	huma.Register(api, op, s.watchTopics)
}

func (s *Routes) newTopics() *live.Topics {
	return live.NewTopics(s.Log, s.Detail,
		live.Topic{Name: topicRuns, Look: s.lookAtRuns}, live.Topic{Name: topicHealth, Look: s.lookAtHealth})
}

func (s *Routes) watchTopics(ctx context.Context, in *topicsInput) (*huma.StreamResponse, error) {
	leave, err := s.Streams.Enter(asker(ctx))
	if err != nil {
		return nil, s.Failure(ctx, err)
	}
	watcher, err := s.topics.Watch(in.Topic)
	if err != nil {
		leave()
		return nil, s.Failure(ctx, stopping(err))
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer leave()
		defer watcher.Close()
		r, w := humago.Unwrap(hc)
		kernel.SendEvents(r, w, watcher)
	}}, nil
}

// lookAtRuns lists the newest runs, and older ones that have not ended.
func (s *Routes) lookAtRuns(ctx context.Context) ([]byte, error) {
	runs, err := inspect.New(s.Store).Runs(ctx, inspect.RunFilter{})
	if err != nil {
		return nil, err
	}
	if len(runs) == inspect.DefaultRuns {
		older, err := inspect.New(s.Store).Runs(ctx, inspect.RunFilter{
			States: []string{"loading", "running", "paused"}, Before: runs[len(runs)-1].ID, Limit: inspect.MaxRuns,
		})
		if err != nil {
			return nil, err
		}
		runs = slices.Concat(runs, older)
	}
	if err := s.config.Health.Stand(ctx, runs); err != nil {
		return nil, err
	}
	return json.Marshal(RunsTopic{runs})
}

func (s *Routes) lookAtHealth(ctx context.Context) ([]byte, error) {
	report, err := s.config.Health.Report(ctx)
	if err != nil {
		return nil, err
	}
	out := HealthTopic{Status: report.Status, Counts: map[string]int{"info": 0, "warning": 0, "critical": 0}}
	for i := range report.Conditions {
		out.Counts[string(report.Conditions[i].Severity)]++
	}
	return json.Marshal(out)
}
