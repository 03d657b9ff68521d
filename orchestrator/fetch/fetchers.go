package fetch

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/workqueue"
)

// Fetchers makes fetchers for steps of one kind. It is asked for each chunk, from several goroutines, and so keeps what
// is costly to make.
type Fetchers interface {
	// Fetcher returns what fetches for a step with the given settings, which are JSON. An error means that this node
	// cannot: the chunk is left to others for a while.
	Fetcher(config []byte) (fetch.Fetcher, error)
}

// resting is implemented by Fetchers that are told by whom they ask to stay away for a while.
type resting interface {
	// RestsUntil returns until when nothing is to be claimed of a pace; the zero time: it may be now.
	RestsUntil(paceKey string) time.Time
}

// fetchCall works on a chunk.
type fetchCall func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error)

// noFetcherError says that this node cannot work on a step.
type noFetcherError struct {
	work workqueue.StepWork
	why  error
}

func (e *noFetcherError) Error() string {
	return fmt.Sprintf("this node cannot do the work of step %s (%s): %v", e.work.Name, e.work.Kind, e.why)
}

func (e *noFetcherError) Unwrap() error { return e.why }

// offers reports whether this node works on steps of a kind at all.
func (f *Worker) offers(kind workqueue.Kind) bool {
	switch kind {
	case workqueue.KindLocal:
		return len(f.cfg.Locals) > 0
	case workqueue.KindRequest:
		return true
	default:
		return f.cfg.Fetchers[kind] != nil
	}
}

// callOf returns what works on the chunks of a step.
func (f *Worker) callOf(job *fetchJob) (fetchCall, error) {
	fetcher, err := f.fetcherOf(job)
	switch {
	case err != nil:
		return nil, &noFetcherError{job.Work, err}
	case fetcher == nil:
		return f.asks(job.Endpoint), nil
	}
	return func(ctx context.Context, req *fetch.Request, c *collector) ([]fetch.Slot, error) {
		return fetch.Guard(fetch.ReportPanics(ctx, c.panicked), fetcher, req.WithSink(c))
	}, nil
}

// fetcherOf returns nil for a step that asks an endpoint.
func (f *Worker) fetcherOf(job *fetchJob) (fetch.Fetcher, error) {
	switch kind := job.Work.Kind; kind {
	case workqueue.KindRequest:
		return nil, nil
	case workqueue.KindLocal:
		name := strings.TrimPrefix(job.Endpoint, workqueue.PaceKey(kind, ""))
		if local := f.cfg.Locals[name]; local != nil {
			return local, nil
		}
		return nil, fmt.Errorf("it has no function %s; it has %s", name, strings.Join(f.names(), ", "))
	default:
		fetchers := f.cfg.Fetchers[kind]
		if fetchers == nil {
			return nil, fmt.Errorf("it has no fetchers of kind %s", kind)
		}
		return fetchers.Fetcher(job.Work.Config)
	}
}

// names of the functions for steps of kind local, in order.
func (f *Worker) names() []string { return slices.Sorted(maps.Keys(f.cfg.Locals)) }
