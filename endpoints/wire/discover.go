package wire

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Listener is an instance of a service that listens on an endpoint.
type Listener struct {
	Endpoint, Service, Version, Instance string
	Host                                 string // reported by the service; may be empty
	Processed, Errors                    int64  // items since start; Errors of them got an error slot
	AvgPerItem                           time.Duration

	// The fields below are zero if the service does not report them.
	Rate     float64       // items per second, over the last minute
	P50, P99 time.Duration // per item, over the last minute
	InFlight int           // chunks processed or queued
	// Concurrency counts chunks, or items if Each is set.
	Concurrency int
	Each        bool // Concurrency counts items
	// Lane reports whether calls are read apart from chunks, Lanes whether they would be if the consumer existed.
	Lane, Lanes bool
	State       State
	Reason      string // why it waits, or which permission a listening instance lacks
	Stages      int    // of a flow
	// Redelivered, GivenUp and Dead count requests delivered repeatedly, failed with CodeDeliveries and dead-lettered;
	// Rebinds counts recoveries of a lost consumer.
	Redelivered, GivenUp, Dead, Rebinds int64
}

// heard is an untrusted serve.Status. Some languages have only one kind of number.
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

// maxCount is the largest integer that all languages represent exactly.
const maxCount = 1 << 53

func count[T ~int | ~int64](n float64) T { return T(min(max(n, 0), maxCount)) }

// maxListed bounds the answers that Discover reads.
const maxListed = 10_000

// Discover finds all listeners that answer within wait, sorted by endpoint, service and instance. Busy or distant
// services may be missing. Finding none is not an error.
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

// listenersIn parses one untrusted answer and skips those of other kinds of services.
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

// Keys of the metadata of a listed service.
const (
	MetaProtocol = "tranche"
	MetaHost     = "host"
	MetaInstance = "instance"
	MetaSDK      = "sdk" // name and version, informational
)

// State is the state of an instance's endpoint.
type State string

// States of an endpoint.
const (
	StateListening State = "listening"
	StateWaiting   State = "waiting"  // for a server, stream or permission
	StateDraining  State = "draining" // finishing what it has begun, taking nothing new
)

// Nearest returns the listening endpoint with the name closest to a mistyped one, or "" if none is close.
func Nearest(name string, heard []Listener) string {
	names := make([]string, len(heard))
	for i := range heard {
		names[i] = heard[i].Endpoint
	}
	return row.Nearest(name, names)
}

// Contract is an endpoint's JSON Schemas of input and output. A schema not announced is nil.
type Contract struct {
	In  json.RawMessage `json:"in,omitempty"`
	Out json.RawMessage `json:"out,omitempty"`
}

// MaxSchema bounds the bytes of a schema in a Contract. Longer ones are ignored.
const MaxSchema = 16 << 10

// AskContract returns the contract from one of an endpoint's instances. It is empty if none listens, none answers
// before ctx ends, or the service announces none.
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
		return Contract{}, nil //nolint:nilerr // a service that answers otherwise has no contract
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

// NATSURLName is the file in a node's data directory with the address and password of its NATS server, for services
// of the same user.
const NATSURLName = "nats-url"

// DefaultDataDir returns the default data directory of a node: /var/lib/tranche for root, else tranche in the user's
// data directory.
func DefaultDataDir() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/lib/tranche", nil
	}
	if dir := os.Getenv("XDG_DATA_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "tranche"), nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", fmt.Errorf("find a data directory: %w; name one with --data-dir", err)
	}
	if runtime.GOOS == "darwin" {
		return filepath.Join(home, "Library", "Application Support", "tranche"), nil
	}
	return filepath.Join(home, ".local", "share", "tranche"), nil
}
