package apicore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/live"
)

const (
	mimeEvents = "text/event-stream"

	// heartbeat is the interval of a stream's heartbeats, which also detect that the reader is gone.
	heartbeat = 15 * time.Second
	// streamRetry is the delay before a browser reconnects.
	streamRetry = time.Second

	maxStreams        = 512
	maxStreamsPerUser = 24
)

type streams struct{ *access.Slots }

type tooManyError struct{ detail string }

func (e *tooManyError) Error() string { return e.detail }

// TooMany returns an error for exceeding a limit on concurrent streams.
func TooMany(detail string) error { return &tooManyError{detail} }

func (s streams) Enter(user string) (leave func(), err error) {
	leave, err = s.Take(user)
	if busy, ok := errors.AsType[*access.BusyError](err); ok && busy.All {
		err = TooMany(fmt.Sprintf("%d streams of events are open on this server, and more may not be; try again later",
			busy.Limit))
	} else if ok {
		err = TooMany(fmt.Sprintf("%s has %d streams of events open, and more may not be; close some", user, busy.Limit))
	}
	return leave, err
}

type eventWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func beginEvents(w http.ResponseWriter) (*eventWriter, error) {
	w.Header().Set("Content-Type", mimeEvents)
	w.Header().Set("X-Accel-Buffering", "no") // prevents buffering in proxies
	e := &eventWriter{w: w, control: http.NewResponseController(w)}
	if _, err := fmt.Fprintf(w, "retry: %d\n\n", streamRetry.Milliseconds()); err != nil {
		return nil, err
	}
	return e, e.control.Flush()
}

// send writes events. Their data is JSON, so it has no line breaks.
func (e *eventWriter) send(events []live.Event) error {
	for i := range events {
		event := &events[i]
		if event.ID != "" {
			if _, err := fmt.Fprintf(e.w, "id: %s\n", event.ID); err != nil {
				return err
			}
		}
		if _, err := fmt.Fprintf(e.w, "event: %s\ndata: %s\n\n", event.Name, event.Data); err != nil {
			return err
		}
	}
	return e.control.Flush()
}

// EventSource has events as they happen, until it is closed.
type EventSource interface {
	Next(ctx context.Context) ([]live.Event, error)
	Close()
}

// SendEvents writes events until the caller is gone, loses permission, or the server stops. HEAD waits for none.
func SendEvents(r *http.Request, w http.ResponseWriter, source EventSource) {
	out, err := beginEvents(w)
	for err == nil && r.Method != http.MethodHead {
		err = pass(r.Context(), out, source)
	}
}

func pass(ctx context.Context, out *eventWriter, source EventSource) error {
	wait, cancel := context.WithTimeout(ctx, heartbeat)
	defer cancel()
	events, err := source.Next(wait)
	switch {
	case err == nil:
		return out.send(events)
	case ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded):
		if _, err := fmt.Fprint(out.w, ": still here\n\n"); err != nil {
			return err
		}
		return out.control.Flush()
	default:
		return err
	}
}

// Raw is an answer that is written by hand.
func Raw(write func(w http.ResponseWriter, r *http.Request)) *huma.StreamResponse {
	return &huma.StreamResponse{Body: func(ctx huma.Context) {
		r, w := humago.Unwrap(ctx)
		write(w, r)
	}}
}

// Answers describes an answer in one content type.
func Answers(doc, mime string, schema *huma.Schema) map[string]*huma.Response {
	return map[string]*huma.Response{
		"200": {Description: doc, Content: map[string]*huma.MediaType{mime: {Schema: schema}}},
	}
}

// Described returns the schema of one event of a stream.
func Described(api huma.API, name, doc string, data any) *huma.Schema {
	schema, is := data.(*huma.Schema)
	if !is {
		schema = api.OpenAPI().Components.Schemas.Schema(reflect.TypeOf(data), true, name)
	}
	return &huma.Schema{
		Type: huma.TypeObject, Description: doc, Required: []string{"event", "data"},
		Properties: map[string]*huma.Schema{
			"id":    {Type: huma.TypeString, Description: "to reconnect with, as Last-Event-ID"},
			"event": {Type: huma.TypeString, Enum: []any{name}},
			"data":  schema,
		},
	}
}

// EventStream describes a streamed answer.
func EventStream(doc string, events ...*huma.Schema) map[string]*huma.Response {
	return Answers(doc, mimeEvents, &huma.Schema{Type: huma.TypeArray, Description: "Server-sent events; data is JSON.",
		Items: &huma.Schema{OneOf: events}})
}
