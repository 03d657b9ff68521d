package ingest

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

const (
	// commitTimeout limits a transaction. It continues when one of its callers leaves.
	commitTimeout = 30 * time.Second
	// maxMerged limits the operations that share a transaction. A single add may have more.
	maxMerged = 20_000
)

type add struct {
	version int
	scope   workqueue.Scope // of the caller
	ops     []collector.Op

	done chan struct{} // closed at the end
	out  collector.AddedOps
	err  error
}

type lane struct {
	of        *Producers
	collector string

	mu      sync.Mutex
	waiting []*add
	working bool
}

func (p *Producers) lane(name string) *lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.lanes[name]
	if l == nil {
		l = &lane{of: p, collector: name}
		p.lanes[name] = l
	}
	return l
}

// push queues an add to be committed, together with those that arrive during another commit.
func (l *lane) push(a *add) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting = append(l.waiting, a)
	if !l.working {
		l.working = true
		l.of.busy.Go(l.work)
	}
}

func (l *lane) work() {
	for {
		adds := l.take()
		if len(adds) == 0 {
			return
		}
		l.commit(adds)
		for _, a := range adds {
			close(a.done)
		}
	}
}

func (l *lane) take() []*add {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, ops := 0, 0
	alike := func(a, b *add) bool {
		return a.version == b.version && slices.Equal(a.scope.Namespaces, b.scope.Namespaces)
	}
	for n < len(l.waiting) && (n == 0 || alike(l.waiting[n], l.waiting[0])) {
		if ops += len(l.waiting[n].ops); n > 0 && ops > maxMerged {
			break
		}
		n++
	}
	adds := slices.Clone(l.waiting[:n])
	l.waiting = slices.Delete(l.waiting, 0, n)
	if n == 0 {
		l.working = false
		l.waiting = nil
	}
	return adds
}

// commit adds all in one transaction. If PostgreSQL rejects the data, each add is committed separately, so that the
// error reaches the right caller.
func (l *lane) commit(adds []*add) {
	err := l.tryCommit(adds)
	if err == nil {
		return
	}
	if len(adds) > 1 && workqueue.Refused(err) {
		l.of.log.Warn("operations that were added together are added one by one", zap.String("collector", l.collector),
			zap.Int("adds", len(adds)), zap.Error(err))
		for _, a := range adds {
			a.err = l.tryCommit([]*add{a})
		}
		return
	}
	for _, a := range adds {
		a.err = err
	}
}

func (l *lane) tryCommit(adds []*add) error {
	batches := make([][]collector.Op, len(adds))
	for i, a := range adds {
		batches[i] = a.ops
	}
	ctx, cancel := context.WithTimeout(workqueue.InScope(context.Background(), adds[0].scope), commitTimeout)
	defer cancel()
	out, err := l.of.adder.AddOps(ctx, l.collector, adds[0].version, batches)
	if err != nil {
		return err
	}
	for i, a := range adds {
		a.out = out[i]
	}
	return nil
}

type lineCounter struct {
	from  io.Reader
	read  int64
	lines int     // already counted
	ends  []int64 // of lines read but not yet counted
	err   error   // read error other than io.EOF
}

func (l *lineCounter) Read(p []byte) (int, error) {
	n, err := l.from.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, l.read+int64(i))
		}
	}
	l.read += int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		l.err = err
	}
	return n, err
}

// at returns the line of an offset, from 1. Offsets must not decrease.
func (l *lineCounter) at(offset int64) int {
	counted := 0
	for counted < len(l.ends) && l.ends[counted] < offset {
		counted++
	}
	l.lines += counted
	l.ends = l.ends[counted:]
	return l.lines + 1
}
