package collector

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// addTarget is read under the shared lock of the name, so it holds until the commit.
	addTarget = `
SELECT id, version, key_version, levels > 0 AND spec ->> 'order' = 'priority', dedupe > interval '0', tranche_now()
FROM collector WHERE name = $1 AND state <> 'deleting' AND ($2::text[] IS NULL OR namespace = ANY ($2))`

	// rememberOps inserts IDs in order, which avoids deadlocks. An existing ID belongs to a committed operation.
	rememberOps = `
INSERT INTO collector_seen (collector, op_id, at)
SELECT $1, id, $3 FROM unnest($2::text[]) AS given (id) ORDER BY id COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING op_id`

	// insertOps numbers operations in the given order: defaults are evaluated after the sort.
	insertOps = `
INSERT INTO collector_op (collector, key_version, key, op_id, payload, priority, fold, added_at)
SELECT $1, $2, o.key, o.id, o.payload, o.priority, nullif(o.fold, ''), $8
FROM unnest($3::text[], $4::text[], $5::text[], $6::smallint[], $7::text[])
    WITH ORDINALITY AS o (key, id, payload, priority, fold, place)
ORDER BY o.place`

	// insertKeys comes last, so that a hot key's row is locked only until the commit.
	insertKeys = `
INSERT INTO collector_key AS k (collector, key_version, key, untried, priority, oldest_at, due_at)
SELECT c.id, c.key_version, o.key, o.untried, o.priority, $5,
       collector_due(o.untried, $5, NULL, NULL, c.min_size, c.max_age, c.drain_at)
FROM unnest($2::text[], $3::int[], $4::smallint[]) AS o (key, untried, priority) CROSS JOIN collector c
WHERE c.id = $1
ORDER BY o.key COLLATE "C"
ON CONFLICT (collector, key_version, key) DO UPDATE
SET untried = k.untried + excluded.untried, priority = greatest(k.priority, excluded.priority),
    oldest_at = least(k.oldest_at, excluded.oldest_at),
    due_at = (SELECT collector_due(k.untried + excluded.untried, least(k.oldest_at, excluded.oldest_at), k.retry_at,
        k.held_until, c.min_size, c.max_age, c.drain_at) FROM collector c WHERE c.id = k.collector)
RETURNING CASE WHEN flush IS NULL THEN extract(epoch FROM due_at - $5)::float8 END`
)

// AddOps adds operations to a collector in one transaction. Callers that share a commit pass several batches, each
// with its own outcome. Operations of a key are processed in the order in which they were added.
//
// An operation whose ID is still remembered from an earlier add is not added but counted as a duplicate; so is the
// second of the same ID. version is that of the collector for which the keys were made; 0 means any. The error is a
// *MovedError if the version has changed, and wraps ErrNotFound if the collector does not exist; then nothing is added.
// The caller has checked the operations, see internal/ingest.
//
// next is the time until the first of the keys is due; 0 or negative means now. The caller should then wake the
// flushers.
func (s Store) AddOps(ctx context.Context, name string, version int, batches [][]Op) (out []AddedOps,
	next time.Duration, err error,
) {
	add := opsAdding{name: name, version: version, batches: batches}
	if !slices.ContainsFunc(batches, func(batch []Op) bool { return len(batch) > 0 }) {
		return make([]AddedOps, len(batches)), noWait, nil
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		add.known, add.out, add.next = nil, make([]AddedOps, len(add.batches)), noWait
		return add.run(ctx, tx)
	})
	if err != nil {
		return nil, 0, fmt.Errorf("add operations to collector %s: %w", name, err)
	}
	return add.out, add.next, nil
}

// noWait means there is nothing to wait for.
const noWait = time.Duration(1<<63 - 1)

type opsAdding struct {
	name    string
	version int
	batches [][]Op

	id         int32
	keyVersion int
	now        time.Time
	ranked     bool // priorities count
	known      map[string]bool
	out        []AddedOps
	next       time.Duration
}

func (a *opsAdding) run(ctx context.Context, tx pgx.Tx) error {
	remembers, err := a.target(ctx, tx)
	if err != nil {
		return err
	}
	if remembers {
		if err := a.remember(ctx, tx); err != nil {
			return err
		}
	}
	return a.insert(ctx, tx)
}

// target locks the collector's name and reads the collector.
func (a *opsAdding) target(ctx context.Context, tx pgx.Tx) (remembers bool, err error) {
	newest := 0
	batch := &pgx.Batch{}
	batch.Queue(shareCollector, a.name)
	batch.Queue(addTarget, a.name, workqueue.Namespaces(ctx)).QueryRow(func(row pgx.Row) error {
		return row.Scan(&a.id, &newest, &a.keyVersion, &a.ranked, &remembers, &a.now)
	})
	err = tx.SendBatch(ctx, batch).Close()
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return false, fmt.Errorf("collector %q: %w", a.name, workqueue.ErrNotFound)
	case err != nil:
		return false, err
	case a.version != 0 && a.version != newest:
		return false, &MovedError{Name: a.name, Wanted: a.version, Newest: newest}
	}
	return remembers, nil
}

