package client_test

import (
	"context"
	"fmt"
	"os"

	"github.com/tranchehq/tranche/orchestrator/client"
)

func Example() {
	if err := yearEnd(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

// yearEnd starts a run of a file, waits for it, and prints what failed.
func yearEnd(ctx context.Context) error {
	tranche, err := client.New(client.DefaultURL, client.WithToken(os.Getenv("TRANCHE_TOKEN")))
	if err != nil {
		return err
	}
	file, err := os.Open("customers.csv")
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	started, err := tranche.Start(ctx, client.RunSettings{Endpoint: "accounts", Name: "year-end"}, file)
	if err != nil {
		return err
	}
	run, err := tranche.Wait(ctx, started.Run)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %d of %d items done\n", run.State, run.Done, run.Items)
	found, err := tranche.ListErrors(ctx, run.ID, client.ListErrorsParams{})
	if err != nil {
		return err
	}
	for _, group := range found.Groups {
		fmt.Printf("%d × %s: %s\n", group.Count, group.Code, group.Shape)
	}
	return nil
}
