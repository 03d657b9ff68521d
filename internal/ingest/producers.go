// Package ingest takes the operations that are added to collectors: over HTTP, by whoever serves it, and over core
// NATS, by a subject for each collector.
//
// An add is answered after its operations are committed. Adds that come for a collector at the same time share a
// transaction, since a commit costs the same for one operation as for thousands: the first begins at once, and those
// that come while it is in progress go together next. Each gets an answer of its own. Adds of one collector are
// committed by a node in the order in which they came to it; who needs an order waits for the answer before adding
// more.
//
// What a node has in progress is bounded in bytes; beyond, adds are refused and may be sent again. An add that was not
// answered may have been committed: sent again with the same ids, nothing is added twice.
//
// Not its job: flushing, roles, and who may publish what, which NATS knows.
//
// Concurrency: a [Producers] is safe for concurrent use.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgconn"
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
// committed anyway. The error is an *OpError, an *EnrichError, an *OverloadedError, or one of the Adder.
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

// OpError says what is wrong with operations that were sent. None of them was added.
type OpError struct {
	Number  int    // of the operation, from 1; 0: of none
	Line    int    // of the input, from 1; 0: unknown
	Field   string // id, key, priority or payload; empty: none of these
	Problem string // what is wrong, and what is allowed
}

func (e *OpError) Error() string {
	field := ""
	if e.Field != "" {
		field = e.Field + ": "
	}
	switch {
	case e.Number == 0 && e.Line == 0:
		return e.Problem
	case e.Number == 0:
		return fmt.Sprintf("line %d: %s", e.Line, e.Problem)
	case e.Line == 0:
		return fmt.Sprintf("operation %d: %s%s", e.Number, field, e.Problem)
	}
	return fmt.Sprintf("operation %d (line %d): %s%s", e.Number, e.Line, field, e.Problem)
}

// TooManyError is returned for more operations, or bytes, than one add may bring. None was added.
type TooManyError struct {
	Bytes bool // too many of these
}

func (e *TooManyError) Error() string {
	if e.Bytes {
		return fmt.Sprintf("the operations have more than %d MiB; add them in several requests", MaxBytes>>20)
	}
	return fmt.Sprintf("there are more than %d operations; add them in several requests", MaxOps)
}

// OverloadedError is returned while the node has as much to add as it has room for. It passes.
type OverloadedError struct{}

func (*OverloadedError) Error() string {
	return fmt.Sprintf("this node has %d MiB of operations in progress already; add them again a little later",
		MaxHeld>>20)
}

// isText reports whether PostgreSQL can store a text.
func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

// isData reports whether PostgreSQL did not like the data: classes 22 and 23 of its errors.
func isData(err error) bool {
	said, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (strings.HasPrefix(said.Code, "22") || strings.HasPrefix(said.Code, "23"))
}

// isAway reports whether PostgreSQL cannot be reached, is shutting down (57), out of resources (53), or too slow.
func isAway(err error) bool {
	if said, ok := errors.AsType[*pgconn.PgError](err); ok {
		return strings.HasPrefix(said.Code, "53") || strings.HasPrefix(said.Code, "57")
	}
	_, unreached := errors.AsType[*pgconn.ConnectError](err)
	_, cut := errors.AsType[net.Error](err) // time-outs of a context are among them
	return unreached || cut || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed)
}

const (
	// MaxBytes bounds what one add may bring.
	MaxBytes = 32 << 20
	// MaxHeld bounds the bytes of all adds that a node has in progress.
	MaxHeld = 256 << 20
)

// room counts the bytes of adds that are in progress.
type room struct{ held atomic.Int64 }

func (r *room) take(n int) bool {
	if r.held.Add(int64(n)) > MaxHeld {
		r.held.Add(-int64(n))
		return false
	}
	return true
}

func (r *room) give(n int) { r.held.Add(-int64(n)) }

// body takes room for what is read of it. Its reader gives the room back by release, once nothing of it is held.
type body struct {
	from io.Reader
	room *room
	had  int
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.from.Read(p)
	if b.had+n > MaxBytes {
		return 0, &TooManyError{Bytes: true}
	}
	if n > 0 && !b.room.take(n) {
		return 0, &OverloadedError{}
	}
	b.had += n
	return n, err
}

func (b *body) release() { b.room.give(b.had) }

// noteTimeout bounds what is noted of a collector beside an add.
const noteTimeout = 5 * time.Second

// noted is what this node said last of what a collector asks for.
type noted struct {
	refused bool
	at      time.Time
}

// note reports whether it is time to say again that a collector's query fails, or works, and whether it failed before.
func (p *Producers) note(name string, refused bool) (now, was bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.noted[name]
	if last.refused == refused && time.Since(last.at) < collectorstore.RefusalNoted {
		return false, last.refused
	}
	if len(p.noted) >= maxSpecs {
		clear(p.noted)
	}
	p.noted[name] = noted{refused, time.Now()}
	return true, last.refused
}

// noteRefused tells the log and the store, now and then, that the query of a collector fails.
func (p *Producers) noteRefused(ctx context.Context, name string, problem error) {
	if now, _ := p.note(name, true); !now {
		return
	}
	p.log.Warn("operations are refused: the query of their collector fails", zap.String("collector", name),
		zap.Error(problem))
	p.keep(ctx, func(ctx context.Context) error {
		return p.definitions.NoteRefused(ctx, name, problem.Error())
	})
}

// noteTaken tells the store, now and then, that it works.
func (p *Producers) noteTaken(ctx context.Context, name string) {
	if now, was := p.note(name, false); now {
		p.keep(ctx, func(ctx context.Context) error { return p.definitions.NoteTaken(ctx, name, was) })
	}
}

// keep writes a note, also for someone who leaves. Without it the add goes on anyway.
func (p *Producers) keep(ctx context.Context, write func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		p.log.Warn("what health says of a collector is old", zap.Error(err))
	}
}
