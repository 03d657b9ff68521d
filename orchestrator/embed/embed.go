// Package embed runs a node of Tranche inside another program, which starts runs in its own transactions. It does what
// `tranche serve` does by default, except for what [Config] lists, with the API and the dashboard if wanted.
package embed

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/dashboard"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/client"
	fetchers "github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// DefaultMaxConns is the default of Config.MaxConns.
const DefaultMaxConns = 8

// grace is how long requests may take to finish at a stop.
const grace = 10 * time.Second

// Config configures a node. Alerts, the webhooks of trackers and files of schedules are left to `tranche serve`, which
// leads while one is running.
type Config struct {
	// Locals are this program's functions, by their names in plans, and in the enrich of collectors whose operations this
	// program's API adds: `local: NAME`.
	Locals map[string]fetch.Fetcher
	// LocalWorkers limits the concurrent chunks per function; 0: the number of processors.
	LocalWorkers int
	// Connections is the file that says which databases, secrets and hosts steps of kind http and sql reach, as for
	// `tranche serve --connections`. Without it they reach public addresses over HTTP.
	Connections string
	// EncryptionKeys are those of `tranche serve --encryption-key`, 32 bytes each.
	EncryptionKeys [][]byte

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
	// FourEyes and TokenMaxAge are those of `tranche serve`: give the same to every server of the database.
	FourEyes    []string
	TokenMaxAge time.Duration
}

// Node is a node inside a program.
type Node struct {
	config   Config
	nc       *nats.Conn
	db       *database.DB
	node     *orchestrator.Node
	listener net.Listener // nil: no API
	server   *api.Server
	undo     []func()
}

