// Command embed starts a run in the transaction that writes its own rows, and works on it in the same process.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/orchestrator/embed"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("TRANCHE_DATABASE")) // see: tranche psql --show-url
	check(err)
	nc, err := endpoints.Connect() // NATS_URL, or the server of tranche serve
	check(err)
	node, err := embed.New(pool, nc, embed.Config{
		Version: "letters", Connections: os.Getenv("TRANCHE_CONNECTIONS"), // what http and sql steps reach
		Locals: map[string]fetch.Fetcher{"letter": fetch.Each(letter)},
	})
	check(err)
	defer node.Close()
	go func() {
		<-node.Ready()
		check(order(ctx, pool, node, "ann", "bob"))
	}()
	check(node.Run(ctx)) // until Ctrl-C
}

// order commits the rows and the run of their letters, or neither.
func order(ctx context.Context, pool *pgxpool.Pool, node *embed.Node, customers ...string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `CREATE TABLE IF NOT EXISTS letter_order (customer text)`)
		if err == nil {
			_, err = tx.Exec(ctx, `INSERT INTO letter_order SELECT unnest($1::text[])`, customers)
		}
		if err == nil {
			_, err = node.StartTx(ctx, tx, client.RunSettings{Plan: "steps: [{local: letter}]", PlanName: "letters"},
				strings.NewReader("id\n"+strings.Join(customers, "\n")))
		}
		return err
	})
}

func letter(_ context.Context, item *fetch.Item) (fetch.Part, error) {
	return fetch.Part{Data: []byte("Dear " + item.Key), ContentType: "text/plain"}, nil
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
