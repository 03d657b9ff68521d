package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/gather/fetch/sqlfetch"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/runs"
	"github.com/tranchehq/tranche/internal/archive"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	alertstore "github.com/tranchehq/tranche/workqueue/alert"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// parts is what serve holds, in the order of its creation.
type parts struct {
	database  string // its address, for messages
	directory string
	store     *database.DB
	nc        *nats.Conn
	natsURL   string
	private   bool     // the NATS server is embedded
	keys      [][]byte // of --encryption-key
	listener  net.Listener
	metrics   *metrics.Metrics
	metricsAt net.Addr // nil: only the API serves /metrics
	wait      *startup.Wait
	undo      []func(context.Context) error

	oidc        *access.OIDC         // nil: no login by an identity provider
	clients     *access.Certificates // nil: no client certificates
	connections *connections.Connections
	schedules   api.Schedules
	receivers   *alerts.Receivers
	later       later
	tasks       []orchestrator.LeaderTask      // of the leader
	archive     orchestrator.Archive           // nil: none
	transport   http.RoundTripper              // to external hosts, restricted by the connections file
	restsUntil  func(paceKey string) time.Time // until when an HTTP service demands a pause
	fetchers    map[workqueue.Kind]fetch.Fetchers
}

func (p *parts) metricsURL(api string) string {
	if p.metricsAt == nil {
		return api + "/metrics"
	}
	return "http://" + p.metricsAt.String() + "/metrics"
}

// reach adds the other parts that the API uses, and where this server keeps files.
func (p *parts) reach(config api.Config) api.Config {
	config.Connections, config.Schedules, config.Alerts = p.connections, p.schedules, p.receivers
	config.RestsUntil, config.DataDir, config.StoresStreams = p.restsUntil, p.directory, p.private
	return config
}

func (s *serveCommand) assemble(ctx context.Context, p *parts, log *zap.Logger) (err error) {
	// First the cheap checks, which fail most often.
	if p.oidc, err = s.login(s.Auth == "on"); err != nil {
		return err
	}
	if p.clients, err = s.clients(log.Named("access")); err != nil {
		return err
	}
	if p.listener, err = api.Listen(ctx, s.Listen, s.exposure(p.clients, log)); err != nil {
		return err
	}
	p.undo = append(p.undo, func(context.Context) error {
		_ = p.listener.Close() // the server closes it, once there is one
		return nil
	})
	if err := s.openMetrics(ctx, p, log.Named("metrics")); err != nil {
		return err
	}
	if err := s.openConnections(p); err != nil {
		return err
	}
	if p.directory = s.DataDir; p.directory == "" {
		if p.directory, err = wire.DefaultDataDir(); err != nil {
			return err
		}
	}
	if p.keys, err = database.ReadKeys(ctx, s.EncryptionKey); err != nil {
		return err
	}
	if err := s.openDatabase(ctx, p, log); err != nil {
		return err
	}
	if err := p.connections.Serve(ctx, p.store.Pool); err != nil {
		return err
	}
	if s.bucket != nil {
		p.archive = archive.New(p.store, s.bucket, runs.WriteItems)
	}
	if err := startSchedules(p, log); err != nil {
		return err
	}
	if err := s.startAlerts(p, log); err != nil {
		return err
	}
	return s.openNATS(ctx, p, log)
}

func (s *serveCommand) validateArchive() error {
	if s.Archive == "" {
		return nil
	}
	var err error
	if s.bucket, err = archive.NewS3(s.Archive); err != nil {
		return fmt.Errorf("--archive: %w", err)
	}
	return nil
}

// openConnections makes the fetchers for steps of kind http and sql. Without a connections file there are no sources
// or secrets, and only HTTP services at public addresses.
func (s *serveCommand) openConnections(p *parts) (err error) {
	p.connections = &connections.Connections{}
	if s.Connections != "" {
		if p.connections, err = connections.Load(s.Connections); err != nil {
			return err
		}
	}
	web, err := httpfetch.New(p.connections, httpfetch.Config{UserAgent: "tranche/" + versionText()})
	if err != nil {
		return err
	}
	if err := s.openSchedules(p, web); err != nil {
		return err
	}
	p.restsUntil, p.transport = web.RestsUntil, web.Transport()
	databases := sqlfetch.New(p.connections)
	p.fetchers = map[workqueue.Kind]fetch.Fetchers{workqueue.KindHTTP: web, workqueue.KindSQL: databases}
	p.undo = append(p.undo, func(context.Context) error {
		web.Close()
		databases.Close()
		return nil
	})
	return nil
}

// answersTimeout limits the wait of a stop for answers to earlier operations. Other parts need time, too.
const answersTimeout = 5 * time.Second

// openCollectors accepts operations for collectors over NATS, and answers them before the connections close.
func (*serveCommand) openCollectors(p *parts, node *orchestrator.Node, log *zap.Logger) (*ingest.Producers, error) {
	taking := ingest.New(collectorstore.New(p.store), node.Collectors(),
		ingest.Sources{SQL: p.fetchers[workqueue.KindSQL], NC: p.nc}, log.Named("producers"))
	listener, err := taking.Listen(p.nc)
	if err != nil {
		return nil, err
	}
	p.undo = append(p.undo, func(ctx context.Context) error {
		timed, cancel := context.WithTimeout(ctx, answersTimeout)
		defer cancel()
		return errors.Join(listener.Close(timed), taking.Wait(ctx))
	})
	return taking, nil
}

