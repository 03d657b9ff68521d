package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/pginbox"
)

// memory is how long answers are kept: longer than any run.
const memory = 90 * 24 * time.Hour

// schema creates the ledger's tables. Amounts are in cents.
const schema = `
CREATE TABLE IF NOT EXISTS ledger_accounts (id text PRIMARY KEY, cents bigint NOT NULL);
CREATE TABLE IF NOT EXISTS ledger_bookings (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    account text NOT NULL REFERENCES ledger_accounts,
    cents bigint NOT NULL,
    run uuid NOT NULL
)`

// bookInterest books 1.5 % for each account of a chunk with a positive balance, and returns the accounts. It locks
// them in order of ID, so that two runs cannot deadlock.
const bookInterest = `
WITH found AS (
    SELECT id, cents, cents * 15 / 1000 AS interest FROM ledger_accounts WHERE id = ANY($1) ORDER BY id FOR UPDATE
), booked AS (
    INSERT INTO ledger_bookings (account, cents, run) SELECT id, interest, $2 FROM found WHERE interest > 0
), credited AS (
    UPDATE ledger_accounts AS account SET cents = account.cents + found.interest
    FROM found WHERE account.id = found.id AND found.interest > 0
)
SELECT id, cents, interest FROM found`

// account is an item's payload. The ledger uses the item's key only.
type account struct{}

type booking struct {
	Interest int64 `json:"interest"`
	Balance  int64 `json:"balance"`
}

type ledger struct {
	inbox *pginbox.Inbox
}

// openLedger creates missing tables and prunes old answers.
func openLedger(ctx context.Context, pool *pgxpool.Pool) (*ledger, error) {
	inbox, err := pginbox.New(pool, pginbox.Config{Table: "ledger_inbox"})
	if err != nil {
		return nil, err
	}
	if err := inbox.Create(ctx); err != nil {
		return nil, err
	}
	if _, err := inbox.Prune(ctx, memory); err != nil {
		return nil, err
	}
	if _, err := pool.Exec(ctx, schema); err != nil {
		return nil, fmt.Errorf("create the ledger: %w", err)
	}
	return &ledger{inbox: inbox}, nil
}

func (l *ledger) serve(svc *endpoints.Service) error {
	return endpoints.HandleList(svc, "book-interest", l.book, endpoints.Wrap(l.inbox.Once()))
}

// book sees only accounts not yet booked by this run. An error rolls back the whole chunk.
func (l *ledger) book(ctx context.Context, chunk *endpoints.Chunk[account, booking]) error {
	rows, err := pginbox.Tx(ctx).Query(ctx, bookInterest, chunk.Keys(), [16]byte(chunk.Meta().Run))
	if err != nil {
		return fmt.Errorf("book interest: %w", err)
	}
	booked := map[string]booking{}
	var id string
	var cents, interest int64
	if _, err := pgx.ForEachRow(rows, []any{&id, &cents, &interest}, func() error {
		booked[id] = booking{Interest: max(interest, 0), Balance: cents + max(interest, 0)}
		return nil
	}); err != nil {
		return fmt.Errorf("book interest: %w", err)
	}
	for _, item := range chunk.Items() {
		b, found := booked[item.Key]
		switch {
		case !found:
			item.Fail("unknown_account", "the ledger has no account %q", item.Key)
		case b.Balance < 0:
			item.Fail("overdrawn", "the balance is %d cents", b.Balance)
		default:
			item.Reply(b)
		}
	}
	return nil
}
