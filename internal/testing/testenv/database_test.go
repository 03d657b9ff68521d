package testenv_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// A moved clock counts at once in what was planned before, in a transaction that sees the past, in defaults, and for a
// role that only serves.
func TestAdvance(t *testing.T) {
	t.Parallel()
	url := testenv.Database(t)
	pool, serving := testenv.Connect(t, url), testenv.Connect(t, testenv.Serving(t, url))
	ahead := func(q interface {
		QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	}, sql string, args ...any,
	) time.Duration {
		t.Helper()
		var by time.Duration
		testenv.NoError(t, q.QueryRow(t.Context(), sql, args...).Scan(&by))
		return by.Round(time.Minute)
	}
	testenv.Advance(t, pool, 0)
	tx := testenv.Must(serving.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead}))(t)
	defer tx.Rollback(t.Context()) //nolint:errcheck // it only reads
	total := time.Duration(0)
	for _, by := range []time.Duration{0, 12 * time.Minute, 900 * time.Hour, -time.Hour} {
		testenv.Advance(t, pool, by)
		total += by
		now := ahead(pool, `SELECT tranche_now() - clock_timestamp()`)
		past := ahead(tx, `SELECT tranche_now() - clock_timestamp()`)
		written := ahead(serving, `INSERT INTO node_session (id, host, pid, version, expires_at)
			VALUES ($1, 'h', 1, 'v', 'infinity') RETURNING started_at - clock_timestamp()`, uuid.New())
		if now != total || past != total || written != total {
			t.Errorf("advanced by %s: %s, %s in a transaction, %s by default", total, now, past, written)
		}
	}
	at := time.Date(2031, 5, 5, 8, 0, 0, 0, time.UTC)
	testenv.StopClock(t, pool, at)
	testenv.Advance(t, pool, time.Second)
	var stood, on time.Time
	testenv.NoError(t, pool.QueryRow(t.Context(), `SELECT tranche_now()`).Scan(&stood))
	testenv.SetClock(t, pool, at)
	testenv.NoError(t, pool.QueryRow(t.Context(), `SELECT tranche_now()`).Scan(&on))
	if !stood.Equal(at.Add(time.Second)) || on.Before(at) || on.After(at.Add(time.Hour)) {
		t.Errorf("a clock that stands says %s, and one that was set again %s", stood, on)
	}
}