// New makes a node, which does no work until [Node.Run], but answers users of trackers. The caller closes it. The
// database of the pool was migrated by `tranche migrate` or `tranche serve`; the node has separate connections, like
// those of the pool. NATS is that of the services.
func New(pool *pgxpool.Pool, nc *nats.Conn, config Config) (*Node, error) {
	if pool == nil || nc == nil {
		return nil, errors.New("embed: a pool and a NATS connection are needed")
	}
	config.MaxConns = cmp.Or(max(config.MaxConns, 0), DefaultMaxConns)
	config.Log = cmp.Or(config.Log, zap.NewNop())
	ctx := context.Background() // connecting has its own limits
	db, release, err := database.OpenLike(ctx, pool.Config(),
		database.PoolConfig{MaxConns: config.MaxConns, Serving: true})
	if err != nil {
		return nil, fmt.Errorf("open Tranche's database: %w", err)
	}
	n := &Node{config: config, nc: nc, db: db, undo: []func(){release}}
	if err := n.open(ctx); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

func (n *Node) useKeys(ctx context.Context) error {
	err := n.db.SetKeys(n.config.EncryptionKeys)
	if err == nil {
		err = n.db.CheckKeys(ctx)
	}
	if err == nil && len(n.config.EncryptionKeys) > 1 {
		_, _, err = n.db.RotateKeys(ctx)
	}
	return err
}

func (n *Node) open(ctx context.Context) error {
	config := n.config
	if err := n.useKeys(ctx); err != nil {
		return err
	}
	measured, err := metrics.New(metrics.Config{Log: config.Log, Build: n.build(), Registerer: config.Metrics})
	if err != nil {
		return fmt.Errorf("embed: Config.Metrics: %w", err)
	}
	reach := &connections.Connections{}
	if config.Connections != "" {
		if reach, err = connections.Load(config.Connections); err != nil {
			return err
		}
	}
	web, err := httpfetch.New(reach, httpfetch.Config{UserAgent: "tranche/" + n.build().Version})
	if err != nil {
		return err
	}
	databases := sqlfetch.New(reach)
	n.undo = append(n.undo, web.Close, databases.Close)
	runs := &scheduled{}
	due, err := schedule.New(n.db, runs, runs, schedule.Config{Log: config.Log.Named("schedules")})
	if err != nil {
		return err
	}
	n.undo = append(n.undo, due.Wait)
	n.node, err = orchestrator.New(n.db, n.nc, orchestrator.Config{
		Log: config.Log, Version: config.Version, Locals: config.Locals, LocalWorkers: config.LocalWorkers,
		Fetchers: map[workqueue.Kind]fetchers.Fetchers{workqueue.KindHTTP: web, workqueue.KindSQL: databases},
		LeaderTasks: []orchestrator.LeaderTask{due.LeaderTask(),
			{Name: "reap trackers", Run: trackers.Reaper(n.db, config.Log.Named("reaper"))}},
		Meter: measured,
	})
	if err != nil {
		return err
	}
	measured.Bind(metrics.Sources{Node: n.node, Store: n.db, NC: n.nc})
	settings := api.Config{Log: config.Log, Build: n.build(), WakeLeaderTask: n.node.WakeLeaderTask, Metrics: measured,
		Connections: reach, RestsUntil: web.RestsUntil, Schedules: api.Schedules{Web: schedule.NewWeb(web.Transport()),
			CheckURL: web.CheckURL, Wake: func() { n.node.WakeLeaderTask(schedule.TaskName) }}}
	settings.Trackers = trackers.New(n.db, trackers.Config{Connections: reach, Ended: n.node.PublishEvents,
		Log: config.Log.Named("trackers")})
	settings.Producers = ingest.New(collectorstore.New(n.db), n.node.Collectors(),
		ingest.Sources{SQL: databases, Locals: config.Locals, NC: n.nc}, config.Log.Named("producers"))
	if err := n.listen(&settings); err != nil {
		return err
	}
	if config.API != nil {
		if err := n.expose(ctx, config.API, &settings); err != nil {
			return err
		}
	}
	if n.server, err = api.New(n.db, api.NodeOf(n.node), n.nc, settings); err != nil {
		return err
	}
	*runs = scheduled{n.server.Starter(), n.node.Runs(), n.node}
	return nil
}

// listen answers users of trackers until the node is closed. Over NATS only serve takes operations of collectors: their
// queue group would choose a node without the source or function.
func (n *Node) listen(settings *api.Config) error {
	calls, err := trackers.Listen(n.nc, settings.Trackers)
	if err != nil {
		return err
	}
	n.undo = append(n.undo, func() {
		ctx, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		_ = errors.Join(calls.Close(ctx), settings.Producers.Wait(ctx)) // their callers ask again
		settings.Trackers.Wait()
	})
	return nil
}

// scheduled starts and controls the runs of schedules. It is complete before the node runs.
type scheduled struct {
	schedule.Starter
	*orchestrator.Runs
	*orchestrator.Node
}

// StartTx starts a run within the caller's transaction in Tranche's database: it exists once that is committed, and
// nodes find it within two seconds. Items are CSV, NDJSON or Parquet. After an error nothing of the run is left in the
// transaction, which can continue. Of two with one idempotency key, the second waits for the first. The node must be
// [Node.Ready].
func (n *Node) StartTx(ctx context.Context, tx pgx.Tx, run client.RunSettings, items io.Reader,
) (started client.Started, err error) {
	set, err := json.Marshal(run)
	if err != nil {
		return started, fmt.Errorf("embed: write the settings of a run: %w", err)
	}
	answer, err := n.server.StartTx(ctx, tx, set, items, cmp.Or(n.config.Version, "embed"))
	if err == nil {
		err = json.Unmarshal(answer, &started)
	}
	return started, err
}

// build returns the version of the program, or else that of Tranche in it.
func (n *Node) build() buildinfo.Info {
	return buildinfo.Linked(n.config.Version, "", "")
}

func (n *Node) expose(ctx context.Context, config *APIConfig, settings *api.Config) (err error) {
	log := n.config.Log
	guarded := api.Exposure{Auth: !config.Anonymous, TLSCert: config.TLSCert, TLSKey: config.TLSKey,
		TrustedProxies: config.TrustedProxies, FourEyes: config.FourEyes, Log: log}
	if n.listener, err = api.Listen(ctx, config.Listen, guarded); err != nil {
		return err
	}
	settings.Hosts, settings.TrustedProxies = config.Hosts, config.TrustedProxies
	settings.SecureCookies = guarded.Encrypted()
	settings.FourEyes, settings.TokenMaxAge = config.FourEyes, config.TokenMaxAge
	if settings.Dashboard, err = dashboard.Handler(dashboard.Config{}); err != nil || !guarded.Auth {
		return err
	}
	settings.Access, err = access.New(identity.New(n.db), access.Config{Log: log.Named("access")})
	return err
}

// Run takes part in the work of all nodes on the database, and serves the API, until ctx ends. The API stops first,
// since uploads depend on the node's session.
func (n *Node) Run(ctx context.Context) error {
	if n.listener == nil {
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

// Close frees what New has acquired, after Run has returned.
func (n *Node) Close() {
	if n.listener != nil {
		_ = n.listener.Close() // Run has closed it, if it ran
	}
	for _, undo := range slices.Backward(n.undo) {
		undo()
	}
}
