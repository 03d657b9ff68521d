package client_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// Start a run of a file, wait for it, and print what failed.
func Example() {
	ctx := context.Background()
	tranche, err := client.New(client.DefaultURL, client.WithToken(os.Getenv("TRANCHE_TOKEN")))
	if err != nil {
		log.Fatal(err)
	}
	file, err := os.Open("customers.csv")
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	started, err := tranche.Start(ctx, client.RunSettings{Endpoint: "accounts", Name: "year-end"}, file)
	if err != nil {
		log.Fatal(err)
	}
	run, err := tranche.Wait(ctx, started.Run)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %d of %d items done\n", run.State, run.Done, run.Items)
	found, err := tranche.ListErrors(ctx, run.ID, client.ListErrorsParams{})
	if err != nil {
		log.Fatal(err)
	}
	for _, group := range found.Groups {
		fmt.Printf("%d × %s: %s\n", group.Count, group.Code, group.Shape)
	}
}
