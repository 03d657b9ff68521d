package api

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api/kernel"
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
)

// Prefix stands before the path of every operation but the health checks.
const Prefix = kernel.Prefix

const (
	// The head of a request; a connection without one. Then closed.
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	cutTimeout    = time.Second // at least, for requests that were interrupted to end
	maxHeader     = 64 << 10
)

// Defaults of Config.
const (
	// Silence of a caller, reading or writing; a body that is not read as it comes, as a whole; of one that is, what
	// its sender has the server wait for, beside a second for each 256 bytes (`slowestBody`). Then the connection is
	// closed and a load taken back.
	DefaultReadTimeout = time.Minute
	// A request that only looks; then an error that says it was too slow.
	DefaultLookTimeout = 30 * time.Second
)

// Metrics measures requests, and tells what is measured of the node.
type Metrics interface {
	http.Handler
	kernel.Meter
	// Watch is told, once, how to find out what a person must see to, and why the node is not ready.
	Watch(judge *health.Watch, unready func(context.Context) map[string]bool)
}

// Trouble is the last thing that went wrong in the node.
type Trouble = kernel.Trouble

// Schedules is where schedules take items from, beside the sources of the connections.
type Schedules = Sources

// Config is what a Server needs beside its node.
type Config struct {
	Log   *zap.Logger // nil: none
	Hosts []string    // allowed in the Host header beside the loopback names, without a port
	Build buildinfo.Info
	Info  map[string]string // where things are, for people

	// Trackers is the tracker service, shared with those who ask it over NATS; nil: one of the server's own.
	Trackers *trackers.Service

	// Connections are the sources that items may be queried from; nil: none.
	Connections *connections.Connections
	// Schedules is where schedules take items from, beside these sources.
	Schedules Schedules
	// Alerts reach those who are told; nil: alerts cannot be applied.
	Alerts *alerts.Receivers
	// Producers take operations for collectors; nil: the server's own, which share no commits with others.
	Producers *ingest.Producers
	// SpoolDir is where uploads are kept that cannot be read as they come. Empty: with other temporary files.
	SpoolDir string

	// DataDir is where this server and its private parts keep files, of whose disk /health tells. Empty: nowhere.
	DataDir string
	// StoresStreams says that the private NATS server keeps its streams there.
	StoresStreams bool

	// Access knows who may do what; nil: everybody is an admin, under the name that they give themselves.
	Access *access.Gate
	// OIDC lets people log in by a provider of identities; nil: there is none. It needs Access.
	OIDC *access.OIDC
	// SecureCookies says that browsers come by TLS. TrustedProxies are the addresses of proxies of ours, whose word in
	// X-Forwarded-For is taken.
	SecureCookies  bool
	TrustedProxies []netip.Prefix

	// Metrics is told of requests, and answers those for /metrics; nil: there is neither.
	Metrics Metrics

	// Dashboard answers what is no route's and not below Prefix; nil: nothing does.
	Dashboard http.Handler

	// RestsUntil returns until when the node is to ask nothing of what paces a step; nil: it is not known.
	RestsUntil func(paceKey string) time.Time

	// WakeLeaderTask has the leader do a leader task now; nil: it does it when its time comes.
	WakeLeaderTask func(name string)

	// Trouble returns the last thing that went wrong in the node, if anything did; nil: nothing is known.
	Trouble func() (Trouble, bool)
	// StreamBytes returns what the streams take on each server that keeps them, for people; nil: it is not known.
	StreamBytes func() int64

	// ReadTimeout is how long a caller may go without sending, or taking, a byte. What is done between is not bounded by
	// it. Zero: DefaultReadTimeout.
	ReadTimeout time.Duration
	// QueryTimeout bounds the work for a GET, but for exports and the doctor. Zero: DefaultLookTimeout.
	QueryTimeout time.Duration
}

// Server is the API on a store, a node and a NATS connection. It closes none of them.
type Server struct {
	kernel    *kernel.Kernel
	rooms     []room
	runs      *runs.Starts
	schedules *scheduleRoutes
	admin     *adminRoutes
	log       *zap.Logger
	config    Config
	handler   http.Handler
	document  *huma.OpenAPI
	health    *health.Watch
	whole     *health.Watch // the same, of which lists are not cut
}

