// Package embed has a node of Tranche run inside another program, and lets that program serve the API and the
// dashboard. It does what `tranche serve` does by default; what it does not do stands at [Config].
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

// DefaultMaxConns is Config.MaxConns unless set.
const DefaultMaxConns = 8

// grace is how long requests have to end.
const grace = 10 * time.Second

// Config says what a node is made of. Schedules, alerts, webhooks and the tracker service over NATS are left to
// `tranche serve`, which leads as long as one is there; so are steps of the kinds http and sql, which need the
// operator's connections.
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
	API      *APIConfig  // of the API and the dashboard; nil: the program serves neither

	// Metrics gets the node's metrics, for the program to show. nil: /metrics of the API has them, if there is one, with
	// the process's and Go's own. Several nodes need a registerer each (prometheus.WrapRegistererWith).
	Metrics prometheus.Registerer
}

// APIConfig says where the API is, and who may use it.
type APIConfig struct {
	// Listen is an address like 127.0.0.1:8090; port 0: any that is free. One that is not this machine's alone needs
	// logins and encryption.
	Listen string
	Hosts  []string // names, without a port, by which browsers call the server, beside those of this machine
	// Anonymous lets everybody who reaches the API do everything. Without it, people and programs need a token
	// (`tranche token create`).
	Anonymous bool
	// TLSCert and TLSKey are files in PEM. TrustedProxies are instead the addresses of proxies in front that end TLS.
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

// Open connects to the database and makes a node, which does nothing until [Node.Run]. Close it in the end.
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

// build is the version of the program, and without one that of Tranche in it.
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

// Run takes part in the work of all nodes on the database, and serves the API, until ctx ends. The API ends first: an
// upload is over before the session that it depends on.
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

// Ready is closed once the node works.
func (n *Node) Ready() <-chan struct{} { return n.node.Ready() }

// Address is where the API is; nil: there is none.
func (n *Node) Address() net.Addr {
	if n.listener == nil {
		return nil
	}
	return n.listener.Addr()
}

// Close gives back what Open has taken, after Run has returned.
func (n *Node) Close() {
	if n.listener != nil {
		_ = n.listener.Close() // Run has closed it, if there was one
	}
	n.release()
}
