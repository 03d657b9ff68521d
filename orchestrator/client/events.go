package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

const lastEventID = "Last-Event-Id"

// Timing of event streams.
const (
	eventsSilence = 45 * time.Second // three of the server's heartbeats
	// The pause between connection attempts doubles, plus up to half at random.
	eventsBackoff = 500 * time.Millisecond
	eventsMost    = 15 * time.Second // the longest pause
)

const maxEvent = 16 << 20

// Event is one event of a stream.
type Event struct {
	Name string // message if the server names none
	ID   string // of the last event with one: LastEventID resumes after it
	Data []byte // JSON
}

// Decode reads the data of an event into a value.
func (e *Event) Decode(into any) error {
	if err := json.Unmarshal(e.Data, into); err != nil {
		return fmt.Errorf("read event %s: %w", e.Name, err)
	}
	return nil
}

// events yields the events of a stream until ctx ends, which is not an error. A lost connection, or one silent for
// three heartbeats, is replaced, and resumes after the last event. Errors end the stream if the first connection
// fails, or if an error answer is permanent.
func (c *Client) events(ctx context.Context, ask request, options []CallOption) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		f := follower{client: c, ask: ask, options: options,
			pauses: backoff.Exponential{First: eventsBackoff, Longest: eventsMost}}
		for ctx.Err() == nil {
			err := f.once(ctx, func(e Event) bool { return yield(e, nil) })
			switch {
			case errors.Is(err, errEnough) || ctx.Err() != nil:
				return
			case err != nil && !f.worthAgain(err):
				yield(Event{}, err)
				return
			}
			if !f.rest(ctx, err) {
				return
			}
		}
	}
}

var errEnough = errors.New("enough")

type follower struct {
	client  *Client
	ask     request
	options []CallOption
	last    string // id of the last event
	met     bool   // a connection has succeeded
	pauses  backoff.Exponential
	server  time.Duration // minimum pause set by the server
}

func (f *follower) once(ctx context.Context, take func(Event) bool) error {
	options := slices.Concat(f.options, []CallOption{LastEventID(f.last)})
	stream, err := f.client.stream(ctx, f.ask, options)
	if err != nil {
		return err
	}
	f.met = true
	f.pauses.Reset()
	quiet := time.AfterFunc(eventsSilence, func() { _ = stream.Close() })
	defer func() { quiet.Stop(); _ = stream.Close() }()
	lines := bufio.NewScanner(&heard{stream, quiet})
	lines.Buffer(make([]byte, 0, 64<<10), maxEvent)
	var data bytes.Buffer
	event := Event{ID: f.last}
	for lines.Scan() {
		line := lines.Bytes()
		if len(line) > 0 {
			f.field(line, &event, &data)
			continue
		}
		f.last = event.ID
		if data.Len() > 0 {
			event.Data = bytes.Clone(bytes.TrimSuffix(data.Bytes(), []byte("\n")))
			event.Name = cmp.Or(event.Name, "message")
			if !take(event) {
				return errEnough
			}
		}
		data.Reset()
		event = Event{ID: f.last}
	}
	return lines.Err()
}

func (f *follower) field(line []byte, event *Event, data *bytes.Buffer) {
	name, value, _ := strings.Cut(string(line), ":")
	value = strings.TrimPrefix(value, " ")
	switch name {
	case "event":
		event.Name = value
	case "data":
		data.WriteString(value + "\n")
	case "id":
		if !strings.Contains(value, "\x00") {
			event.ID = value
		}
	case "retry":
		if d, err := time.ParseDuration(value + "ms"); err == nil && d > 0 {
			f.server = min(d, eventsMost)
		}
	}
}

// worthAgain reports whether another connection may succeed.
func (f *follower) worthAgain(err error) bool {
	if no, ok := errors.AsType[*ProblemError](err); ok {
		return f.met && (no.Status == http.StatusTooManyRequests || no.Status >= http.StatusInternalServerError)
	}
	return f.met
}

// rest waits before the next connection. The pause grows with each failure.
func (f *follower) rest(ctx context.Context, err error) bool {
	pause := max(f.pauses.Next(), f.server)
	if no, ok := errors.AsType[*ProblemError](err); ok {
		pause = max(pause, no.RetryAfter)
	}
	pause += rand.N(pause/2 + 1) // so that clients do not reconnect together
	return backoff.Sleep(ctx, pause) == nil
}

type heard struct {
	from  io.Reader
	quiet *time.Timer
}

func (h *heard) Read(p []byte) (int, error) {
	n, err := h.from.Read(p)
	if n > 0 {
		h.quiet.Reset(eventsSilence)
	}
	return n, err
}
