// Package health says why something stands: each missing item of a run or an endpoint ([Store.Explain]), and all that
// wants somebody's attention ([Store.Health]). It also counts what metrics show ([Store.Metrics]).
package health

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Store is the database for who watches over the whole. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Facts is what the database tells of the system's health, as of about one moment. Lists are cut to a few, the
// worst or oldest first; what they count is counted whole where that is cheap.
type Facts struct {
	At       time.Time // the database's clock
	Failed   []FailedRun
	BadParts []inspect.BadPart // of those runs
	Held     []HeldRun
	Overdue  []LateSeal
	Waiting  []WaitingRun
	IdleCut  bool // there may be more of them
	Stale    []StaleSlices
	Untaken  []UntakenRequests
	Working  []WorkingEndpoint
	Open     []OpenBreaker
	Slow     []pace.SlowEndpoint
	Letters  []LetterCount
	Strays   []StrayCount
	Events   EventsWaiting
	Leader   *inspect.LeaderView // nil: nobody has ever led
	Nodes    []NodeHealth
	Tokens   []EndingToken
	Database DatabaseLoad
	Kept     []KeptCondition
	Marks    []Mark
	Streams  *session.StreamTrouble // nil: they are as they are set, or no node has been at it

	SchedulesFailed []FailedSchedule
	SchedulesStuck  []StuckSchedule
	SchedulesLate   []LateRun

	CollectorsParked   []ParkedOps
	CollectorsLate     []LateCollector
	CollectorsRefusing []RefusingCollector
	FlushesHung        []HungFlush

	AlertsFailing []FailingAlert

	Gaps   []NotedGap
	Faults []session.StreamFault
}

// Limits says from when on something counts.
type Limits struct {
	Waiting time.Duration // a run that has work and gets none of it done
	Failed  time.Duration // how far back failed items are told of
	Strays  time.Duration // the same of quarantined messages
	Stale   time.Duration // past a deadline
	Dead    time.Duration // how long a node that died is told of
	Token   time.Duration // before the end of a token
	Listed  int           // how many each list has at the most; zero: DefaultListed
}

const (
	// DefaultListed is how many each list of Facts has.
	DefaultListed = 20
	// maxIdle bounds, whatever Limits say, of how many idle runs it is read since when they are.
	maxIdle = 1000
)

// Health reads what the database tells of the system's health. It locks nothing and reads no planes: blocks with ready
// items, and live slices, are found by their partial indexes, whatever else there is.
func (s Store) Health(ctx context.Context, l Limits) (*Facts, error) {
	l.Listed = cmp.Or(l.Listed, DefaultListed)
	f := &Facts{}
	b := &pgx.Batch{}
	f.queueRuns(b, l)
	f.queueWork(b, l)
	f.queueLeftovers(b, l)
	f.queueNodes(b, l)
	f.queueDatabase(b, l)
	f.queueStreams(b)
	f.queueSchedules(b, l)
	f.queueCollectors(b, l)
	f.queueAlerts(b, l)
	queueRows(b, &f.Gaps, healthGaps, l.Listed, GapTold, moveTold)
	queueRows(b, &f.Faults, session.StreamFaults)
	if err := s.db.Pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, fmt.Errorf("read the system's health: %w", err)
	}
	return f, s.readBadParts(ctx, f)
}

func (s Store) readBadParts(ctx context.Context, f *Facts) (err error) {
	runs := make([]workqueue.RunID, len(f.Failed))
	for i := range f.Failed {
		runs[i] = f.Failed[i].Run
	}
	if len(runs) > 0 {
		f.BadParts, err = inspect.ReadBadParts(ctx, s.db.Pool, runs)
	}
	return err
}

