// Package statements is an example of a service: it makes account statements for the bank that PostgreSQL's pgbench
// creates, a whole chunk of accounts by one query. tranche demo runs it.
//
// An account that the bank cannot account for gets an error slot that says why; the others get their statements.
// Everything here is safe for concurrent use.
package statements

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
)

// Endpoint is the name under which the service listens.
const Endpoint = "statement"

// The codes of the errors that an account can get.
const (
	CodeUnknownAccount = "unknown_account"
	CodeUnknownBranch  = "unknown_branch"
	CodeNoBalance      = "no_balance"
	CodeBrokenMovement = "broken_movement"
)

// Account is the payload of an item: a row of a CSV file with the column aid.
type Account struct {
	ID int32 `json:"aid,string"`
}

// Statement is the result: Opening + Sum = Closing.
type Statement struct {
	Account   int32 `json:"account"`
	Branch    int32 `json:"branch"`
	Opening   int64 `json:"opening"`
	Closing   int64 `json:"closing"`
	Movements int64 `json:"movements"`
	Sum       int64 `json:"sum"`
}

// Run serves the endpoint until ctx ends. The connections stay the caller's.
func Run(ctx context.Context, nc *nats.Conn, bank *pgxpool.Pool, log *zap.Logger) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "statements", Version: "1.0.0", Log: log})
	if err != nil {
		return err
	}
	books := books{bank: bank}
	if err := endpoints.HandleList(svc, Endpoint, books.close); err != nil {
		return err
	}
	return svc.Run(ctx)
}
