package session

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Mark is a point in the history of a database, remembered by nodes and JetStream. A database with a lower count
// than remembered lost recent commits: a lagging standby took over, or a backup was restored.
type Mark struct {
	Lineage  uuid.UUID `json:"lineage"` // of the database; other lineages are not comparable
	Beat     int64     `json:"beat"`
	Timeline int64     `json:"timeline"` // on which the count was last raised; 0: unknown
	Epoch    int64     `json:"epoch"`    // of the streams
	At       time.Time `json:"at"`       // when it was last raised, by the database's clock
	// Moved: another server has taken over since, and that was not handled so far.
	Moved bool `json:"-"`
}

// Behind reports whether a database with this mark lacks commits of one with the other.
func (m Mark) Behind(other Mark) bool { return m.Lineage == other.Lineage && m.Beat < other.Beat }

// Later returns the later mark. One of another database does not count.
func (m Mark) Later(other Mark) Mark {
	if m.Behind(other) {
		return other
	}
	return m
}

const (
	markColumns = `m.lineage, m.counter, m.timeline, coalesce((SELECT epoch FROM stream_epoch WHERE name = 'streams'), 0),
		m.at,
    t.now <> 0 AND m.timeline <> 0 AND m.timeline <> t.now`

	readMark = `
SELECT ` + markColumns + ` FROM database_mark m CROSS JOIN (SELECT database_timeline() AS now) t WHERE m.name = 'mark'`

	// raiseMark raises nothing that is behind what the caller remembers, so that the two are never confused.
	raiseMark = `
UPDATE database_mark m
SET counter = m.counter + 1, at = tranche_now(), timeline = CASE WHEN t.now = 0 THEN m.timeline ELSE t.now END
FROM (SELECT database_timeline() AS now) t
WHERE m.name = 'mark' AND m.lineage = $1 AND m.counter >= $2 AND (m.timeline IN (0, t.now) OR t.now = 0)
RETURNING ` + markColumns
)

// ReadMark returns the database's mark.
func (s Store) ReadMark(ctx context.Context) (Mark, error) { return s.mark(ctx, readMark) }

// RaiseMark raises the database's mark, unless it is behind the given one or another server has taken over: then it
// returns it unchanged. The returned mark is durable. The leader calls it; other callers do no harm.
func (s Store) RaiseMark(ctx context.Context, known Mark) (Mark, error) {
	raised, err := s.mark(ctx, raiseMark, known.Lineage, known.Beat)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.ReadMark(ctx)
	}
	return raised, err
}

func (s Store) mark(ctx context.Context, statement string, args ...any) (m Mark, err error) {
	err = s.db.Sessions.QueryRow(ctx, statement, args...).
		Scan(&m.Lineage, &m.Beat, &m.Timeline, &m.Epoch, &m.At, &m.Moved)
	return m, pg.Wrap(err, "check the database's mark")
}

// Gap is a period whose confirmed commits are lost.
type Gap struct {
	From, To time.Time
	Lost     bool // false: another server took over, and no loss is known
	Runs     int  // in progress
}

const (
	lockMark = readMark + ` FOR NO KEY UPDATE OF m`

	passGap = `
UPDATE database_mark SET counter = greatest(counter, $1) + 1, at = tranche_now(),
    timeline = CASE WHEN database_timeline() = 0 THEN timeline ELSE database_timeline() END
WHERE name = 'mark'`

	// passEpoch starts an epoch that no node has used: what was sent before it is reissued.
	passEpoch = `UPDATE stream_epoch SET epoch = greatest(epoch, $1) + 1 WHERE name = 'streams'`

	// endSessions ends all sessions. Their nodes start new ones; what they claimed is reissued.
	endSessions = `
UPDATE node_session SET expires_at = tranche_now()
WHERE ended_at IS NULL AND expires_at > tranche_now()`

	lockScheduled = `
SELECT count(*) FROM (SELECT 1 FROM work_slice WHERE state = 'scheduled' ORDER BY id FOR UPDATE) locked`

	// renameScheduled gives scheduled slices new IDs: the old ones may have been sent, and JetStream drops duplicates.
	renameScheduled = `UPDATE work_slice SET id = gen_random_uuid() WHERE state = 'scheduled'`

	tellRuns = `
INSERT INTO run_event (id, run_id, generation, kind, payload)
SELECT gen_random_uuid(), id, generation, $1, $2 FROM batchrun WHERE state IN ('loading', 'running')`

	tellGap = `
INSERT INTO run_event (id, run_id, generation, kind, payload)
VALUES (gen_random_uuid(), '00000000-0000-0000-0000-000000000000', 0, $1, $2)`

	insertGap = `
INSERT INTO database_rewind (lost, from_at, to_at, runs)
VALUES ($1, $2, $3, (SELECT count(*) FROM batchrun WHERE state IN ('loading', 'running')))
RETURNING from_at, to_at, lost, runs`
)

// PassGap handles a database that is behind a mark or was taken over by another server: it ends sessions and the
// epoch, so that everything in flight is reissued. It records the gap with an event and, if commits were lost, an
// event in each run in progress. Of several nodes, one does this; the rest get nil.
func (s Store) PassGap(ctx context.Context, known Mark) (gap *Gap, err error) {
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		gap = nil
		var have Mark
		err := tx.QueryRow(ctx, lockMark).Scan(&have.Lineage, &have.Beat, &have.Timeline, &have.Epoch, &have.At, &have.Moved)
		if err != nil {
			return err
		}
		lost := have.Behind(known)
		if !lost && !have.Moved {
			return nil
		}
		if !lost {
			known = have
		}
		gap, err = passThrough(ctx, tx, have, known, lost)
		return err
	})
	return gap, pg.Wrap(err, "handle a database that lost recent commits")
}

func passThrough(ctx context.Context, tx pgx.Tx, have, known Mark, lost bool) (*Gap, error) {
	gap := &Gap{}
	detail := map[string]any{"from": have.At, "to": known.At, "lost": lost}
	b := &pgx.Batch{}
	b.Queue(passGap, known.Beat)
	b.Queue(passEpoch, known.Epoch)
	b.Queue(endSessions)
	b.Queue(lockScheduled)
	b.Queue(renameScheduled)
	b.Queue(tellGap, string(workqueue.EventGap), detail)
	if lost {
		b.Queue(tellRuns, string(workqueue.EventRewound), detail)
	}
	b.Queue(insertGap, lost, have.At, known.At).QueryRow(func(row pgx.Row) error {
		return row.Scan(&gap.From, &gap.To, &gap.Lost, &gap.Runs)
	})
	if err := tx.SendBatch(ctx, b).Close(); err != nil {
		return nil, err
	}
	return gap, nil
}
