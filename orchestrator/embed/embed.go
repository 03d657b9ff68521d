// Package embed has a node of Tranche run inside another program, and lets that program serve the API and the
// dashboard. It does what `tranche serve` does by default; what it does not do stands at [Config].
package embed

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/dashboard"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// DefaultMaxConns is Config.MaxConns unless set.
const DefaultMaxConns = 8

// grace is how long requests have to end.
const grace = 10 * time.Second

// Config says what a node is made of. Schedules, webhooks and the tracker service over NATS are left to `tranche
// serve`, which leads as long as one is there; so are steps of the kinds http and sql, which need the operator's
// connections.
type Config struct {
	Database string     // URL of a database that `tranche migrate` or `tranche serve` has migrated
	NATS     *nats.Conn // to the servers of the services; it stays the caller's

	// Locals are the functions of this program, by the names that plans have for them in `local: NAME`.
	Locals map[string]fetch.Fetcher
	// LocalWorkers chunks are worked on at once for each function; 0: as many as there are processors.
	LocalWorkers int

	MaxConns int         // to the database, beside six that are reserved
	Version  string      // of the program, for whoever looks at nodes
	Log      *zap.Logger // nil: none
}

// Node is a node inside a program.
type Node struct {
	config  Config
	db      *database.DB
	release func()
	node    *orchestrator.Node
}

// Open connects to the database and makes a node, which does nothing until [Node.Run]. Close it in the end.
func Open(ctx context.Context, config Config) (*Node, error) {
	if config.MaxConns <= 0 {
		config.MaxConns = DefaultMaxConns
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	db, release, err := database.Open(ctx, config.Database, database.PoolConfig{MaxConns: config.MaxConns, Serving: true})
	if err != nil {
		return nil, fmt.Errorf("open Tranche's database: %w", err)
	}
	node, err := orchestrator.New(db, config.NATS, orchestrator.Config{
		Log: config.Log, Version: config.Version, Locals: config.Locals,
		LocalWorkers: config.LocalWorkers,
	})
	if err != nil {
		release()
		return nil, err
	}
	return &Node{config: config, db: db, release: release, node: node}, nil
}

// Run takes part in the work of all nodes on the database, until ctx ends.
func (n *Node) Run(ctx context.Context) error { return n.node.Run(ctx) }

// Ready is closed once the node works.
func (n *Node) Ready() <-chan struct{} { return n.node.Ready() }

// Close gives the connections to the database back, after Run has returned.
func (n *Node) Close() { n.release() }

// APIConfig says who may use the API.
type APIConfig struct {
	Hosts []string // names, without a port, by which browsers call the server, beside those of this machine
	// Anonymous lets everybody who reaches the API do everything. Without it, people and programs need a token
	// (`tranche token create`).
	Anonymous bool
	// SecureCookies says that browsers come by TLS.
	SecureCookies bool
}

// Serve answers requests for the API and the dashboard until ctx ends, and closes the listener.
func (n *Node) Serve(ctx context.Context, listener net.Listener, config APIConfig) error {
	server, err := n.api(config)
	if err != nil {
		return err
	}
	return server.Serve(ctx, listener, grace)
}

// Handler is what Serve serves, for a server of the program's own, which bounds the time for headers and idle
// connections.
func (n *Node) Handler(config APIConfig) (http.Handler, error) {
	server, err := n.api(config)
	if err != nil {
		return nil, err
	}
	return server.Handler(), nil
}

func (n *Node) api(config APIConfig) (*api.Server, error) {
	pages, err := dashboard.Handler(dashboard.Config{})
	if err != nil {
		return nil, err
	}
	settings := api.Config{
		Log: n.config.Log, Version: n.config.Version, Hosts: config.Hosts, Dashboard: pages,
		SecureCookies: config.SecureCookies, WakeDuty: n.node.WakeDuty,
	}
	if !config.Anonymous {
		settings.Access, err = access.New(identity.New(n.db), access.Config{Log: n.config.Log.Named("access")})
		if err != nil {
			return nil, err
		}
	}
	return api.New(n.db, n.node, n.config.NATS, settings)
}
