package alert

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// MaxListed bounds the conditions of one change listed for a group; all are counted.
const MaxListed = 20

const (
	// overlap is how far before the last look events are searched: commits come later than their clock, by at most this.
	overlap = 5 * time.Minute
	// rememberHappened is how long a reported event is remembered; longer than overlap.
	rememberHappened = time.Hour
)

// Rule is a rule to be evaluated.
type Rule struct {
	Name    string
	Version int
	Spec    json.RawMessage
	From    time.Time // earlier events are not reported, or already were
	Since   time.Time // earlier events are not reported
}

const activeRules = `
SELECT name, version, spec, greatest(since, last_checked_at - $1::interval), since FROM alert
WHERE state = 'active' AND deleted_at IS NULL ORDER BY name`

// Active returns the rules that are neither paused nor deleted.
func (s Store) Active(ctx context.Context) ([]Rule, error) {
	rules, err := pg.Collect(ctx, s.db.Pool, pgx.RowToStructByPos[Rule], activeRules, overlap)
	return rules, pg.Wrap(err, "read alerts")
}

// Condition is a condition that a rule reports, in its current state.
type Condition struct {
	Kind, Subject string
	Group         string
	Severity      string
	Said          json.RawMessage
	Happened      bool // an event: reported once, and without an end
}

// Look is what was found about a rule's conditions.
type Look struct {
	Rule       Rule
	Began      time.Time // by the database's clock, before reading
	Conditions []Condition
	Unseen     []string // kinds with conditions that only other servers see, kept in health_condition
	Cut        []string // kinds whose conditions were not all seen
	// Holds reports whether a condition that the rule does not report holds, or may; nil: none does.
	Holds func(kind, subject string) bool
	// Muted reports whether a condition is muted: it holds, but is not reported; nil: none is.
	Muted    func(kind, subject string) bool
	Wait     time.Duration // how long a condition must hold, or be over, before it is reported
	Interval time.Duration // between messages of a group without critical conditions
	Quiet    bool          // only critical conditions are reported
}

// Change is what changed about conditions.
type Change string

// The reported changes.
const (
	ChangeBegun Change = "begun"
	ChangeWorse Change = "worse"
	ChangeOver  Change = "over"
)

// Listed is a condition that a message lists.
type Listed struct {
	Group, Kind, Subject, Severity string

	Change Change
	Said   json.RawMessage // when first seen
	Count  int64           // of the change in the group
	Holds  int64           // conditions of the group that hold
}

// Message is a message for a rule's receiver.
type Message struct {
	ID       uuid.UUID
	Group    string
	Severity string
	Body     json.RawMessage
}

