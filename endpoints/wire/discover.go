package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
)

// Listener is one instance of a service that listens on one endpoint.
type Listener struct {
	Endpoint, Service, Version, Instance string
	Host                                 string // as the service gives it; may be empty
	Processed, Errors                    int64  // items since it started; Errors of those got an error slot
	AvgPerItem                           time.Duration

	// What follows is zero where the service does not say it.
	Rate     float64       // items a second, in the last minute
	P50, P99 time.Duration // an item, in the last minute
	InFlight int           // chunks held: at work, or waiting their turn
	// Concurrency is how many chunks or items are handled at once.
	Concurrency int
	Each        bool // it is items
	// Lane says that it reads calls apart from chunks, Lanes that it would if the consumer were there.
	Lane, Lanes bool
	State       State
	Reason      string // for people: why it waits, or what is denied to it although it listens
	Stages      int    // of a flow
	// Requests that came not for the first time, that were given up after too many deliveries, that were dead-lettered;
	// and how often the instance has lost its consumer and found it again.
	Redelivered, GivenUp, Dead, Rebinds int64
}

// heard is an endpointStatus as anybody may send it. Other languages have numbers of one kind only.
type heard struct {
	Processed   float64 `json:"processed"`
	Errors      float64 `json:"errors"`
	InFlight    float64 `json:"in_flight"`
	Average     float64 `json:"avg_per_item"`
	Rate        float64 `json:"rate"`
	P50         float64 `json:"p50"`
	P99         float64 `json:"p99"`
	Concurrency float64 `json:"concurrency"`
	Each        bool    `json:"each"`
	Lane        *bool   `json:"lane"`
	State       State   `json:"state"`
	Reason      string  `json:"reason"`
	Redelivered float64 `json:"redelivered"`
	GivenUp     float64 `json:"given_up"`
	Dead        float64 `json:"dead"`
	Stages      float64 `json:"stages"`
	Rebinds     float64 `json:"rebinds"`
}

// fill sets what a listener has answered.
func (h heard) fill(l *Listener) {
	l.Processed, l.Errors = count[int64](h.Processed), count[int64](h.Errors)
	l.AvgPerItem = count[time.Duration](h.Average)
	l.Rate = max(h.Rate, 0)
	l.P50, l.P99 = count[time.Duration](h.P50), count[time.Duration](h.P99)
	l.InFlight, l.Concurrency, l.Stages = count[int](h.InFlight), count[int](h.Concurrency), count[int](h.Stages)
	l.Each = h.Each
	l.Lane, l.Lanes = h.Lane != nil && *h.Lane, h.Lane != nil
	l.Redelivered, l.GivenUp = count[int64](h.Redelivered), count[int64](h.GivenUp)
	l.Dead, l.Rebinds = count[int64](h.Dead), count[int64](h.Rebinds)
	switch h.State {
	case StateListening, StateWaiting, StateDraining:
		l.State = h.State
	}
	l.Reason = OneLine(Cut(h.Reason, MaxServiceName))
}

// maxCount is the largest whole number that every language can say.
const maxCount = 1 << 53

func count[T ~int | ~int64](n float64) T { return T(min(max(n, 0), maxCount)) }

// maxListed bounds how many answers Discover takes.
const maxListed = 10_000

// Discover asks who listens, and returns what has been answered within wait, sorted by endpoint, service and instance.
// A service that is busy or far away may be missing. No listeners is not an error.
func Discover(ctx context.Context, nc *nats.Conn, wait time.Duration) ([]Listener, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	subject, err := micro.ControlSubject(micro.StatsVerb, "", "")
	if err != nil {
		return nil, fmt.Errorf("discover services: %w", err)
	}
	inbox := nc.NewInbox()
	answers, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, fmt.Errorf("discover services: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := nc.PublishRequest(subject, inbox, nil); err != nil {
		return nil, fmt.Errorf("discover services: %w", err)
	}
	var found []Listener
	for range maxListed {
		msg, err := answers.NextMsgWithContext(ctx)
		if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrNoResponders) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("discover services: %w", err)
		}
		found = append(found, listenersIn(msg.Data)...)
	}
	slices.SortFunc(found, func(a, b Listener) int {
		return cmp.Or(cmp.Compare(a.Endpoint, b.Endpoint), cmp.Compare(a.Service, b.Service),
			cmp.Compare(a.Instance, b.Instance))
	})
	return found, nil
}

