// Package health says why work is stalled: for each missing item of a run or endpoint ([Store.Explain]), and as
// conditions that need attention ([Store.Health]). It also reads the counts for metrics ([Store.Metrics]).
package health

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Store explains and watches what is in the database. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Facts is the system's health according to the database, at about one moment, and what servers judge further by.
type Facts struct {
	At         time.Time // the database's clock
	Conditions []Condition
	Cut        []Kind         // kinds that may have more conditions
	More       map[Kind]int64 // how many conditions of a kind were found but not listed

	Working  []WorkingEndpoint
	Leader   *inspect.LeaderView // nil: no node has ever led
	Nodes    []NodeHealth
	Database DatabaseLoad
	Kept     []KeptCondition
	Marks    []KeptMark
	Faults   []session.StreamFault

	limits Limits
	rows   []found // worded after all is read: the clock is read last, so no row is later than At
}

// Limits bounds what Health reports.
type Limits struct {
	Waiting time.Duration // how long a run with work may send none
	Listed  int           // most conditions of a kind, the worst or oldest; zero: DefaultListed
}

const (
	// DefaultListed is how many conditions of each kind Facts has by default.
	DefaultListed = 20
	// maxIdle bounds, regardless of Limits, the idle runs whose last event is read.
	maxIdle = 1000
)

// Health reads the system's health. It locks nothing and reads no planes: partial indexes find blocks with ready
// items and live slices, so the cost does not grow with the database.
func (s Store) Health(ctx context.Context, l Limits) (*Facts, error) {
	l.Listed = cmp.Or(l.Listed, DefaultListed)
	f := &Facts{More: map[Kind]int64{}, limits: l}
	b := &pgx.Batch{}
	for i := range rules {
		f.queue(b, &rules[i])
	}
	f.queueSteps(b)
	f.queueNodes(b)
	queueRows(b, &f.Faults, session.StreamFaults)
	f.queueDatabase(b)
	if err := s.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read the system's health: %w", err)
	}
	err := s.adviseResets(ctx, f)
	f.say()
	return f, err
}

const maxResets = 100

// adviseResets advises resetting bad parts for which items failed: a rerun would give them the same parts.
func (s Store) adviseResets(ctx context.Context, f *Facts) error {
	failed := f.newestFailed()
	if len(failed) == 0 {
		return nil
	}
	bad, err := inspect.ReadBadParts(ctx, s.db.Pool, slices.Collect(maps.Keys(failed)))
	for i := range bad {
		if row := failed[bad[i].Run]; row["bad"] == nil { // the first says it
			row["bad"] = fmt.Sprintf("%s: %#q", bad[i].Why(), bad[i].Command())
		}
	}
	return err
}

func (f *Facts) newestFailed() map[workqueue.RunID]Row {
	failed := map[workqueue.RunID]Row{}
	for _, one := range f.rows {
		id, err := uuid.Parse(one.row.text("subject"))
		if err == nil && one.kind == FailedItems && len(failed) < maxResets {
			failed[workqueue.RunID(id)] = one.row
		}
	}
	return failed
}

func queueRows[T any](b *pgx.Batch, into *[]T, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
}

// ConditionKey names a condition.
type ConditionKey struct{ Kind, Subject string }

// KeptCondition is since when a condition has been seen, kept for those that nothing else in the database dates.
type KeptCondition struct {
	ConditionKey

	Since  time.Time
	SeenAt time.Time       // exact to a minute while a server looks
	Said   json.RawMessage // what only this server can know; nil: each server sees it itself
}

const (
	// The first to see it set since. Rows are locked in the order of the key.
	keepConditions = `
INSERT INTO health_condition AS h (kind, subject, since, said)
SELECT kind, subject, since, said
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::jsonb[]) AS f (kind, subject, since, said)
ORDER BY 1, 2
ON CONFLICT (kind, subject) DO UPDATE SET seen_at = tranche_now(), said = excluded.said`

	// A condition that another server has seen since this look began stays. Locks as in keepConditions.
	forgetConditions = `
DELETE FROM health_condition h
USING (SELECT h.kind, h.subject FROM health_condition h
       JOIN unnest($1::text[], $2::text[]) AS f (kind, subject) USING (kind, subject)
       WHERE h.seen_at < $3 ORDER BY 1, 2 FOR UPDATE OF h) gone
WHERE h.kind = gone.kind AND h.subject = gone.subject`
)

