// Package api is the HTTP API of a node.
//
// Guarantees: every error is application/problem+json whose detail names the input, the place and the remedy. No GET
// changes anything. Requests from other origins and for unknown hosts are refused. Bodies are bounded, except items,
// which stream in and out with constant memory; error answers repeat little of the request. A caller is dropped when
// silent, never because the work takes long. If PostgreSQL or NATS is unavailable or exhausted, status 503 names it.
// An interrupted export ends the connection abnormally, so that no client takes it for complete.
//
// Each operation states the role it requires; a route that does not is closed. Without [Config.Access] every caller
// may do everything, and [Listen] accepts loopback addresses only.
//
// A [Server] is safe for concurrent use. All nodes on one database are equal.
package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/buildinfo"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	alertstore "github.com/tranchehq/tranche/workqueue/alert"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Prefix is the path prefix of every operation except the health checks.
const Prefix = apicore.Prefix

const (
	// For the head of a request, and for a connection without one; then it is closed.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	cutTimeout    = time.Second // at least, for interrupted requests to end
	maxHeader     = 64 << 10
)

// Defaults of Config.
const (
	// DefaultReadTimeout limits a caller's silence, and the time for a whole body that is not streamed. A streamed body
	// may keep the server waiting that long, plus a second per 256 bytes (`slowestBody`). Then the connection is closed
	// and a load undone.
	DefaultReadTimeout = time.Minute
	// DefaultLookTimeout limits a read; then it fails as too slow.
	DefaultLookTimeout = 30 * time.Second
)

// Metrics measures requests and serves the node's metrics.
type Metrics interface {
	http.Handler
	apicore.Meter
	// Watch sets, once, what finds conditions and forecasts, and the reasons why the node is not ready.
	Watch(judge *health.Watch, unready func(context.Context) map[string]bool)
}

// Trouble is the node's latest failure.
type Trouble = apicore.Trouble

// Config configures a Server.
type Config struct {
	Log   *zap.Logger // nil: none
	Hosts []string    // allowed in the Host header in addition to the loopback names, without a port
	Build buildinfo.Info
	Info  map[string]string // where things are, human-readable
	Links map[string]string // of the dashboard, from a request to its logs and trace, by name

	// Trackers is the tracker service, shared with its NATS callers; nil: a separate one.
	Trackers *trackers.Service

	// Connections are the sources that items may be queried from; nil: none.
	Connections *connections.Connections
	// Schedules are further sources for schedules.
	Schedules Schedules
	// Alerts delivers notifications; nil: alerts cannot be applied.
	Alerts *alerts.Receivers
	// Producers add operations to collectors; nil: separate ones, which share no commits with others.
	Producers *ingest.Producers
	// SpoolDir keeps uploads that cannot be read sequentially. Empty: the system's directory for temporary files.
	SpoolDir string

	// DataDir is where this server and its private parts keep files; /health reports on its disk. Empty: nowhere.
	DataDir string
	// StoresStreams means that the private NATS server keeps its streams there.
	StoresStreams bool

	// Access authorizes callers; nil: every caller is an admin under the name it claims.
	Access *access.Gate
	// OIDC enables login by an OpenID Connect provider; nil: none. It requires Access.
	OIDC *access.OIDC
	// SecureCookies means that browsers connect by TLS. TrustedProxies are proxies whose X-Forwarded-For is trusted.
	SecureCookies  bool
	TrustedProxies []netip.Prefix

	// Certificates authenticate callers that send neither a token nor a session's cookie; nil: none. They require Access.
	Certificates *access.Certificates
	// FourEyes are the kinds of acts that another administrator must confirm: identity.ActKinds. They require Access.
	FourEyes []string
	// TokenMaxAge limits the life of new tokens; 0: no limit.
	TokenMaxAge time.Duration

	// Metrics measures requests and serves /metrics; nil: neither.
	Metrics Metrics

	// Dashboard serves paths that no route matches, outside Prefix; nil: 404.
	Dashboard http.Handler

	// BasePath is the path prefix in browsers, such as /tranche, whether or not a proxy strips it.
	BasePath string

	// RestsUntil returns until when the node sends nothing to a pace key; nil: unknown.
	RestsUntil func(paceKey string) time.Time

	// WakeLeaderTask makes the leader run a leader task now; nil: it runs at its next interval.
	WakeLeaderTask func(name string)

	// Trouble returns the node's latest failure, if any; nil: unknown.
	Trouble func() (Trouble, bool)
	// StreamBytes returns the bytes of the streams per storing server, to show to users; nil: unknown.
	StreamBytes func() int64

	// ReadTimeout is how long a caller may go without sending or taking a byte. It does not limit the work in between.
	// Zero: DefaultReadTimeout.
	ReadTimeout time.Duration
	// QueryTimeout limits the work for a GET, except exports and the doctor. Zero: DefaultLookTimeout.
	QueryTimeout time.Duration
}

