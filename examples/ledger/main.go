// Command ledger books a year's interest in its own PostgreSQL, once per account of a run, even if a chunk is
// delivered repeatedly. A chunk's bookings, new balances and answers are one transaction; see package pginbox.
//
// The database is set by DATABASE_URL or the PG… variables.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	books, err := openLedger(ctx, pool)
	if err != nil {
		return err
	}
	nc, err := endpoints.Connect() // NATS_URL, NATS_CREDS, … or the server of tranche serve
	if err != nil {
		return err
	}
	defer nc.Close()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "ledger", Version: "1.0.0"})
	if err != nil {
		return err
	}
	if err := books.serve(svc); err != nil {
		return err
	}
	return svc.Run(ctx)
}
