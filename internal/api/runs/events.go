package runs

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// maxViews bounds the steps that one stream follows.
const maxViews = 32

type runEventsInput struct {
	kernel.RunPath
	Planes bool     `query:"planes" doc:"with the changes of items"`
	Step   []string `query:"step,explode" doc:"whose items; may stand more than once; absent or empty: over all steps"`
	Last   string   `header:"Last-Event-ID" doc:"of the last event that was seen, to go on there"`
}

// asker is who a stream is counted for.
func asker(ctx context.Context) string {
	if who, ok := access.From(ctx); ok {
		return who.Name
	}
	return kernel.Anonymous
}

// stopping says of an error that it is about the server.
func stopping(err error) error {
	if errors.Is(err, live.ErrClosed) {
		return kernel.Away("this tranche serve is stopping; ask again soon")
	}
	return err
}

// watchRuns makes what runs are followed with.
func (s *Routes) watchRuns() (err error) {
	s.hubs, err = live.New(inspect.New(s.Store), live.Config{
		Log: s.Log,
		Document: func(ctx context.Context, id workqueue.RunID) ([]byte, error) {
			run, err := s.runDocument(ctx, id)
			if err != nil {
				return nil, err
			}
			return json.Marshal(run)
		},
		Explain: s.Detail,
	})
	s.topics = s.newTopics()
	return err
}

// Close ends all streams of events, which go on for ever else.
func (s *Routes) Close() {
	s.hubs.Close()
	s.topics.Close()
}

func (s *Routes) registerEvents(api huma.API) {
	op := kernel.Get("watch-run", "/runs/{run}/events", "Follow a run")
	op.Description = "A stream of server-sent events. It goes on after the run has ended, for it may be run again. To " +
		"follow the items, open it with planes=true, then read the planes, then apply all changes that came since it was " +
		"opened, in order: that leads to the truth. A comment comes at least every 15 seconds. Changes come up to four " +
		"times a second, documents twice; for who reads slowly they are put together. Who comes back with Last-Event-ID " +
		"gets what it has missed, or resync. It ends when its token is revoked, and when the server stops."
	empty := &huma.Schema{Type: huma.TypeObject}
	op.Responses = kernel.EventStream("What happens, as it does.",
		kernel.Described(api, live.EventHello, "The first event.", live.Hello{}),
		kernel.Described(api, live.EventRun, "The run, at once and whenever something changed.", RunDocument{}),
		kernel.Described(api, live.EventDelta, "What has changed, with planes=true.", live.Delta{}),
		kernel.Described(api, live.EventResync, "Read the planes again: not all that was missed is known.", empty),
		kernel.Described(api, live.EventDatabase, "PostgreSQL does not answer, or does again.", live.Database{}),
		kernel.Described(api, live.EventEnd, "The run has ended, and all was told. A re-run goes on with other events.",
			empty))
	huma.Register(api, op, s.watchRun)
}

func (s *Routes) watchRun(ctx context.Context, in *runEventsInput) (*huma.StreamResponse, error) {
	leave, err := s.Streams.Enter(asker(ctx))
	if err != nil {
		return nil, s.Failure(ctx, err)
	}
	watcher, err := s.watcher(ctx, in)
	if err != nil {
		leave()
		return nil, s.Failure(ctx, err)
	}
	return &huma.StreamResponse{Body: func(hc huma.Context) {
		defer leave()
		defer watcher.Close()
		r, w := humago.Unwrap(hc)
		kernel.SendEvents(r, w, watcher)
	}}, nil
}

func (s *Routes) watcher(ctx context.Context, in *runEventsInput) (*live.Watcher, error) {
	ctx, cancel := s.Looking(ctx)
	defer cancel()
	id, err := inspect.New(s.Store).Resolve(ctx, in.Run)
	if err != nil {
		return nil, err
	}
	var views []string
	if in.Planes {
		views = unique(in.Step)
	} else if len(in.Step) > 0 {
		return nil, kernel.BadInput("step chooses whose items are followed, so it needs planes=true")
	}
	if len(views) > maxViews {
		return nil, kernel.BadInput("a stream follows up to 32 steps; open several")
	}
	watcher, err := s.hubs.Watch(ctx, id, views, in.Last)
	if errors.Is(err, live.ErrTooMuch) {
		err = kernel.TooMany(err.Error())
	}
	return watcher, kernel.Seen(stopping(err), "tranche run show "+id.String())
}

// unique is the steps, each once; all of them together when none is named.
func unique(steps []string) (all []string) {
	met := map[string]bool{}
	for _, s := range steps {
		if !met[s] {
			met[s] = true
			all = append(all, s)
		}
	}
	if len(all) == 0 {
		all = []string{""}
	}
	return all
}
