// Package faultyservice is services that misbehave on purpose, to test what becomes of runs then.
//
// A [Service] is an ordinary service of the SDK that answers each item with its own payload, unless its [Config] says
// how it goes wrong: chunks with poison in them fail as a whole, so do chunks over a size; items over a rate are
// refused; chunks take longer the more of them there are; for a while nothing works. A [Liar] speaks the protocol
// itself, and answers what no service of the SDK would: items that it was not asked about, other runs' slices, counts
// that do not fit, garbage.
//
// Both write into a [Ledger] what they were asked and which of their faults they have shown. That is the view from
// outside: a test holds what the system says against it, and fails when the fault that it is about never came.
//
// A Config can be written as JSON, so that a service can be a process of its own. Services and ledgers are safe for
// concurrent use. Nothing here is meant for production.
package faultyservice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Config says what a service does, beside answering. Each section that is missing is a way in which it behaves well.
type Config struct {
	Endpoint    string        `json:"endpoint"`              // required
	Concurrency int           `json:"concurrency,omitempty"` // chunks at once; 0: the SDK's default
	Timeout     time.Duration `json:"timeout,omitempty"`     // of a chunk; 0: the SDK's default

	Poison   *Poison   `json:"poison,omitempty"`
	Memory   *Memory   `json:"memory,omitempty"`
	Throttle *Throttle `json:"throttle,omitempty"`
	Load     *Load     `json:"load,omitempty"`
	Outage   *Outage   `json:"outage,omitempty"`

	Ledger *Ledger     `json:"-"` // nil: one of its own, which Service.Ledger returns
	Log    *zap.Logger `json:"-"` // nil: none
}

// Way is how a chunk goes wrong.
type Way string

// The ways.
const (
	WayError  Way = "error"  // the handler returns an error: the chunk fails, and may be retried
	WayRefuse Way = "refuse" // the same, but trying again would not help
	WayPanic  Way = "panic"  // the handler panics
	WayHang   Way = "hang"   // nothing is answered until the handler's time is over
	WayExit   Way = "exit"   // the process ends at once
	WaySlots  Way = "slots"  // each item is an error that may pass
	WayItem   Way = "item"   // poison: only the item itself is an error, permanently; otherwise each item is
)

// Poison is items that make every chunk fail that they are in, however small; by WayItem they only fail themselves.
type Poison struct {
	Ordinals []int `json:"ordinals"`
	Way      Way   `json:"way"`
}

// Memory makes chunks fail that are too big, whatever is in them.
type Memory struct {
	Items int `json:"items"` // the most that a chunk may have
	Way   Way `json:"way"`
}

// Throttle refuses the items over a rate, at once, with errors of CodeThrottled that may pass.
type Throttle struct {
	PerSecond float64 `json:"per_second"` // items
	Burst     float64 `json:"burst"`      // items that are let through after a pause; 0: those of a second
}

// Outage is a while in which nothing works. It begins with the first chunk after so many items were answered.
type Outage struct {
	After int           `json:"after"` // items
	For   time.Duration `json:"for"`
	Way   Way           `json:"way"` // WayHang: what was asked in that time is never answered
	// Until has it last until then at the least; nil: it lasts as long as For says.
	Until <-chan struct{} `json:"-"`
}

// Codes of the errors that services here answer with. Others are the SDK's.
const (
	CodeThrottled = "throttled"
	CodeDown      = "down"
	CodePoison    = "poison"
	CodeMemory    = "out_of_memory"
)

func (c *Config) validate() error {
	if err := wire.ValidateName(c.Endpoint); err != nil {
		return fmt.Errorf("faultyservice: Endpoint: %w", err)
	}
	switch {
	case c.Poison != nil && !c.Poison.Way.known():
		return fmt.Errorf("faultyservice: Poison.Way %q is not one of the ways", c.Poison.Way)
	case c.Memory != nil && (!c.Memory.Way.known() || c.Memory.Items < 1):
		return fmt.Errorf("faultyservice: Memory needs a Way and Items of at least 1, not %q and %d", c.Memory.Way,
			c.Memory.Items)
	case c.Throttle != nil && (c.Throttle.PerSecond <= 0 || c.Throttle.Burst < 0):
		return errors.New("faultyservice: Throttle needs a positive PerSecond, and no negative Burst")
	case c.Outage != nil && (!c.Outage.Way.known() || c.Outage.For <= 0):
		return fmt.Errorf("faultyservice: Outage needs a Way and a positive For, not %q and %s", c.Outage.Way, c.Outage.For)
	case c.Load != nil:
		return c.Load.validate()
	}
	return nil
}

func (w Way) known() bool {
	switch w {
	case WayError, WayRefuse, WayPanic, WayHang, WayExit, WaySlots, WayItem:
		return true
	default:
		return false
	}
}

// Each item is answered with its own payload.
type (
	chunk = endpoints.Chunk[json.RawMessage, json.RawMessage]
	item  = endpoints.Item[json.RawMessage, json.RawMessage]
)

// exitStatus is that of a process that ends by WayExit.
const exitStatus = 86

