package bank

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
)

// BusinessYear is the year whose movements the bank has.
const BusinessYear = 2025

type transactions struct {
	db     *pgxpool.Pool
	ledger *Ledger
}

// ServeTransactions answers with the movements of accounts until ctx ends. The connections stay the caller's.
func ServeTransactions(ctx context.Context, nc *nats.Conn, db *pgxpool.Pool, log *zap.Logger) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "transactions", Version: "1.0.0", Log: log})
	if err != nil {
		return err
	}
	s := transactions{db: db, ledger: NewLedger(db)}
	if err := endpoints.HandleList(svc, TransactionsEndpoint, s.answer); err != nil {
		return err
	}
	return svc.Run(ctx)
}

// monthRow is an account's month. Broken counts movements without an amount.
type monthRow struct {
	Account            int32
	Month              int
	Movements, In, Out int64
	Broken             int64
}

const selectMonths = `
SELECT account, extract(month FROM booked)::int, count(*), coalesce(sum(amount) FILTER (WHERE amount > 0), 0)::bigint,
    coalesce(-sum(amount) FILTER (WHERE amount < 0), 0)::bigint, count(*) - count(amount)
FROM movement WHERE account = ANY($1) GROUP BY 1, 2`

// answer has a year for every account; one that nothing went over has an empty one.
func (s transactions) answer(ctx context.Context, chunk *endpoints.Chunk[Customer, Year]) error {
	rows, err := ask[monthRow](ctx, s.db, s.ledger, selectMonths, ids(chunk))
	if err != nil {
		return err
	}
	years := map[int32]*Year{}
	movements, broken := map[int32]int64{}, map[int32]int64{}
	for _, row := range rows {
		year := years[row.Account]
		if year == nil {
			year = &Year{}
			years[row.Account] = year
		}
		year.Months[row.Month-1] = Month{Movements: row.Movements, In: row.In, Out: row.Out}
		movements[row.Account] += row.Movements
		broken[row.Account] += row.Broken
	}
	for _, item := range chunk.Items() {
		account := item.In.Account
		if n := broken[account]; n > 0 {
			item.Fail(CodeBrokenMovement, "%d of %d movements without an amount", n, movements[account])
			continue
		}
		year := Year{Year: BusinessYear}
		if found := years[account]; found != nil {
			year.Months = found.Months
		}
		item.Reply(year)
	}
	return nil
}