// KeepConditions saves existing conditions, keeping an earlier since, and deletes those that a look found gone.
func (s Store) KeepConditions(ctx context.Context, there []KeptCondition, gone []ConditionKey, begun time.Time) error {
	if len(there) == 0 && len(gone) == 0 {
		return nil
	}
	var since []time.Time
	var keys []ConditionKey
	var said []json.RawMessage
	for _, c := range there {
		keys, since, said = append(keys, c.ConditionKey), append(since, c.Since), append(said, c.Said)
	}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		kinds, subjects := conditionColumns(keys)
		if _, err := tx.Exec(ctx, keepConditions, kinds, subjects, since, said); err != nil {
			return err
		}
		kinds, subjects = conditionColumns(gone)
		_, err := tx.Exec(ctx, forgetConditions, kinds, subjects, begun)
		return err
	})
	return pg.Wrap(err, "keep the health's conditions")
}

func conditionColumns(keys []ConditionKey) (kinds, subjects []string) {
	for _, k := range keys {
		kinds, subjects = append(kinds, k.Kind), append(subjects, k.Subject)
	}
	return kinds, subjects
}

// MarkState is an operator's decision on a condition.
type MarkState string

// The states of a mark.
const (
	Muted        MarkState = "muted"        // not reported until it gets worse or the time is up
	Acknowledged MarkState = "acknowledged" // an operator is working on it
)

// MarkWorse is the state of a muted condition that got worse: it is reported again.
const MarkWorse MarkState = "worse"

// Mark is an operator's decision on a condition.
type Mark struct {
	State  MarkState  `json:"state" enum:"muted,acknowledged,worse" doc:"worse: it was muted, and got worse"`
	By     string     `json:"by" doc:"who said so"`
	At     time.Time  `json:"at"`
	Until  *time.Time `json:"until,omitempty" doc:"until when it is muted; absent: permanently"`
	Reason string     `json:"reason,omitempty"`
}

// KeptMark is a saved mark.
type KeptMark struct {
	ConditionKey

	State    MarkState
	By       string
	At       time.Time
	Until    *time.Time // nil: permanently
	Reason   string
	Severity string     // when it was set
	Count    int64      // when it was set
	WorseAt  *time.Time // since when a muted condition has been worse; nil: it is not
	SeenAt   time.Time  // when the condition was last seen, exact to a day
}

// NewMark is a mark to set on conditions of a kind, with how bad they are now.
type NewMark struct {
	Kind   string
	About  []Measured
	State  MarkState
	Reason string
	Actor  string
	For    time.Duration // zero: permanently
}

// Measured is how bad a condition is.
type Measured struct {
	Subject  string
	Severity string
	Count    int64
}

const (
	healthMarks = `
SELECT kind, subject, state, by, at, until, reason, severity, count, worse_at, seen_at FROM health_ack
WHERE until IS NULL OR until > tranche_now()`

	// Without subjects: all of the kind. Expired rows are deleted, too.
	dropMarks = `
DELETE FROM health_ack WHERE kind = $1 AND ($2::text[] IS NULL OR subject = ANY($2)) OR until <= tranche_now()
RETURNING kind = $1 AND ($2::text[] IS NULL OR subject = ANY($2)), subject, state, by, until, reason`

	// If another mark was set since the rows were deleted, the later one wins. One call has one time.
	putMarks = `
INSERT INTO health_ack AS m (kind, subject, state, by, at, until, reason, severity, count)
SELECT $1, u.subject, $3, $4, t.now, t.now + nullif($5::interval, '0'), $6, u.severity, u.count
FROM (SELECT tranche_now() AS now) t, unnest($2::text[], $7::text[], $8::bigint[]) AS u (subject, severity, count)
ORDER BY u.subject
ON CONFLICT (kind, subject) DO UPDATE SET state = excluded.state, by = excluded.by, at = excluded.at,
    until = excluded.until, reason = excluded.reason, severity = excluded.severity, count = excluded.count,
    worse_at = NULL, seen_at = excluded.seen_at
RETURNING at, until`

	// Skips marks set again meanwhile; one that got worse after the look began stays worse. Locks in key order.
	noteMarks = `
UPDATE health_ack m SET seen_at = CASE WHEN f.seen THEN tranche_now() ELSE m.seen_at END,
    worse_at = CASE WHEN f.worse THEN coalesce(m.worse_at, tranche_now()) WHEN m.worse_at < $6 AND NOT f.seen
        THEN NULL ELSE m.worse_at END
FROM (SELECT u.* FROM health_ack h
      JOIN unnest($1::text[], $2::text[], $3::timestamptz[], $4::boolean[], $5::boolean[])
          AS u (kind, subject, at, seen, worse) USING (kind, subject)
      WHERE h.at = u.at ORDER BY 1, 2 FOR UPDATE OF h) f
WHERE m.kind = f.kind AND m.subject = f.subject`

	forgetMarks = `
DELETE FROM health_ack m USING (
    SELECT h.kind, h.subject FROM health_ack h JOIN unnest($1::text[], $2::text[], $3::timestamptz[])
        AS u (kind, subject, at) USING (kind, subject)
    WHERE h.at = u.at ORDER BY 1, 2 FOR UPDATE OF h) f
WHERE m.kind = f.kind AND m.subject = f.subject`
)

