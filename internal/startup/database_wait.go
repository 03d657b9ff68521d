package startup

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/workqueue/database"
)

// Times of the wait for a PostgreSQL that is not there yet. How long it is waited for says --database-wait.
const (
	knockTimeout           = 5 * time.Second
	knockFirst, knockPause = 100 * time.Millisecond, 2 * time.Second
)

// DatabaseWait is the patience of a start with a PostgreSQL that is not there yet: both may come up at once, as after
// a loss of power. What is wrong for good ends it at once.
type DatabaseWait struct {
	At       string        // where it is, for people
	Patience time.Duration // 0: none
	Knocking time.Duration // how long an address, or who knows them, may take to answer; 0: 5 s
	Log      *zap.Logger   // required by Until
}

// Knock looks whether PostgreSQL takes connections, and does not wait long for one that has gone silent. Each of the
// addresses has a time of its own: one that never answers must not keep the next from being tried.
func (w DatabaseWait) Knock(ctx context.Context, config *pgx.ConnConfig) error {
	config = config.Copy()
	knocking := cmp.Or(w.Knocking, knockTimeout)
	if config.ConnectTimeout <= 0 || config.ConnectTimeout > knocking {
		config.ConnectTimeout = knocking
	}
	lookUp := config.LookupFunc // pgx bounds what comes after it
	config.LookupFunc = func(ctx context.Context, host string) ([]string, error) {
		ctx, cancel := context.WithTimeout(ctx, knocking)
		defer cancel()
		return lookUp(ctx, host)
	}
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return fmt.Errorf("connect to PostgreSQL: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, knocking)
	defer cancel()
	return conn.Close(ctx)
}

// Until tries until it succeeds, what went wrong is wrong for good, or the patience is used up. A try that has begun is
// not cut short: a migration may take as long as it needs. All else of a try bounds itself.
func (w DatabaseWait) Until(ctx context.Context, try func(context.Context) error) error {
	begun, said := time.Now(), ""
	pauses := backoff.Doubling{First: knockFirst, Longest: knockPause}
	for {
		err := try(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		why, coming := database.Coming(err)
		waited := time.Since(begun)
		switch {
		case err == nil && said != "":
			w.Log.Info("PostgreSQL is there", zap.String("database", w.At), zap.Duration("after", waited))
			return nil
		case err == nil || !coming || w.Patience <= 0:
			return err
		case waited >= w.Patience:
			return fmt.Errorf("PostgreSQL %s, and was waited for %s (--database-wait): %w", why, cli.Span(w.Patience), err)
		}
		if why != said {
			w.Log.Warn("PostgreSQL "+why+"; waiting for it, up to "+cli.Span(w.Patience)+" in all",
				zap.String("database", w.At), zap.Error(err))
			said = why
		}
		if backoff.Sleep(ctx, min(pauses.Next(), w.Patience-waited)) != nil {
			return context.Cause(ctx)
		}
	}
}
