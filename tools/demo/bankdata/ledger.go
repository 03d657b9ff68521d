package bankdata

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Mark is a place in the ledgers: everything up to it has been looked at.
type Mark map[string]int64

// Asked is what a ledger has since a mark.
type Asked struct {
	Times    int64 // entries
	Accounts int64 // distinct accounts
	Others   int64 // entries for accounts other than those expected
}

const (
	selectMark  = `SELECT coalesce(max(n), 0) FROM asked`
	selectAsked = `
SELECT count(*), count(DISTINCT account), count(*) FILTER (WHERE account <> ALL($2::int[]))
FROM asked WHERE n > $1`
)

// Mark returns where the ledgers end.
func (b *Bank) Mark(ctx context.Context) (Mark, error) {
	mark := Mark{}
	for _, database := range Databases() {
		err := b.with(ctx, database, "read the ledger of "+database, func(conn *pgx.Conn) error {
			var n int64
			err := conn.QueryRow(ctx, selectMark).Scan(&n)
			mark[database] = n
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return mark, nil
}

// Since returns what each ledger has since the mark, for these accounts and for others.
func (b *Bank) Since(ctx context.Context, mark Mark, accounts []int32) (map[string]Asked, error) {
	since := map[string]Asked{}
	for _, database := range Databases() {
		err := b.with(ctx, database, "read the ledger of "+database, func(conn *pgx.Conn) error {
			var a Asked
			err := conn.QueryRow(ctx, selectAsked, mark[database], accounts).Scan(&a.Times, &a.Accounts, &a.Others)
			since[database] = a
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return since, nil
}
