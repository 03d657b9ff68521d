package kernel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

// Retry calls f until it succeeds or ctx ends, with growing pauses.
func (k *Kernel) Retry(ctx context.Context, what string, f func(context.Context) error) error {
	return k.Insist(ctx, what, f, k.Warn)
}

// Warn tells of something that is tried again.
func (k *Kernel) Warn(what string, err error, pause time.Duration) error {
	k.Log.Warn("cannot "+what+"; trying again", zap.Error(err), zap.Duration("in", pause))
	return nil
}

// Insist is retry, which ends with what tell returns when that is told of an error.
func (k *Kernel) Insist(ctx context.Context, what string, f func(context.Context) error,
	tell func(what string, err error, pause time.Duration) error,
) error {
	pauses := backoff.Doubling{First: 100 * time.Millisecond, Longest: 5 * time.Second}
	for {
		err := f(ctx)
		if err == nil {
			return nil
		}
		pause := pauses.Next()
		if ctx.Err() == nil {
			if end := tell(what, err, pause); end != nil {
				return end
			}
		}
		if backoff.Sleep(ctx, pause) != nil {
			return fmt.Errorf("%s: %w", what, errors.Join(context.Cause(ctx), err))
		}
	}
}

// SameError is how long a duty that fails in the same way over and over is not logged again.
const SameError = time.Minute
