package faultyservice

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
)

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
