package yearend

import (
	"context"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/orchestrator/embed"
)

// NodeConfig says whose work the node does.
type NodeConfig struct {
	Database string       // URL of Tranche's database
	NATS     *nats.Conn   // to the servers of tranche serve; it stays the caller's
	Ledger   *bank.Ledger // of what was composed; nil: none
	Log      *zap.Logger  // nil: none
	Ready    func()       // called once the node works; nil: nobody wants to know
}

// RunNode embeds a node that has the function of this package, until ctx ends. It shares the work of the nodes on the
// database, and what is composed, is composed here. The database has been migrated: tranche serve does that.
func RunNode(ctx context.Context, config NodeConfig) error {
	node, err := embed.Open(ctx, embed.Config{
		Database: config.Database, NATS: config.NATS, Log: config.Log, Version: "yearend",
		Locals: map[string]fetch.Fetcher{Function: recorded(config.Ledger, fetch.Each(Compose))},
	})
	if err != nil {
		return err
	}
	defer node.Close()
	if config.Ready != nil {
		go func() {
			select {
			case <-node.Ready():
				config.Ready()
			case <-ctx.Done():
			}
		}()
	}
	return node.Run(ctx)
}

// recorded writes chunks into a ledger before they are worked on.
func recorded(ledger *bank.Ledger, next fetch.Fetcher) fetch.Fetcher {
	if ledger == nil {
		return next
	}
	return fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		accounts := make([]int32, len(req.Items))
		for i := range req.Items {
			var c bank.Customer
			if err := req.Items[i].Decode(&c); err != nil {
				return nil, err
			}
			accounts[i] = c.Account
		}
		if err := ledger.Write(ctx, accounts...); err != nil {
			return nil, err
		}
		return next.Fetch(ctx, req)
	})
}
