package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
)

// serveCommand is all the settings of serve: flags, the TRANCHE_ environment and the config file fill it.
type serveCommand struct {
	Config      kong.ConfigFlag `env:"TRANCHE_CONFIG" help:"A YAML file with any of these settings." placeholder:"FILE"`
	Database    string          `env:"TRANCHE_DATABASE" help:"The PostgreSQL to use instead of a private one." placeholder:"URL"`
	NATS        string          `name:"nats" env:"TRANCHE_NATS,NATS_URL" help:"The NATS to use instead of an embedded one." placeholder:"URL"`
	NATSCreds   string          `name:"nats-creds" env:"TRANCHE_NATS_CREDS,NATS_CREDS" help:"Credentials file for --nats." placeholder:"FILE"`
	NATSContext string          `name:"nats-context" env:"TRANCHE_NATS_CONTEXT,NATS_CONTEXT" help:"A context of the nats tool, instead of --nats." placeholder:"NAME"`
	DataDir     string          `env:"TRANCHE_DATA_DIR" help:"Where the private PostgreSQL and NATS keep their files." placeholder:"DIR"`
	Listen      string          `env:"TRANCHE_LISTEN" default:"${listen}" help:"Address of the API (${default})." placeholder:"ADDR"`
	NATSListen  string          `name:"nats-listen" env:"TRANCHE_NATS_LISTEN" default:"127.0.0.1:4222" help:"Address of the embedded NATS (${default})." placeholder:"ADDR"`
	AllowHost   []string        `env:"TRANCHE_ALLOW_HOST" help:"Another name that the API may be called by." placeholder:"NAME"`
	Grace       time.Duration   `env:"TRANCHE_GRACE" default:"20s" help:"What a stop may take (${default})." placeholder:"TIME"`
	LogLevel    string          `env:"TRANCHE_LOG_LEVEL" enum:"debug,info,warn,error" default:"info" help:"debug, info, warn or error (${default})." placeholder:"LEVEL"`
	LogFormat   string          `env:"TRANCHE_LOG_FORMAT" enum:"console,json" default:"console" help:"console or json (${default})." placeholder:"FORMAT"`
	NoMigrate   bool            `env:"TRANCHE_NO_MIGRATE" help:"Leave the database's schema alone."`
}

// Validate is called by kong.
func (s *serveCommand) Validate() error {
	if s.Grace <= 0 {
		return fmt.Errorf("--grace is %s; it must be positive", s.Grace)
	}
	return nil
}

// parts is what a serve holds, in the order it was made.
type parts struct {
	database  string // where it is, for people
	directory string
	pool      *pgxpool.Pool
	nc        *nats.Conn
	natsURL   string
	listener  net.Listener
	undo      []func(context.Context) error
}

// Run serves until a signal.
func (s *serveCommand) Run(ctx context.Context, term *console) (err error) {
	log, err := s.logger()
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // fails on terminals
	p := &parts{}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Grace)
		defer cancel()
		for _, v := range slices.Backward(p.undo) {
			err = errors.Join(err, v(stop))
		}
	}()
	if err := s.assemble(ctx, p, log); err != nil {
		return err
	}
	store := workqueue.New(p.pool)
	node, err := orchestrator.New(store, p.nc, orchestrator.Config{Log: log, Version: versionText(), Grace: s.Grace})
	if err != nil {
		return err
	}
	server, err := api.New(store, node, p.nc, api.Config{
		Log: log, Hosts: s.AllowHost, Version: versionText(),
		Info: map[string]string{"database": p.database, "nats": p.natsURL, "data": p.directory},
	})
	if err != nil {
		return err
	}
	return s.work(ctx, term, p, node, server)
}

// work runs the node and the API. The node goes on until the API has answered what it had begun to.
func (s *serveCommand) work(
	ctx context.Context, term *console, p *parts, node *orchestrator.Node, server *api.Server,
) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return node.Run(ctx) })
	select {
	case <-node.Ready():
	case <-ctx.Done():
		return errors.Join(group.Wait(), p.listener.Close())
	}
	group.Go(func() error { return server.Serve(ctx, p.listener, s.Grace) })
	if err := s.welcome(term, p); err != nil {
		return errors.Join(err, group.Wait())
	}
	return group.Wait()
}

