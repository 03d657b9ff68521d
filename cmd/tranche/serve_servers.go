package main

import (
	"context"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/synadia-io/orbit.go/natscontext"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/startup"
	"github.com/tranchehq/tranche/internal/tracing"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/orchestrator/core"
	nodestreams "github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

// natsFrom returns the flag, variable or config file entry that names the NATS server; empty: none.
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
		private, err = embedded.StartNATS(ctx, embedded.NATSConfig{
			StoreDir: filepath.Join(p.directory, "nats"), Listen: s.NATSListen, Log: log.Named("nats-server"),
			MaxPayload: int(s.MaxPayload), URLFile: p.natsFile(), Key: p.streamKey,
		})
		if err != nil {
			return err
		}
		p.undo = append(p.undo, private.Stop)
		options = append(append(endpoints.Options(), options...), private.Login()) // regardless of the environment
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

// streamKey returns the key of the embedded server's files, which is in a file next to them.
func (p *parts) streamKey() (string, error) {
	path := filepath.Join(p.directory, "nats-key")
	_, err := os.Stat(path)
	encrypted, _ := filepath.Glob(filepath.Join(p.directory, "nats", "jetstream", "*", "streams", "*", "meta.key"))
	switch {
	case len(p.keys) == 0 && err == nil:
		return "", fmt.Errorf("the NATS server's files are encrypted: give --encryption-key, or delete %s and the directory "+
			"nats next to it", path)
	case len(p.keys) == 0:
		return "", nil
	case err != nil && len(encrypted) > 0:
		return "", fmt.Errorf("the NATS server's files are encrypted, and their key is missing: restore %s, or delete the "+
			"directory nats next to it", path)
	}
	key, err := p.store.KeyFile(path)
	if err != nil {
		return "", fmt.Errorf("key of the NATS server's files: %w", err)
	}
	return hex.EncodeToString(key), nil
}

// natsFile is where services find the address and password of the embedded server.
func (p *parts) natsFile() string { return filepath.Join(p.directory, wire.NATSURLName) }

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

func (s *serveCommand) openDatabase(ctx context.Context, p *parts, log *zap.Logger) error {
	url := s.Database
	if url == "" {
		config := embedded.PostgresConfig{
			DataDir: filepath.Join(p.directory, "postgres"), Bound: true, Log: log.Named("postgres"),
		}
		if !s.NoMigrate {
			config.Prepare = func(ctx context.Context, url string) error {
				_, err := migrations.Up(ctx, url, log)
				return err
			}
		}
		private, err := embedded.StartPostgres(ctx, config)
		if err != nil {
			return fmt.Errorf("start a private PostgreSQL (or use one with --database): %w", err)
		}
		p.undo = append(p.undo, private.Stop)
		url = private.URL()
	}
	if err := startup.CheckScheme("--database", strings.Split(url, ",")[0], "postgres", "postgresql"); err != nil {
		return err
	}
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return fmt.Errorf("--database: %w", err)
	}
	p.database = fmt.Sprintf("%s:%d/%s", config.ConnConfig.Host, config.ConnConfig.Port, config.ConnConfig.Database)
	wait := startup.DatabaseWait{At: p.database, Timeout: s.DatabaseWait, Log: log}
	err = wait.Until(ctx, func(ctx context.Context) error {
		if err := wait.Knock(ctx, config.ConnConfig); err != nil {
			return database.PoolerRemedy(err)
		}
		return database.PoolerRemedy(s.openStore(ctx, p, url, config, log))
	})
	if err != nil {
		return fmt.Errorf("database %s: %w", p.database, err)
	}
	return nil
}

// openStore migrates the schema and opens the store. It may be retried after an error.
func (s *serveCommand) openStore(
	ctx context.Context, p *parts, url string, config *pgxpool.Config, log *zap.Logger,
) error {
	if !s.NoMigrate {
		if _, err := migrations.Up(ctx, url, log); err != nil {
			return err
		}
	}
	if err := migrations.Ready(ctx, url); err != nil {
		return err
	}
	conns := s.MaxConnections
	if conns == 0 && strings.Contains(url, "pool_max_conns") {
		conns = int(config.MaxConns)
	}
	store, release, err := database.Open(ctx, url, database.PoolConfig{
		MaxConns: conns, TransactionPooler: s.TransactionPooler, Serving: true,
	})
	if err != nil {
		return err
	}
	notes, err := migrations.Notes(ctx, url, "")
	if err != nil {
		release()
		return err
	}
	for _, note := range notes {
		log.Warn(note)
	}
	p.store = store
	p.undo = append(p.undo, func(context.Context) error { release(); return nil })
	return s.useKeys(ctx, p, log)
}

