package collector

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// CollectorView is a collector as shown to users.
type CollectorView struct {
	Name       string        `json:"name"`
	Namespace  string        `json:"namespace" doc:"that owns it"`
	Version    int           `json:"version"`
	State      string        `json:"state" enum:"active,paused"`
	Spec       CollectorSpec `json:"spec"`
	Source     string        `json:"source,omitempty" doc:"the text as applied; only for a single collector"`
	KeyVersion int           `json:"key_version" doc:"of its keys; what waits under a lower one goes first"`
	CreatedBy  string        `json:"created_by"`
	CreatedAt  time.Time     `json:"created_at"`
	ChangedBy  string        `json:"changed_by"`
	ChangedAt  time.Time     `json:"changed_at"`
	PausedBy   string        `json:"paused_by,omitempty"`
	PausedAt   *time.Time    `json:"paused_at,omitempty"`
	DrainAt    *time.Time    `json:"drain_at,omitempty" doc:"operations added until then do not wait for more"`

	Keys     int64      `json:"keys" doc:"that have operations"`
	Waiting  int64      `json:"waiting" doc:"operations that have not failed, those in progress among them"`
	Backoff  int64      `json:"backoff" doc:"operations that failed and are retried, those in progress among them"`
	Parked   int64      `json:"parked" doc:"operations that are not retried unless they are requeued"`
	Flushing int        `json:"flushing" doc:"keys that are being flushed"`
	Due      int64      `json:"due" doc:"keys that could be flushed now, if nothing else held them up"`
	Older    int64      `json:"older" doc:"operations that wait under an older key_version of the keys"`
	OldestAt *time.Time `json:"oldest_at,omitempty" doc:"when the oldest that has not failed was added"`
	NextDue  *time.Time `json:"next_due,omitempty" doc:"when the next key not yet in flight is due"`

	Failures       int        `json:"failures" doc:"consecutive failed flushes, over all keys"`
	FailedAt       *time.Time `json:"failed_at,omitempty"`
	FailureCode    string     `json:"failure_code,omitempty"`
	FailureMessage string     `json:"failure_message,omitempty"`
	BackoffUntil   *time.Time `json:"backoff_until,omitempty" doc:"nothing is flushed before then, because flushes failed"`

	RefusedSince *time.Time `json:"refused_since,omitempty" doc:"since when adds are refused: its source fails"`
	RefusedAt    *time.Time `json:"refused_at,omitempty" doc:"when that was last noted, to a minute"`
	RefusedFor   string     `json:"refused_for,omitempty" doc:"what the source, or the query, failed with"`

	At  time.Time         `json:"at" doc:"when all this was so, by the clock of the database"`
	Why []CollectorReason `json:"why,omitempty" doc:"what keeps operations waiting; of one collector"`

	id         int32
	callsIn    float64 // seconds until the collector's rate permits the next request
	flushedAt  *time.Time
	flushUntil *time.Time
	endpoint   flushedEndpoint
	nodes      []nodeFlushing // read when keys are due
}

// CollectorReason is why operations wait.
type CollectorReason struct {
	Code  string     `json:"code"`
	Text  string     `json:"text"`
	Until *time.Time `json:"until,omitempty"`
}

type flushedEndpoint struct {
	open    bool // the breaker is open
	since   *time.Time
	reason  string
	probeAt *time.Time
	budget  int
	busy    int
	callsIn float64 // seconds until request_rate permits the next request
	itemsIn float64 // and rate the next items
}