const (
	// Nothing is recorded for an outdated text. The row lock serializes with other notes and changes of the rule.
	holdRule = `
SELECT tranche_now() FROM alert
WHERE name = $1 AND version = $2 AND state = 'active' AND deleted_at IS NULL
FOR NO KEY UPDATE`

	seenConditions = `
SELECT kind, subject, version, grp, severity, ended_at IS NOT NULL, notified_severity IS NOT NULL, one_shot
FROM alert_condition WHERE alert = $1`

	// Conditions that the look could not see: other nodes keep them here while they hold.
	keptConditions = `SELECT kind, subject FROM health_condition WHERE kind = ANY ($1)`

	// Only changes are written: a continuing condition costs nothing.
	insertConditions = `
INSERT INTO alert_condition (alert, version, noted_at, kind, subject, grp, severity, said, one_shot)
SELECT $1, $2, $3, kind, subject, grp, severity, said, one_shot
FROM unnest($4::text[], $5::text[], $6::text[], $7::text[], $8::jsonb[], $9::boolean[])
    AS f (kind, subject, grp, severity, said, one_shot)`

	updateConditions = `
UPDATE alert_condition c SET version = $2, grp = f.grp, severity = f.severity, ended_at = NULL
FROM unnest($3::text[], $4::text[], $5::text[], $6::text[]) AS f (kind, subject, grp, severity)
WHERE c.alert = $1 AND c.kind = f.kind AND c.subject = f.subject`

	forgetSome = `
DELETE FROM alert_condition c USING unnest($2::text[], $3::text[]) AS f (kind, subject)
WHERE c.alert = $1 AND c.kind = f.kind AND c.subject = f.subject`

	endSome = `
UPDATE alert_condition c SET ended_at = $4 FROM unnest($2::text[], $3::text[]) AS f (kind, subject)
WHERE c.alert = $1 AND c.kind = f.kind AND c.subject = f.subject`

	// changed selects the conditions of a rule ($1) to report at a time ($2): those that held, or were over, for a
	// while ($3); in quiet hours ($4) only critical ones, or those reported as critical.
	changed = `
c.alert = $1 AND CASE
    WHEN c.ended_at IS NOT NULL THEN c.ended_at <= $2::timestamptz - $3::interval
    WHEN c.notified_severity IS NULL THEN c.noted_at <= $2::timestamptz - $3::interval
    ELSE array_position('{info,warning,critical}', c.severity)
        > array_position('{info,warning,critical}', c.notified_severity) END
  AND (NOT $4 OR c.severity = 'critical' OR c.notified_severity = 'critical')`

	// Nothing for a group whose message waits or, unless something critical came, that was reported within $5.
	ripeGroups = `
SELECT d.grp, d.kind, d.subject, d.severity, d.change, d.said, d.n,
    (SELECT count(*) FROM alert_condition h WHERE h.alert = $1 AND h.grp = d.grp AND h.ended_at IS NULL
        AND NOT h.one_shot)
FROM (
    SELECT ch.*, count(*) OVER (PARTITION BY ch.grp, ch.change) AS n,
        row_number() OVER (PARTITION BY ch.grp, ch.change
            ORDER BY array_position('{critical,warning,info}', ch.severity), ch.noted_at, ch.kind, ch.subject) AS place,
        bool_or(ch.severity = 'critical' AND ch.change <> 'over') OVER (PARTITION BY ch.grp) AS urgent
    FROM (
        SELECT c.*,
            CASE WHEN c.ended_at IS NOT NULL THEN 'over' WHEN c.notified_severity IS NULL THEN 'begun'
                ELSE 'worse' END AS change
        FROM alert_condition c WHERE ` + changed + `) ch
) d
WHERE d.place <= $6
  AND NOT EXISTS (SELECT FROM alert_message m WHERE m.alert = $1 AND m.grp = d.grp AND m.state = 'waiting')
  AND (d.urgent OR NOT EXISTS (SELECT FROM alert_message m WHERE m.alert = $1 AND m.grp = d.grp
       AND m.made_at > $2::timestamptz - $5::interval))
ORDER BY d.grp, d.change, d.place`

	tellConditions = `
UPDATE alert_condition c SET notified_severity = c.severity, before = c.notified_severity, message = f.message
FROM unnest($5::text[], $6::uuid[]) AS f (grp, message)
WHERE ` + changed + ` AND c.grp = f.grp AND c.ended_at IS NULL`

	tellEnds = `
DELETE FROM alert_condition c WHERE ` + changed + ` AND c.grp = ANY ($5) AND c.ended_at IS NOT NULL`

	insertMessages = `
INSERT INTO alert_message (id, alert, what, grp, severity, body)
SELECT id, $1, 'alert', grp, severity, body
FROM unnest($2::uuid[], $3::text[], $4::text[], $5::jsonb[]) AS f (id, grp, severity, body)`

	noteLook = `UPDATE alert SET last_checked_at = greatest(last_checked_at, $2) WHERE name = $1`

	forgetHappened = `
DELETE FROM alert_condition
WHERE alert = $1 AND one_shot AND notified_severity IS NOT NULL AND noted_at < $2::timestamptz - $3::interval`
)

// Note records a check of a rule's conditions and creates the messages to be sent, in one transaction. compose gets
// the changes by group; each of its messages is about its whole group. Note returns how many it created. A rule
// changed or paused meanwhile is left alone. Leader work.
func (s Store) Note(
	ctx context.Context, lease workqueue.Lease, look *Look, compose func([]Listed) ([]Message, error),
) (made int, err error) {
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		made = 0
		var now time.Time
		err := tx.QueryRow(ctx, holdRule, look.Rule.Name, look.Rule.Version).Scan(&now)
		if err != nil {
			return pg.NoRow(err, nil)
		}
		if err = look.note(ctx, tx, now); err == nil {
			made, err = look.tell(ctx, tx, now, compose)
		}
		return err
	})
	return made, pg.Wrap(err, "note what alert %s sees", look.Rule.Name)
}

type key struct{ kind, subject string }

type noted struct {
	key

	version         int
	group, severity string
	ended, told     bool
	happened        bool
}

func (l *Look) note(ctx context.Context, tx pgx.Tx, now time.Time) error {
	rows := pg.Rows(ctx, tx, seenConditions, l.Rule.Name)
	was, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (n noted, err error) {
		err = row.Scan(&n.kind, &n.subject, &n.version, &n.group, &n.severity, &n.ended, &n.told, &n.happened)
		return n, err
	})
	if err != nil {
		return err
	}
	var kept []key
	if len(l.Unseen) > 0 && len(was) > 0 {
		if kept, err = l.kept(ctx, tx); err != nil {
			return err
		}
	}
	b := &pgx.Batch{}
	l.queue(b, now, was, kept)
	b.Queue(forgetHappened, l.Rule.Name, now, rememberHappened)
	b.Queue(noteLook, l.Rule.Name, l.Began)
	return tx.SendBatch(ctx, b).Close()
}