// useKeys sets the encryption keys. With several, it reencrypts the data keys of all runs with the first one.
func (s *serveCommand) useKeys(ctx context.Context, p *parts, log *zap.Logger) error {
	err := p.store.SetKeys(p.keys)
	if err == nil {
		err = s.cancelRuns(ctx, p.store, log)
	}
	if err == nil {
		err = p.store.CheckKeys(ctx)
	}
	if err != nil || len(p.keys) < 2 {
		return err
	}
	runs, lost, err := p.store.RotateKeys(ctx)
	if err == nil {
		log.Info("the keys of runs are encrypted with the first --encryption-key", zap.Int("changed", runs),
			zap.Int("runs_that_no_key_decrypts", lost))
	}
	return err
}

func (s *serveCommand) cancelRuns(ctx context.Context, store *database.DB, log *zap.Logger) error {
	for _, run := range s.CancelRun {
		done, err := cancelUnreadable(ctx, store, run)
		if err != nil {
			return fmt.Errorf("--cancel-run %s: %w", run, err)
		}
		log.Warn("--cancel-run: "+done, zap.Stringer("run", run))
	}
	return nil
}

// cancelUnreadable cancels a run whose key is lost, or discards its load. It returns what it has done.
func cancelUnreadable(ctx context.Context, store *database.DB, run workqueue.RunID) (done string, err error) {
	refused := func(err error) bool {
		_, ok := errors.AsType[*workqueue.StateError](err)
		return ok
	}
	if _, err := store.Seal(ctx, store.Pool, run); !refused(err) {
		if errors.Is(err, workqueue.ErrNotFound) {
			err = errors.New("there is no such run; leave this ID out, or correct it")
		}
		return "its key is given: the run stays", err
	}
	if err := store.CheckLost(ctx); err != nil {
		return "", err
	}
	by := control.Control{Run: run, Actor: cli.OSUser(), Reason: "serve --cancel-run: its key is not given"}
	if _, err := control.New(store).Cancel(ctx, by); !refused(err) {
		return "the run is cancelled; services may still do what was sent", err
	}
	ended, err := start.New(store).ClearLoad(ctx, run)
	if ended {
		return "the run ended, and stays", err
	}
	return "the load is discarded", err
}

// Limits of --nats-max-payload.
const (
	leastPayload = 64 << 10
	mostPayload  = 64 << 20
)

func (s *serveCommand) checkPayload() error {
	if s.MaxPayload < leastPayload || s.MaxPayload > mostPayload {
		return fmt.Errorf("--nats-max-payload is %v; it must be within %v to %v", s.MaxPayload,
			workqueue.Bytes(leastPayload), workqueue.Bytes(mostPayload))
	}
	return nil
}

// streamFlags are the streams' initial settings. Later, tranche streams set changes them.
type streamFlags struct {
	StreamReplicas int             `env:"TRANCHE_STREAM_REPLICAS" help:"First start: copies of each stream, 1, 3 or 5 (3 in a cluster, else 1)." placeholder:"N"`
	WorkMaxBytes   workqueue.Bytes `env:"TRANCHE_WORK_MAX_BYTES" help:"First start: room for requests (1GiB). Later: tranche streams set." placeholder:"SIZE"`
	ReplyMaxBytes  workqueue.Bytes `env:"TRANCHE_REPLY_MAX_BYTES" help:"First start: room for replies (2GiB)." placeholder:"SIZE"`
	EventMaxBytes  workqueue.Bytes `env:"TRANCHE_EVENT_MAX_BYTES" help:"First start: room for events (128MiB)." placeholder:"SIZE"`
	StageMaxBytes  workqueue.Bytes `env:"TRANCHE_STAGE_MAX_BYTES" help:"First start: room for replies on their way back into flows (512MiB)." placeholder:"SIZE"`
	FlowMaxBytes   workqueue.Bytes `env:"TRANCHE_FLOW_MAX_BYTES" help:"First start: room for the state of flows that wait (512MiB)." placeholder:"SIZE"`
	DeadMaxBytes   workqueue.Bytes `env:"TRANCHE_DEAD_MAX_BYTES" help:"First start: room for dead letters that no node has taken in (64MiB)." placeholder:"SIZE"`
}

func (s *streamFlags) checkStreams() error {
	config := s.streams()
	values := nodestreams.StreamValues(&config)
	return values.Validate()
}

func (s *streamFlags) streams() stream.Config {
	return stream.Config{
		Replicas: s.StreamReplicas, WorkMaxBytes: int64(s.WorkMaxBytes), ReplyMaxBytes: int64(s.ReplyMaxBytes),
		EventMaxBytes: int64(s.EventMaxBytes), StageMaxBytes: int64(s.StageMaxBytes),
		FlowMaxBytes: int64(s.FlowMaxBytes), DeadMaxBytes: int64(s.DeadMaxBytes),
	}
}