func (s *serveCommand) assemble(ctx context.Context, p *parts, log *zap.Logger) (err error) {
	// First the address: it costs nothing and is what is taken most often.
	if p.listener, err = api.Listen(ctx, s.Listen); err != nil {
		return err
	}
	p.undo = append(p.undo, func(context.Context) error {
		_ = p.listener.Close() // the server has closed it, unless there was none yet
		return nil
	})
	if p.directory = s.DataDir; p.directory == "" {
		if p.directory, err = embedded.DefaultDataDir(); err != nil {
			return err
		}
	}
	if err := s.openDatabase(ctx, p, log); err != nil {
		return err
	}
	return s.openNATS(ctx, p, log)
}

func (s *serveCommand) openDatabase(ctx context.Context, p *parts, log *zap.Logger) error {
	url := s.Database
	if url == "" {
		private, err := embedded.StartPostgres(ctx, embedded.PostgresConfig{
			DataDir: filepath.Join(p.directory, "postgres"), Log: log.Named("postgres"),
		})
		if err != nil {
			return fmt.Errorf("start a private PostgreSQL (or use one with --database): %w", err)
		}
		p.undo = append(p.undo, private.Stop)
		url = private.URL()
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("--database: %w", err)
	}
	p.database = fmt.Sprintf("%s:%d/%s", config.ConnConfig.Host, config.ConnConfig.Port, config.ConnConfig.Database)
	if !s.NoMigrate {
		if _, err := migrations.Up(ctx, url, log); err != nil {
			return fmt.Errorf("database %s: %w", p.database, err)
		}
	}
	if err := tune(ctx, config, url); err != nil {
		return fmt.Errorf("database %s: %w", p.database, err)
	}
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return fmt.Errorf("database %s: %w", p.database, err)
	}
	p.undo = append(p.undo, func(context.Context) error { p.pool.Close(); return nil })
	return nil
}

// poolConns leaves room for loading, publishing, recording and the API at once.
const poolConns = 24

// tune gives the pool its size, unless the URL does, and refuses a database that lacks migrations.
func tune(ctx context.Context, config *pgxpool.Config, url string) error {
	if !strings.Contains(url, "pool_max_conns") {
		config.MaxConns = poolConns
	}
	missing, err := migrations.Pending(ctx, url)
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("its schema lacks %s; run: tranche migrate --database URL", strings.Join(missing, ", "))
	}
	return nil
}

func (s *serveCommand) openNATS(ctx context.Context, p *parts, log *zap.Logger) (err error) {
	options := []nats.Option{nats.Name("tranche serve"), endpoints.LogTo(log.Named("nats"))}
	switch {
	case s.NATS != "":
		p.nc, err = endpoints.Connect(append(options, at(s.NATS), s.credentials())...)
	case s.NATSContext != "":
		options = append(options, nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true), s.credentials())
		p.nc, _, err = natscontext.Connect(s.NATSContext, options...)
	default:
		var private *embedded.NATS
		private, err = embedded.StartNATS(ctx, embedded.NATSConfig{
			StoreDir: filepath.Join(p.directory, "nats"), Listen: s.NATSListen, Log: log.Named("nats-server"),
		})
		if err != nil {
			return err
		}
		p.undo = append(p.undo, private.Stop)
		p.nc, err = endpoints.Connect(append(options, at(private.URL()))...)
		p.natsURL = private.URL()
	}
	if err != nil {
		return fmt.Errorf("--nats: %w", err)
	}
	p.undo = append(p.undo, func(context.Context) error { p.nc.Close(); return nil })
	if p.natsURL == "" {
		p.natsURL = redacted(s.NATS, s.NATSContext)
	}
	return nil
}

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
	config.OutputPaths, config.ErrorOutputPaths = []string{"stderr"}, []string{"stderr"}
	log, err := config.Build()
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return log, nil
}

// welcome says where everything is, and what to do next.
func (s *serveCommand) welcome(term *console, p *parts) error {
	where := "http://" + p.listener.Addr().String()
	if term.json {
		return term.document(map[string]string{
			"api": where, "database": p.database, "nats": p.natsURL, "data": p.directory, "version": versionText(),
		})
	}
	t := table{}
	t.row("  API", where)
	t.row("  NATS", p.natsURL)
	t.row("  PostgreSQL", p.database)
	if s.Database == "" || s.NATS == "" && s.NATSContext == "" {
		t.row("  data", p.directory)
	}
	at := ""
	if where != "http://"+api.DefaultListen {
		at = " --url " + where
	}
	return term.printf("tranche %s is ready\n\n%s\nConnect a service to NATS, see it with: tranche endpoints%s\n"+
		"Then start a run:  tranche run start --endpoint NAME --items FILE%s\nStop with Ctrl-C.\n",
		versionText(), t.String(), at, at)
}
