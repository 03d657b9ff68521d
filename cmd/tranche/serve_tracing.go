package main

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/tracing"
	"github.com/tranchehq/tranche/orchestrator/span"
)

// tracer returns what records the node's spans, or nil when nobody asked for it.
func (s *serveCommand) tracer(ctx context.Context, p *parts, log *zap.Logger) (span.Tracer, error) {
	if s.TraceOTLP == "" {
		return nil, nil //nolint:nilnil // no tracer is what a node without tracing has
	}
	started, err := tracing.Start(ctx, tracing.Config{
		Endpoint: s.TraceOTLP, Ratio: s.TraceRatio, Version: versionText(), Log: log.Named("tracing"),
	})
	if err != nil {
		return nil, fmt.Errorf("--trace-otlp: %w", err)
	}
	p.undo = append(p.undo, func(ctx context.Context) error {
		if err := started.Stop(ctx); err != nil { // a stop is as good without them
			log.Warn("the last spans may be lost", zap.Error(err))
		}
		return nil
	})
	return started.Tracer(), nil
}

func (s *serveCommand) validateTracing() error {
	if !(s.TraceRatio >= 0 && s.TraceRatio <= 1) { // also when it is no number
		return fmt.Errorf("--trace-ratio is %v; it must be 0 to 1", s.TraceRatio)
	}
	if s.TraceOTLP == "" {
		return nil
	}
	if err := (tracing.Config{Endpoint: s.TraceOTLP, Ratio: s.TraceRatio}).Validate(); err != nil {
		return fmt.Errorf("--trace-otlp: %w", err)
	}
	return nil
}