type room interface {
	Register(api huma.API)
}

// New returns a server; Handler and Serve make use of it.
func New(store *database.DB, node Node, nc *nats.Conn, config Config) (*Server, error) {
	if store == nil || node.Node == nil || nc == nil {
		return nil, errors.New("api: a store, a node and a NATS connection are needed")
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	config.ReadTimeout = cmp.Or(config.ReadTimeout, DefaultReadTimeout)
	config.QueryTimeout = cmp.Or(config.QueryTimeout, DefaultLookTimeout)
	config.Hosts = append([]string{"localhost", "127.0.0.1", "::1"}, config.Hosts...)
	k := kernel.New(store, node, nc, config.kernel(store.Connections()))
	s := &Server{kernel: k, log: config.Log, config: config}
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

func (c *Config) kernel(connections int) kernel.Config {
	config := kernel.Config{
		Log: c.Log, Hosts: c.Hosts, Access: c.Access, SecureCookies: c.SecureCookies,
		TrustedProxies: c.TrustedProxies,
		Trouble:        c.Trouble, StreamBytes: c.StreamBytes, ReadTimeout: c.ReadTimeout, QueryTimeout: c.QueryTimeout,
		WakeLeaderTask: c.WakeLeaderTask, Started: runs.StartedOf, Connections: connections,
	}
	if c.Metrics != nil {
		config.Meter = c.Metrics
	}
	return config
}

// furnish makes the rooms.
func (s *Server) newComponents(node *Node) (err error) {
	k, c := s.kernel, &s.config
	s.runs, err = runs.New(k, runs.Config{Engine: node.Starts, Redo: node.Redo, Controls: node.Controls,
		Health: s.health, RestsUntil: c.RestsUntil, Connections: c.Connections, SpoolDir: c.SpoolDir})
	if err != nil {
		return err
	}
	s.schedules = &scheduleRoutes{k, s.runs, node.Starts, c}
	s.admin = &adminRoutes{k, c, s.health, s.whole}
	s.rooms = []room{
		s.runs, &endpointRoutes{k, node.Endpoints, node.DeadLetters}, &planRoutes{k},
		newCollectors(k, node.Collectors, c.Producers, c.Connections),
		newTrackers(k, c.Trackers, c.Connections), s.schedules,
		&alertRoutes{k, alertstore.New(k.Store), c.Alerts}, s.admin,
	}
	return nil
}

// Handler is the whole API as one handler.
func (s *Server) Handler() http.Handler { return s.handler }

// Routes lists every way into the server.
func (s *Server) Routes() []kernel.Route { return s.kernel.Routes() }

// Starter starts the runs of schedules.
func (s *Server) Starter() schedule.Starter { return s.schedules }

// Watch looks after the system's health for a leader task: what callers get, but whole.
func (s *Server) Watch() *health.Watch { return s.whole }

func watchHealth(k *kernel.Kernel, config *Config, store *database.DB, nc *nats.Conn, whole bool) (*health.Watch,
	error) {
	return health.New(health.Config{
		Log: config.Log, Store: store, NC: nc, DataDir: config.DataDir,
		StoresStreams: config.StoresStreams, Short: k.Short, Whole: whole,
	})
}

func (s *Server) routes() http.Handler {
	mux := kernel.NewRouteMux()
	settings := huma.DefaultConfig("Tranche", APIVersion)
	settings.CreateHooks = nil // no $schema members in the answers
	settings.DocsPath = ""     // its page would load scripts from elsewhere
	settings.Transformers = append(settings.Transformers, kernel.BoundProblems)
	settings.RejectUnknownQueryParameters = true
	settings.Servers = []*huma.Server{{URL: Prefix}}
	v1 := humago.NewWithPrefix(mux, Prefix, settings)
	aliases(v1.OpenAPI().Components.Schemas)
	for _, room := range s.rooms {
		room.Register(v1)
	}
	s.document = describe(v1.OpenAPI())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.kernel.Ready)
	if s.config.Metrics != nil {
		mux.HandleFunc("GET /metrics", s.config.Metrics.ServeHTTP)
		s.config.Metrics.Watch(s.health, s.kernel.Unready)
	}
	s.admin.RegisterOIDC(mux)
	mux.HandleFunc(kernel.CatchAll, func(w http.ResponseWriter, r *http.Request) { s.elsewhere(mux.ServeMux, w, r) })
	mux.Assign(s.document)
	return s.kernel.Guard(mux)
}

// elsewhere leads what no route takes on to the dashboard; below Prefix there is none.
func (s *Server) elsewhere(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	if kernel.WrongMethod(mux, w, r) {
		return
	}
	if s.config.Dashboard != nil && !strings.HasPrefix(r.URL.Path, Prefix+"/") {
		s.config.Dashboard.ServeHTTP(w, r)
		return
	}
	kernel.WriteProblem(w, http.StatusNotFound, "there is nothing at "+kernel.Cut(r.URL.Path,
		kernel.MaxEchoed)+"; the API is described at "+
		Prefix+"/openapi.json")
}

// Serve answers requests until ctx ends, then lets those in progress end within grace, and breaks off what is left.
// When it returns, no request is in progress; one that has not noticed its end within a second is an error. It closes
// the listener.
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
		s.log.Warn("requests that did not end in time are interrupted", zap.Duration("grace", grace))
		cut()
		err = errors.Join(server.Close(), s.kernel.AwaitRequests(max(cutTimeout, grace/2)))
	}
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// Node is what the API's rooms are given of a node, each what it needs.
type Node struct {
	kernel.Node

	Starts      runs.Engine
	Controls    runs.Controls
	Redo        runs.Redo
	Collectors  CollectorEngine
	Endpoints   Setter
	DeadLetters Requeuer
}