// queueRows adds a query whose rows become a list.
func queueRows[T any](b *pgx.Batch, into *[]T, sql string, args ...any) {
	b.Queue(sql, args...).Query(func(rows pgx.Rows) (err error) {
		*into, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
}

// FailingAlert is a rule whose receiver could not be told anything for long.
type FailingAlert struct {
	Alert    string
	Since    time.Time
	Failures int
	Reason   string
	Waiting  int64 // messages
}

// alertPatience is how long a receiver may fail before anybody is told.
const alertPatience = 10 * time.Minute

// Rules are few.
const healthAlerts = `
SELECT a.name, a.failing_since, a.failures, split_part(a.error, E'\n', 1),
    (SELECT count(*) FROM alert_message m WHERE m.alert = a.name AND m.state = 'waiting')
FROM alert a
WHERE a.deleted_at IS NULL AND a.state = 'active' AND a.failing_since < tranche_now() - $1::interval
ORDER BY a.failing_since, a.name LIMIT $2`

func (f *Facts) queueAlerts(b *pgx.Batch, l Limits) {
	queueRows(b, &f.AlertsFailing, healthAlerts, alertPatience, l.Listed)
}

// GapTold is for how long the health tells of a gap in which something was lost; of a server that took over without a
// loss that is known, it does for an hour.
const (
	GapTold  = 24 * time.Hour
	moveTold = time.Hour
)

// healthGaps goes through a table of few rows.
const healthGaps = `
SELECT noticed_at, from_at, to_at, lost, runs FROM database_gap
WHERE noticed_at > tranche_now() - CASE WHEN lost THEN $2::interval ELSE $3::interval END
ORDER BY id DESC LIMIT $1`

// NotedGap is a gap as the health tells of it.
type NotedGap struct {
	NoticedAt, From, To time.Time
	Lost                bool
	Runs                int
}

// LetterCount counts the dead letters of an endpoint that wait for somebody.
type LetterCount struct {
	Endpoint string
	Letters  int64 // MaxCounted together at the most
	Since    time.Time
}

// StrayCount counts messages that could not be taken, by the reason.
type StrayCount struct {
	Reason   string
	Messages int64 // MaxCounted together at the most
	First    time.Time
	Last     time.Time
}

// EventsWaiting counts events of runs that could not be published.
type EventsWaiting struct {
	Events int64
	Since  *time.Time
	Kinds  []string // which those are
}

// EndingToken is an API token that is about to expire.
type EndingToken struct {
	Name      string
	Role      string
	ExpiresAt time.Time
}

// MaxCounted is how far letters and messages are counted.
const MaxCounted = 10_000

// eventPatience is how long an event may take to be published.
const eventPatience = time.Minute

const (
	// dead_letter_state, backwards.
	healthLetters = `
SELECT endpoint, count(*), min(at) FROM (
    SELECT endpoint, at FROM dead_letter WHERE state = 'waiting' ORDER BY id DESC LIMIT $1) d
GROUP BY endpoint ORDER BY 2 DESC, 1 LIMIT $2`

	// The primary key, backwards.
	healthStrays = `
SELECT reason, count(*), min(at), max(at) FROM (SELECT reason, at FROM quarantine ORDER BY id DESC LIMIT $1) q
WHERE at > tranche_now() - $2::interval
GROUP BY reason ORDER BY 2 DESC, 1 LIMIT $3`

	// run_event_unpublished.
	healthEvents = `
SELECT count(*), min(at), coalesce(array_agg(DISTINCT kind ORDER BY kind), '{}')
FROM run_event WHERE published_at IS NULL AND at < tranche_now() - $1::interval`

	// Tokens are few.
	healthTokens = `
SELECT name, role, expires_at FROM api_token
WHERE revoked_at IS NULL AND expires_at > tranche_now() AND expires_at < tranche_now() + $1::interval
ORDER BY expires_at, id LIMIT $2`
)

func (f *Facts) queueLeftovers(b *pgx.Batch, l Limits) {
	queueRows(b, &f.Letters, healthLetters, MaxCounted, l.Listed)
	queueRows(b, &f.Strays, healthStrays, MaxCounted, l.Strays, l.Listed)
	b.Queue(healthEvents, eventPatience).QueryRow(func(row pgx.Row) error {
		return row.Scan(&f.Events.Events, &f.Events.Since, &f.Events.Kinds)
	})
	queueRows(b, &f.Tokens, healthTokens, l.Token, l.Listed)
}

func (f *Facts) queueStreams(b *pgx.Batch) {
	b.Queue(session.HealthStreams).Query(func(rows pgx.Rows) error {
		found, err := pgx.CollectRows(rows, pgx.RowToAddrOfStructByPos[session.StreamTrouble])
		if len(found) > 0 {
			f.Streams = found[0]
		}
		return err
	})
}

// ConditionKey names something that a person should see to.
type ConditionKey struct{ Kind, Subject string }

// KeptCondition says since when a condition has been seen. It is kept for those of which nothing else in the database
// tells it.
type KeptCondition struct {
	ConditionKey

	Since  time.Time
	SeenAt time.Time       // within a minute, while somebody looks
	Said   json.RawMessage // what a server says of itself that no other one can see; nil: each sees it for itself
}

const (
	// Whoever saw it first has said since when. Rows are locked in the order of the key.
	keepConditions = `
INSERT INTO health_condition AS h (kind, subject, since, said)
SELECT kind, subject, since, said
FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::jsonb[]) AS f (kind, subject, since, said)
ORDER BY 1, 2
ON CONFLICT (kind, subject) DO UPDATE SET seen_at = tranche_now(), said = excluded.said`

	// What somebody else has seen since this look began stays. The lock order is that of the keeping.
	forgetConditions = `
DELETE FROM health_condition h
USING (SELECT h.kind, h.subject FROM health_condition h
       JOIN unnest($1::text[], $2::text[]) AS f (kind, subject) USING (kind, subject)
       WHERE h.seen_at < $3 ORDER BY 1, 2 FOR UPDATE OF h) gone
WHERE h.kind = gone.kind AND h.subject = gone.subject`
)

// KeepConditions notes conditions that are there, with since when they are unless that is known already; and forgets
// those that a look, begun at a time of the database's clock, has found gone.
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
