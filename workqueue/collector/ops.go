package collector

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// maxOpsPage bounds a page of operations.
const maxOpsPage = 1000

const (
	collectorID = `SELECT id FROM collector WHERE name = $1 AND state <> 'deleting'`

	opColumns = `
SELECT o.seq, o.op_id, o.key, o.numbering,
       CASE WHEN o.parked_at IS NOT NULL THEN 'parked' WHEN o.not_before > tranche_now() THEN 'backoff'
            ELSE 'waiting' END,
       k.flush IS NOT NULL AND o.parked_at IS NULL, o.priority, o.attempts, o.error_code, o.error_message, o.added_at,
       o.failed_first, o.failed_last, CASE WHEN o.parked_at IS NULL THEN o.not_before END, coalesce(o.fold, ''),
       coalesce(o.folded_into, ''), o.payload
FROM collector_op o JOIN collector_key k USING (collector, numbering, key)
WHERE o.collector = $1 AND o.seq > $2 AND ($3 = '' OR o.error_code = $3)`

	// Each form has the index that fits it: that of parked ones, of keys, of ids, and the primary key.
	opsParked = opColumns + ` AND o.parked_at IS NOT NULL AND ($5 = '' OR o.key = $5) ORDER BY o.seq LIMIT $4`
	opsOfID   = opColumns + ` AND o.op_id = $5 ORDER BY o.seq LIMIT $4`
	opsOfKey  = opColumns + ` AND o.key = $5 AND ($6 = '' OR o.parked_at IS NULL
    AND coalesce(o.not_before > tranche_now(), false) = ($6 = 'backoff')) ORDER BY o.seq LIMIT $4`
	opsOfAll = opColumns + ` AND ($5 = '' OR o.parked_at IS NULL
    AND coalesce(o.not_before > tranche_now(), false) = ($5 = 'backoff')) ORDER BY o.seq LIMIT $4`
)

// Ops returns a page of the operations of a collector, in the order in which they were added. The error wraps
// ErrNotFound when there is no such collector.
func (s Store) Ops(ctx context.Context, name string, f OpsFilter) ([]OpView, error) {
	id, err := s.collectorID(ctx, name)
	if err != nil {
		return nil, err
	}
	switch f.State {
	case "", OpWaiting, OpBackoff, OpParked:
	default:
		return nil, &workqueue.SettingError{Detail: fmt.Sprintf("%.40q is no state of an operation; give %s, %s or %s",
			f.State, OpWaiting,
			OpBackoff, OpParked)}
	}
	if f.Limit <= 0 || f.Limit > maxOpsPage {
		f.Limit = maxOpsPage
	}
	statement, args := opsOfAll, []any{id, f.After, f.Code, f.Limit, f.State}
	switch {
	case f.ID != "":
		statement, args[4] = opsOfID, f.ID
	case f.State == OpParked:
		statement, args[4] = opsParked, f.Key
	case f.Key != "":
		statement, args = opsOfKey, []any{id, f.After, f.Code, f.Limit, f.Key, f.State}
	}
	ops, err := pg.Collect(ctx, s.db.Pool, scanOp, statement, args...)
	if err != nil {
		return nil, fmt.Errorf("read operations of collector %s: %w", name, err)
	}
	return slices.DeleteFunc(ops, func(v OpView) bool {
		return f.State != "" && v.State != f.State || f.Key != "" && v.Key != f.Key
	}), nil
}

func scanOp(row pgx.CollectableRow) (v OpView, err error) {
	var payload string
	err = row.Scan(&v.Number, &v.ID, &v.Key, &v.Numbering, &v.State, &v.Flushing, &v.Priority, &v.Attempts, &v.Code,
		&v.Message, &v.AddedAt, &v.FailedFirst, &v.FailedLast, &v.NotBefore, &v.Fold, &v.FoldedInto, &payload)
	v.Payload = []byte(payload)
	return v, err
}

func (s Store) collectorID(ctx context.Context, name string) (id int32, err error) {
	if !pg.ValidText(name) {
		return 0, fmt.Errorf("collector %q: %w", name, workqueue.ErrNotFound)
	}
	err = s.db.Pool.QueryRow(ctx, collectorID, name).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("collector %q: %w", name, workqueue.ErrNotFound)
	}
	if err != nil {
		return 0, fmt.Errorf("look for collector %q: %w", name, err)
	}
	return id, nil
}
