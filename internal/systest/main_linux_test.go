package systest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
)

// What tells a child process what it is.
const (
	roleVariable     = "TRANCHE_SYSTEST_ROLE" // node or service
	databaseVariable = "TRANCHE_SYSTEST_DATABASE"
	natsVariable     = "TRANCHE_SYSTEST_NATS"
	ledgerVariable   = "TRANCHE_SYSTEST_LEDGER"
	dieVariable      = "TRANCHE_SYSTEST_DIE"   // the execution at which a service waits to be killed
	leaseVariable    = "TRANCHE_SYSTEST_LEASE" // the life of the leader's lease
	// sessionVariable is the life of a node's session, unless it is sessionTTL. Long ones are for nodes that are not to
	// lose theirs, however slow the machine is.
	sessionVariable = "TRANCHE_SYSTEST_SESSION"
	faultsVariable  = "TRANCHE_FAULTS"
)

const (
	sessionTTL = 1500 * time.Millisecond
	ready      = "child is ready"
	halfway    = "service stands in the middle of slice"
)

func TestMain(m *testing.M) {
	children := map[string]func(context.Context) error{"node": runNode, "service": runService}
	child, isChild := children[os.Getenv(roleVariable)]
	if !isChild {
		testenv.Main(m)
	}
	os.Exit(be(child))
}

// be runs a child until SIGTERM and returns its exit code.
func be(child func(context.Context) error) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := child(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// runNode is the node's process: what cmd/tranche wires, with sessions that are short unless the test says otherwise.
func runNode(ctx context.Context) error {
	faults, err := fault.Parse(os.Getenv(faultsVariable))
	if err != nil {
		return err
	}
	// A node that is asleep in the middle of a transaction keeps its locks for so long.
	locks := database.PoolConfig{IdleInTransaction: sessionTTL}
	store, release, err := database.Open(ctx, os.Getenv(databaseVariable), locks)
	if err != nil {
		return err
	}
	defer release()
	lease, err := time.ParseDuration(cmp.Or(os.Getenv(leaseVariable), "1s"))
	if err != nil {
		return err
	}
	session, err := time.ParseDuration(cmp.Or(os.Getenv(sessionVariable), sessionTTL.String()))
	if err != nil {
		return err
	}
	nc, err := nats.Connect(os.Getenv(natsVariable), nats.MaxReconnects(-1), nats.Timeout(time.Minute))
	if err != nil {
		return err
	}
	defer nc.Close()
	log, err := zap.NewDevelopment()
	if err != nil {
		return err
	}
	node, err := orchestrator.New(store, nc, orchestrator.Config{Log: log, Faults: faults, SessionTTL: session,
		Heartbeat: session / 5, LeaseTTL: lease, Poll: 100 * time.Millisecond, Grace: orchestrator.DefaultGrace,
		Streams: stream.Config{WorkMaxBytes: 64 << 20, ReplyMaxBytes: 64 << 20, EventMaxBytes: 8 << 20}})
	if err != nil {
		return err
	}
	go func() {
		select {
		case <-node.Ready():
			fmt.Fprintf(os.Stderr, "%s %s\n", ready, node.Session())
		case <-ctx.Done():
		}
	}()
	return node.Run(ctx)
}

type account struct {
	ID string `json:"id"`
}

type statement struct {
	Of string `json:"of"`
}

// openService connects a service's process, and opens the ledger that it writes into.
func openService() (svc *endpoints.Service, ledger *os.File, closeAll func(), err error) {
	nc, err := nats.Connect(os.Getenv(natsVariable), nats.MaxReconnects(-1), nats.Timeout(time.Minute))
	if err != nil {
		return nil, nil, nil, err
	}
	ledger, err = os.OpenFile(os.Getenv(ledgerVariable), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		svc, err = endpoints.New(nc, endpoints.Config{Name: "systest", Version: "1.0.0"})
	}
	if err != nil {
		nc.Close()
		return nil, nil, nil, err
	}
	return svc, ledger, nc.Close, nil
}

// runService is the service's process. It writes each execution into the ledger before it answers, and may come to a
// stand in the middle of a chunk.
func runService(ctx context.Context) error {
	svc, ledger, closeAll, err := openService()
	if err != nil {
		return err
	}
	defer closeAll()
	die, _ := strconv.Atoi(os.Getenv(dieVariable)) // empty: never
	var mu sync.Mutex
	executed := 0
	err = endpoints.HandleList(svc, "statement", func(ctx context.Context, c *endpoints.Chunk[account, statement]) error {
		mu.Lock()
		defer mu.Unlock()
		for _, item := range c.Items() {
			_, err := fmt.Fprintf(ledger, "%s %d %d\n", c.Meta().Slice, item.Ordinal, c.Meta().Generation)
			if executed++; executed == die {
				err = errors.Join(err, ledger.Sync())
				fmt.Fprintf(os.Stderr, "%s %s\n", halfway, c.Meta().Slice)
				<-ctx.Done() // to be killed
			}
			if err != nil {
				return err
			}
			item.Reply(statement{Of: item.In.ID})
		}
		return ledger.Sync()
	}, endpoints.Concurrency(1))
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, ready)
	return errors.Join(svc.Run(ctx), ledger.Close())
}