// listenersIn reads one answer. Services of other kinds answer too, and anybody may answer anything: what is not ours
// is passed over.
func listenersIn(data []byte) []Listener {
	var answer micro.Stats
	if json.Unmarshal(data, &answer) != nil || answer.Metadata[MetaProtocol] == "" {
		return nil
	}
	var found []Listener
	for _, e := range answer.Endpoints {
		var status heard
		if e == nil || ValidateName(e.Name) != nil || json.Unmarshal(e.Data, &status) != nil {
			continue
		}
		instance := cmp.Or(answer.Metadata[MetaInstance], answer.ID)
		l := Listener{
			Endpoint: e.Name, Service: Cut(answer.Name, MaxServiceName), Version: Cut(answer.Version, MaxServiceName),
			Instance: Cut(instance, MaxServiceName), Host: Cut(answer.Metadata[MetaHost], MaxServiceName),
		}
		status.fill(&l)
		found = append(found, l)
	}
	return found
}

// Keys of the metadata with which a service is listed.
const (
	MetaProtocol = "tranche"
	MetaHost     = "host"
	MetaInstance = "instance"
	MetaSDK      = "sdk" // what the service is made with, and its version; for people
)

// State is what an instance does about an endpoint.
type State string

// States.
const (
	StateListening State = "listening"
	StateWaiting   State = "waiting"  // for a server, a stream, a permission
	StateDraining  State = "draining" // it stops: what is begun is finished, and nothing new is taken
)

// Nearest returns the endpoint that someone listens on and whose name differs from another by a slip or two, the
// nearest; or nothing.
func Nearest(name string, heard []Listener) (nearest string) {
	least := min(2, len(name)/4) + 1 //nolint:mnd // a slip for four characters, two at most
	for i := range heard {
		if d := slips(name, heard[i].Endpoint); d < least {
			nearest, least = heard[i].Endpoint, d
		}
	}
	return nearest
}

// slips counts the characters to be put in, taken out, changed or swapped with the next one to make one text of the
// other (optimal string alignment).
func slips(a, b string) int {
	var before, last []int // the rows before this one
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before, last, row = last, row, make([]int, len(b)+1)
		row[0] = i + 1
		for j := range len(b) {
			change := last[j]
			if a[i] != b[j] {
				change++
			}
			row[j+1] = min(change, row[j]+1, last[j+1]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
	}
	return row[len(b)]
}

// Contract is what an endpoint says of its items: a JSON Schema of what it reads, and one of what it answers. Each is
// nil where the service does not say.
type Contract struct {
	In  json.RawMessage `json:"in,omitempty"`
	Out json.RawMessage `json:"out,omitempty"`
}

// MaxSchema is how many bytes each schema of a Contract may have. Longer ones are taken as not said.
const MaxSchema = 16 << 10

// AskContract asks one of the instances that listen on an endpoint for its contract. It is empty when none listens,
// none answers before ctx ends, or the service does not say.
func AskContract(ctx context.Context, nc *nats.Conn, endpoint string) (Contract, error) {
	msg, err := nc.RequestWithContext(ctx, StatusSubject(endpoint), nil)
	switch {
	case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
		return Contract{}, nil
	case err != nil:
		return Contract{}, fmt.Errorf("ask endpoint %s for its contract: %w", endpoint, err)
	}
	var status struct {
		Contract Contract `json:"contract"`
	}
	if json.Unmarshal(msg.Data, &status) != nil {
		return Contract{}, nil //nolint:nilerr // a service that says something else says no contract
	}
	c := status.Contract
	if len(c.In) > MaxSchema {
		c.In = nil
	}
	if len(c.Out) > MaxSchema {
		c.Out = nil
	}
	return c, nil
}