// NodeOf is what a real one has.
func NodeOf(n *orchestrator.Node) Node {
	return Node{n, n.Runs(), n.Runs(), n.Runs(), n.Collectors(), n.Endpoints(), n.DeadLetters()}
}

// APIVersion is the version of the API: the last part of Prefix, and that of its OpenAPI document. What clients may
// rely on changes with it and with nothing else: within a version members, operations and parameters are added only.
const APIVersion = "v1"

// Document returns the OpenAPI document that every server of this version serves. Who changes it is its owner.
func Document() *huma.OpenAPI {
	store, node, config := database.New(nil), Node{Controls: struct{ runs.Controls }{}, Redo: struct{ runs.Redo }{},
		Collectors: struct{ CollectorEngine }{}}, Config{Log: zap.NewNop()}
	s := &Server{kernel: kernel.New(store, node, nil, config.kernel(0)), config: config}
	if err := s.newComponents(&node); err != nil {
		panic(err) // a mistake in this package
	}
	s.routes()
	return s.document
}

// aliases are the types that the document describes as others, since in JSON they take more than text.
func aliases(registry huma.Registry) {
	registry.RegisterTypeAlias(kernel.TypeOf[workqueue.Adaptive](), kernel.TypeOf[runs.Sizing]())
	registry.RegisterTypeAlias(kernel.TypeOf[workqueue.Bytes](), kernel.TypeOf[byteSize]())
	registry.RegisterTypeAlias(kernel.TypeOf[collector.Span](), kernel.TypeOf[spanText]())
}

// spanText tells huma of workqueue.Span.
type spanText struct{}

// Schema tells of its text.
func (spanText) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{Type: huma.TypeString, Description: "a time like 90s or 1h30m", Examples: []any{"1m30s"}}
}

// byteSize tells huma of workqueue.Bytes.
type byteSize struct{}

// Schema tells of both forms.
func (byteSize) Schema(huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{{Type: huma.TypeInteger}, {Type: huma.TypeString}},
		Description: "a number of bytes, or a text like 512KiB", Examples: []any{65536, "512KiB"}}
}
