package bank

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// CreateLedger makes the table that a [Ledger] writes to.
const CreateLedger = `CREATE UNLOGGED TABLE asked (
    n bigint GENERATED ALWAYS AS IDENTITY, account int NOT NULL, at timestamptz NOT NULL DEFAULT now()
)`

const insertAsked = `INSERT INTO asked (account) SELECT unnest($1::int[])`

// Ledger remembers which accounts a service was asked for, in its database. It is a group commit: whoever comes while
// a statement is on its way goes with the next one, together with the others.
type Ledger struct {
	db *pgxpool.Pool

	mu    sync.Mutex
	next  *page
	going bool // somebody writes
}

// page is what one statement writes.
type page struct {
	accounts []int32
	done     chan struct{}
	err      error // once done is closed
}

// NewLedger returns a ledger on a database with the table of [CreateLedger].
func NewLedger(db *pgxpool.Pool) *Ledger { return &Ledger{db: db, next: newPage()} }

func newPage() *page { return &page{done: make(chan struct{})} }

// Write returns when the accounts stand in the ledger. A service calls it before it answers, so that no answer is
// without its entry.
func (l *Ledger) Write(ctx context.Context, accounts ...int32) error {
	l.mu.Lock()
	mine := l.next
	mine.accounts = append(mine.accounts, accounts...)
	if !l.going {
		l.going = true
		go l.write() //nolint:gosec // it writes for others, too, and outlives who began it
	}
	l.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write empties the ledger's pages until nobody has written on the next one.
func (l *Ledger) write() {
	for {
		l.mu.Lock()
		if len(l.next.accounts) == 0 {
			l.going = false
			l.mu.Unlock()
			return
		}
		full := l.next
		l.next = newPage()
		l.mu.Unlock()
		// Those who wait have contexts of their own; the pool ends this one when it is closed.
		if _, err := l.db.Exec(context.Background(), insertAsked, full.accounts); err != nil {
			full.err = fmt.Errorf("write %d accounts into the ledger: %w", len(full.accounts), err)
		}
		close(full.done)
	}
}