// Server is the API on a store, a node and a NATS connection. It closes none of them.
type Server struct {
	core      *apicore.Core
	rooms     []room
	runs      *runs.Starts
	schedules *scheduleRoutes
	admin     *adminRoutes
	log       *zap.Logger
	config    Config
	handler   http.Handler
	document  *huma.OpenAPI
	health    *health.Watch
	whole     *health.Watch // the same, with full lists
}

type room interface {
	Register(api huma.API)
}

// New returns a server to use with Handler or Serve.
func New(store *database.DB, node Node, nc *nats.Conn, config Config) (*Server, error) {
	if store == nil || node.Node == nil || nc == nil {
		return nil, errors.New("api: a store, a node and a NATS connection are needed")
	}
	config.Log = cmp.Or(config.Log, zap.NewNop())
	config.ReadTimeout = cmp.Or(config.ReadTimeout, DefaultReadTimeout)
	config.QueryTimeout = cmp.Or(config.QueryTimeout, DefaultLookTimeout)
	config.Hosts = append([]string{"localhost", "127.0.0.1", "::1"}, config.Hosts...)
	k := apicore.New(store, node, nc, config.core(store.Connections()))
	inspect.New(store).OnForecastError(func(err error) {
		config.Log.Warn("no forecasts can be made; lists show the last ones", zap.Error(err))
	})
	s := &Server{core: k, log: config.Log, config: config}
	var err error
	if s.health, err = watchHealth(k, &config, store, nc, false); err != nil {
		return nil, err
	}
	if s.whole, err = watchHealth(k, &config, store, nc, true); err != nil {
		return nil, err
	}
	if err := s.newComponents(&node); err != nil {
		return nil, err
	}
	s.handler = s.routes()
	return s, nil
}

func (c *Config) core(connections int) apicore.Config {
	config := apicore.Config{
		Log: c.Log, Hosts: c.Hosts, Access: c.Access, SecureCookies: c.SecureCookies,
		TrustedProxies: c.TrustedProxies, FourEyes: c.FourEyes, Certificates: c.Certificates,
		Trouble: c.Trouble, StreamBytes: c.StreamBytes, ReadTimeout: c.ReadTimeout, QueryTimeout: c.QueryTimeout,
		WakeLeaderTask: c.WakeLeaderTask, Started: runs.StartedOf, Connections: connections,
	}
	if c.Metrics != nil {
		config.Meter = c.Metrics
	}
	return config
}

func (s *Server) newComponents(node *Node) (err error) {
	k, c := s.core, &s.config
	s.runs, err = runs.New(k, runs.Config{Engine: node.Runs, Health: s.health, Whole: s.whole, RestsUntil: c.RestsUntil,
		Connections: c.Connections, SpoolDir: c.SpoolDir, BasePath: c.BasePath})
	if err != nil {
		return err
	}
	s.schedules = &scheduleRoutes{k, s.runs, node.Runs, c}
	s.admin = &adminRoutes{k, c, s.health, s.whole}
	s.rooms = []room{
		s.runs, &endpointRoutes{k, node.Endpoints, node.DeadLetters}, &planRoutes{k},
		newCollectors(k, node.Collectors, c.Producers, c.Connections),
		newTrackers(k, c.Trackers, c.Connections), s.schedules,
		&alertRoutes{k, alertstore.New(k.Store), c.Alerts}, s.admin, &actRoutes{k, c.FourEyes},
	}
	return nil
}

// Handler returns the whole API as one handler.
func (s *Server) Handler() http.Handler { return s.handler }

