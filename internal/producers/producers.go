package producers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"go.uber.org/zap"

	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// Definitions says what collectors are like. The store does.
type Definitions interface {
	CollectorSpecOf(ctx context.Context, name string) (spec collectorstore.CollectorSpec, version int, err error)
	KnownOps(ctx context.Context, name string, ids []string) ([]string, error)
	TryOps(ctx context.Context, name string, version int, ops []collectorstore.Op) (
		out collectorstore.AddedOps, taken []collectorstore.Op, err error)
	NoteRefused(ctx context.Context, name, problem string) error
	NoteTaken(ctx context.Context, name string, mine bool) error
}

// Adder adds operations in one transaction, and has them flushed in time. A node does.
type Adder interface {
	AddOps(ctx context.Context, name string, version int, batches [][]collectorstore.Op) ([]collectorstore.AddedOps, error)
}

// Producers adds operations to collectors.
type Producers struct {
	definitions Definitions
	adder       Adder
	queries     Queries // nil: there are no sources
	log         *zap.Logger
	room        room

	mu    sync.Mutex
	lanes map[string]*lane
	specs map[string]knownSpec
	noted map[string]noted // by collectors
	busy  sync.WaitGroup   // lanes at work
}

// New returns producers. Without queries, which may be nil, operations of collectors that have one are refused. A nil
// log means none.
func New(definitions Definitions, adder Adder, queries Queries, log *zap.Logger) *Producers {
	if log == nil {
		log = zap.NewNop()
	}
	return &Producers{definitions: definitions, adder: adder, queries: queries, log: log, lanes: map[string]*lane{},
		specs: map[string]knownSpec{}, noted: map[string]noted{}}
}

// AddFrom reads operations, see Read, and adds them: all of them, or none. The error is one of Read or Add, an
// *OverloadedError, or what the reader said.
func (p *Producers) AddFrom(ctx context.Context, collector string, from io.Reader) (collectorstore.AddedOps, error) {
	ops, release, err := p.read(from)
	if err != nil {
		return collectorstore.AddedOps{}, err
	}
	return p.add(ctx, collector, ops, release, p.await)
}

// read returns operations, and what gives back the room that they take.
func (p *Producers) read(from io.Reader) ([]collectorstore.Op, func(), error) {
	b := &body{from: from, room: &p.room}
	ops, err := Read(b)
	if err != nil {
		b.release()
	}
	return ops, b.release, err
}

// Add adds operations and returns once they are committed: all of them, or none. When ctx ends before, they may be
// committed all the same. The error is an *OpError, an *EnrichError, an *OverloadedError, or one of the Adder.
func (p *Producers) Add(
	ctx context.Context, collector string, ops []collectorstore.Op,
) (collectorstore.AddedOps, error) {
	return p.add(ctx, collector, ops, func() {}, p.await)
}

// maxSample is how many operations a trial shows.
const maxSample = 10

// TryFrom is AddFrom without adding anything: it says what that would say now. sample are the first operations that
// would be stored, as they would be. A query that the collector asks is asked.
func (p *Producers) TryFrom(ctx context.Context, collector string, from io.Reader) (
	out collectorstore.AddedOps, sample []collectorstore.Op, err error,
) {
	ops, release, err := p.read(from)
	if err != nil {
		return out, nil, err
	}
	try := func(ctx context.Context, name string, version int, ops []collectorstore.Op, _ func(),
	) (collectorstore.AddedOps, bool, error) {
		done, taken, err := p.definitions.TryOps(ctx, name, version, ops)
		sample = taken[:min(len(taken), maxSample)]
		return done, false, err
	}
	out, err = p.add(ctx, collector, ops, release, try)
	return out, sample, err
}

// ending has operations added, or not. gone says that release is called later.
type ending func(ctx context.Context, collector string, version int, ops []collectorstore.Op, release func()) (
	done collectorstore.AddedOps, gone bool, err error)

// moves is how often the definition of a collector may change under an add.
const moves = 5

// add calls release once nothing is held of the operations any more.
func (p *Producers) add(ctx context.Context, collector string, ops []collectorstore.Op, release func(), end ending,
) (collectorstore.AddedOps, error) {
	if len(ops) == 0 {
		release()
		_, err := p.spec(ctx, collector) // so that a name that is wrong does not pass
		return collectorstore.AddedOps{}, err
	}
	var err error
	for range moves {
		var spec knownSpec
		if spec, err = p.spec(ctx, collector); err != nil {
			break
		}
		var keyed []collectorstore.Op
		var held int
		if keyed, err = withKeys(&spec.spec, ops); err == nil {
			held, err = p.enrich(ctx, collector, &spec, ops, keyed)
		}
		if err != nil && p.changed(ctx, collector, spec.version) {
			continue
		}
		if err != nil {
			break
		}
		var done collectorstore.AddedOps
		var gone bool
		all := func() { p.room.give(held); release() }
		if done, gone, err = end(ctx, collector, spec.version, keyed, all); gone {
			return done, err // the lane releases
		}
		p.room.give(held)
		if moved, ok := errors.AsType[*collectorstore.MovedError](err); ok {
			p.forget(collector, moved.Wanted)
			continue
		}
		release()
		return done, err
	}
	release()
	return collectorstore.AddedOps{}, err
}

// await gives operations to the collector's lane. gone says that ctx has ended before they came to an end: the lane has
// them still, and calls release in its time.
func (p *Producers) await(ctx context.Context, collector string, version int, ops []collectorstore.Op, release func(),
) (done collectorstore.AddedOps, gone bool, err error) {
	a := &add{version: version, ops: ops, done: make(chan struct{})}
	p.lane(collector).push(a)
	select {
	case <-a.done:
		return a.out, false, a.err
	case <-ctx.Done():
		go func() { <-a.done; release() }()
		return collectorstore.AddedOps{}, true, fmt.Errorf("add operations to collector %s: %w", collector,
			context.Cause(ctx))
	}
}

// Wait returns once nothing is being committed, or ctx has ended.
func (p *Producers) Wait(ctx context.Context) error {
	idle := make(chan struct{})
	go func() { p.busy.Wait(); close(idle) }()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("producers: adds that do not end: %w", ctx.Err())
	}
}