func (l *Look) kept(ctx context.Context, tx pgx.Tx) ([]key, error) {
	rows := pg.Rows(ctx, tx, keptConditions, l.Unseen)
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (k key, err error) {
		err = row.Scan(&k.kind, &k.subject)
		return k, err
	})
}

// queue queues the changes. Unreported and muted conditions, and those a changed rule no longer covers, end silently.
func (l *Look) queue(b *pgx.Batch, now time.Time, was []noted, kept []key) {
	before := make(map[key]*noted, len(was))
	for i := range was {
		before[was[i].key] = &was[i]
	}
	var fresh, other columns
	for _, c := range l.distinct() {
		k := key{c.Kind, c.Subject}
		old := before[k]
		delete(before, k)
		switch {
		case old == nil:
			fresh.add(c)
		case !old.happened && (old.ended || old.version != l.Rule.Version || old.group != c.Group ||
			old.severity != c.Severity):
			other.add(c)
		}
	}
	for _, k := range kept {
		delete(before, k)
	}
	over, gone := l.unseen(before)
	l.write(b, now, &fresh, &other, over, gone)
}

// unseen divides the previous conditions not seen now into those that are over and those that end silently.
func (l *Look) unseen(before map[key]*noted) (over, gone *columns) {
	over, gone = &columns{}, &columns{}
	for k, old := range before {
		c := &Condition{Kind: k.kind, Subject: k.subject}
		switch {
		case l.Muted != nil && l.Muted(k.kind, k.subject):
			gone.add(c)
		case old.happened, old.ended, old.told && slices.Contains(l.Cut, k.kind):
		case !old.told || old.version != l.Rule.Version && l.Holds != nil && l.Holds(k.kind, k.subject):
			gone.add(c)
		default:
			over.add(c)
		}
	}
	return over, gone
}

func (l *Look) distinct() (all []*Condition) {
	severities := []string{"info", "warning", "critical"}
	seen := make(map[key]int, len(l.Conditions))
	for i := range l.Conditions {
		c := &l.Conditions[i]
		k := key{c.Kind, c.Subject}
		at, twice := seen[k]
		switch {
		case !twice:
			seen[k] = len(all)
			all = append(all, c)
		case slices.Index(severities, c.Severity) > slices.Index(severities, all[at].Severity):
			all[at] = c
		}
	}
	return all
}

func (l *Look) write(b *pgx.Batch, now time.Time, fresh, other, over, gone *columns) {
	name, version := l.Rule.Name, l.Rule.Version
	if len(fresh.kinds) > 0 {
		b.Queue(insertConditions, name, version, now, fresh.kinds, fresh.subjects, fresh.groups, fresh.severities,
			fresh.said, fresh.happened)
	}
	if len(other.kinds) > 0 {
		b.Queue(updateConditions, name, version, other.kinds, other.subjects, other.groups, other.severities)
	}
	if len(gone.kinds) > 0 {
		b.Queue(forgetSome, name, gone.kinds, gone.subjects)
	}
	if len(over.kinds) > 0 {
		b.Queue(endSome, name, over.kinds, over.subjects, now)
	}
}

type columns struct {
	kinds, subjects, groups, severities []string
	said                                []json.RawMessage
	happened                            []bool
}

func (c *columns) add(row *Condition) {
	c.kinds, c.subjects = append(c.kinds, row.Kind), append(c.subjects, row.Subject)
	c.groups, c.severities = append(c.groups, row.Group), append(c.severities, row.Severity)
	c.said, c.happened = append(c.said, row.Said), append(c.happened, row.Happened)
}

func (l *Look) tell(
	ctx context.Context, tx pgx.Tx, now time.Time, compose func([]Listed) ([]Message, error),
) (int, error) {
	name := l.Rule.Name
	listed, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[Listed], ripeGroups,
		name, now, l.Wait, l.Quiet, l.Interval, MaxListed)
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
	b.Queue(tellConditions, name, now, l.Wait, l.Quiet, groups, ids)
	b.Queue(tellEnds, name, now, l.Wait, l.Quiet, groups)
	b.Queue(insertMessages, name, ids, groups, severities, bodies)
	return n, tx.SendBatch(ctx, b).Close()
}