const (
	collectorColumns = `
SELECT c.id, c.name, c.namespace, c.version, c.state, c.spec, c.source, c.key_version, c.created_by, c.created_at,
       c.changed_by, c.changed_at, c.paused_by, c.paused_at, c.drain_at, c.failures, c.failed_at,
       c.failure_code, c.failure_message,
       CASE WHEN c.backoff_until > t.now AND NOT EXISTS (
           SELECT FROM endpoint_pace p
           WHERE p.endpoint = c.endpoint AND p.breaker = 'closed' AND p.breaker_since > c.failed_at)
       THEN c.backoff_until END,
       coalesce(greatest(0, (1 - c.tokens) / c.rate - extract(epoch FROM t.now - c.tokens_at)), 0)::float8,
       k.keys, k.waiting, k.backoff, k.parked, k.flushing, k.flushed_at, k.flush_until, k.due, k.older, k.oldest_at,
       k.next_due, c.refused_since, CASE WHEN c.refused_since IS NOT NULL THEN c.refused_at END,
       CASE WHEN c.refused_since IS NOT NULL THEN c.refused_for ELSE '' END, t.now
FROM collector c CROSS JOIN (SELECT tranche_now() AS now) t
CROSS JOIN LATERAL (
    SELECT count(*) AS keys, coalesce(sum(k.untried), 0)::bigint AS waiting,
           coalesce(sum(k.retrying), 0)::bigint AS backoff, coalesce(sum(k.parked), 0)::bigint AS parked,
           count(k.flush) AS flushing, min(k.flushed_at) FILTER (WHERE k.flush IS NOT NULL) AS flushed_at,
           min(k.flush_until) AS flush_until,
           count(*) FILTER (WHERE k.flush IS NULL AND k.due_at <= t.now) AS due,
           coalesce(sum(k.untried + k.retrying) FILTER (WHERE k.key_version < c.key_version), 0)::bigint AS older,
           min(k.oldest_at) AS oldest_at, min(k.due_at) FILTER (WHERE k.flush IS NULL) AS next_due
    FROM collector_key k WHERE k.collector = c.id) k
WHERE c.state <> 'deleting'`

	listCollectors = collectorColumns + ` AND ($1::text[] IS NULL OR c.namespace = ANY ($1)) ORDER BY c.name`
	oneCollector   = collectorColumns + ` AND ($1::text[] IS NULL OR c.namespace = ANY ($1)) AND c.name = $2`

	// endpointOfFlushes reads what claims of flushes use.
	endpointOfFlushes = `
SELECT coalesce(p.breaker = 'open', false), p.breaker_since, coalesce(p.breaker_reason, ''), p.probe_at,
       coalesce(e.max_in_flight, 0),
       ` + plane.BusyAt + `,
       coalesce(greatest(0, (1 - p.call_tokens) / nullif(e.request_rate, 0)
           - extract(epoch FROM tranche_now() - p.call_tokens_at)), 0)::float8,
       coalesce(greatest(0, -p.tokens / nullif(e.rate, 0) - extract(epoch FROM tranche_now() - p.tokens_at)),
           0)::float8
FROM (SELECT $1::text COLLATE "C" AS endpoint) at
LEFT JOIN endpoint_pace p ON p.endpoint = at.endpoint LEFT JOIN endpoint_setting e ON e.endpoint = at.endpoint`
)

// Collectors returns all collectors by name. It counts the keys of each.
func (s Store) Collectors(ctx context.Context) ([]CollectorView, error) {
	all, err := pg.Collect(ctx, s.db.Pool, scanCollector, listCollectors, workqueue.Namespaces(ctx))
	if err != nil {
		return nil, fmt.Errorf("read collectors: %w", err)
	}
	for i := range all {
		all[i].Source = ""
	}
	return all, nil
}

// Collector returns a collector with why its operations wait. The error wraps ErrNotFound if it does not exist.
func (s Store) Collector(ctx context.Context, name string) (CollectorView, error) {
	if !pg.ValidText(name) {
		return CollectorView{}, fmt.Errorf("collector %q: %w", name, workqueue.ErrNotFound)
	}
	v, err := pg.One(ctx, s.db.Pool, scanCollector, oneCollector, workqueue.Namespaces(ctx), name)
	if err != nil {
		return v, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "collector %q", name)
	}
	e := &v.endpoint
	err = s.db.Pool.QueryRow(ctx, endpointOfFlushes, v.Spec.Endpoint).Scan(&e.open, &e.since, &e.reason, &e.probeAt,
		&e.budget, &e.busy, &e.callsIn, &e.itemsIn)
	if err != nil {
		return v, fmt.Errorf("read the endpoint of collector %s: %w", name, err)
	}
	if v.Due > 0 {
		if v.nodes, err = pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[nodeFlushing], nodesFlushing); err != nil {
			return v, fmt.Errorf("read what else flushes for the endpoint of collector %s: %w", name, err)
		}
	}
	v.explain()
	return v, nil
}

func scanCollector(row pgx.CollectableRow) (v CollectorView, err error) {
	err = row.Scan(&v.id, &v.Name, &v.Namespace, &v.Version, &v.State, &v.Spec, &v.Source, &v.KeyVersion, &v.CreatedBy,
		&v.CreatedAt,
		&v.ChangedBy, &v.ChangedAt, &v.PausedBy, &v.PausedAt, &v.DrainAt, &v.Failures, &v.FailedAt, &v.FailureCode,
		&v.FailureMessage, &v.BackoffUntil, &v.callsIn, &v.Keys, &v.Waiting, &v.Backoff, &v.Parked, &v.Flushing,
		&v.flushedAt, &v.flushUntil, &v.Due, &v.Older, &v.OldestAt, &v.NextDue,
		&v.RefusedSince, &v.RefusedAt, &v.RefusedFor, &v.At)
	return v, err
}

