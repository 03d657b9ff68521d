package main

import (
	"context"
	"errors"
	"net"
	"net/http"
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
	"github.com/tranchehq/tranche/internal/ingest"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
	trackerstore "github.com/tranchehq/tranche/workqueue/tracker"
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
	duties      []orchestrator.Duty            // of the node that leads
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

// answersPatience is how long a stop waits for the answers to operations that came before it. Others need time, too.
const answersPatience = 5 * time.Second

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
		timed, cancel := context.WithTimeout(ctx, answersPatience)
		defer cancel()
		return errors.Join(listener.Close(timed), taking.Wait(ctx))
	})
	return taking, nil
}

// webhookDuty tells of the ends of tracker batches, by HTTP.
func (s *serveCommand) webhookDuty(p *parts, log *zap.Logger) (orchestrator.Duty, error) {
	hooks, err := trackers.NewWebhooks(trackerstore.New(p.store), trackers.WebhooksConfig{
		Connections: p.connections, Transport: p.transport, Log: log.Named("webhooks"),
	})
	if err != nil {
		return orchestrator.Duty{}, err
	}
	return orchestrator.Duty{Name: "tracker webhooks", Run: hooks.Run}, nil
}

// openTrackers makes the tracker service and takes requests to it over NATS. Those that were taken have their answers
// before the connections are closed.
func (s *serveCommand) openTrackers(p *parts, node *orchestrator.Node, log *zap.Logger) (*trackers.Service, error) {
	service, err := trackers.New(trackerstore.New(p.store), trackers.Config{
		Connections: p.connections, Ended: node.PublishEvents, Log: log.Named("trackers"),
	})
	if err != nil {
		return nil, err
	}
	listener, err := trackers.Listen(p.nc, service, log.Named("trackers"))
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
