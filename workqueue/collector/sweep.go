package collector

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

const sweepRows = 2000

const (
	// releaseFlushes frees keys of dead nodes or expired flushes, except locked ones. By collector_key_flushing.
	releaseFlushes = `
WITH dead AS MATERIALIZED (
    SELECT f.collector, f.key_version, f.key, f.untried + f.retrying + f.parked > 0 AS holds FROM collector_key f
    WHERE f.flush IS NOT NULL AND (f.flush_until <= tranche_now() OR NOT EXISTS (
        SELECT FROM node_session s
        WHERE s.id = f.session_id AND s.ended_at IS NULL AND s.expires_at > tranche_now()))
    ORDER BY f.collector, f.key_version, f.key LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED),` + freeKeys

	// endFlushesOf frees the keys of a session, in lock order.
	endFlushesOf = `
WITH dead AS MATERIALIZED (
    SELECT f.collector, f.key_version, f.key, f.untried + f.retrying + f.parked > 0 AS holds FROM collector_key f
    WHERE f.flush IS NOT NULL AND f.session_id = $1
    ORDER BY f.collector, f.key_version, f.key FOR NO KEY UPDATE),` + freeKeys

	// prolongFlushes extends flushes in lock order, except those of ended sessions. By collector_key_flushing.
	prolongFlushes = `
WITH mine AS MATERIALIZED (
    SELECT f.collector, f.key_version, f.key, g.hold FROM collector_key f
    JOIN unnest($1::uuid[], $2::interval[]) AS g (flush, hold) ON f.flush = g.flush
    JOIN node_session s ON s.id = f.session_id AND s.ended_at IS NULL AND s.expires_at > tranche_now()
    WHERE f.flush IS NOT NULL
    ORDER BY f.collector, f.key_version, f.key FOR NO KEY UPDATE OF f)
UPDATE collector_key k SET flush_until = tranche_now() + mine.hold
FROM mine WHERE k.collector = mine.collector AND k.key_version = mine.key_version AND k.key = mine.key
RETURNING k.flush`

	// freeKeys deletes keys whose operations were all dropped meanwhile.
	freeKeys = `
gone AS (
    DELETE FROM collector_key k USING dead d
    WHERE NOT d.holds AND k.collector = d.collector AND k.key_version = d.key_version AND k.key = d.key)
UPDATE collector_key k SET flush = NULL, session_id = NULL, flush_until = NULL
FROM dead d
WHERE d.holds AND k.collector = d.collector AND k.key_version = d.key_version AND k.key = d.key AND k.flush IS NOT NULL`

	// forgetOps deletes expired IDs, by collector_seen_at; for another period it keeps those of existing operations.
	forgetOps = `
WITH old AS MATERIALIZED (
    SELECT s.collector, s.op_id, EXISTS (
        SELECT FROM collector_op o WHERE o.collector = s.collector AND o.op_id = s.op_id) AS there
    FROM collector c JOIN collector_seen s ON s.collector = c.id
    WHERE c.id = $1 AND s.at < tranche_now() - c.dedupe
    ORDER BY s.at LIMIT $2 FOR UPDATE OF s SKIP LOCKED),
kept AS (
    UPDATE collector_seen s SET at = tranche_now() FROM old
    WHERE old.there AND s.collector = old.collector AND s.op_id = old.op_id),
gone AS (
    DELETE FROM collector_seen s USING old
    WHERE NOT old.there AND s.collector = old.collector AND s.op_id = old.op_id)
SELECT count(*) FROM old`

	sweptCollectors = `
SELECT id, name, state = 'deleting', state <> 'deleting' AND timed < timing FROM collector ORDER BY id`

	// The rows of a deleted collector go in batches, by the indexes that start with the collector.
	clearOps = `
DELETE FROM collector_op WHERE seq IN (SELECT seq FROM collector_op WHERE collector = $1 LIMIT $2)`
	clearSeen = `
DELETE FROM collector_seen WHERE collector = $1
  AND op_id IN (SELECT op_id FROM collector_seen WHERE collector = $1 ORDER BY op_id LIMIT $2)`
	clearKeys = `
DELETE FROM collector_key k USING (
    SELECT key_version, key FROM collector_key WHERE collector = $1 ORDER BY key_version, key LIMIT $2 FOR UPDATE) old
WHERE k.collector = $1 AND k.key_version = old.key_version AND k.key = old.key`
	clearCollector = `DELETE FROM collector WHERE id = $1 AND state = 'deleting'`
)