// CollectorSpecOf returns a collector's definition, version and namespace without counting anything.
func (s Store) CollectorSpecOf(ctx context.Context, name string) (spec CollectorSpec, version int, namespace string,
	err error,
) {
	const read = `SELECT spec, version, namespace FROM collector WHERE name = $1 AND state <> 'deleting'`
	if !pg.ValidText(name) {
		return spec, 0, "", fmt.Errorf("collector %q: %w", name, workqueue.ErrNotFound)
	}
	err = s.db.Pool.QueryRow(ctx, read, name).Scan(&spec, &version, &namespace)
	return spec, version, namespace, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "collector %q", name)
}

const maxOpsPage = 1000

const (
	collectorID = `
SELECT id FROM collector WHERE name = $1 AND state <> 'deleting' AND ($2::text[] IS NULL OR namespace = ANY ($2))`

	opColumns = `
SELECT o.seq, o.op_id, o.key, o.key_version,
       CASE WHEN o.parked_at IS NOT NULL THEN 'parked' WHEN o.not_before > tranche_now() THEN 'backoff'
            ELSE 'waiting' END,
       k.flush IS NOT NULL AND o.parked_at IS NULL, o.priority, o.attempts, o.error_code, o.error_message, o.added_at,
       o.failed_first, o.failed_last, CASE WHEN o.parked_at IS NULL THEN o.not_before END, coalesce(o.fold, ''),
       coalesce(o.folded_into, ''), o.payload
FROM collector_op o JOIN collector_key k USING (collector, key_version, key)
WHERE o.collector = $1 AND o.seq > $2 AND ($3 = '' OR o.error_code = $3)`

	// Each form has a fitting index: parked operations, keys, IDs, or the primary key.
	opsParked = opColumns + ` AND o.parked_at IS NOT NULL AND ($5 = '' OR o.key = $5) ORDER BY o.seq LIMIT $4`
	opsOfID   = opColumns + ` AND o.op_id = $5 ORDER BY o.seq LIMIT $4`
	opsOfKey  = opColumns + ` AND o.key = $5 AND ($6 = '' OR o.parked_at IS NULL
    AND coalesce(o.not_before > tranche_now(), false) = ($6 = 'backoff')) ORDER BY o.seq LIMIT $4`
	opsOfAll = opColumns + ` AND ($5 = '' OR o.parked_at IS NULL
    AND coalesce(o.not_before > tranche_now(), false) = ($5 = 'backoff')) ORDER BY o.seq LIMIT $4`
)

// Ops returns a page of a collector's operations in the order in which they were added.
func (s Store) Ops(ctx context.Context, f OpsFilter) (page OperationPage, err error) {
	id, err := s.collectorID(ctx, f.Collector)
	if err != nil {
		return page, err
	}
	switch f.State {
	case "", OpWaiting, OpBackoff, OpParked:
	default:
		return page, workqueue.BadSetting("%.40q is not a state of an operation; give %s, %s or %s", f.State, OpWaiting,
			OpBackoff, OpParked)
	}
	limit := pg.Limit(f.Limit, maxOpsPage, maxOpsPage)
	statement, args := opsOfAll, []any{id, f.After, f.Code, limit + 1, f.State}
	switch {
	case f.ID != "":
		statement, args[4] = opsOfID, f.ID
	case f.State == OpParked:
		statement, args[4] = opsParked, f.Key
	case f.Key != "":
		statement, args = opsOfKey, []any{id, f.After, f.Code, limit + 1, f.Key, f.State}
	}
	ops, err := pg.Collect(ctx, s.db.Pool, scanOp, statement, args...)
	ops = slices.DeleteFunc(ops, func(v OpView) bool {
		return f.State != "" && v.State != f.State || f.Key != "" && v.Key != f.Key
	})
	page.Ops, page.Next = pg.Cut(ops, limit, func(v *OpView) int64 { return v.Number })
	return page, pg.Wrap(err, "read operations of collector %s", f.Collector)
}

func scanOp(row pgx.CollectableRow) (v OpView, err error) {
	var payload string
	err = row.Scan(&v.Number, &v.ID, &v.Key, &v.KeyVersion, &v.State, &v.Flushing, &v.Priority, &v.Attempts, &v.Code,
		&v.Message, &v.AddedAt, &v.FailedFirst, &v.FailedLast, &v.NotBefore, &v.Fold, &v.FoldedInto, &payload)
	v.Payload = []byte(payload)
	return v, err
}

func (s Store) collectorID(ctx context.Context, name string) (id int32, err error) {
	if !pg.ValidText(name) {
		return 0, fmt.Errorf("collector %q: %w", name, workqueue.ErrNotFound)
	}
	err = s.db.Pool.QueryRow(ctx, collectorID, name, workqueue.Namespaces(ctx)).Scan(&id)
	return id, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "collector %q", name)
}
