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
	Waiting time.Duration // how long a run with work may finish none
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

// adviseResets advises resetting bad parts for which items failed: a re-run would give them the same parts.
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
	if err != nil {
		return fmt.Errorf("keep the health's conditions: %w", err)
	}
	return nil
}

func conditionColumns(keys []ConditionKey) (kinds, subjects []string) {
	for _, k := range keys {
		kinds, subjects = append(kinds, k.Kind), append(subjects, k.Subject)
	}
	return kinds, subjects
}
