package client

import (
	"bufio"
	"bytes"
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

// How streams of events are held.
const (
	eventsSilence = 45 * time.Second // three of the server's heartbeats
	// Between two attempts to go on with a stream, doubled from one to the other, and half as much again at random.
	eventsBackoff = 500 * time.Millisecond
	eventsMost    = 15 * time.Second // the longest back-off
)

// maxEvent bounds one event.
const maxEvent = 16 << 20

// Event is one event of a stream.
type Event struct {
	Name string // message, when the server does not give it one
	ID   string // of the last event that has one: with it LastEventID goes on after this event
	Data []byte // JSON
}

// Decode reads the data of an event into a value.
func (e *Event) Decode(into any) error {
	if err := json.Unmarshal(e.Data, into); err != nil {
		return fmt.Errorf("read event %s: %w", e.Name, err)
	}
	return nil
}

// events yields the events of a stream until ctx ends, which ends it without an error. A connection that breaks off, or
// says nothing for three heartbeats, is made again, and the server goes on after the last event that came. What ends it
// with an error is a first connection that cannot be made, and an answer that says no permanently.
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

// errEnough is what ends a stream whose reader has had enough.
var errEnough = errors.New("enough")

// follower holds a stream of events over its connections.
type follower struct {
	client  *Client
	ask     request
	options []CallOption
	last    string // id of the last event
	met     bool   // a connection has been made
	pauses  backoff.Exponential
	server  time.Duration // what the server wants instead
}

// once follows one connection to its end.
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
			if event.Name == "" {
				event.Name = "message"
			}
			if !take(event) {
				return errEnough
			}
		}
		data.Reset()
		event = Event{ID: f.last}
	}
	return lines.Err()
}

// field reads a line of an event.
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

// worthAgain reports whether a connection that failed may succeed later.
func (f *follower) worthAgain(err error) bool {
	if no, ok := errors.AsType[*ProblemError](err); ok {
		return f.met && (no.Status == http.StatusTooManyRequests || no.Status >= http.StatusInternalServerError)
	}
	return f.met
}

// rest waits before the next connection, longer each time that none can be made.
func (f *follower) rest(ctx context.Context, err error) bool {
	pause := max(f.pauses.Next(), f.server)
	if no, ok := errors.AsType[*ProblemError](err); ok {
		pause = max(pause, no.RetryAfter)
	}
	pause += rand.N(pause/2 + 1) // so that not all come at once
	return backoff.Sleep(ctx, pause) == nil
}

// heard starts the clock again with everything that comes.
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
