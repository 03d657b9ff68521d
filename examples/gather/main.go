// Command gather is a program that embeds a node, to compose year-end statements with its own Go code. It stands beside
// a tranche serve, on the same database and NATS:
//
//	tranche serve --database URL &
//	TRANCHE_DATABASE=URL go run ./examples/gather
//
// A step of a plan that says "local: statement_pdf" is then done here. examples/plans/statements.yaml is such a plan.
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
