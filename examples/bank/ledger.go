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
	going bool // someone writes
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

// write empties the ledger's pages until no one has written on the next one.
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

// Money is in cents everywhere.

// Account is the accounts service's answer: who has the account, and what was on it when the year began and ended.
type Account struct {
	Account int32  `json:"account"`
	Number  string `json:"number"` // as the bank writes it
	Kind    string `json:"kind"`
	Opened  string `json:"opened"` // a day: 2009-05-31
	Owner   string `json:"owner"`
	Street  string `json:"street"`
	Place   string `json:"place"`
	Opening int64  `json:"opening"`
	Closing int64  `json:"closing"`
}

// Year is the transactions service's answer: what went over an account, by month.
type Year struct {
	Year   int       `json:"year"`
	Months [12]Month `json:"months"` // from January
}

// Month is what came in and went out. Both are positive.
type Month struct {
	Movements int64 `json:"n,omitzero"`
	In        int64 `json:"in,omitzero"`
	Out       int64 `json:"out,omitzero"`
}

// Branch is the branches service's answer: which branch looks after a customer, and who there.
type Branch struct {
	Branch  int32  `json:"branch"`
	Name    string `json:"name"`
	Street  string `json:"street"`
	Place   string `json:"place"`
	Phone   string `json:"phone"`
	Adviser string `json:"adviser"`
}

// The codes of the errors that an account can get. Those of the HTTP service are its status codes.
const (
	CodeUnknownAccount = "unknown_account"
	CodeNoBalance      = "no_balance"
	CodeBrokenMovement = "broken_movement"
	CodeNoStatement    = "no_statement"
)