// EndFlushes frees the keys that a session flushes, before it ends normally, and returns their number.
func (s Store) EndFlushes(ctx context.Context, session workqueue.SessionID) (int, error) {
	tag, err := s.db.Pool.Exec(ctx, endFlushesOf, session)
	return int(tag.RowsAffected()), pg.Wrap(err, "give back the flushes of session %s", session)
}

// ProlongFlushes extends flushes, from now, by these durations plus the node's margin. It returns those kept.
func (s Store) ProlongFlushes(ctx context.Context, ids []uuid.UUID, limits []time.Duration) ([]uuid.UUID, error) {
	holds := make([]time.Duration, len(limits))
	for i, limit := range limits {
		holds[i] = limit + dispatch.DefaultClaimTTL
	}
	kept, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[uuid.UUID], prolongFlushes, ids, holds)
	return kept, pg.Wrap(err, "keep the keys of %d flushes", len(ids))
}

// CollectorsSwept is what one round of leader work did for collectors.
type CollectorsSwept struct {
	Released  int   // keys whose flush was abandoned
	Forgotten int64 // expired IDs examined
	More      bool  // another round should follow immediately
}

// SweepCollectors does leader work: it frees keys of dead nodes, deletes expired IDs, sets due times that an
// interrupted change left, and deletes removed collectors, a batch of each.
func (s Store) SweepCollectors(ctx context.Context, lease workqueue.Lease) (out CollectorsSwept, err error) {
	n, err := session.New(s.db).ExecAsLeader(ctx, lease, releaseFlushes, sweepRows)
	if err != nil {
		return out, fmt.Errorf("free keys of nodes that are gone: %w", err)
	}
	out.Released, out.More = int(n), n == sweepRows
	all, err := s.sweptCollectors(ctx)
	if err != nil {
		return out, fmt.Errorf("read collectors: %w", err)
	}
	var failed error
	for _, c := range all {
		switch {
		case c.Deleting:
			err = s.clearDeleted(ctx, lease, c.ID, &out)
		case c.Untime:
			err = s.retime(ctx, c.Name)
		}
		if err == nil && !c.Deleting {
			err = s.forget(ctx, lease, c.ID, &out)
		}
		if errors.Is(err, workqueue.ErrNotLeader) || ctx.Err() != nil {
			return out, fmt.Errorf("sweep collector %s: %w", c.Name, err)
		}
		if err != nil { // the rest can do without it
			failed = errors.Join(failed, fmt.Errorf("sweep collector %s: %w", c.Name, err))
		}
	}
	return out, failed
}

type sweptCollector struct {
	ID               int32
	Name             string
	Deleting, Untime bool
}

func (s Store) sweptCollectors(ctx context.Context) ([]sweptCollector, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	return pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[sweptCollector], sweptCollectors)
}

func (s Store) forget(ctx context.Context, lease workqueue.Lease, id int32, out *CollectorsSwept) error {
	var n int64
	err := session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		return tx.QueryRow(ctx, forgetOps, id, sweepRows).Scan(&n)
	})
	out.Forgotten += n
	out.More = out.More || n == sweepRows
	return err
}

func (s Store) clearDeleted(ctx context.Context, lease workqueue.Lease, id int32, out *CollectorsSwept) error {
	for _, statement := range []string{clearKeys, clearOps, clearSeen} {
		n, err := session.New(s.db).ExecAsLeader(ctx, lease, statement, id, sweepRows)
		if err != nil {
			return err
		}
		if n > 0 {
			out.More = true
			return nil
		}
	}
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, clearCollector, id)
	return err
}
