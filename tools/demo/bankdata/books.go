package bankdata

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// Books are what the bank says, by its own sums.
type Books struct {
	Opening, Closing []int64 // of account i+1
	Totals
}

// Totals are of the whole year.
type Totals struct{ Movements, In, Out int64 }

const (
	// An account without a balance has a value that no sum can reach.
	selectBalances = `SELECT id, coalesce(opening, -1::bigint << 62), coalesce(closing, -1::bigint << 62) FROM account`
	selectTotals   = `
SELECT count(*), coalesce(sum(amount) FILTER (WHERE amount > 0), 0)::bigint,
    coalesce(-sum(amount) FILTER (WHERE amount < 0), 0)::bigint
FROM movement`
)

func (b *Bank) totals(ctx context.Context) (t Totals, err error) {
	err = b.with(ctx, Transactions, "add the year's movements up", func(conn *pgx.Conn) error {
		return conn.QueryRow(ctx, selectTotals).Scan(&t.Movements, &t.In, &t.Out)
	})
	return t, err
}

// Books reads them: 16 bytes an account.
func (b *Bank) Books(ctx context.Context) (*Books, error) {
	n := b.config.Accounts
	all := &Books{Opening: make([]int64, n), Closing: make([]int64, n)}
	var err error
	if all.Totals, err = b.totals(ctx); err != nil {
		return nil, err
	}
	err = b.with(ctx, Accounts, "read the bank's balances", func(conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, selectBalances)
		if err != nil {
			return err
		}
		seen := 0
		var account, opening, closing int64
		_, err = pgx.ForEachRow(rows, []any{&account, &opening, &closing}, func() error {
			if account < 1 || account > int64(n) {
				return fmt.Errorf("account %d is not one of the bank's", account)
			}
			seen++
			all.Opening[account-1], all.Closing[account-1] = opening, closing
			return nil
		})
		if err == nil && seen != n {
			err = fmt.Errorf("%d accounts instead of %d", seen, n)
		}
		return err
	})
	return all, err
}