// openTrackers accepts requests for trackers over NATS, and answers them before the connections close.
func (s *serveCommand) openTrackers(p *parts, node *orchestrator.Node, log *zap.Logger) (*trackers.Service, error) {
	service := trackers.New(p.store, trackers.Config{
		Connections: p.connections, Ended: node.PublishEvents, Log: log.Named("trackers"),
	})
	listener, err := trackers.Listen(p.nc, service)
	if err != nil {
		return nil, err
	}
	p.undo = append(p.undo, func(ctx context.Context) error {
		err := listener.Close(ctx)
		service.Wait()
		return err
	})
	return service, nil
}

// addLeaderTasks adds leader tasks to those of every node.
func (s *serveCommand) addLeaderTasks(p *parts, log *zap.Logger) error {
	hooks, err := trackers.NewWebhooks(p.store, trackers.WebhooksConfig{Log: log.Named("webhooks"),
		SenderConfig: httpfetch.SenderConfig{Connections: p.connections, Transport: p.transport}})
	if err != nil {
		return err
	}
	p.tasks = append(p.tasks, orchestrator.LeaderTask{Name: "tracker webhooks", Run: hooks.Run},
		orchestrator.LeaderTask{Name: "reap trackers", Run: trackers.Reaper(p.store, log.Named("reaper"))})
	if p.oidc == nil {
		return nil
	}
	renewer, err := access.NewRenewer(p.oidc, identity.New(p.store), log.Named("access"))
	if err != nil {
		return err
	}
	p.tasks = append(p.tasks, orchestrator.LeaderTask{Name: "renew sessions", Run: renewer.Run})
	return nil
}

type scheduleFlags struct {
	ScheduleFiles string `env:"TRANCHE_SCHEDULE_FILES" help:"The directory below which schedules may read files of items; without it they read none." placeholder:"DIR"`
}

func (f *scheduleFlags) openSchedules(p *parts, web *httpfetch.Client) (err error) {
	p.schedules = api.Schedules{Web: schedule.NewWeb(web.Transport()), CheckURL: web.CheckURL}
	if f.ScheduleFiles == "" {
		return nil
	}
	if p.schedules.Files, err = schedule.OpenFiles(f.ScheduleFiles); err != nil {
		return fmt.Errorf("--schedule-files: %w", err)
	}
	p.undo = append(p.undo, func(context.Context) error { return p.schedules.Files.Close() })
	return nil
}

// later gives leader tasks the node and the API, which are created after them, and before these tasks run.
type later struct {
	schedule.Starter
	*orchestrator.Runs
	*orchestrator.Node

	server *api.Server
	logged atomic.Pointer[orchestrator.Node] // for lines of the log, which may be written before
}

func (l *later) set(node *orchestrator.Node, server *api.Server) {
	l.Starter, l.Runs, l.Node, l.server = server.Starter(), node.Runs(), node, server
	l.logged.Store(node)
}

// startSchedules adds the leader task that starts due runs.
func startSchedules(p *parts, log *zap.Logger) error {
	task, err := schedule.New(p.store, &p.later, &p.later, schedule.Config{Log: log.Named("schedules")})
	if err != nil {
		return err
	}
	p.schedules.Wake = func() { p.later.WakeLeaderTask(schedule.TaskName) }
	p.tasks = append(p.tasks, task.LeaderTask())
	p.undo = append(p.undo, func(context.Context) error {
		task.Wait() // runs being loaded when the node stopped: their context is done
		return nil
	})
	return nil
}

// session returns the node's session as in tranche nodes; empty: none yet.
func (l *later) session() string {
	if node := l.logged.Load(); node != nil && node.Session() != (workqueue.SessionID{}) {
		return node.Session().String()
	}
	return ""
}

// alertFlags are the programs that alerts may run, besides what the connections file allows.
type alertFlags struct {
	AlertProgram map[string]string `env:"TRANCHE_ALERT_PROGRAM" help:"Program that alerts may run on this server, by NAME; repeatable." placeholder:"NAME=PATH"`
	AuditSink    string            `env:"TRANCHE_AUDIT_SINK" help:"Forward new audit entries to syslog://HOST:514, syslog+tls://HOST:6514, syslog+udp://HOST:514, file:///PATH or a webhook, https://HOST/PATH; the same on all nodes." placeholder:"URL"`

	AuditSinkSecret string `env:"TRANCHE_AUDIT_SINK_SECRET" help:"Secret of the connections file that signs the webhook of --audit-sink." placeholder:"NAME"`
}

// startAlerts adds the leader tasks that find and send alerts.
func (s *serveCommand) startAlerts(p *parts, log *zap.Logger) (err error) {
	p.receivers, err = alerts.NewReceivers(alerts.Config{
		Connections: p.connections, Transport: p.transport, Programs: s.AlertProgram, Public: s.PublicURL,
	})
	if err != nil {
		return fmt.Errorf("--alert-program, --public-url: %w", err)
	}
	task, err := alerts.New(alerts.TaskConfig{
		Store: alertstore.New(p.store), Receivers: p.receivers, Log: log.Named("alerts"),
		Health: func(ctx context.Context) (*health.Report, error) { return p.later.server.Watch().Report(ctx) },
		Wake:   func(task string) { p.later.WakeLeaderTask(task) },
	})
	if err != nil {
		return err
	}
	p.tasks = append(p.tasks, task.LeaderTasks()...)
	if s.AuditSink == "" {
		return nil
	}
	sink, err := alerts.NewSink(p.store, s.AuditSink, s.AuditSinkSecret, p.receivers)
	if err != nil {
		return fmt.Errorf("--audit-sink: %w", err)
	}
	p.tasks = append(p.tasks, orchestrator.LeaderTask{Name: alerts.SinkTask, Run: sink.Run})
	return nil
}
