package alert

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

// MaxListed bounds the conditions of one change that a group lists; all are counted.
const MaxListed = 20

const (
	// overlap is how far before the last look it is looked for what happened: a transaction commits later than its clock
	// says, but not by more.
	overlap = 5 * time.Minute
	// rememberHappened is how long what happened is remembered once it was told; longer than the overlap.
	rememberHappened = time.Hour
	// keepMessages is how long messages are kept that have come to their end.
	keepMessages = 30 * 24 * time.Hour
)

// Rule is a rule that is to be looked at.
type Rule struct {
	Name    string
	Version int
	Spec    json.RawMessage
	From    time.Time // what happened before is not told, or was
}

const activeRules = `
SELECT name, version, spec, greatest(since, looked_at - $1::interval) FROM alert
WHERE state = 'active' AND deleted_at IS NULL ORDER BY name`

// Active returns the rules that are neither paused nor deleted.
func (s Store) Active(ctx context.Context) ([]Rule, error) {
	rows, err := s.db.Pool.Query(ctx, activeRules, overlap)
	if err == nil {
		var rules []Rule
		if rules, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Rule]); err == nil {
			return rules, nil
		}
	}
	return nil, fmt.Errorf("read alerts: %w", err)
}

// Condition is something that a rule tells of, as it is now.
type Condition struct {
	Kind, Subject string
	Group         string
	Severity      string
	Said          json.RawMessage
	Happened      bool // it never ends: it is told once
}

// Look is what is seen of a rule's conditions.
type Look struct {
	Rule       Rule
	Began      time.Time // by the database's clock, before anything was read
	Conditions []Condition
	Unseen     []string      // kinds of which others may hold, as health_condition says
	Wait       time.Duration // how long a condition holds, or is over, before it is told
	Interval   time.Duration // between two messages of a group that tell of nothing critical
	Quiet      bool          // only what is critical is told
}

// Change is what became of conditions.
type Change string

// The changes that are told.
const (
	ChangeBegun Change = "begun"
	ChangeWorse Change = "worse"
	ChangeOver  Change = "over"
)

// Listed is a condition that a message lists.
type Listed struct {
	Group, Kind, Subject, Severity string

	Change Change
	Said   json.RawMessage // when it was first seen
	Count  int64           // of the change in the group
	Holds  int64           // conditions of the group that hold
	At     time.Time       // it was first seen, or seen to be over
}

// Message is what a rule's receiver is told.
type Message struct {
	ID       uuid.UUID
	Group    string
	Severity string
	Body     json.RawMessage
}

