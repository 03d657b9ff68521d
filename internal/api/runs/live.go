package runs

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/klauspost/compress/gzhttp"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/report"
)

const maxViews = 32

type runEventsInput struct {
	apicore.RunPath
	Planes bool     `query:"planes" doc:"with the changes of items"`
	Step   []string `query:"step,explode" doc:"whose items; repeatable; absent or empty: over all steps"`
	Last   string   `header:"Last-Event-ID" doc:"of the last event seen, to continue there"`
}

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
	s.topics = map[string]*live.Topics{}
	return err
}

// Close ends all event streams, which otherwise run indefinitely.
func (s *Routes) Close() {
	s.hubs.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, topics := range s.topics {
		topics.Close()
	}
}

func (s *Routes) registerEvents(api huma.API) {
	op := apicore.Get("watch-run", "/runs/{run}/events", "Follow a run")
	op.Description = "A stream of server-sent events. It continues after the run ends, as items may be rerun. To " +
		"follow the items, open it with planes=true, then read the planes, then apply all changes that came since it was " +
		"opened, in order. A comment comes at least every 15 seconds. Changes come up to four " +
		"times a second, documents twice; for slow readers they are merged. Reconnecting with Last-Event-ID " +
		"brings the missed events, or resync. It ends when its token is revoked, and when the server stops."
	empty := &huma.Schema{Type: huma.TypeObject}
	op.Responses = apicore.EventStream("Events, as they happen.",
		apicore.Described(api, live.EventHello, "The first event.", live.Hello{}),
		apicore.Described(api, live.EventRun, "The run, immediately and after each change.", RunDocument{}),
		apicore.Described(api, live.EventDelta, "What has changed, with planes=true.", live.Delta{}),
		apicore.Described(api, live.EventResync, "Read the planes again: not all that was missed is known.", empty),
		apicore.Described(api, live.EventDatabase, "PostgreSQL does not answer, or does again.", live.Database{}),
		apicore.Described(api, live.EventEnd, "The run ended and every event was sent. A rerun sends further events.", empty))
	apicore.RegisterAnswer(s.Core, api, op, s.watchRun)
}

func (s *Routes) watchRun(ctx context.Context, in *runEventsInput) (*huma.StreamResponse, error) {
	return s.follow(ctx, func() (apicore.EventSource, error) { return s.watcher(ctx, in) })
}

// follow answers with events; each caller has a limited number of streams.
func (s *Routes) follow(ctx context.Context, open func() (apicore.EventSource, error)) (*huma.StreamResponse, error) {
	who, _ := access.From(ctx)
	leave, err := s.Streams.Enter(cmp.Or(who.Name, apicore.Anonymous))
	if err != nil {
		return nil, err
	}
	watcher, err := open()
	if err != nil {
		leave()
		if errors.Is(err, live.ErrClosed) {
			err = apicore.Away("this tranche serve is stopping; retry soon")
		}
		return nil, err
	}
	return apicore.Raw(func(w http.ResponseWriter, r *http.Request) {
		defer leave()
		defer watcher.Close()
		apicore.SendEvents(r, w, watcher)
	}), nil
}

func (s *Routes) watcher(ctx context.Context, in *runEventsInput) (*live.Watcher, error) {
	ctx, cancel := s.Looking(ctx)
	defer cancel()
	var views []string
	if in.Planes {
		views = slices.Compact(slices.Sorted(slices.Values(in.Step)))
		if len(views) == 0 {
			views = []string{""} // all of them together
		}
	} else if len(in.Step) > 0 {
		return nil, apicore.BadInput("step chooses whose items are followed, so it needs planes=true")
	}
	if len(views) > maxViews {
		return nil, apicore.BadInput("a stream follows up to 32 steps; open several")
	}
	watcher, err := s.hubs.Watch(ctx, in.ID, views, in.Last)
	if errors.Is(err, live.ErrTooMuch) {
		err = apicore.TooMany(err.Error())
	}
	return watcher, apicore.Seen(err, "tranche run show "+in.ID.String())
}

// Topics of GET /events.
const (
	topicRuns   = "runs"
	topicHealth = "health"
)

// RunsTopic is the data of the event runs. The schema has its name.
type RunsTopic struct { //nolint:revive // as above
	Runs []inspect.RunSummary `json:"runs" doc:"the newest 50, and all that have not ended, up to 500; newest first"`
}

