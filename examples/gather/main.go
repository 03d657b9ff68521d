// Command gather embeds a node that composes year-end statements with its own Go code. It shares the database and
// NATS of a tranche serve:
//
//	tranche serve &
//	TRANCHE_DATABASE=$(tranche psql --show-url) go run ./examples/gather
//
// It runs the steps of plans with "local: statement_pdf", such as examples/plans/statements.yaml.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/examples/yearend"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	nc, err := endpoints.Connect() // NATS_URL, NATS_CREDS, … or the server of tranche serve
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	if err := yearend.RunNode(ctx, yearend.NodeConfig{Database: os.Getenv("TRANCHE_DATABASE"), NATS: nc}); err != nil {
		log.Print(err)
	}
}
