package bank

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
)

// Letter is the mail room's answer: what was posted.
type Letter struct {
	Bytes       int    `json:"bytes"`
	ContentType string `json:"content_type"`
}

// ServeMail posts the statements of accounts, which it sees as the part of a step of this name, until ctx ends. The
// connections stay the caller's.
func ServeMail(ctx context.Context, nc *nats.Conn, db *pgxpool.Pool, statement string, log *zap.Logger) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: "mail", Version: "1.0.0", Log: log})
	if err != nil {
		return err
	}
	ledger := NewLedger(db)
	post := func(ctx context.Context, chunk *endpoints.Chunk[Customer, Letter]) error {
		if err := ledger.Write(ctx, ids(chunk)...); err != nil {
			return endpoints.Retry("bank", "%v", err)
		}
		for _, item := range chunk.Items() {
			if part, ok := item.Part(statement); ok {
				item.Reply(Letter{len(part.Data), part.ContentType})
			} else {
				item.Fail(CodeNoStatement, "there is no part of a step %s to post", statement)
			}
		}
		return nil
	}
	if err := endpoints.HandleList(svc, MailEndpoint, post); err != nil {
		return err
	}
	return svc.Run(ctx)
}
