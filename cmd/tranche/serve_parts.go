package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
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
	scheduling  *scheduleEngine
	alerting    *alerting
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
	config.Connections, config.Schedules, config.Alerts = p.connections, p.schedules, p.alerting.receivers
	config.RestsUntil, config.DataDir, config.StoresStreams = p.restsUntil, p.directory, p.private
	return config
}

// bind gives the duties what came after the node.
func (p *parts) bind(node *orchestrator.Node, server *api.Server) {
	p.scheduling.bind(node, server)
	p.alerting.bind(node, server)
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

// natsFrom is what names the NATS server: a flag, a variable or the config file; empty: nothing does.
func (s *serveCommand) natsFrom(line *kong.Context) string {
	flag, env := "nats", "TRANCHE_NATS"
	switch {
	case s.NATS == "" && s.NATSContext == "":
		return ""
	case s.NATS == "":
		flag, env = "nats-context", "TRANCHE_NATS_CONTEXT"
	}
	for _, at := range line.Path {
		switch {
		case at.Flag == nil || at.Flag.Name != flag:
		case at.Resolved:
			return flag + " in the config file"
		default:
			return "--" + flag
		}
	}
	return env
}

func (s *serveCommand) openNATS(ctx context.Context, p *parts, log *zap.Logger) (err error) {
	if err := startup.CheckScheme("--nats", s.NATS, "nats", "tls", "ws", "wss"); err != nil {
		return err
	}
	options := []nats.Option{nats.Name("tranche serve"), endpoints.LogTo(log.Named("nats")), p.wait.Hear()}
	if s.NATS+s.NATSContext != "" {
		p.natsURL = redacted(s.NATS, s.NATSContext)
	}
	p.wait.At = p.natsURL
	switch {
	case s.NATS != "":
		p.nc, err = endpoints.Connect(append(options, at(s.NATS), s.credentials())...)
	case s.NATSContext != "":
		options = append(append(endpoints.Options(), options...), s.credentials())
		p.nc, _, err = natscontext.Connect(s.NATSContext, options...)
	default:
		var private *embedded.NATS
		payload, invalid := s.maxPayload()
		if invalid != nil {
			return invalid
		}
		private, err = embedded.StartNATS(ctx, embedded.NATSConfig{
			StoreDir: filepath.Join(p.directory, "nats"), Listen: s.NATSListen, Log: log.Named("nats-server"),
			MaxPayload: payload, URLFile: p.natsFile(),
		})
		if err != nil {
			return err
		}
		p.undo = append(p.undo, private.Stop)
		options = append(append(endpoints.Options(), options...), private.Login()) // whatever the environment says
		p.nc, err = nats.Connect(private.URL(), options...)
		p.natsURL, p.private = private.URL(), true
	}
	if err != nil {
		return fmt.Errorf("NATS at %s: %w", p.wait.Where(), err)
	}
	p.undo = append(p.undo, func(context.Context) error { p.nc.Close(); return nil })
	p.wait.At = p.natsURL
	return nil
}

// natsFile is where services find the address of the server that is this one's own, and the password.
func (p *parts) natsFile() string { return filepath.Join(p.directory, wire.NATSURLName) }

// at points a connection at servers, whatever the environment says.
func at(urls string) nats.Option {
	return func(o *nats.Options) error {
		o.Servers = strings.Split(urls, ",")
		return nil
	}
}

func (s *serveCommand) credentials() nats.Option {
	if s.NATSCreds == "" {
		return func(*nats.Options) error { return nil }
	}
	return nats.UserCredentials(s.NATSCreds)
}

// redacted leaves out what stands before the @ of a URL.
func redacted(urls, named string) string {
	if urls == "" {
		return "context " + named
	}
	var shown []string
	for u := range strings.SplitSeq(urls, ",") {
		scheme, rest, ok := strings.Cut(u, "://")
		if !ok {
			scheme, rest = "nats", u
		}
		if i := strings.LastIndex(rest, "@"); i >= 0 {
			rest = rest[i+1:]
		}
		shown = append(shown, scheme+"://"+rest)
	}
	return strings.Join(shown, ",")
}
