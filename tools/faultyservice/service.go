// Package faultyservice has services with deliberate faults, to test how runs cope with them.
//
// A [Service] uses the SDK and answers each item with its own payload, except for the faults of its [Config]: poison
// items that fail their chunk, items over a rate, slow chunks, an outage. A [Liar] implements the protocol itself and
// answers what no service of the SDK would: foreign ordinals, slices of other runs, wrong counts, garbage.
//
// Both record requests and faults in a [Ledger], independently of the system under test. A test compares the two, and
// fails if its fault never occurred.
//
// Services and ledgers are safe for concurrent use. For tests only.
package faultyservice

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"golang.org/x/time/rate"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// Config configures a Service. Each nil section leaves its fault out.
type Config struct {
	Endpoint    string        // required
	Concurrency int           // concurrent chunks; 0: the SDK's default
	Timeout     time.Duration // of a chunk; 0: the SDK's default

	PerChunk time.Duration // how long each chunk takes
	Poison   *Poison
	Throttle *Throttle
	Outage   *Outage

	Ledger *Ledger // nil: a new one, see Service.Ledger
}

type Way string

// The ways to fail.
const (
	WayError  Way = "error"  // the handler returns an error: the chunk fails and may be retried
	WayRefuse Way = "refuse" // the same, but permanent
	WayPanic  Way = "panic"  // the handler panics
	WayHang   Way = "hang"   // no answer until the handler's timeout
	WaySlots  Way = "slots"  // each item is a transient error
	WayItem   Way = "item"   // poison: only the item itself is an error, a permanent one; otherwise each item is
)

// Poison is items that make every chunk fail that contains them; with WayItem only they fail.
type Poison struct {
	Ordinals []int
	Way      Way
}

// Throttle immediately refuses the items over a rate, with transient errors of CodeThrottled.
type Throttle struct {
	PerSecond float64 // items, and those after a pause
}

// Outage is a period in which nothing works. It starts with the first chunk after After items were answered.
type Outage struct {
	After int // items
	For   time.Duration
	Way   Way             // WayHang: requests in that time are never answered
	Until <-chan struct{} // extends the outage until it is closed
}

// Error codes of these services. The others are the SDK's.
const (
	CodeThrottled = "throttled"
	CodeDown      = "down"
	CodePoison    = "poison"
)

// Results have the type of the payloads.
type (
	chunk = endpoints.Chunk[json.RawMessage, json.RawMessage]
	item  = endpoints.Item[json.RawMessage, json.RawMessage]
)

// Service has the faults of its Config.
type Service struct {
	cfg     Config
	svc     *endpoints.Service
	limiter *rate.Limiter // of items; nil: none
	outage  *outage
}

// New returns a service on a connection that the caller owns.
func New(nc *nats.Conn, cfg Config) (*Service, error) {
	cfg.Ledger = cmp.Or(cfg.Ledger, &Ledger{})
	s := &Service{cfg: cfg}
	if cfg.Throttle != nil {
		s.limiter = rate.NewLimiter(rate.Limit(cfg.Throttle.PerSecond), int(cfg.Throttle.PerSecond))
	}
	if cfg.Outage != nil {
		s.outage = &outage{Outage: *cfg.Outage}
	}
	var err error
	s.svc, err = endpoints.New(nc, endpoints.Config{Name: "misbehave", Version: "1.0.0", DrainTimeout: time.Second})
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

// Run serves until ctx ends. Chunks that hang at the end are no error.
func (s *Service) Run(ctx context.Context) error {
	err := s.svc.Run(ctx)
	if _, drained := errors.AsType[*endpoints.DrainError](err); drained {
		err = nil
	}
	return err
}

func (s *Service) Ledger() *Ledger { return s.cfg.Ledger }

// handle applies the first fault that fits the chunk: outage, rate, duration, poison. Else it answers.
func (s *Service) handle(ctx context.Context, c *chunk) error {
	items := c.Items()
	if s.outage != nil {
		if over := s.outage.down(); over != nil {
			s.note(c, FaultOutage)
			return s.fail(ctx, c, s.outage.Way, CodeDown, over)
		}
		defer func() { s.outage.note(len(items)) }()
	}
	passed, fault := s.throttle(items)
	if s.poisoned(items[:passed]) {
		fault = FaultPoison
	}
	s.note(c, fault)
	if err := backoff.Sleep(ctx, s.cfg.PerChunk); err != nil {
		return err
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
	var ordinals []int
	for _, i := range c.Items() {
		ordinals = append(ordinals, i.Ordinal)
	}
	meta := c.Meta()
	s.cfg.Ledger.add(entryOf(&meta, ordinals, fault))
}

func (s *Service) throttle(items []*item) (passed int, fault Fault) {
	passed = len(items)
	for s.limiter != nil && passed > 0 && !s.limiter.AllowN(time.Now(), passed) {
		passed--
	}
	if passed == len(items) {
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

// fail makes a chunk fail. A hanging chunk returns at over, if not nil, and leaves its items unanswered.
func (s *Service) fail(ctx context.Context, c *chunk, way Way, code string, over <-chan struct{}) error {
	switch way {
	case WayRefuse:
		return endpoints.Fail(code, "the service refuses the chunk")
	case WayPanic:
		panic(code)
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

type outage struct {
	Outage

	mu       sync.Mutex
	answered int
	over     chan struct{} // since its start; closed at its end
	ended    bool
}

// down returns a channel that is closed at the end of the outage, or nil without one.
func (o *outage) down() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.ended || o.answered < o.After:
		return nil
	case o.over == nil:
		o.over = make(chan struct{})
		time.AfterFunc(o.For, func() {
			if o.Until != nil {
				<-o.Until
			}
			o.mu.Lock()
			defer o.mu.Unlock()
			o.ended = true
			close(o.over)
		})
	}
	return o.over
}

func (o *outage) note(answered int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answered += answered
}

type Fault string

// The faults of a service. A liar's faults are its lies.
const (
	FaultNone     Fault = ""
	FaultPoison   Fault = "poison"
	FaultThrottle Fault = "throttle" // some items of the chunk were refused
	FaultOutage   Fault = "outage"
)

// Entry is a chunk that a service received, noted before it is handled.
type Entry struct {
	Run        uuid.UUID
	Slice      uuid.UUID
	Generation int
	Ordinals   []int
	Fault      Fault
}

func entryOf(m *wire.Meta, ordinals []int, fault Fault) Entry {
	return Entry{Run: m.Run, Slice: m.Slice, Generation: m.Generation, Ordinals: ordinals, Fault: fault}
}

// Ledger records the work of services, outside the system under test. Its zero value is empty.
type Ledger struct {
	mu      sync.Mutex
	entries []Entry
}

func (l *Ledger) add(e Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = append(l.entries, e)
}

// Entries returns the chunks in the order in which they began.
func (l *Ledger) Entries() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.entries)
}

// Fired returns the number of chunks with a fault.
func (l *Ledger) Fired(f Fault) (n int) {
	for _, e := range l.Entries() {
		if e.Fault == f {
			n++
		}
	}
	return n
}

// Times returns how often each item of a run's generation was executed, by ordinal.
func (l *Ledger) Times(run uuid.UUID, generation int) map[int]int {
	times := map[int]int{}
	for _, e := range l.Entries() {
		if e.Run == run && e.Generation == generation {
			for _, ordinal := range e.Ordinals {
				times[ordinal]++
			}
		}
	}
	return times
}
