package bank

import (
	"context"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5/pgxpool"
)

// CreateLedger creates the table of a [Ledger].
const CreateLedger = `CREATE UNLOGGED TABLE asked (
    n bigint GENERATED ALWAYS AS IDENTITY, account int NOT NULL, at timestamptz NOT NULL DEFAULT now()
)`

const insertAsked = `INSERT INTO asked (account) SELECT unnest($1::int[])`

// Ledger records which accounts were requested. Writes that arrive during a statement share the next one.
type Ledger struct {
	db *pgxpool.Pool

	mu    sync.Mutex
	next  *page
	going bool // a writer is running
}

type page struct {
	accounts []int32
	done     chan struct{}
	err      error // set before done is closed
}

// NewLedger returns a ledger on a database with the table of [CreateLedger].
func NewLedger(db *pgxpool.Pool) *Ledger { return &Ledger{db: db, next: newPage()} }

func newPage() *page { return &page{done: make(chan struct{})} }

// Write returns once the accounts are stored. Services call it before they answer, so every answer has its entry.
func (l *Ledger) Write(ctx context.Context, accounts ...int32) error {
	l.mu.Lock()
	mine := l.next
	mine.accounts = append(mine.accounts, accounts...)
	if !l.going {
		l.going = true
		go l.write() //nolint:gosec // it writes for other callers too and outlives this one
	}
	l.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes pages until the next one is empty.
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
		// The callers' contexts do not apply to other callers' entries; closing the pool ends this.
		if _, err := l.db.Exec(context.Background(), insertAsked, full.accounts); err != nil {
			full.err = fmt.Errorf("write %d accounts into the ledger: %w", len(full.accounts), err)
		}
		close(full.done)
	}
}

// Amounts of money are in cents.

// Account is the answer of the accounts service: owner, and balance at the start and end of the year.
type Account struct {
	Account int32  `json:"account"`
	Number  string `json:"number"` // as the bank writes it
	Kind    string `json:"kind"`
	Opened  string `json:"opened"` // date: 2009-05-31
	Owner   string `json:"owner"`
	Street  string `json:"street"`
	Place   string `json:"place"`
	Opening int64  `json:"opening"`
	Closing int64  `json:"closing"`
}

// Year is the answer of the transactions service: an account's movements by month.
type Year struct {
	Year   int       `json:"year"`
	Months [12]Month `json:"months"` // from January
}

// Month is the money in and out, both positive.
type Month struct {
	Movements int64 `json:"n,omitzero"`
	In        int64 `json:"in,omitzero"`
	Out       int64 `json:"out,omitzero"`
}

// Branch is the answer of the branches service: a customer's branch and adviser.
type Branch struct {
	Branch  int32  `json:"branch"`
	Name    string `json:"name"`
	Street  string `json:"street"`
	Place   string `json:"place"`
	Phone   string `json:"phone"`
	Adviser string `json:"adviser"`
}

// Codes of an account's errors. The HTTP service uses status codes.
const (
	CodeUnknownAccount = "unknown_account"
	CodeNoBalance      = "no_balance"
	CodeBrokenMovement = "broken_movement"
	CodeNoStatement    = "no_statement"
)
