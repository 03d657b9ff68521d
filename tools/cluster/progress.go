package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	lookEvery = 50 * time.Millisecond
	// steady is for how long outcomes must have come in each second until a fault counts as over.
	steady = 3
	// lively is for how long before it.
	lively = 1
	// settleTimeout bounds what a fault may cost, and more.
	settleTimeout = 2 * time.Minute
)

// outcomes is what is recorded of the run at both steps.
const outcomes = `SELECT coalesce(sum(bit_count(done | failed)), 0) FROM tranche.work_block`

// progress is what is recorded of the run, as the database tells whoever asks now.
type progress struct {
	all     int64 // when the run is over
	mu      sync.Mutex
	count   int64
	at      time.Time // when it last grew
	longest time.Duration
}

// watch looks until ctx ends. A database that does not answer tells nothing, which is a standstill like any other.
func (p *progress) watch(ctx context.Context, url func() string) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		var count int64
		look, cancel := context.WithTimeout(ctx, time.Second)
		var err error
		if conn == nil {
			conn, err = pgx.Connect(look, url())
		}
		if err == nil {
			err = conn.QueryRow(look, outcomes).Scan(&count)
		}
		cancel()
		switch {
		case err == nil:
			p.saw(count)
		case conn != nil:
			_ = conn.Close(context.WithoutCancel(ctx)) // it is of no use any more
			conn = nil
		}
		_ = backoff.Sleep(ctx, lookEvery)
	}
	if conn != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}

func (p *progress) saw(count int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if count <= p.count {
		return
	}
	now := time.Now()
	if !p.at.IsZero() {
		p.longest = max(p.longest, now.Sub(p.at))
	}
	p.count, p.at = count, now
}

// mark begins a new measurement of the longest standstill.
func (p *progress) mark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.longest = 0
}

func (p *progress) now() (count int64, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count, p.longest
}

// errOver is returned when there is nothing left to break.
var errOver = errors.New("the run is over already, and nothing is proved")

// settle waits until outcomes have come in each of so many seconds.
func (p *progress) settle(ctx context.Context, steady int) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	before, _ := p.now()
	for seconds := 0; seconds < steady; {
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return fmt.Errorf("wait for the run to go on: %w", err)
		}
		count, _ := p.now()
		if count >= p.all {
			return errOver
		}
		if seconds++; count == before {
			seconds = 0
		}
		before = count
	}
	return nil
}
