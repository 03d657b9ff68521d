package bank

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
)

// The names under which the services listen.
const (
	AccountsEndpoint     = "bank_accounts"
	TransactionsEndpoint = "bank_transactions"
	MailEndpoint         = "bank_mail"
)

// Customer is the payload of an item: a row of a CSV file with the column account.
type Customer struct {
	Account int32 `json:"account,string"`
}

type accounts struct {
	db     *pgxpool.Pool
	ledger *Ledger
}

// ServeAccounts answers for accounts until ctx ends. The connections stay the caller's.
func ServeAccounts(ctx context.Context, nc *nats.Conn, db *pgxpool.Pool, log *zap.Logger) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "accounts", Version: "1.0.0", Log: log})
	if err != nil {
		return err
	}
	s := accounts{db: db, ledger: NewLedger(db)}
	if err := endpoints.HandleList(svc, AccountsEndpoint, s.answer); err != nil {
		return err
	}
	return svc.Run(ctx)
}

// accountRow is what the database knows of an account. A nil pointer is a NULL, or a row that is not there.
type accountRow struct {
	ID                                         *int32
	Number, Kind, Opened, Owner, Street, Place *string
	Opening, Closing                           *int64
}

// selectAccounts answers for each id in the order asked for, so that row n belongs to item n.
const selectAccounts = `
SELECT a.id, a.number, a.kind, a.opened::text, a.owner, a.street, a.place, a.opening, a.closing
FROM unnest($1::int[]) WITH ORDINALITY AS asked (id, place_asked)
LEFT JOIN account a USING (id)
ORDER BY place_asked`

func (s accounts) answer(ctx context.Context, chunk *endpoints.Chunk[Customer, Account]) error {
	items := chunk.Items()
	rows, err := ask[accountRow](ctx, s.db, s.ledger, selectAccounts, ids(chunk))
	if err != nil {
		return err
	}
	if len(rows) != len(items) {
		return fmt.Errorf("%d rows for %d accounts", len(rows), len(items))
	}
	for i, item := range items {
		switch row := rows[i]; {
		case row.ID == nil:
			item.Fail(CodeUnknownAccount, unknownAccount)
		case row.Opening == nil || row.Closing == nil:
			item.Fail(CodeNoBalance, "the account has no balance")
		default:
			item.Reply(Account{
				Account: *row.ID, Number: *row.Number, Kind: *row.Kind, Opened: *row.Opened, Owner: *row.Owner,
				Street: *row.Street, Place: *row.Place, Opening: *row.Opening, Closing: *row.Closing,
			})
		}
	}
	return nil
}

// ids are the accounts of a chunk, in its order.
func ids[Out any](chunk *endpoints.Chunk[Customer, Out]) []int32 {
	var ids []int32
	for _, item := range chunk.Items() {
		ids = append(ids, item.In.Account)
	}
	return ids
}

// ask runs one query for all accounts, after it has written them into the ledger. What goes wrong may pass.
func ask[Row any](ctx context.Context, db *pgxpool.Pool, ledger *Ledger, sql string, ids []int32) ([]Row, error) {
	if err := ledger.Write(ctx, ids...); err != nil {
		return nil, endpoints.Retry("bank", "%v", err)
	}
	rows, err := db.Query(ctx, sql, ids)
	if err != nil {
		return nil, endpoints.Retry("bank", "ask the bank: %v", err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Row])
	if err != nil {
		return nil, endpoints.Retry("bank", "ask the bank: %v", err)
	}
	return all, nil
}
