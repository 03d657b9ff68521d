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
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// parts is what a serve holds, in the order it was made.
type parts struct {
	database  string // where it is, for people
	directory string
	store     *database.DB
	nc        *nats.Conn
	natsURL   string
	private   bool // the NATS server is its own
	listener  net.Listener
	metrics   *metrics.Metrics
	metricsAt net.Addr // nil: /metrics is the API's alone
	wait      *startup.Wait
	undo      []func(context.Context) error

	oidc        *access.OIDC // nil: people do not log in by a provider of identities
	connections *connections.Connections
	schedules   api.Schedules
	receivers   *alerts.Receivers
	later       later
	tasks       []orchestrator.LeaderTask      // of the leader
	transport   http.RoundTripper              // to hosts of others, guarded as the operator's file says
	restsUntil  func(paceKey string) time.Time // of HTTP services that want to be left alone
	fetchers    map[workqueue.Kind]fetch.Fetchers
}

// metricsURL is where metrics are found; api is where the API is.
func (p *parts) metricsURL(api string) string {
	if p.metricsAt == nil {
		return api + "/metrics"
	}
	return "http://" + p.metricsAt.String() + "/metrics"
}

// reach adds what the API reaches beside the node, and where this server keeps files.
func (p *parts) reach(config api.Config) api.Config {
	config.Connections, config.Schedules, config.Alerts = p.connections, p.schedules, p.receivers
	config.RestsUntil, config.DataDir, config.StoresStreams = p.restsUntil, p.directory, p.private
	return config
}

func (s *serveCommand) assemble(ctx context.Context, p *parts, log *zap.Logger) (err error) {
	// First what costs nothing, and is what is wrong most often.
	if p.oidc, err = s.login(s.Auth == "on"); err != nil {
		return err
	}
	if p.listener, err = api.Listen(ctx, s.Listen, s.exposure(log)); err != nil {
		return err
	}
	p.undo = append(p.undo, func(context.Context) error {
		_ = p.listener.Close() // the server has closed it, unless there was none yet
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
	if err := s.openDatabase(ctx, p, log); err != nil {
		return err
	}
	if err := startSchedules(p, log); err != nil {
		return err
	}
	if err := s.startAlerts(p, log); err != nil {
		return err
	}
	return s.openNATS(ctx, p, log)
}

// openConnections reads what plans may reach, and makes what fetches for steps of kind http and sql. Without a file
// there are neither sources nor secrets, and HTTP services at public addresses only.
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

// answersTimeout is how long a stop waits for the answers to operations that came before it. Others need time, too.
const answersTimeout = 5 * time.Second

// openCollectors takes operations for collectors over NATS. Those that were taken have their answers before the
// connections are closed.
func (*serveCommand) openCollectors(p *parts, node *orchestrator.Node, log *zap.Logger) (*ingest.Producers, error) {
	taking := ingest.New(collectorstore.New(p.store), node.Collectors(), p.fetchers[workqueue.KindSQL],
		log.Named("producers"))
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

// openTrackers makes the tracker service and takes requests to it over NATS. Those that were taken have their answers
// before the connections are closed.
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

// addLeaderTasks gives the node what only the one that leads does, beside what every node has by itself.
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

// later is what leader tasks of the node use that is made after it: the node has its leader tasks from the start.
type later struct{ atomic.Pointer[running] }

type running struct {
	node   *orchestrator.Node
	server *api.Server
}

var errNoServer = errors.New("this node has not started yet")

// startSchedules gives the node the leader task to start what is due.
func startSchedules(p *parts, log *zap.Logger) error {
	task, err := schedule.New(p.store, &p.later, &p.later, schedule.Config{Log: log.Named("schedules")})
	if err != nil {
		return err
	}
	p.schedules.Wake = func() { p.later.WakeLeaderTask(schedule.TaskName) }
	p.tasks = append(p.tasks, task.LeaderTask())
	p.undo = append(p.undo, func(context.Context) error {
		task.Wait() // what the node was loading when it stopped: its context has ended
		return nil
	})
	return nil
}

// session is the node's, as tranche nodes shows it; empty: it has none yet.
func (l *later) session() string {
	if r := l.Load(); r != nil && r.node.Session() != (workqueue.SessionID{}) {
		return r.node.Session().String()
	}
	return ""
}

// StartFire implements schedule.Starter.
func (l *later) StartFire(ctx context.Context, job schedule.Job) (schedule.Started, error) {
	if r := l.Load(); r != nil {
		return r.server.Starter().StartFire(ctx, job)
	}
	return schedule.Started{}, errNoServer
}

// Permanent implements schedule.Starter.
func (l *later) Permanent(err error) bool {
	r := l.Load()
	return r != nil && r.server.Starter().Permanent(err)
}

// Pause implements schedule.Runs.
func (l *later) Pause(ctx context.Context, c control.Control) (control.Controlled, error) {
	if r := l.Load(); r != nil {
		return r.node.Runs().Pause(ctx, c)
	}
	return control.Controlled{}, errNoServer
}

// Cancel implements schedule.Runs.
func (l *later) Cancel(ctx context.Context, c control.Control) (control.Cancelled, error) {
	if r := l.Load(); r != nil {
		return r.node.Runs().Cancel(ctx, c)
	}
	return control.Cancelled{}, errNoServer
}

// WakeLeaderTask implements schedule.Runs.
func (l *later) WakeLeaderTask(name string) {
	if r := l.Load(); r != nil {
		r.node.WakeLeaderTask(name)
	}
}

// alertFlags say by what alerts may tell someone, beside what the connections file allows. Their links begin with
// --public-url.
type alertFlags struct {
	AlertProgram map[string]string `env:"TRANCHE_ALERT_PROGRAM" help:"A program that alerts may have run on this server, and their name for it; may stand several times." placeholder:"NAME=PATH"`
}

// startAlerts gives the node the leader tasks to look what there is to tell, and to tell it.
func (s *serveCommand) startAlerts(p *parts, log *zap.Logger) (err error) {
	p.receivers, err = alerts.NewReceivers(alerts.Config{
		Connections: p.connections, Transport: p.transport, Programs: s.AlertProgram, Public: s.PublicURL,
	})
	if err != nil {
		return fmt.Errorf("--alert-program, --public-url: %w", err)
	}
	task, err := alerts.New(alerts.TaskConfig{
		Store: alertstore.New(p.store), Receivers: p.receivers, Health: p.later.health,
		Wake: p.later.WakeLeaderTask, Log: log.Named("alerts"),
	})
	if err != nil {
		return err
	}
	p.tasks = append(p.tasks, task.LeaderTasks()...)
	return nil
}

// health is what callers of the API get, but whole; nil, as long as there is none.
func (l *later) health(ctx context.Context) (*health.Report, error) {
	if r := l.Load(); r != nil {
		return r.server.Watch().Report(ctx)
	}
	return nil, nil //nolint:nilnil // the API has not started yet
}