func (a *opsAdding) remember(ctx context.Context, tx pgx.Tx) error {
	given := map[string]bool{}
	for _, batch := range a.batches {
		for i := range batch {
			if batch[i].ID != "" && !batch[i].Duplicate {
				given[batch[i].ID] = true
			}
		}
	}
	a.known = given
	if len(given) == 0 {
		return nil
	}
	rows := pg.Rows(ctx, tx, rememberOps, a.id, slices.Collect(maps.Keys(given)), a.now)
	var id string
	err := pg.Each(rows, []any{&id}, func() { delete(given, id) })
	return pg.Wrap(err, "remember %d ids", len(given))
}

// TryOps returns what AddOps would do with a batch, without doing it. taken is the operations that would be added.
func (s Store) TryOps(ctx context.Context, name string, version int, ops []Op) (out AddedOps, taken []Op, err error) {
	try := opsAdding{name: name, version: version, batches: [][]Op{ops}}
	remembers := false
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		remembers, err = try.target(ctx, tx)
		return err
	})
	var known []string
	if ids := idsOf(ops); err == nil && remembers && len(ids) > 0 {
		try.known = map[string]bool{}
		known, err = s.KnownOps(ctx, name, ids)
	}
	if err != nil {
		return out, nil, fmt.Errorf("try to add operations to collector %s: %w", name, err)
	}
	for _, id := range known {
		try.known[id] = true
	}
	for i := range ops {
		if try.taken(&ops[i], &out) {
			taken = append(taken, ops[i])
		}
	}
	return out, taken, nil
}

func idsOf(ops []Op) (ids []string) {
	for i := range ops {
		if ops[i].ID != "" {
			ids = append(ids, ops[i].ID)
		}
	}
	return ids
}

// knownOps finds remembered IDs by the primary key.
const knownOps = `
SELECT s.op_id FROM collector c JOIN collector_seen s ON s.collector = c.id
WHERE c.name = $1 AND c.state <> 'deleting' AND c.dedupe > interval '0' AND s.op_id = ANY ($2)`

// KnownOps returns those of some IDs that the collector remembers.
func (s Store) KnownOps(ctx context.Context, name string, ids []string) ([]string, error) {
	known, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[string], knownOps, name, ids)
	return known, pg.Wrap(err, "find known operations of collector %s", name)
}

// taken reports whether an operation will be added. The second of the same ID will not.
func (a *opsAdding) taken(o *Op, out *AddedOps) bool {
	if o.Duplicate || o.ID != "" && a.known[o.ID] {
		out.Duplicates++
		out.Known = append(out.Known, o.ID)
		return false
	}
	if a.known != nil && o.ID != "" {
		a.known[o.ID] = true
	}
	out.Added++
	return true
}

func (a *opsAdding) insert(ctx context.Context, tx pgx.Tx) error {
	var keys, ids, payloads, folds []string
	var priorities []int16
	perKey := map[string]*keyCount{}
	for b, batch := range a.batches {
		for i := range batch {
			o := &batch[i]
			if !a.taken(o, &a.out[b]) {
				continue
			}
			id, priority := o.ID, int16(0)
			if id == "" {
				id = uuid.Must(uuid.NewV7()).String()
			}
			if a.ranked {
				priority = int16(o.Priority)
			}
			keys, ids, priorities = append(keys, o.Key), append(ids, id), append(priorities, priority)
			payloads, folds = append(payloads, payloadText(o.Payload)), append(folds, o.Fold)
			count := perKey[o.Key]
			if count == nil {
				count = &keyCount{}
				perKey[o.Key] = count
			}
			count.untried++
			count.priority = max(count.priority, priority)
		}
	}
	if len(keys) == 0 {
		return nil
	}
	batch := &pgx.Batch{}
	batch.Queue(insertOps, a.id, a.keyVersion, keys, ids, payloads, priorities, folds, a.now)
	names, untried, priorities := countsOf(perKey)
	batch.Queue(insertKeys, a.id, names, untried, priorities, a.now).Query(a.seeNext)
	return tx.SendBatch(ctx, batch).Close()
}

type keyCount struct {
	untried  int32
	priority int16
}

func countsOf(perKey map[string]*keyCount) (names []string, untried []int32, priorities []int16) {
	for name, count := range perKey {
		names, untried, priorities = append(names, name), append(untried, count.untried), append(priorities, count.priority)
	}
	return names, untried, priorities
}

func (a *opsAdding) seeNext(rows pgx.Rows) error {
	var seconds *float64
	return pg.Each(rows, []any{&seconds}, func() {
		if seconds != nil {
			a.next = min(a.next, time.Duration(*seconds*float64(time.Second)))
		}
	})
}

func payloadText(payload []byte) string {
	if len(payload) == 0 {
		return "null"
	}
	return string(payload)
}