type metricsFlags struct {
	MetricsListen string `env:"TRANCHE_METRICS_LISTEN" help:"A separate address for /metrics only, without a token." placeholder:"ADDR"`
	MetricsOTLP   string `name:"metrics-otlp" env:"TRANCHE_METRICS_OTLP" help:"Send metrics to this OTLP/HTTP receiver, too; 'env': to where the OTEL_ variables say." placeholder:"URL"`
}

func (f *metricsFlags) validateMetrics() error {
	if f.MetricsListen != "" {
		if _, _, err := net.SplitHostPort(f.MetricsListen); err != nil {
			return fmt.Errorf("--metrics-listen %q is not host:port, like 127.0.0.1:9480", f.MetricsListen)
		}
	}
	return validateOTLP("--metrics-otlp", tracing.Config{Endpoint: f.MetricsOTLP})
}

func validateOTLP(flag string, config tracing.Config) error {
	if config.Endpoint == "" {
		return nil
	}
	if err := config.Validate(); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

// stopSending sends the remaining data. A failure does not fail the stop.
func stopSending(stop func(context.Context) error, what string, log *zap.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := stop(ctx); err != nil {
			log.Warn("the last "+what+" may be lost", zap.Error(err))
		}
		return nil
	}
}

// openMetrics makes the metrics. They can be scraped from now on, and report more once bound.
func (f *metricsFlags) openMetrics(ctx context.Context, p *parts, log *zap.Logger) (err error) {
	p.metrics, err = metrics.New(metrics.Config{Log: log, Build: build()})
	if err != nil {
		return err
	}
	if f.MetricsListen != "" {
		if err := f.serveMetrics(ctx, p, log); err != nil {
			return err
		}
	}
	if f.MetricsOTLP == "" {
		return nil
	}
	to := tracing.Config{Endpoint: f.MetricsOTLP, Version: versionText(), Log: log}
	pushing, err := tracing.Push(ctx, to, p.metrics.Gatherer())
	if err != nil {
		return fmt.Errorf("--metrics-otlp: %w", err)
	}
	p.undo = append(p.undo, stopSending(pushing.Stop, "metrics", log))
	return nil
}

// Timeouts of the metrics listener. An answer may include a query of the database and a slow network.
const (
	metricsHeaderTimeout = 10 * time.Second
	metricsWriteTimeout  = 30 * time.Second
	metricsConnTimeout   = time.Second // for a database connection, to read its certificate
)

func (f *metricsFlags) serveMetrics(ctx context.Context, p *parts, log *zap.Logger) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", f.MetricsListen)
	if err != nil {
		return fmt.Errorf("open %s for metrics (--metrics-listen): %w", f.MetricsListen, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", p.metrics)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: metricsHeaderTimeout, ReadTimeout: metricsHeaderTimeout,
		WriteTimeout: metricsWriteTimeout, ErrorLog: zap.NewStdLog(log)}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	p.metricsAt = listener.Addr()
	p.undo = append(p.undo, func(context.Context) error {
		failed := server.Close() // an interrupted scrape does no harm
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			failed = errors.Join(failed, err)
		}
		return failed
	})
	return nil
}

// tracer returns the tracer of the node's spans, or nil without --trace-otlp.
func (s *serveCommand) tracer(ctx context.Context, p *parts, log *zap.Logger) (core.Tracer, error) {
	if s.TraceOTLP == "" {
		return nil, nil //nolint:nilnil // a nil tracer means no tracing
	}
	started, err := tracing.Start(ctx, tracing.Config{
		Endpoint: s.TraceOTLP, Ratio: s.TraceRatio, Version: versionText(), Log: log.Named("tracing"),
	})
	if err != nil {
		return nil, fmt.Errorf("--trace-otlp: %w", err)
	}
	p.undo = append(p.undo, stopSending(started.Stop, "spans", log))
	return started.Tracer(), nil
}

// certificates returns when the certificates expire that this server has, or gets from NATS and PostgreSQL.
func (s *serveCommand) certificates(p *parts) map[string]time.Time {
	ends := map[string]time.Time{}
	if own, err := tls.LoadX509KeyPair(s.TLSCert, s.TLSKey); err == nil {
		ends["api"] = own.Leaf.NotAfter
	}
	shown := func(of string, state tls.ConnectionState) {
		if len(state.PeerCertificates) > 0 {
			ends[of] = state.PeerCertificates[0].NotAfter
		}
	}
	if state, err := p.nc.TLSConnectionState(); err == nil {
		shown("nats", state)
	}
	ctx, cancel := context.WithTimeout(context.Background(), metricsConnTimeout)
	defer cancel()
	if conn, err := p.store.Sessions.Acquire(ctx); err == nil {
		defer conn.Release()
		if secure, ok := conn.Conn().PgConn().Conn().(*tls.Conn); ok {
			shown("postgresql", secure.ConnectionState())
		}
	}
	return ends
}
