// Package ingest adds operations to collectors, from HTTP handlers and over core NATS, with a subject per collector.
//
// An add is answered after its commit. A commit costs the same for one operation as for thousands, so concurrent adds
// to a collector share transactions: the first starts immediately, and those that arrive meanwhile go together next.
// Each gets a separate answer. A node commits the adds of one collector in order of arrival; for a strict order,
// callers wait for each answer.
//
// The bytes in progress on a node are limited; adds beyond are refused and may be retried. An unanswered add may have
// been committed: resent with the same IDs, nothing is added twice.
//
// Not its job: flushing, roles, and publish permissions, which NATS enforces.
//
// A [Producers] is safe for concurrent use.
package ingest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

// Adder adds operations in one transaction and schedules their flush. A node implements it.
type Adder interface {
	AddOps(ctx context.Context, name string, version int, batches [][]collector.Op) ([]collector.AddedOps, error)
}

// Producers adds operations to collectors.
type Producers struct {
	definitions collector.Store
	adder       Adder
	sources     Sources
	log         *zap.Logger
	room        room

	mu    sync.Mutex
	lanes map[string]*lane
	specs map[string]knownSpec
	noted map[string]noted // by collector
	busy  sync.WaitGroup   // lanes at work
}

// New returns Producers. A nil log means none.
func New(definitions collector.Store, adder Adder, sources Sources, log *zap.Logger) *Producers {
	log = cmp.Or(log, zap.NewNop())
	return &Producers{definitions: definitions, adder: adder, sources: sources, log: log, lanes: map[string]*lane{},
		specs: map[string]knownSpec{}, noted: map[string]noted{}}
}

// AddFrom reads operations, see Read, and adds all or none. It returns after the commit. If ctx ends before, they may
// be committed anyway. It returns errors of Read, an *OpError, an *EnrichError, an *OverloadedError, an error of the
// Adder, or the reader's error.
func (p *Producers) AddFrom(ctx context.Context, name string, from io.Reader) (collector.AddedOps, error) {
	ops, release, err := p.read(from)
	if err != nil {
		return collector.AddedOps{}, err
	}
	return p.add(ctx, name, ops, release, p.await)
}

func (p *Producers) read(from io.Reader) ([]collector.Op, func(), error) {
	b := &body{from: from, room: &p.room}
	ops, err := Read(b)
	if err != nil {
		b.release()
	}
	return ops, b.release, err
}

const maxSample = 10

// TryFrom is AddFrom as a dry run. sample has the first operations as they would be stored. A collector's query is
// executed.
func (p *Producers) TryFrom(ctx context.Context, name string, from io.Reader) (
	out collector.AddedOps, sample []collector.Op, err error,
) {
	ops, release, err := p.read(from)
	if err != nil {
		return out, nil, err
	}
	try := func(ctx context.Context, name string, version int, ops []collector.Op, _ func(),
	) (collector.AddedOps, bool, error) {
		done, taken, err := p.definitions.TryOps(ctx, name, version, ops)
		sample = taken[:min(len(taken), maxSample)]
		return done, false, err
	}
	out, err = p.add(ctx, name, ops, release, try)
	return out, sample, err
}

// ending adds operations, or not. gone means that release is called later.
type ending func(ctx context.Context, name string, version int, ops []collector.Op, release func()) (
	done collector.AddedOps, gone bool, err error)

const moves = 5

// add calls release once nothing of the operations is held any more.
func (p *Producers) add(ctx context.Context, name string, ops []collector.Op, release func(), end ending,
) (collector.AddedOps, error) {
	if len(ops) == 0 {
		release()
		_, err := p.spec(ctx, name) // reports an invalid name
		return collector.AddedOps{}, err
	}
	var err error
	for range moves {
		var spec knownSpec
		if spec, err = p.spec(ctx, name); err != nil {
			break
		}
		var keyed []collector.Op
		var held int
		if keyed, err = withKeys(&spec.spec, ops); err == nil {
			held, err = p.enrich(ctx, name, &spec, ops, keyed)
		}
		if err != nil && p.changed(ctx, name, spec.version) {
			continue
		}
		if err != nil {
			break
		}
		var done collector.AddedOps
		var gone bool
		all := func() { p.room.give(held); release() }
		if done, gone, err = end(ctx, name, spec.version, keyed, all); gone {
			return done, err // the lane releases
		}
		p.room.give(held)
		if moved, ok := errors.AsType[*collector.MovedError](err); ok {
			p.forget(name, moved.Wanted)
			continue
		}
		release()
		return done, err
	}
	release()
	return collector.AddedOps{}, err
}

