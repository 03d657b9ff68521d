package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/archive"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/dashboard"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/internal/tracing"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// serveCommand is the settings of serve, from flags, TRANCHE_ variables and the config file.
type serveCommand struct {
	Config          kong.ConfigFlag `env:"TRANCHE_CONFIG" help:"A YAML file with any of these settings." placeholder:"FILE"`
	Database        string          `env:"TRANCHE_DATABASE" help:"The PostgreSQL to use instead of a private one." placeholder:"URL"`
	NATS            string          `name:"nats" env:"TRANCHE_NATS" help:"The NATS to use instead of an embedded one." placeholder:"URL"`
	NATSCreds       string          `name:"nats-creds" env:"TRANCHE_NATS_CREDS" help:"Credentials file for --nats." placeholder:"FILE"`
	NATSContext     string          `name:"nats-context" env:"TRANCHE_NATS_CONTEXT" help:"A context of the nats tool, instead of --nats." placeholder:"NAME"`
	Connections     string          `env:"TRANCHE_CONNECTIONS" help:"A YAML file of what plans may reach: sources, secrets, private addresses." placeholder:"FILE"`
	DataDir         string          `env:"TRANCHE_DATA_DIR" help:"Where the private PostgreSQL and NATS keep their files." placeholder:"DIR"`
	Listen          string          `env:"TRANCHE_LISTEN" default:"${listen}" help:"Address of the API (${default})." placeholder:"ADDR"`
	NATSListen      string          `name:"nats-listen" env:"TRANCHE_NATS_LISTEN" default:"127.0.0.1:4222" help:"Address of the embedded NATS (${default})." placeholder:"ADDR"`
	MaxPayload      workqueue.Bytes `name:"nats-max-payload" env:"TRANCHE_NATS_MAX_PAYLOAD" default:"1MiB" help:"The largest message of the embedded NATS, up to 64MiB (${default}); 8MiB is advised as the most." placeholder:"SIZE"`
	AllowHost       []string        `env:"TRANCHE_ALLOW_HOST" help:"Additional host name of the API." placeholder:"NAME"`
	ShutdownTimeout time.Duration   `env:"TRANCHE_SHUTDOWN_TIMEOUT" default:"20s" within:"1ms," help:"Time limit of a stop (${default})." placeholder:"TIME"`
	LogLevel        string          `env:"TRANCHE_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error (${default})." placeholder:"LEVEL"`
	LogFormat       string          `env:"TRANCHE_LOG_FORMAT" enum:"console,json" default:"console" help:"console or json (${default})." placeholder:"FORMAT"`
	TraceOTLP       string          `name:"trace-otlp" env:"TRANCHE_TRACE_OTLP" help:"Send spans to this OTLP/HTTP receiver; 'env': to where the OTEL_ variables say." placeholder:"URL"`
	TraceRatio      float64         `env:"TRANCHE_TRACE_RATIO" default:"1" within:"0,1" help:"Share of the slices that are traced, 0 to 1 (${default})." placeholder:"N"`
	NoMigrate       bool            `env:"TRANCHE_NO_MIGRATE" help:"Do not migrate the database's schema."`

	DatabaseWait      time.Duration `env:"TRANCHE_DATABASE_WAIT" default:"2m" within:"0s," help:"How long to wait at start for a PostgreSQL that is unreachable, starting up or out of connections (${default}); 0s: do not wait." placeholder:"TIME"`
	MaxConnections    int           `env:"TRANCHE_MAX_CONNECTIONS" within:"4," help:"Database connections, in addition to six for heartbeats, credentials and tasks (16)." placeholder:"N"`
	TransactionPooler bool          `env:"TRANCHE_TRANSACTION_POOLER" help:"--database is a transaction pooler other than PgBouncer."`

	Archive string `env:"TRANCHE_ARCHIVE" help:"Store runs and the audit log at s3://BUCKET/FOLDER before retention deletes them; other servers than Amazon's: ?endpoint=https://HOST:PORT&region=REGION. AWS_ variables and files have the credentials. The same on all nodes." placeholder:"URL"`

	EncryptionKey []string          `env:"TRANCHE_ENCRYPTION_KEY" sep:";" help:"Encrypt payloads and results of new runs: file:PATH, env:NAME or exec:PROGRAM ARGUMENTS with 32 bytes in base64; earlier keys after it. The same on all nodes." placeholder:"KEY;OLD"`
	CancelRun     []workqueue.RunID `help:"Cancel this run before starting, if its key is not given; a load is discarded. Repeatable." placeholder:"ID"`

	Link map[string]string `env:"TRANCHE_LINK" help:"Add a link NAME from each request in the dashboard to its logs or trace, with IDs for {run}, {slice} and {trace}; repeatable." placeholder:"NAME=URL"`

	DashboardDir string `env:"TRANCHE_DASHBOARD_DIR" hidden:"" help:"Read the dashboard's files from here, to work on them." placeholder:"DIR"`

	accessFlags
	streamFlags
	scheduleFlags
	metricsFlags
	alertFlags
	pulseFlags

	bucket  *archive.S3  // of Archive; nil: none
	onReady func(*parts) // called once the server is ready; may be nil
}

