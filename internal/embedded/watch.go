package embedded

import (
	"context"
	"time"

	"go.uber.org/zap"
)

const (
	firstPause = time.Second
	longPause  = 30 * time.Second
)

// watch starts the server again when it has ended by itself, until ctx ends.
func (p *Postgres) watch(ctx context.Context) {
	defer close(p.watched)
	pause := firstPause
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
			pause = firstPause
		}
		for {
			if !sleep(ctx, pause) {
				return
			}
			pause = min(2*pause, longPause)
			err := p.relaunch(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				return
			}
			p.config.Log.Error("PostgreSQL did not start again", zap.Error(err), zap.Duration("next_try_in", pause))
		}
	}
}

func (p *Postgres) relaunch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.config.StartTimeout)
	defer cancel()
	return p.launch(ctx)
}

// sleep reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