// Routes lists all routes.
func (s *Server) Routes() []apicore.Route { return s.core.Routes() }

// StartTx starts a run within a caller's transaction, by the JSON of a start, and returns that of its answer.
func (s *Server) StartTx(ctx context.Context, tx pgx.Tx, settings []byte, items io.Reader, actor string,
) (json.RawMessage, error) {
	var set runs.RunSettings
	if err := json.Unmarshal(settings, &set); err != nil {
		return nil, fmt.Errorf("read the settings of a run: %w", err)
	}
	started, err := s.runs.StartTx(ctx, tx, set, items, actor)
	if err != nil {
		return nil, err
	}
	return json.Marshal(started)
}

// Starter returns the Starter of scheduled runs.
func (s *Server) Starter() schedule.Starter { return s.schedules }

// Watch returns the health watch for a leader task, with full lists.
func (s *Server) Watch() *health.Watch { return s.whole }

func watchHealth(k *apicore.Core, config *Config, store *database.DB, nc *nats.Conn, whole bool) (*health.Watch,
	error) {
	return health.New(health.Config{
		Log: config.Log, Store: store, NC: nc, DataDir: config.DataDir,
		StoresStreams: config.StoresStreams, Short: k.Short, Whole: whole,
	})
}

func (s *Server) routes() http.Handler {
	mux := apicore.NewRouteMux()
	settings := huma.DefaultConfig("Tranche", APIVersion)
	settings.CreateHooks = nil // no $schema members in answers
	settings.DocsPath = ""     // its page would load scripts from elsewhere
	settings.Transformers = append(settings.Transformers, apicore.BoundProblems)
	settings.RejectUnknownQueryParameters = true
	settings.Servers = []*huma.Server{{URL: s.config.BasePath + Prefix}}
	v1 := humago.NewWithPrefix(mux, Prefix, settings)
	aliases(v1.OpenAPI().Components.Schemas)
	for _, room := range s.rooms {
		room.Register(v1)
	}
	s.document = describe(v1.OpenAPI())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.core.Ready)
	if s.config.Metrics != nil {
		mux.HandleFunc("GET /metrics", s.config.Metrics.ServeHTTP)
		s.config.Metrics.Watch(s.health, s.core.Unready)
	}
	mux.HandleFunc("GET "+apicore.SchemaPath, serveSchemas())
	s.admin.RegisterOIDC(mux)
	mux.HandleFunc(apicore.CatchAll, func(w http.ResponseWriter, r *http.Request) { s.elsewhere(mux.ServeMux, w, r) })
	mux.Assign(s.document)
	return below(s.config.BasePath, keyInQuery(namespaceInQuery(s.core.Guard(mux))))
}

// below removes the base path from requests that still have it.
func below(base string, h http.Handler) http.Handler {
	stripped := http.StripPrefix(base, h)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if base != "" && r.URL.Path == base {
			http.Redirect(w, r, base+"/", http.StatusPermanentRedirect)
			return
		}
		if base != "" && strings.HasPrefix(r.URL.Path, base+"/") {
			stripped.ServeHTTP(w, r)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// keyInQuery accepts an item's key in the query, as /items/~?key=a/b: browsers and proxies change paths whose key has
// a slash or is a dot.
func keyInQuery(h http.Handler) http.Handler {
	const at = "/items/~"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		before, after, found := strings.Cut(r.URL.EscapedPath(), at)
		if found && query.Has("key") && (after == "" || after[0] == '/') {
			to := *r.URL
			to.RawPath = before + "/items/" + strings.ReplaceAll(url.PathEscape(query.Get("key")), ".", "%2E") + after
			to.Path, _ = url.PathUnescape(to.RawPath) // it is escaped
			query.Del("key")
			to.RawQuery = query.Encode()
			r = r.Clone(r.Context())
			r.URL = &to
		}
		h.ServeHTTP(w, r)
	})
}

func (s *Server) elsewhere(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	if apicore.WrongMethod(mux, w, r) {
		return
	}
	if s.config.Dashboard != nil && !strings.HasPrefix(r.URL.Path, Prefix+"/") {
		s.config.Dashboard.ServeHTTP(w, r)
		return
	}
	apicore.WriteProblem(w, http.StatusNotFound, "there is nothing at "+apicore.Cut(r.URL.Path,
		apicore.MaxEchoed)+"; the API is described at "+
		Prefix+"/openapi.json")
}