func (s *serveCommand) Validate() error {
	return cmp.Or(s.checkPayload(), s.checkStreams(), s.validatePulse(), s.validateMetrics(),
		validateOTLP("--trace-otlp", tracing.Config{Endpoint: s.TraceOTLP}), s.validateLinks(), s.validateArchive())
}

// validateLinks accepts what a browser can follow.
func (s *serveCommand) validateLinks() error {
	for name, link := range s.Link {
		filled := strings.NewReplacer("{run}", "x", "{slice}", "x", "{trace}", "x").Replace(link)
		at, err := url.Parse(filled)
		if err != nil || at.Scheme != "http" && at.Scheme != "https" || at.Host == "" || strings.ContainsAny(filled, "{}") {
			return fmt.Errorf("--link %s: invalid URL %q; want http:// or https://, with {run}, {slice} and {trace} only",
				name, link)
		}
	}
	return nil
}

func (s *serveCommand) Run(ctx context.Context, line *kong.Context, term *cli.Console) (err error) {
	log, err := s.logger()
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // fails on terminals
	s.speak(term, log)
	trouble, p := &startup.Troubles{}, &parts{}
	log = log.WithOptions(startup.Lines(p.later.session), trouble.Watch())
	end := &ending{grace: s.ShutdownTimeout, began: make(chan struct{})}
	context.AfterFunc(ctx, end.start)
	defer func() { err = errors.Join(err, end.undo(p.undo)) }()
	p.wait = s.startWait(term, p, trouble, s.natsFrom(line))
	if err := s.assemble(ctx, p, log); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			term.Note("stopped before it had begun")
			return nil
		}
		return err
	}
	tracer, err := s.tracer(ctx, p, log)
	if err != nil {
		return err
	}
	if err := s.addLeaderTasks(p, log); err != nil {
		return err
	}
	node, err := orchestrator.New(p.store, p.nc, orchestrator.Config{
		Log: log, Version: versionText(), Grace: end.share(), Streams: s.streams(), Waits: p.wait.Waits, Tracer: tracer,
		Meter: p.metrics, Fetchers: p.fetchers, LeaderTasks: p.tasks, Precedence: 1, Heartbeat: s.Heartbeat,
		SessionTTL: s.SessionTTL, Poll: s.PollInterval, Archive: p.archive,
	})
	if err != nil {
		return err
	}
	pages, err := dashboard.Handler(dashboard.Config{Dir: s.DashboardDir, Base: s.basePath()})
	if err != nil {
		return err
	}
	service, err := s.openTrackers(p, node, log)
	if err != nil {
		return err
	}
	taking, err := s.openCollectors(p, node, log)
	if err != nil {
		return err
	}
	config, err := s.guarded(p.reach(api.Config{
		Log: log, Hosts: s.AllowHost, Links: s.Link, Build: build(),
		Info:    map[string]string{"database": p.database, "nats": p.natsURL, "data": p.directory},
		Trouble: trouble.Last, StreamBytes: p.wait.Needs, SpoolDir: filepath.Join(p.directory, "spool"),
		Dashboard: pages, Trackers: service, Producers: taking, Metrics: p.metrics, WakeLeaderTask: node.WakeLeaderTask,
	}), p)
	if err != nil {
		return err
	}
	server, err := api.New(p.store, api.NodeOf(node), p.nc, config)
	if err != nil {
		return err
	}
	p.later.set(node, server)
	return s.work(ctx, term, p, node, server, end)
}