// Service misbehaves as its Config says.
type Service struct {
	cfg    Config
	svc    *endpoints.Service
	clock  *clock
	bucket *bucket
	outage *outage
	exit   func(int)
}

// New makes a service on a connection, which stays the caller's.
func New(nc *nats.Conn, cfg Config) (*Service, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	if cfg.Ledger == nil {
		cfg.Ledger = NewLedger(nil)
	}
	s := &Service{cfg: cfg, exit: os.Exit}
	if cfg.Load != nil {
		s.clock = newClock(cfg.Load.slowdown)
	}
	if cfg.Throttle != nil {
		s.bucket = newBucket(cfg.Throttle)
	}
	if cfg.Outage != nil {
		s.outage = &outage{Outage: *cfg.Outage}
	}
	var err error
	s.svc, err = endpoints.New(nc, endpoints.Config{Name: "misbehave", Version: "1.0.0", Log: cfg.Log,
		DrainTimeout: time.Second})
	if err != nil {
		return nil, err
	}
	var options []endpoints.Option
	if cfg.Concurrency > 0 {
		options = append(options, endpoints.Concurrency(cfg.Concurrency))
	}
	if cfg.Timeout > 0 {
		options = append(options, endpoints.Timeout(cfg.Timeout))
	}
	return s, endpoints.HandleList(s.svc, cfg.Endpoint, s.handle, options...)
}

// Run serves until ctx ends. Chunks that hang then are no error.
func (s *Service) Run(ctx context.Context) error {
	err := s.svc.Run(ctx)
	if _, drained := errors.AsType[*endpoints.DrainError](err); drained {
		err = nil
	}
	return errors.Join(err, s.cfg.Ledger.Err())
}

// Ledger is where the service notes its work.
func (s *Service) Ledger() *Ledger { return s.cfg.Ledger }

// handle does with a chunk what befalls it first: an outage, its size, the rate, its own time, poison, an answer.
func (s *Service) handle(ctx context.Context, c *chunk) error {
	items := c.Items()
	if s.outage != nil {
		if over := s.outage.down(); over != nil {
			s.note(c, FaultOutage)
			return s.fail(ctx, c, s.outage.Way, CodeDown, over)
		}
		defer func() { s.outage.note(len(items)) }()
	}
	if m := s.cfg.Memory; m != nil && len(items) > m.Items {
		s.note(c, FaultMemory)
		return s.fail(ctx, c, m.Way, CodeMemory, nil)
	}
	passed, fault := s.throttle(items)
	if s.poisoned(items[:passed]) {
		fault = FaultPoison
	}
	s.note(c, fault)
	if s.clock != nil {
		if err := s.clock.work(ctx, s.cfg.Load.alone(passed)); err != nil {
			return err
		}
	}
	if fault == FaultPoison && s.cfg.Poison.Way != WayItem {
		return s.fail(ctx, c, s.cfg.Poison.Way, CodePoison, nil)
	}
	for _, i := range items[:passed] {
		if fault == FaultPoison && s.poisoned([]*item{i}) {
			i.Fail(CodePoison, "item %s is poison", i.Key)
			continue
		}
		i.Reply(i.In)
	}
	return nil
}

func (s *Service) note(c *chunk, fault Fault) {
	meta := c.Meta()
	e := Entry{Run: meta.Run, Slice: meta.Slice, Generation: meta.Generation, Attempt: meta.Attempt, Fault: fault,
		At: time.Now()}
	for _, i := range c.Items() {
		e.Ordinals = append(e.Ordinals, i.Ordinal)
	}
	s.cfg.Ledger.add(e)
}

// throttle refuses the items over the rate, and returns how many pass.
func (s *Service) throttle(items []*item) (passed int, fault Fault) {
	if s.bucket == nil {
		return len(items), FaultNone
	}
	if passed = s.bucket.take(len(items)); passed == len(items) {
		return passed, FaultNone
	}
	for _, i := range items[passed:] {
		i.Retry(CodeThrottled, "over %g items a second", s.cfg.Throttle.PerSecond)
	}
	return passed, FaultThrottle
}

func (s *Service) poisoned(items []*item) bool {
	return s.cfg.Poison != nil && slices.ContainsFunc(items, func(i *item) bool {
		return slices.Contains(s.cfg.Poison.Ordinals, i.Ordinal)
	})
}

// fail has a chunk go wrong. What hangs does so until over, if that is not nil, and then leaves everything unanswered.
func (s *Service) fail(ctx context.Context, c *chunk, way Way, code string, over <-chan struct{}) error {
	switch way {
	case WayRefuse:
		return endpoints.Fail(code, "the service refuses the chunk")
	case WayPanic:
		panic(code)
	case WayExit:
		s.exit(exitStatus)
	case WayItem:
		for _, i := range c.Items() {
			i.Fail(code, "the service cannot answer")
		}
		return nil
	case WaySlots:
		for _, i := range c.Items() {
			i.Retry(code, "the service cannot answer now")
		}
		return nil
	case WayHang:
		select {
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case WayError:
	}
	return endpoints.Retry(code, "the service fails the chunk")
}
