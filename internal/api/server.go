package api

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/live"
	"github.com/tranchehq/tranche/internal/producers"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	controlstore "github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/report"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Prefix stands before the path of every operation but the health checks.
const Prefix = "/api/v1"

const (
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	doctorTimeout = 10 * time.Minute
	maxSpooled    = 16 << 30    // bytes of uploads on disk, of all together, if half of what is free is not less
	cutTimeout    = time.Second // at least, for requests that were broken off to end
	maxHeader     = 64 << 10
)

// Defaults of Config.
const (
	DefaultReadTimeout = time.Minute
	DefaultLookTimeout = 30 * time.Second
)

// Engine is the node as the API needs it.
type Engine interface {
	Ready() <-chan struct{} // closed once it can start runs
	Session() workqueue.SessionID
	Start(ctx context.Context, req start.LoadRequest, next func(*start.LoadItem) error) (start.Loaded, error)
	OpenRun(ctx context.Context, req start.OpenRequest) (start.Opened, error)
	Add(ctx context.Context, req start.AddRequest) (start.Added, error)
	SealRun(ctx context.Context, req start.SealRequest) (start.Sealed, error)
	Rerun(ctx context.Context, req redo.RerunRequest) (redo.Rerun, error)
	Reset(ctx context.Context, req redo.ResetRequest) (redo.Reset, error)
	Correct(ctx context.Context, req redo.CorrectRequest) (redo.Corrected, error)
	SetRun(ctx context.Context, c controlstore.RunChange) (controlstore.RunChanged, error)
	Pause(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error)
	Resume(ctx context.Context, c controlstore.Control, maxFailed *string) (controlstore.Controlled, error)
	Approve(ctx context.Context, c controlstore.Control) (controlstore.Controlled, error)
	Cancel(ctx context.Context, c controlstore.Control) (controlstore.Cancelled, error)
	Requeue(ctx context.Context, sel deadletter.DeadSelection, actor string) (deadletter.Requeue, error)
	CollectorEngine
	ChangeEndpoint(
		ctx context.Context, change pace.EndpointChange, actor string,
	) (pace.EndpointSetting, error)
}

// CollectorEngine is what a node does for collectors: changes after which something may have to be flushed at once.
type CollectorEngine interface {
	producers.Adder
	ApplyCollector(ctx context.Context, c collectorstore.Text, actor string) (collectorstore.AppliedCollector, error)
	ResumeCollector(ctx context.Context, name, actor string) (changed bool, err error)
	DrainCollector(ctx context.Context, name, actor string) (collectorstore.Drained, error)
	RequeueOps(ctx context.Context, name string, sel collectorstore.OpsSelection, actor string) (int64, error)
}

// Metrics measures requests, and tells what is measured of the node.
type Metrics interface {
	http.Handler
	// Asked is told of a request that was answered: the pattern of its route, the role of who asked, and the status.
	Asked(route, role string, code int)
	// Watch is told, once, how to find out what a person must see to.
	Watch(report func(context.Context) (*health.Report, error))
}

// Config is what a Server needs beside its node.
type Config struct {
	Log     *zap.Logger // nil: none
	Hosts   []string    // allowed in the Host header beside the loopback names, without a port
	Version string
	Info    map[string]string // where things are, for people

	// Trackers is the tracker service, shared with those who ask it over NATS; nil: one of the server's own.
	Trackers *trackers.Service

	// Connections are the sources that items may be queried from; nil: none.
	Connections *connections.Connections
	// Schedules is where schedules take items from, beside these sources.
	Schedules Schedules
	// Alerts reach those who are told; nil: alerts cannot be applied.
	Alerts *alerts.Receivers
	// Producers take operations for collectors; nil: the server's own, which share no commits with others.
	Producers *producers.Producers
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
	// SecureCookies says that browsers come by TLS, and BehindProxy that a proxy of ours is what connects to this server.
	SecureCookies, BehindProxy bool

	// Metrics is told of requests, and answers those for /metrics; nil: there is neither.
	Metrics Metrics

	// Dashboard answers what is no route's and not below Prefix; nil: nothing does.
	Dashboard http.Handler

	// RestsUntil returns until when the node is to ask nothing of what paces a step; nil: it is not known.
	RestsUntil func(paceKey string) time.Time

	// WakeDuty has the node that leads do a duty now; nil: it does it when its time comes.
	WakeDuty func(name string)

	// Trouble returns the last thing that went wrong in the node, if anything did; nil: nothing is known.
	Trouble func() (Trouble, bool)
	// StreamBytes returns what the streams take on each server that keeps them, for people; nil: it is not known.
	StreamBytes func() int64

	// ReadTimeout is how long a caller may go without sending, or taking, a byte. What is done between is not bounded by
	// it. Zero: DefaultReadTimeout.
	ReadTimeout time.Duration
	// LookTimeout bounds the work for a GET, but for exports and the doctor. Zero: DefaultLookTimeout.
	LookTimeout time.Duration
}