func (s *serveCommand) startWait(term *cli.Console, p *parts, trouble *startup.Troubles, from string) *startup.Wait {
	return &startup.Wait{From: from, Now: time.Now, Trouble: trouble, NC: func() *nats.Conn { return p.nc },
		Store: func() *database.DB { return p.store }, Say: func(what string) {
			term.Note("waiting for %s; meanwhile the API at %s answers, with status 503 for what it cannot do", what, s.at(p))
		}}
}

// ignoreHangUp ignores SIGHUP unless it is a terminal's: supervisors send it to reload settings.
func ignoreHangUp(log *zap.Logger) {
	if cli.IsTerminal(os.Stdin) {
		return
	}
	came := make(chan os.Signal, 1)
	signal.Notify(came, syscall.SIGHUP)
	go func() {
		for range came {
			log.Info("SIGHUP is ignored: a renewed certificate is read within a minute, other settings at a restart")
		}
	}()
}

// work runs the node and the API. The API stops first, since uploads depend on the node's session.
func (s *serveCommand) work(
	ctx context.Context, term *cli.Console, p *parts, node *orchestrator.Node, server *api.Server, end *ending,
) error {
	p.metrics.Bind(metrics.Sources{Node: node, Store: p.store, NC: p.nc,
		Certificates: func() map[string]time.Time { return s.certificates(p) }})
	group, ctx := errgroup.WithContext(ctx)
	nodeCtx, stopNode := context.WithCancel(context.WithoutCancel(ctx))
	defer stopNode()
	group.Go(func() error {
		defer stopNode()
		return server.Serve(ctx, p.listener, end.share())
	})
	group.Go(func() error { return end.bounded("the node", func() error { return node.Run(nodeCtx) }) })
	group.Go(func() error { return s.greet(ctx, term, p, node) })
	return group.Wait()
}

func (s *serveCommand) greet(ctx context.Context, term *cli.Console, p *parts, node *orchestrator.Node) error {
	select {
	case <-ctx.Done():
		return nil
	case <-node.Ready():
		s.askForToken(ctx, term, p)
		if s.onReady != nil {
			defer s.onReady(p)
		}
		return s.welcome(term, p)
	}
}

// speak logs messages as lines of JSON if the log format is json, and mentions settings possibly meant for serve.
func (s *serveCommand) speak(term *cli.Console, log *zap.Logger) {
	ignoreHangUp(log)
	if s.LogFormat == "json" {
		term.Say = func(text string) { log.Info(text) }
	}
	if os.Getenv("NATS_URL") != "" && s.NATS+s.NATSContext == "" {
		log.Info("NATS_URL is set, but only services read it: give serve its NATS server by --nats or TRANCHE_NATS")
	}
}

func (s *serveCommand) logger() (*zap.Logger, error) {
	config := zap.NewProductionConfig()
	if s.LogFormat == "console" {
		config = zap.NewDevelopmentConfig()
		config.Development = false
		config.DisableStacktrace = true
	}
	level, err := zap.ParseAtomicLevel(s.LogLevel)
	if err != nil {
		return nil, fmt.Errorf("--log-level: %w", err)
	}
	config.Level = level
	config.DisableCaller = true
	config.EncoderConfig.EncodeTime = zapcore.TimeEncoderOfLayout(startup.TimeLayout)
	config.OutputPaths, config.ErrorOutputPaths = []string{"stderr"}, []string{"stderr"}
	log, err := config.Build(orchestrator.Quiet())
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return log, nil
}