const (
	// Nothing is noted for a text that is no more. The row is held: others note, and change the rule, before or after.
	holdRule = `
SELECT clock_timestamp() FROM alert
WHERE name = $1 AND version = $2 AND state = 'active' AND deleted_at IS NULL
FOR NO KEY UPDATE`

	// Only what has changed is written: a condition that goes on costs nothing.
	noteConditions = `
INSERT INTO alert_condition AS c (alert, kind, subject, version, grp, severity, said, happened)
SELECT $1, kind, subject, $2, grp, severity, said, happened
FROM unnest($3::text[], $4::text[], $5::text[], $6::text[], $7::jsonb[], $8::boolean[])
    AS f (kind, subject, grp, severity, said, happened)
ON CONFLICT (alert, kind, subject) DO UPDATE
SET version = excluded.version, grp = excluded.grp, severity = excluded.severity, ended_at = NULL
WHERE NOT c.happened AND (c.ended_at IS NOT NULL
    OR (c.version, c.grp, c.severity) <> (excluded.version, excluded.grp, excluded.severity))`

	// What was never told ends without a word, and so does what the rule does not speak of any more.
	forgetUntold = `
DELETE FROM alert_condition c
WHERE alert = $1 AND NOT happened AND (told IS NULL OR version < $2) AND NOT EXISTS (
    SELECT FROM unnest($3::text[], $4::text[]) AS f (kind, subject) WHERE f.kind = c.kind AND f.subject = c.subject)
  AND NOT (c.kind = ANY ($5) AND EXISTS (
    SELECT FROM health_condition h WHERE h.kind = c.kind AND h.subject = c.subject))`

	endConditions = `
UPDATE alert_condition c SET ended_at = $6
WHERE alert = $1 AND NOT happened AND ended_at IS NULL AND version = $2 AND NOT EXISTS (
    SELECT FROM unnest($3::text[], $4::text[]) AS f (kind, subject) WHERE f.kind = c.kind AND f.subject = c.subject)
  AND NOT (c.kind = ANY ($5) AND EXISTS (
    SELECT FROM health_condition h WHERE h.kind = c.kind AND h.subject = c.subject))`

	// changes are the conditions of a rule ($1) at a time ($2) of which something is to be told: what has held, or has
	// been over, for a while ($3); in quiet hours ($4) what is critical, or was told to be.
	changes = `
SELECT c.*, CASE WHEN c.ended_at IS NOT NULL THEN 'over' WHEN c.told IS NULL THEN 'begun' ELSE 'worse' END AS change
FROM alert_condition c
WHERE c.alert = $1 AND CASE
    WHEN c.ended_at IS NOT NULL THEN c.ended_at <= $2::timestamptz - $3::interval
    WHEN c.told IS NULL THEN c.noted_at <= $2::timestamptz - $3::interval
    ELSE array_position('{info,warning,critical}', c.severity) > array_position('{info,warning,critical}', c.told) END
  AND (NOT $4 OR c.severity = 'critical' OR c.told = 'critical')`

	// Of a group in which a message waits nothing more is told yet; nor of one that was told of a while ago ($5), unless
	// something critical has come.
	ripeGroups = `
SELECT d.grp, d.kind, d.subject, d.severity, d.change, d.said, d.n,
    (SELECT count(*) FROM alert_condition h WHERE h.alert = $1 AND h.grp = d.grp AND h.ended_at IS NULL
        AND NOT h.happened),
    coalesce(d.ended_at, d.noted_at)
FROM (
    SELECT ch.*, count(*) OVER (PARTITION BY ch.grp, ch.change) AS n,
        row_number() OVER (PARTITION BY ch.grp, ch.change
            ORDER BY array_position('{critical,warning,info}', ch.severity), ch.noted_at, ch.kind, ch.subject) AS place,
        bool_or(ch.severity = 'critical' AND ch.change <> 'over') OVER (PARTITION BY ch.grp) AS urgent
    FROM (` + changes + `) ch
) d
WHERE d.place <= $6
  AND NOT EXISTS (SELECT FROM alert_message m WHERE m.alert = $1 AND m.grp = d.grp AND m.state = 'waiting')
  AND (d.urgent OR NOT EXISTS (SELECT FROM alert_message m WHERE m.alert = $1 AND m.grp = d.grp
       AND m.made_at > $2::timestamptz - $5::interval))
ORDER BY d.grp, d.change, d.place`

	tellConditions = `
UPDATE alert_condition t SET told = t.severity
FROM (` + changes + `) ch
WHERE t.alert = $1 AND t.kind = ch.kind AND t.subject = ch.subject AND ch.grp = ANY ($5) AND ch.ended_at IS NULL`

	tellEnds = `
DELETE FROM alert_condition t
USING (` + changes + `) ch
WHERE t.alert = $1 AND t.kind = ch.kind AND t.subject = ch.subject AND ch.grp = ANY ($5) AND ch.ended_at IS NOT NULL`

	insertMessages = `
INSERT INTO alert_message (id, alert, what, grp, severity, body)
SELECT id, $1, 'alert', grp, severity, body
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::jsonb[]) AS f (id, grp, severity, body)`

	noteLook = `UPDATE alert SET looked_at = greatest(looked_at, $2) WHERE name = $1`

	forgetHappened = `
DELETE FROM alert_condition
WHERE alert = $1 AND happened AND told IS NOT NULL AND noted_at < $2::timestamptz - $3::interval`

	forgetMessages = `
DELETE FROM alert_message WHERE alert = $1 AND state <> 'waiting' AND made_at < $2::timestamptz - $3::interval`
)