// SeenMark is what a look found about a mark's condition.
type SeenMark struct {
	KeptMark

	Seen   bool // the condition exists
	Worse  bool // it is muted, and worse than when it was muted
	Forget bool // it has been gone for long: delete the mark
}

// NoteMarks saves what a look found: that conditions exist, are worse than when they were muted, or are gone.
func (s Store) NoteMarks(ctx context.Context, marks []SeenMark, begun time.Time) error {
	var noted, forgotten markColumns
	for i := range marks {
		if marks[i].Forget {
			forgotten.add(&marks[i])
		} else {
			noted.add(&marks[i])
		}
	}
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, noteMarks, noted.kinds, noted.subjects, noted.at, noted.seen, noted.worse, begun)
		if err == nil {
			_, err = tx.Exec(ctx, forgetMarks, forgotten.kinds, forgotten.subjects, forgotten.at)
		}
		return err
	})
	return pg.Wrap(err, "record how %d conditions ended", len(marks))
}

type markColumns struct {
	kinds, subjects []string
	at              []time.Time
	seen, worse     []bool
}

func (c *markColumns) add(m *SeenMark) {
	c.kinds, c.subjects, c.at = append(c.kinds, m.Kind), append(c.subjects, m.Subject), append(c.at, m.At)
	c.seen, c.worse = append(c.seen, m.Seen), append(c.worse, m.Worse)
}

// PutMark sets a mark on conditions and returns from when until when it holds.
func (s Store) PutMark(ctx context.Context, m NewMark) (at time.Time, until *time.Time, err error) {
	subjects, severities, counts := make([]string, len(m.About)), make([]string, len(m.About)), make([]int64, len(m.About))
	for i, a := range m.About {
		subjects[i], severities[i], counts[i] = a.Subject, a.Severity, a.Count
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := dropped(ctx, tx, m.Kind, subjects)
		if err != nil {
			return err
		}
		rows := pg.Rows(ctx, tx, putMarks, m.Kind, subjects, m.State, pg.Plain(m.Actor), m.For, pg.Plain(m.Reason),
			severities, counts)
		if _, err = pgx.ForEachRow(rows, []any{&at, &until}, func() error { return nil }); err != nil {
			return err
		}
		verb := map[MarkState]string{Muted: "health_mute", Acknowledged: "health_ack"}[m.State]
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: m.Actor, Name: verb, Subject: audited(m.Kind, subjects),
			Before: was, After: map[string]any{"state": m.State, "until": until, "reason": pg.Plain(m.Reason),
				"subjects": len(subjects)}})
	})
	return at, until, pg.Wrap(err, "mark condition %s", audited(m.Kind, subjects))
}

// DropMarks deletes the marks of a condition or, without a subject, of all of its kind. found: there were any.
func (s Store) DropMarks(ctx context.Context, key ConditionKey, actor string) (found bool, err error) {
	var subjects []string
	if key.Subject != "" {
		subjects = []string{key.Subject}
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		was, err := dropped(ctx, tx, key.Kind, subjects)
		if found = was != nil; !found || err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "health_clear",
			Subject: audited(key.Kind, subjects),
			Before:  was})
	})
	return found, pg.Wrap(err, "clear condition %s", audited(key.Kind, subjects))
}

// dropped deletes marks and returns what they said, by subject; nil: no marks.
func dropped(ctx context.Context, tx pgx.Tx, kind string, subjects []string) (was map[string]any, err error) {
	rows := pg.Rows(ctx, tx, dropMarks, kind, subjects)
	var ours bool
	var m KeptMark
	err = pg.Each(rows, []any{&ours, &m.Subject, &m.State, &m.By, &m.Until, &m.Reason}, func() {
		if ours && was == nil {
			was = map[string]any{}
		}
		if ours {
			was[m.Subject] = map[string]any{"state": m.State, "by": m.By, "until": m.Until, "reason": m.Reason}
		}
	})
	return was, err
}

func audited(kind string, subjects []string) string {
	if len(subjects) != 1 {
		return kind
	}
	return kind + " " + subjects[0]
}