// welcome prints the addresses, and what to do next.
func (s *serveCommand) welcome(term *cli.Console, p *parts) error {
	where := s.at(p)
	if term.JSON {
		return term.Document(map[string]string{
			"api": where, "database": p.database, "nats": p.natsURL, "data": p.directory, "version": versionText(),
			"metrics": p.metricsURL(where),
		})
	}
	if term.Say != nil {
		term.Say(fmt.Sprintf("tranche %s is ready: dashboard and API at %s, NATS at %s, PostgreSQL at %s", versionText(),
			where, p.natsURL, p.database))
		return nil
	}
	t := cli.Table{}
	t.Row("  dashboard", where)
	t.Row("  API", where+api.Prefix)
	t.Row("  NATS", p.natsURL)
	if p.private {
		t.Row("", "for services of other users, or not in Go: set NATS_URL to what is in "+p.natsFile())
	}
	t.Row("  PostgreSQL", p.database)
	if s.Database == "" || s.NATS == "" && s.NATSContext == "" {
		t.Row("  data", p.directory)
	}
	at := ""
	if where != "http://"+api.DefaultListen {
		at = " --url " + where
	}
	return term.Printf("tranche %s is ready\n\n%s\nConnect a service to NATS, see it with: tranche endpoints%s\n"+
		"Then start a run:  tranche run start --endpoint NAME --items FILE%s\nStop with Ctrl-C.\n",
		versionText(), t.String(), at, at)
}

// pulseFlags are the intervals of heartbeats and polls, and the life of a session.
type pulseFlags struct {
	Heartbeat    time.Duration `env:"TRANCHE_HEARTBEAT" default:"1s" within:"100ms,20s" help:"Heartbeat interval (${default}): 100ms to 20s, at most a third of --session-ttl." placeholder:"TIME"`
	SessionTTL   time.Duration `name:"session-ttl" env:"TRANCHE_SESSION_TTL" default:"5s" within:"1s,1m" help:"Time without a heartbeat after which a node counts as dead and its work is reissued (${default}): 1s to 1m." placeholder:"TIME"`
	PollInterval time.Duration `env:"TRANCHE_POLL_INTERVAL" default:"500ms" within:"50ms,30s" help:"Interval of polling for work that no event announced (${default}): 50ms to 30s." placeholder:"TIME"`
}

func (f *pulseFlags) validatePulse() error {
	if 3*f.Heartbeat > f.SessionTTL {
		return fmt.Errorf("--heartbeat is %s; it must be a third of --session-ttl (%s) at most", f.Heartbeat,
			f.SessionTTL)
	}
	return nil
}

// lastMoment is the time for the private servers to stop after the grace.
const lastMoment = time.Second

// ending limits a stop to its grace. The API and the node have a share each; the rest is for the other parts.
type ending struct {
	grace time.Duration
	begin sync.Once
	began chan struct{} // closed when the stop begins
	until time.Time     // set before began is closed
}

func (e *ending) start() {
	e.begin.Do(func() {
		e.until = time.Now().Add(e.grace)
		close(e.began)
	})
}

// share returns the time that the API, or the node, may take to stop.
func (e *ending) share() time.Duration { return e.grace * 2 / 5 }

// bounded runs f, but does not wait for it beyond the grace.
func (e *ending) bounded(what string, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		return err
	case <-e.began:
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(time.Until(e.until)):
		return fmt.Errorf("%s did not stop within --shutdown-timeout %s; "+
			"what it holds goes to others when its session expires", what, e.grace)
	}
}

// undo stops the parts, the last first, and abandons the stop at the end of the grace.
func (e *ending) undo(all []func(context.Context) error) error {
	e.start() // after an error no one has called it
	ctx, cancel := context.WithTimeout(context.Background(), max(time.Until(e.until), lastMoment))
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		var err error
		for _, stop := range slices.Backward(all) {
			err = errors.Join(err, stop(ctx))
		}
		ended <- err
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select { // functions that heed the context are about to return
	case err := <-ended:
		return err
	case <-time.After(lastMoment / 2):
		return fmt.Errorf("not everything stopped within --shutdown-timeout %s", e.grace)
	}
}