// namespaceInQuery accepts the namespace's header as a query parameter, which links and streams of events can have.
func namespaceInQuery(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if query := r.URL.Query(); query.Has("namespace") && strings.HasPrefix(r.URL.Path, Prefix+"/") {
			name, header := query.Get("namespace"), r.Header.Get(apicore.NamespaceHeader)
			if name == "" || len(query["namespace"]) > 1 || header != "" && header != name {
				apicore.WriteProblem(w, http.StatusBadRequest,
					"namespace: want one name, given once, in the query or in the header "+
						apicore.NamespaceHeader)
				return
			}
			to := *r.URL
			r = r.Clone(r.Context())
			r.Header.Set(apicore.NamespaceHeader, name)
			query.Del("namespace")
			to.RawQuery = query.Encode()
			r.URL = &to
		}
		h.ServeHTTP(w, r)
	})
}

// Close writes what was counted for the audit log. Serve calls it.
func (s *Server) Close() {
	var closing sync.WaitGroup // each writes what it has counted
	closing.Go(s.core.Close)
	if s.config.Access != nil {
		closing.Go(s.config.Access.Close)
	}
	closing.Wait()
}

// Serve answers requests until ctx ends, gives those in progress the grace period, and interrupts the rest. When it
// returns, no request is in progress; one that does not end within a second of its interruption is an error. Serve
// closes the listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener, grace time.Duration) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	each := maxIdleEach
	if len(s.config.TrustedProxies) > 0 {
		each = maxIdle
	}
	server := &http.Server{
		ConnState: newIdleConns(each, maxIdle).track,
		Handler:   s.handler, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: zap.NewStdLog(s.log), BaseContext: func(net.Listener) context.Context { return requests },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	var looking sync.WaitGroup
	looking.Go(func() { s.health.Run(ctx) })
	defer looking.Wait()
	defer s.Close()
	select {
	case err := <-served:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	defer s.health.Wait()
	defer s.whole.Wait()
	s.runs.Close()
	err := server.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("interrupting requests that did not end within the grace period", zap.Duration("grace", grace))
		cut()
		err = errors.Join(server.Close(), s.core.AwaitRequests(max(cutTimeout, grace/2)))
	}
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// Node is the parts of a node that the API uses.
type Node struct {
	apicore.Node

	Runs        runs.Engine
	Collectors  CollectorEngine
	Endpoints   Setter
	DeadLetters Requeuer
}

// NodeOf returns the parts of a real node.
func NodeOf(n *orchestrator.Node) Node {
	return Node{n, n.Runs(), n.Collectors(), n.Endpoints(), n.DeadLetters()}
}

// APIVersion is the version of the API: the last part of Prefix and the version of the OpenAPI document. Within a
// version members, operations and parameters are only added.
const APIVersion = "v1"

// Document returns the OpenAPI document of this version. The caller owns it.
func Document() *huma.OpenAPI {
	store, config := database.New(nil), Config{Log: zap.NewNop()}
	node := Node{Runs: struct{ runs.Engine }{}, Collectors: struct{ CollectorEngine }{}}
	s := &Server{core: apicore.New(store, node, nil, config.core(0)), config: config}
	if err := s.newComponents(&node); err != nil {
		panic(err) // a bug in this package
	}
	s.routes()
	return s.document
}

// aliases registers types documented as others, because in JSON they accept more than text.
func aliases(registry huma.Registry) {
	registry.RegisterTypeAlias(apicore.TypeOf[workqueue.Adaptive](), apicore.TypeOf[runs.Sizing]())
	registry.RegisterTypeAlias(apicore.TypeOf[workqueue.Bytes](), apicore.TypeOf[byteSize]())
	registry.RegisterTypeAlias(apicore.TypeOf[collector.Span](), apicore.TypeOf[spanText]())
}

type spanText struct{}

func (spanText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "a time like 90s or 1h30m", Examples: []any{"1m30s"}}
}

type byteSize struct{}

func (byteSize) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeInteger}, {Type: huma.TypeString}},
		Description: "a number of bytes, or a text like 512KiB", Examples: []any{65536, "512KiB"}}
}
