package embedded

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// Between two starts of a server that has ended by itself, for ever, each logged.
	firstPause = time.Second
	longPause  = 30 * time.Second
)

// watch starts the server again when it has ended by itself, until ctx ends.
func (p *Postgres) watch(ctx context.Context) {
	defer close(p.watched)
	pauses := backoff.Doubling{First: firstPause, Longest: longPause}
	for {
		proc := p.proc // only this goroutine replaces it
		select {
		case <-ctx.Done():
			return
		case <-proc.exited:
		}
		p.config.Log.Error("PostgreSQL has ended by itself", zap.Error(proc.failure(proc.err)))
		if p.config.NoRestart {
			return
		}
		if time.Since(proc.started) > longPause {
			pauses.Reset()
		}
		for pause := pauses.Next(); ; {
			if backoff.Sleep(ctx, pause) != nil {
				return
			}
			err := p.relaunch(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			pause = pauses.Next()
			p.config.Log.Error("PostgreSQL did not start again", zap.Error(err), zap.Duration("next_try_in", pause))
		}
	}
}

func (p *Postgres) relaunch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.StartTimeout)
	defer cancel()
	return p.launch(ctx)
}