// HealthTopic is the data of the event health.
type HealthTopic struct {
	Status string                `json:"status" enum:"ok,warning,critical"`
	Counts health.SeverityCounts `json:"counts" doc:"conditions by their severity"`
}

type topicsInput struct {
	Topic []string `query:"topic,explode" enum:"runs,health" required:"true" doc:"repeatable"`
}

func (s *Routes) registerTopics(api huma.API) {
	op := apicore.In(apicore.Anywhere, apicore.ByWatcher(
		apicore.Get("watch", "/events", "Follow the list of runs, or the system's health")))
	op.Description = "A stream of server-sent events: each topic immediately, and after each change, at most " +
		"once a second. Every event is whole, so there is nothing to resume. A comment comes at least every 15 seconds."
	op.Responses = apicore.EventStream("The state of the system, as it changes.",
		apicore.Described(api, topicRuns, "Topic runs.", RunsTopic{}),
		apicore.Described(api, topicHealth, "Topic health; GET /health says what the conditions are.", HealthTopic{}),
		apicore.Described(api, live.EventDatabase, "PostgreSQL does not answer, or does again.", live.Database{}))
	apicore.RegisterAnswer(s.Core, api, op, s.watchTopics)
}

// topicsFor returns the topics of a context's scope, which all that have it share. Those without watchers cost nothing.
func (s *Routes) topicsFor(ctx context.Context) *live.Topics {
	names := workqueue.Namespaces(ctx)
	in := func(look func(context.Context) ([]byte, error)) func(context.Context) ([]byte, error) {
		return func(ctx context.Context) ([]byte, error) {
			return look(workqueue.InScope(ctx, workqueue.Scope{Namespaces: names}))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := fmt.Sprintf("%q", names)
	if s.topics[key] == nil {
		s.topics[key] = live.NewTopics(s.Log, s.Detail,
			live.Topic{Name: topicRuns, Look: in(s.lookAtRuns)}, live.Topic{Name: topicHealth, Look: in(s.lookAtHealth)})
		if s.closed {
			s.topics[key].Close()
		}
	}
	return s.topics[key]
}

func (s *Routes) watchTopics(ctx context.Context, in *topicsInput) (*huma.StreamResponse, error) {
	return s.follow(ctx, func() (apicore.EventSource, error) { return s.topicsFor(ctx).Watch(in.Topic) })
}

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
	watch := s.config.Health
	if workqueue.Namespaces(ctx) != nil {
		watch = s.config.Whole
	}
	report, err := watch.VisibleReport(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(HealthTopic{report.Status, report.Counts})
}

const mimeBinary = "application/octet-stream"

type planesInput struct {
	apicore.RunPath
	Step   string `query:"step" doc:"its name; absent: the items over all steps"`
	Layer  string `query:"layer" enum:"state,attempts,latency,age" default:"state" doc:"what the bytes mean"`
	From   int32  `query:"from" minimum:"0" maximum:"262143" doc:"the first block: ordinal 8192·from"`
	Blocks int    `query:"blocks" minimum:"1" maximum:"128" default:"128" doc:"how many blocks"`
}

func (s *Routes) registerPlanes(api huma.API) {
	op := apicore.ReadsMany(apicore.ByWatcher(apicore.Get("get-planes", "/runs/{run}/planes",
		"The state of each item, as bytes")))
	op.Description = "One byte for each item, in the order of their ordinals, from that of the first block on; a block " +
		"has 8192 items, and the last one of a run ends with its items. Blocks behind the last item are left out, so " +
		"the answer may be empty.\n\n" +
		"- state: 0 waiting for a step before, or to be loaded; 1 held by a canary, or behind another item of its " +
		"lane; 2 ready; 3 to be retried later; 4 in flight; 5 done; 6 failed; 7 left out; 8 done, and its inputs are " +
		"being recomputed.\n" +
		"- attempts: how often the item was sent since it was last ready, up to 255.\n" +
		"- latency: of the request that brought its outcome: 0 for none, else 1+12·log2(1+milliseconds), rounded, up to " +
		"255.\n" +
		"- age: since the item last moved, in seconds, in the same code.\n\n" +
		"Over all steps an item has failed if it has at a step that is not optional, and is done when it has come to its " +
		"end at all; else it shows its furthest step. Attempts and latency are the highest of its steps, and the " +
		"age is that of its latest move. To follow a run, open its events first, then read this, then apply what the " +
		"events say."
	op.Responses = planesResponses()
	apicore.RegisterAnswer(s.Core, api, op, s.getPlanes)
}

func planesResponses() map[string]*huma.Response {
	header := func(text string) *huma.Param {
		return &huma.Param{Description: text, Schema: &huma.Schema{Type: huma.TypeInteger}}
	}
	all := apicore.Answers("The bytes, in gzip if accepted.", mimeBinary,
		&huma.Schema{Type: huma.TypeString, Format: "binary"})
	all["200"].Headers = map[string]*huma.Param{
		"Tranche-Items":  header("how many items the run has"),
		"Tranche-Blocks": header("how many blocks that is"),
		"ETag":           {Description: "of the bytes", Schema: &huma.Schema{Type: huma.TypeString}},
	}
	all["304"] = &huma.Response{Description: "They are those of the ETag in If-None-Match."}
	return all
}

func (s *Routes) getPlanes(ctx context.Context, in *planesInput) (*huma.StreamResponse, error) {
	look, cancel := s.Looking(ctx)
	defer cancel()
	planes, err := inspect.New(s.Store).Planes(look, inspect.PlanesRequest{
		Run: in.ID, Step: in.Step, Layer: inspect.Layer(in.Layer), From: workqueue.Block(in.From), Blocks: in.Blocks,
	})
	if err != nil {
		return nil, apicore.Seen(err, "tranche run show "+in.ID.String())
	}
	return planesAnswer(planes), nil
}

func planesAnswer(planes *inspect.Planes) *huma.StreamResponse {
	sum := sha256.Sum256(planes.Bytes)
	return apicore.Raw(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Type", mimeBinary)
		header.Set("Cache-Control", "private, no-cache") // to be cached, but revalidated each time
		header.Set("Tranche-Items", strconv.FormatInt(planes.Items, 10))
		header.Set("Tranche-Blocks", strconv.Itoa(planes.Blocks))
		header.Set("ETag", `W/"`+hex.EncodeToString(sum[:12])+`"`) // weak: it covers the bytes, zipped or not
		gzhttp.GzipHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(planes.Bytes))
		})).ServeHTTP(w, r)
	})
}