// Note keeps what a look has seen of a rule's conditions, and makes messages of what is to be told, all in one
// transaction. compose is given what changed, group by group; each of its messages tells of its whole group. Note
// reports how many it made. A rule that has changed meanwhile, or was paused, is left alone. Leader work.
func (s Store) Note(
	ctx context.Context, lease workqueue.Lease, look *Look, compose func([]Listed) ([]Message, error),
) (made int, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		made = 0
		var now time.Time
		err := tx.QueryRow(ctx, holdRule, look.Rule.Name, look.Rule.Version).Scan(&now)
		if errors.Is(err, pgx.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = look.note(ctx, tx, now)
		}
		if err == nil {
			made, err = look.tell(ctx, tx, now, compose)
		}
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("note what alert %s sees: %w", look.Rule.Name, err)
	}
	return made, nil
}

func (l *Look) note(ctx context.Context, tx pgx.Tx, now time.Time) error {
	n := len(l.Conditions)
	kinds, subjects, groups := make([]string, n), make([]string, n), make([]string, n)
	severities, said, happened := make([]string, n), make([]json.RawMessage, n), make([]bool, n)
	for i := range l.Conditions {
		c := &l.Conditions[i]
		kinds[i], subjects[i], groups[i] = c.Kind, c.Subject, c.Group
		severities[i], said[i], happened[i] = c.Severity, c.Said, c.Happened
	}
	name, version := l.Rule.Name, l.Rule.Version
	unseen := append([]string{}, l.Unseen...)
	b := &pgx.Batch{}
	b.Queue(noteConditions, name, version, kinds, subjects, groups, severities, said, happened)
	b.Queue(forgetUntold, name, version, kinds, subjects, unseen)
	b.Queue(endConditions, name, version, kinds, subjects, unseen, now)
	b.Queue(forgetHappened, name, now, rememberHappened)
	b.Queue(noteLook, name, l.Began)
	return tx.SendBatch(ctx, b).Close()
}

func (l *Look) tell(
	ctx context.Context, tx pgx.Tx, now time.Time, compose func([]Listed) ([]Message, error),
) (int, error) {
	name := l.Rule.Name
	rows, err := tx.Query(ctx, ripeGroups, name, now, l.Wait, l.Quiet, l.Interval, MaxListed)
	if err != nil {
		return 0, err
	}
	listed, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Listed, err error) {
		err = row.Scan(&c.Group, &c.Kind, &c.Subject, &c.Severity, &c.Change, &c.Said, &c.Count, &c.Holds, &c.At)
		return c, err
	})
	if err != nil || len(listed) == 0 {
		return 0, err
	}
	messages, err := compose(listed)
	if err != nil || len(messages) == 0 {
		return 0, err
	}
	n := len(messages)
	ids, groups, severities, bodies := make([]uuid.UUID, n), make([]string, n), make([]string, n),
		make([]json.RawMessage, n)
	for i := range messages {
		m := &messages[i]
		ids[i], groups[i], severities[i], bodies[i] = m.ID, m.Group, m.Severity, m.Body
	}
	b := &pgx.Batch{}
	b.Queue(tellConditions, name, now, l.Wait, l.Quiet, groups)
	b.Queue(tellEnds, name, now, l.Wait, l.Quiet, groups)
	b.Queue(insertMessages, name, ids, groups, severities, bodies)
	b.Queue(forgetMessages, name, now, keepMessages)
	return n, tx.SendBatch(ctx, b).Close()
}
