package start

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// companions are the small loads of a node that wait while others are committed, and share the next transaction: their
// statements become one of each kind (see [pg.Join]), which PostgreSQL sets up once and not for each run. A load that
// comes alone waits for nobody. When anything is wrong with any of them, each is done again by itself, and hears what
// is wrong with it.
type companions struct {
	mu      sync.Mutex
	waiting []*companion
	busy    bool
}

type companion struct {
	load  *loader
	batch *itemBatch
	done  chan error // gets how it ended, once
}

const (
	// maxCompanions bounds what a transaction holds.
	maxCompanions = 32
	// quickCommit is what a commit takes of a PostgreSQL that has time. When it has not, loads that come together gather
	// for three times what one took beyond that, longestGather at the most: what is under way goes before what begins, and
	// the more of them share a transaction, the less there is to do.
	quickCommit   = 5 * time.Millisecond
	longestGather = 100 * time.Millisecond
)

// errApart tells a load that it is to be done by itself.
var errApart = errors.New("the load is done by itself")

// asksNothing reports whether a whole load is only statements that nobody waits for the answers of, so that the
// transaction does nothing before its COMMIT.
func (l *loader) asksNothing(ctx context.Context, b *itemBatch) bool {
	r := &l.req
	return r.Order == nil && r.Sealing == nil && r.FromRun == (workqueue.RunID{}) &&
		r.OnDuplicate != DuplicateSkip && len(r.Steps) == 1 &&
		r.Steps[0].EffectiveKind() == workqueue.KindEndpoint && l.paced() && pg.Few(len(b.rows), len(b.arena)) &&
		len(b.rows) > 0 && l.refused == 0 && !ledger.Claimed(ctx)
}

// load makes a run, with others if there are any. When it returns errApart nothing was done.
func (c *companions) load(ctx context.Context, l *loader, b *itemBatch) error {
	me := &companion{l, b, make(chan error, 1)}
	c.mu.Lock()
	c.waiting = append(c.waiting, me)
	if !c.busy {
		c.busy = true
		go c.commit(context.WithoutCancel(ctx), l.store)
	}
	c.mu.Unlock()
	select {
	case err := <-me.done:
		return err
	case <-ctx.Done():
	}
	c.mu.Lock()
	at := slices.Index(c.waiting, me)
	if at >= 0 {
		c.waiting = slices.Delete(c.waiting, at, at+1)
	}
	c.mu.Unlock()
	if at >= 0 {
		return context.Cause(ctx)
	}
	return <-me.done // the transaction is under way, and has a limit
}

// commit makes runs until none is waiting.
func (c *companions) commit(ctx context.Context, db *database.DB) {
	for {
		c.mu.Lock()
		some := c.waiting[:min(len(c.waiting), maxCompanions)]
		c.waiting = c.waiting[len(some):]
		c.busy = len(some) > 0
		c.mu.Unlock()
		if len(some) == 0 {
			return
		}
		begun := time.Now()
		err := commitTogether(ctx, db, some)
		for _, one := range some {
			one.done <- err
		}
		if slow := time.Since(begun) - quickCommit; slow > 0 && len(some) > 1 {
			_ = backoff.Sleep(ctx, min(3*slow, longestGather))
		}
	}
}

func commitTogether(ctx context.Context, db *database.DB, some []*companion) error {
	var inside error
	err := db.InTxWithin(ctx, database.LoadTimeout, func(ctx context.Context, tx pgx.Tx) error {
		for _, one := range some {
			inside = one.load.makeWhole(ctx, tx, one.batch)
			if inside != nil {
				return inside
			}
		}
		return nil
	})
	_, answered := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil:
		return nil
	case answered || inside != nil: // nothing of them is there
		return errApart
	}
	for _, one := range some { // it is not known how the COMMIT ended, if it came to that
		one.load.unsure = true
	}
	return err
}