// await passes operations to the collector's lane. gone means that ctx ended first: the lane still has them, and
// calls release later.
func (p *Producers) await(ctx context.Context, name string, version int, ops []collector.Op, release func(),
) (done collector.AddedOps, gone bool, err error) {
	a := &add{version: version, scope: workqueue.Scope{Namespaces: workqueue.Namespaces(ctx)}, ops: ops,
		done: make(chan struct{})}
	p.lane(name).push(a)
	select {
	case <-a.done:
		return a.out, false, a.err
	case <-ctx.Done():
		go func() { <-a.done; release() }()
		return collector.AddedOps{}, true, fmt.Errorf("add operations to collector %s: %w", name,
			context.Cause(ctx))
	}
}

// Wait waits until no commit is in progress, or ctx ends.
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

// OpError describes invalid operations. None of them was added.
type OpError struct {
	Number  int    // of the operation, from 1; 0: none
	Line    int    // of the input, from 1; 0: unknown
	Field   string // id, key, priority or payload; empty: none of these
	Problem string // the fault, and what is allowed
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

// TooManyError is returned for an add that exceeds the limit of operations or bytes. None was added.
type TooManyError struct {
	Bytes bool // too many bytes
}

func (e *TooManyError) Error() string {
	if e.Bytes {
		return fmt.Sprintf("the operations have more than %d MiB; add them in several requests", MaxBytes>>20)
	}
	return fmt.Sprintf("there are more than %d operations; add them in several requests", MaxOps)
}

// OverloadedError is returned while the node's room is used up. It is temporary.
type OverloadedError struct{}

func (*OverloadedError) Error() string {
	return fmt.Sprintf("this node has %d MiB of operations in progress already; add them again a little later",
		MaxHeld>>20)
}

func isText(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

const (
	// MaxBytes limits one add.
	MaxBytes = 32 << 20
	// MaxHeld limits the bytes of all adds in progress on a node.
	MaxHeld = 256 << 20
)

// room counts the bytes of adds in progress.
type room struct{ held atomic.Int64 }

func (r *room) take(n int) bool {
	if r.held.Add(int64(n)) > MaxHeld {
		r.held.Add(-int64(n))
		return false
	}
	return true
}

func (r *room) give(n int) { r.held.Add(-int64(n)) }

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

// noteTimeout limits recording a collector's state during an add.
const noteTimeout = 5 * time.Second

type noted struct {
	refused bool
	at      time.Time
}

// note reports whether it is time to record again that a collector's query fails, or works, and whether it failed
// before.
func (p *Producers) note(name string, refused bool) (now, was bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.noted[name]
	if last.refused == refused && time.Since(last.at) < collector.RefusalNoted {
		return false, last.refused
	}
	if len(p.noted) >= maxSpecs {
		clear(p.noted)
	}
	p.noted[name] = noted{refused, time.Now()}
	return true, last.refused
}

// noteRefused logs and stores, rate-limited, that the query of a collector fails.
func (p *Producers) noteRefused(ctx context.Context, name string, problem error) {
	if now, _ := p.note(name, true); !now {
		return
	}
	p.log.Warn("operations are refused: the query of their collector fails", zap.String("collector", name),
		zap.String("see", "tranche collector show "+name))
	p.log.Debug("operations are refused", zap.Error(problem)) // may quote a key
	p.keep(ctx, func(ctx context.Context) error {
		return p.definitions.NoteRefused(ctx, name, problem.Error())
	})
}

func (p *Producers) noteTaken(ctx context.Context, name string) {
	if now, was := p.note(name, false); now {
		p.keep(ctx, func(ctx context.Context) error { return p.definitions.NoteTaken(ctx, name, was) })
	}
}

// keep writes a note, also after the caller has left. A failure does not affect the add.
func (p *Producers) keep(ctx context.Context, write func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	if err := write(ctx); err != nil {
		p.log.Warn("what health says of a collector is old", zap.Error(err))
	}
}
