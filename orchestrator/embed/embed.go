// Package embed runs a node of Tranche inside another program, optionally with the API and the dashboard. It does
// what `tranche serve` does by default, except for what [Config] lists.
package embed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/dashboard"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// DefaultMaxConns is the default of Config.MaxConns.
const DefaultMaxConns = 8

// grace is how long requests may take to finish at a stop.
const grace = 10 * time.Second

// Config configures a node. Schedules, alerts, webhooks and the tracker service over NATS are left to `tranche
// serve`, which leads while one is running. So are steps of the kinds http and sql, which need the operator's
// connections.
type Config struct {
	Database string     // URL of a database migrated by `tranche migrate` or `tranche serve`
	NATS     *nats.Conn // to the same servers as the services; the caller closes it

	// Locals are this program's functions, by their names in plans: `local: NAME`.
	Locals map[string]fetch.Fetcher
	// LocalWorkers limits the concurrent chunks per function; 0: the number of processors.
	LocalWorkers int

	MaxConns int         // database connections, in addition to six reserved ones
	Version  string      // of the program, shown with the node
	Log      *zap.Logger // nil: no logs
	API      *APIConfig  // nil: no API and dashboard

	// Metrics gets the node's metrics. nil: the API, if any, serves them at /metrics, with those of the process and Go.
	// Several nodes need one registerer each (prometheus.WrapRegistererWith).
	Metrics prometheus.Registerer
}

// APIConfig is the address of the API, and who may use it.
type APIConfig struct {
	// Listen is an address like 127.0.0.1:8090; port 0: any free port. One reachable from other machines needs
	// authentication and encryption.
	Listen string
	Hosts  []string // names of the server in browsers, without a port, in addition to this machine's
	// Anonymous gives full access to every client that can connect. Without it, clients need a token (`tranche token
	// create`).
	Anonymous bool
	// TLSCert and TLSKey are PEM files. TrustedProxies are the addresses of proxies that terminate TLS instead.
	TLSCert, TLSKey string
	TrustedProxies  []netip.Prefix
}

// Node is a node inside a program.
type Node struct {
	config   Config
	db       *database.DB
	release  func()
	node     *orchestrator.Node
	listener net.Listener // nil: no API
	server   *api.Server
}

// Open connects to the database and makes a node, which does nothing until [Node.Run]. The caller closes it.
func Open(ctx context.Context, config Config) (*Node, error) {
	if config.Database == "" || config.NATS == nil {
		return nil, errors.New("embed: Config.Database and Config.NATS are needed")
	}
	config.MaxConns = cmp.Or(max(config.MaxConns, 0), DefaultMaxConns)
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	db, release, err := database.Open(ctx, config.Database, database.PoolConfig{MaxConns: config.MaxConns, Serving: true})
	if err != nil {
		return nil, fmt.Errorf("open Tranche's database: %w", err)
	}
	n := &Node{config: config, db: db, release: release}
	if err := n.open(ctx); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) open(ctx context.Context) error {
	config := n.config
	measured, err := metrics.New(metrics.Config{Log: config.Log, Build: n.build(), Registerer: config.Metrics})
	if err != nil {
		return fmt.Errorf("embed: Config.Metrics: %w", err)
	}
	n.node, err = orchestrator.New(n.db, config.NATS, orchestrator.Config{
		Log: config.Log, Version: config.Version, Locals: config.Locals, LocalWorkers: config.LocalWorkers,
		Meter: measured,
	})
	if err != nil {
		return err
	}
	measured.Bind(metrics.Sources{Node: n.node, Store: n.db, NC: config.NATS})
	if config.API == nil {
		return nil
	}
	return n.openAPI(ctx, config.API, measured)
}

// build returns the version of the program, or else that of Tranche in it.
func (n *Node) build() buildinfo.Info {
	return buildinfo.Linked(n.config.Version, "", "")
}

func (n *Node) openAPI(ctx context.Context, config *APIConfig, measured *metrics.Metrics) (err error) {
	log := n.config.Log
	guarded := api.Exposure{Auth: !config.Anonymous, TLSCert: config.TLSCert, TLSKey: config.TLSKey,
		TrustedProxies: config.TrustedProxies, Log: log}
	if n.listener, err = api.Listen(ctx, config.Listen, guarded); err != nil {
		return err
	}
	settings := api.Config{Log: log, Build: n.build(), Hosts: config.Hosts, WakeLeaderTask: n.node.WakeLeaderTask,
		SecureCookies: guarded.Encrypted(), TrustedProxies: config.TrustedProxies, Metrics: measured}
	if settings.Dashboard, err = dashboard.Handler(dashboard.Config{}); err != nil {
		return err
	}
	if guarded.Auth {
		settings.Access, err = access.New(identity.New(n.db), access.Config{Log: log.Named("access")})
		if err != nil {
			return err
		}
	}
	n.server, err = api.New(n.db, api.NodeOf(n.node), n.config.NATS, settings)
	return err
}

// Run takes part in the work of all nodes on the database, and serves the API, until ctx ends. The API stops first,
// since uploads depend on the node's session.
func (n *Node) Run(ctx context.Context) error {
	if n.server == nil {
		return n.node.Run(ctx)
	}
	group, ctx := errgroup.WithContext(ctx)
	nodeCtx, stopNode := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNode()
	group.Go(func() error {
		defer stopNode()
		return n.server.Serve(ctx, n.listener, grace)
	})
	group.Go(func() error { return n.node.Run(nodeCtx) })
	return group.Wait()
}

// Ready is closed once the node takes work.
func (n *Node) Ready() <-chan struct{} { return n.node.Ready() }

// Address returns the address of the API; nil: none.
func (n *Node) Address() net.Addr {
	if n.listener == nil {
		return nil
	}
	return n.listener.Addr()
}

// Close frees what Open has acquired, after Run has returned.
func (n *Node) Close() {
	if n.listener != nil {
		_ = n.listener.Close() // Run has closed it, if it ran
	}
	n.release()
}