// Server is the API on a store, a node and a NATS connection. It closes none of them.
type Server struct {
	store     *database.DB
	engine    Engine
	nc        *nats.Conn
	log       *zap.Logger
	config    Config
	handler   http.Handler
	mux       *routeMux
	heavy     *access.Slots // of requests that read whole runs,
	broad     *access.Slots // and of those that read much of one at once
	held      *access.Slots // of those whose answer is held as a whole
	strangers *access.Slots // of requests of whom it is not known who makes them, of each address
	bulk      bulkRoom
	spool     *intake.SpoolRoom
	underWay  underWay // requests that named a key
	document  *huma.OpenAPI
	active    sync.WaitGroup // requests under way
	cut       time.Duration  // at least, for requests that were broken off to end
	health    *health.Watch
	whole     *health.Watch // the same, of which lists are not cut
	hubs      *live.Hubs    // of the runs that are followed
	topics    *live.Topics
	streams   streams
	trackers  *trackers.Service
	timelines recent[report.TimelineRequest, *report.Timeline]
	producers *producers.Producers
}

// New returns a server; Handler and Serve make use of it.
func New(store *database.DB, engine Engine, nc *nats.Conn, config Config) (*Server, error) {
	if store == nil || engine == nil || nc == nil {
		return nil, errors.New("api: a store, an engine and a NATS connection are needed")
	}
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	config.ReadTimeout = cmp.Or(config.ReadTimeout, DefaultReadTimeout)
	config.LookTimeout = cmp.Or(config.LookTimeout, DefaultLookTimeout)
	config.Hosts = append([]string{"localhost", "127.0.0.1", "::1"}, config.Hosts...)
	s := &Server{
		store: store, engine: engine, nc: nc, log: config.Log, config: config, trackers: config.Trackers, cut: cutTimeout,
	}
	var err error
	if s.health, err = watchHealth(s, false); err != nil {
		return nil, err
	}
	if s.whole, err = watchHealth(s, true); err != nil {
		return nil, err
	}
	if err := errors.Join(s.watchRuns(), s.keepTrackers()); err != nil {
		return nil, err
	}
	if s.producers = config.Producers; s.producers == nil {
		s.producers = producers.New(collectorstore.New(store), engine, nil, config.Log)
	}
	s.heavy, s.broad = slotsOf(config, store.Connections()/heavyShare), slotsOf(config, store.Connections()/broadShare)
	s.held = slotsOf(config, maxHeld)
	s.strangers = access.NewSlots(maxStrangers, math.MaxInt)
	s.bulk, s.spool = newBulkRoom(), newSpoolRoom(config.SpoolDir)
	s.handler = s.routes()
	return s, nil
}

// Handler is the whole API as one handler.
func (s *Server) Handler() http.Handler { return s.handler }

func (s *Server) routes() http.Handler {
	mux := newRouteMux()
	settings := huma.DefaultConfig("Tranche", APIVersion)
	settings.CreateHooks = nil // no $schema members in the answers
	settings.DocsPath = ""     // its page would load scripts from elsewhere
	settings.Transformers = append(settings.Transformers, boundProblems)
	settings.RejectUnknownQueryParameters = true
	settings.Servers = []*huma.Server{{URL: Prefix}}
	v1 := humago.NewWithPrefix(mux, Prefix, settings)
	aliases(v1.OpenAPI().Components.Schemas)
	s.registerRuns(v1)
	s.registerStart(v1)
	s.registerOpen(v1)
	s.registerExport(v1)
	s.registerActions(v1)
	s.registerEndpoints(v1)
	s.registerLetters(v1)
	s.registerQuarantine(v1)
	s.registerAudit(v1)
	s.registerRetention(v1)
	s.registerStreamSettings(v1)
	s.registerReport(v1)
	s.registerPlans(v1)
	s.registerCollectors(v1)
	s.registerTrackers(v1)
	s.registerSchedules(v1)
	registerAlerts(s, v1)
	s.registerSystem(v1)
	s.registerSession(v1)
	s.registerTokens(v1)
	s.registerSessions(v1)
	registerHealth(s, v1)
	s.registerLive(v1)
	s.document = describe(v1.OpenAPI())
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", s.ready)
	if s.config.Metrics != nil {
		mux.HandleFunc("GET /metrics", s.config.Metrics.ServeHTTP)
		s.config.Metrics.Watch(s.health.Report)
	}
	s.registerOIDC(mux)
	mux.HandleFunc(everywhere, func(w http.ResponseWriter, r *http.Request) { s.elsewhere(mux.ServeMux, w, r) })
	mux.assign(s.document)
	s.mux = mux
	return s.guard()
}