type timelineInput struct {
	apicore.RunPath
	Step    string `query:"step" doc:"its name; absent: every step"`
	Buckets int    `query:"buckets" minimum:"1" maximum:"1000" default:"120" doc:"intervals to divide the time into"`
	All     bool   `query:"all" doc:"from the start of the run, not only of its current generation"`
}

func (s *Routes) getTimeline(ctx context.Context, in *timelineInput) (*report.Timeline, error) {
	req := report.TimelineRequest{Run: in.ID, Step: in.Step, Buckets: in.Buckets, All: in.All}
	timeline, err := s.timelines.get(ctx, req, timelineAge,
		func() (*report.Timeline, error) { return report.New(s.Store).Timeline(ctx, req) })
	return timeline, apicore.Seen(err, "tranche run show "+in.ID.String())
}

// timelineAge is the maximum age of a timeline: each page that shows a run polls it.
const timelineAge = 2 * time.Second

// recent caches a value that several callers need within a while, and builds it once.
type recent[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]*made[V]
}

type made[V any] struct {
	turn  chan struct{} // the holder checks whether it exists, or builds it
	there bool
	value V
}

// get returns a value no older than age, or builds it. Another caller's failure is retried.
func (r *recent[K, V]) get(ctx context.Context, key K, age time.Duration, build func() (V, error)) (out V, err error) {
	m := r.of(key)
	select {
	case m.turn <- struct{}{}:
	case <-ctx.Done():
		return out, context.Cause(ctx)
	}
	defer func() { <-m.turn }()
	if m.there {
		return m.value, nil
	}
	defer func() { time.AfterFunc(age, func() { r.forget(key) }) }() // also after a panic
	m.value, err = build()
	m.there = err == nil
	return m.value, err
}

func (r *recent[K, V]) of(key K) *made[V] {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[K]*made[V]{}
	}
	if r.all[key] == nil {
		r.all[key] = &made[V]{turn: make(chan struct{}, 1)}
	}
	return r.all[key]
}

func (r *recent[K, V]) forget(key K) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, key)
}
