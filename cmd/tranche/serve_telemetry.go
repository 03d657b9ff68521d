package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/metrics"
	"github.com/tranchehq/tranche/internal/tracing"
	"github.com/tranchehq/tranche/orchestrator/core"
)

// metricsFlags say where metrics go, beside /metrics of the API.
type metricsFlags struct {
	MetricsListen string `env:"TRANCHE_METRICS_LISTEN" help:"Another address for /metrics alone, which asks nobody for a token." placeholder:"ADDR"`
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

// stopSending sends the last of what there is to tell. A stop is as good without it.
func stopSending(stop func(context.Context) error, what string, log *zap.Logger) func(context.Context) error {
	return func(ctx context.Context) error {
		if err := stop(ctx); err != nil {
			log.Warn("the last "+what+" may be lost", zap.Error(err))
		}
		return nil
	}
}

// openMetrics makes what measures the node. It can be asked from here on, and has more to tell once it is bound.
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

// Time-outs of the listener for metrics. An answer may take as long as a reading of the database, and a slow network.
const (
	metricsHeaderTimeout = 10 * time.Second
	metricsWriteTimeout  = 30 * time.Second
)

// serveMetrics answers scrapes, and nothing else, until the serve ends.
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
		failed := server.Close() // nobody loses anything by a scrape that is cut off
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			failed = errors.Join(failed, err)
		}
		return failed
	})
	return nil
}

// tracer returns what records the node's spans, or nil when nobody asked for it.
func (s *serveCommand) tracer(ctx context.Context, p *parts, log *zap.Logger) (core.Tracer, error) {
	if s.TraceOTLP == "" {
		return nil, nil //nolint:nilnil // no tracer is what a node without tracing has
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

func (s *serveCommand) validateTracing() error {
	if !(s.TraceRatio >= 0 && s.TraceRatio <= 1) { // also when it is no number
		return fmt.Errorf("--trace-ratio is %v; it must be 0 to 1", s.TraceRatio)
	}
	return validateOTLP("--trace-otlp", tracing.Config{Endpoint: s.TraceOTLP, Ratio: s.TraceRatio})
}