// everywhere is the pattern of what no other fits.
const everywhere = "/"

// elsewhere leads what no route takes on to the dashboard; below Prefix there is none.
func (s *Server) elsewhere(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) {
	if wrongMethod(mux, w, r) {
		return
	}
	if s.config.Dashboard != nil && !strings.HasPrefix(r.URL.Path, Prefix+"/") {
		s.config.Dashboard.ServeHTTP(w, r)
		return
	}
	writeProblem(w, http.StatusNotFound, "there is nothing at "+cut(r.URL.Path, maxEchoed)+"; the API is described at "+
		Prefix+"/openapi.json")
}

// wrongMethod answers a request whose path is a route's with another method.
func wrongMethod(mux *http.ServeMux, w http.ResponseWriter, r *http.Request) bool {
	var takes []string
	for _, method := range []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
	} {
		other := r.Clone(r.Context())
		other.Method = method
		if _, pattern := mux.Handler(other); pattern != everywhere && pattern != "" {
			takes = append(takes, method)
		}
	}
	if len(takes) == 0 {
		return false
	}
	w.Header().Set("Allow", strings.Join(takes, ", "))
	writeProblem(w, http.StatusMethodNotAllowed, cut(r.URL.Path, maxEchoed)+" takes "+strings.Join(takes, " and ")+
		", not "+cut(r.Method, maxEchoed))
	return true
}

// guard refuses foreign hosts and origins, and who may not do what they ask for, and bounds how long a caller may be
// silent.
func (s *Server) guard() http.Handler {
	origins := http.NewCrossOriginProtection()
	origins.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		writeProblem(w, http.StatusForbidden, "a page of another origin may not change anything here")
	}))
	protected := origins.Handler(http.HandlerFunc(s.authorised))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.active.Add(1)
		defer s.active.Done()
		timed, r := s.timed(w, r)
		if s.config.Metrics != nil {
			defer timed.measure(s.config.Metrics)
		}
		defer timed.left()
		s.admit(timed, r, protected)
		if !timed.body.whole && s.countStranger(timed, r) != nil {
			timed.body.drain = 0
		}
		timed.finish() // but not after a panic, which is to end the connection
	})
}

// admit lets a request in that names one of the server's hosts, and a path that means itself: the mux would lead a
// request for a run without a name on to what is done with all runs.
func (s *Server) admit(w http.ResponseWriter, r *http.Request, protected http.Handler) {
	named := func(host string) bool { return strings.EqualFold(host, hostOnly(r.Host)) }
	if !slices.ContainsFunc(s.config.Hosts, named) {
		writeProblem(w, http.StatusForbidden, "the host "+cut(r.Host, maxEchoed)+" is not one of this server's; "+
			"use 127.0.0.1 or localhost, or name it with --allow-host")
		return
	}
	if at := r.URL.EscapedPath(); strings.HasPrefix(at, Prefix+"/") && path.Clean(at) != at {
		writeProblem(w, http.StatusNotFound, cut(at, maxEchoed)+" is no path: a part of it is empty, . or ..; "+
			"write a name that is . or .. as %2E or %2E%2E")
		return
	}
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	protected.ServeHTTP(w, r)
}

func hostOnly(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	if len(host) > 2 && host[0] == '[' {
		return host[1 : len(host)-1]
	}
	return host
}

// Serve answers requests until ctx ends, then lets those under way end within grace, and breaks off what is left. When
// it returns, no request is under way; one that has not noticed its end within a second is an error. It closes the
// listener.
func (s *Server) Serve(ctx context.Context, listener net.Listener, grace time.Duration) error {
	requests, cut := context.WithCancel(context.WithoutCancel(ctx))
	defer cut()
	each := maxIdleEach
	if s.config.BehindProxy {
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
	s.closeStreams()
	err := server.Shutdown(stop)
	if errors.Is(err, context.DeadlineExceeded) {
		s.log.Warn("requests that did not end in time are broken off", zap.Duration("grace", grace))
		cut()
		err = errors.Join(server.Close(), s.awaitRequests(max(s.cut, grace/2)))
	}
	if end := <-served; !errors.Is(end, http.ErrServerClosed) {
		err = errors.Join(err, end)
	}
	return err
}

// awaitRequests waits for the handlers that Close leaves behind: a load takes back what it has written.
func (s *Server) awaitRequests(patience time.Duration) error {
	ended := make(chan struct{})
	go func() { s.active.Wait(); close(ended) }()
	select {
	case <-ended:
		return nil
	case <-time.After(patience):
		return errors.New("api: a request that was broken off does not end")
	}
}
