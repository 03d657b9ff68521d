// Package doctor recounts what a database holds, and reports violated invariants. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/migrations"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store checks databases. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// Invariant is a rule that holds in every database written by Tranche, regardless of node failures.
type Invariant string

// The invariants that Doctor checks.
const (
	ItemsAddUp    Invariant = "I1"  // items = waiting + ready + in flight + done + failed + skipped, at every step
	OnePart       Invariant = "I2"  // at most one part for an item, step and generation
	AuditedReset  Invariant = "I3"  // a final bit changes only by an audited rerun
	TruthsAgree   Invariant = "I6"  // bits = parts = tracker
	AskedFor      Invariant = "I7"  // every part was requested by a slice that held its item
	OneCompletion Invariant = "I10" // one completion event for each completed generation
	AsMigrated    Invariant = "S1"  // the schema matches the migrations
	Approved      Invariant = "I11" // at a gated step nothing was requested before its approval
)

// Rules returns the invariants in words, in display order.
func Rules() []Rule {
	return []Rule{
		{ItemsAddUp, "the items of every step add up: waiting, ready, in flight, done, failed and left out"},
		{OnePart, "an item has at most one part for a step and a generation"},
		{AuditedReset, "what is final changes only by a rerun that the audit log has"},
		{TruthsAgree, "bits, parts and trackers say the same"},
		{AskedFor, "every part was requested by a request that held its item"},
		{OneCompletion, "every generation that completed has one event of it"},
		{Approved, "nothing was sent at a step before its required approval"},
		{AsMigrated, "the schema is as this version's migrations made it"},
		{OneOfALane, "of a lane at most one item is worked on, and one is when any waits"},
		{KeysAddUp, "the keys of collectors count the operations that are there, and what waits will be flushed"},
	}
}

// Rule is an invariant in words.
type Rule struct {
	Invariant Invariant
	Words     string
}

// Words returns the invariant's rule.
func (i Invariant) Words() string {
	for _, r := range Rules() {
		if r.Invariant == i {
			return r.Words
		}
	}
	return ""
}

const maxViolations = 1000 // listed in a report

// Violation is one place where an invariant does not hold.
type Violation struct {
	Invariant Invariant           `json:"invariant"`
	Run       *workqueue.RunID    `json:"run,omitempty"`
	Step      *workqueue.Step     `json:"step,omitempty"`
	Block     *workqueue.Block    `json:"block,omitempty"`
	Count     int64               `json:"count" doc:"how many items, rows or groups"`
	Ordinals  []workqueue.Ordinal `json:"ordinals,omitempty" doc:"the first ten items"`
	What      string              `json:"what"`
}

// String describes the violation in one line.
func (v Violation) String() string {
	place := ""
	if v.Run != nil {
		place += " run " + v.Run.String()
	}
	if v.Step != nil {
		place += fmt.Sprintf(" step %d", *v.Step)
	}
	if v.Block != nil {
		place += fmt.Sprintf(" block %d", *v.Block)
	}
	line := fmt.Sprintf("%s%s: %s (%d)", v.Invariant, place, v.What, v.Count)
	if len(v.Ordinals) > 0 {
		line += fmt.Sprintf(" items %v", v.Ordinals)
		if v.Count > int64(len(v.Ordinals)) {
			line += "…"
		}
	}
	return line + "; the rule: " + v.Invariant.Words()
}

// Report is what Doctor found. It lists at most a thousand violations; Found counts all.
type Report struct {
	At         time.Time   `json:"at" doc:"the database's clock when it looked"`
	Seconds    float64     `json:"seconds" doc:"how long it took"`
	Runs       int         `json:"runs"`
	Blocks     int         `json:"blocks"`
	Slices     int64       `json:"slices"`
	Items      int64       `json:"items"`
	Parts      int64       `json:"parts"`
	Found      int         `json:"found"`
	Violations []Violation `json:"violations"`
	Note       string      `json:"note,omitempty" doc:"what is no violation and should be known: the schema is newer, or the rest is unchecked"`
}

// OK reports whether every invariant holds.
func (r *Report) OK() bool { return r.Found == 0 }

// Doctor checks the invariants over the whole database as of one moment. It reads every part once (about a million in
// a second or two) in one transaction, during which PostgreSQL cannot vacuum. A violation is not an error.
func (s Store) Doctor(ctx context.Context) (Report, error) {
	return s.examine(ctx, (*doctor).schema, (*doctor).data)
}

// Recount is Doctor without the schema check, which takes longer than recounting a small database.
func (s Store) Recount(ctx context.Context) (Report, error) { return s.examine(ctx, (*doctor).data) }

func (s Store) examine(ctx context.Context, parts ...func(*doctor, context.Context) error) (Report, error) {
	report := Report{Violations: []Violation{}}
	start := time.Now()
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		if report.At, err = pg.Now(ctx, tx); err != nil {
			return err
		}
		d := &doctor{tx: tx, report: &report}
		for _, part := range parts {
			if err := part(d, ctx); err != nil {
				return err
			}
		}
		return nil
	})
	report.Seconds = time.Since(start).Seconds()
	if lacking, ok := errors.AsType[*pgconn.PgError](err); ok && report.Found > 0 { // the schema differs
		report.Note, err = "the rest is unchecked: "+lacking.Error(), nil
	}
	return report, pg.Wrap(err, "check the invariants")
}

type doctor struct {
	tx     pgx.Tx
	report *Report
}

func (d *doctor) schema(ctx context.Context) error {
	drift, newer, err := migrations.Drift(ctx, d.tx)
	if err != nil {
		return err
	}
	for _, differs := range drift {
		if newer {
			d.report.Note = "the schema " + differs
		} else {
			d.found(AsMigrated, place{}, 1, "the schema "+differs)
		}
	}
	return nil
}

func (d *doctor) data(ctx context.Context) error {
	if err := d.database(ctx); err != nil {
		return err
	}
	if err := d.trackers(ctx); err != nil {
		return fmt.Errorf("trackers: %w", err)
	}
	if err := d.collectors(ctx); err != nil {
		return fmt.Errorf("collectors: %w", err)
	}
	runs, err := d.runs(ctx)
	if err != nil {
		return err
	}
	for i := range runs {
		if err := d.run(ctx, &runs[i]); err != nil {
			return fmt.Errorf("run %s: %w", runs[i].id, err)
		}
	}
	return nil
}

type place struct {
	run   *workqueue.RunID
	step  *workqueue.Step
	block *workqueue.Block
}

func (d *doctor) found(inv Invariant, at place, count int64, what string, items ...workqueue.Ordinal) {
	d.report.Found++
	if len(d.report.Violations) == maxViolations {
		return
	}
	d.report.Violations = append(d.report.Violations, Violation{
		Invariant: inv, Run: at.run, Step: at.step, Block: at.block,
		Count: count, Ordinals: items[:min(len(items), workqueue.MaxNamed)], What: what,
	})
}

func (d *doctor) bits(inv Invariant, at place, set bitfield.Set, what string) {
	if set.Empty() {
		return
	}
	var items []workqueue.Ordinal
	first := set.Take(workqueue.MaxNamed)
	for bit := range first.All() {
		items = append(items, at.block.Ordinal(bit))
	}
	d.found(inv, at, int64(set.Count()), what, items...)
}

// KeysAddUp says that the keys of collectors count the existing operations, and waiting ones will be flushed.
const KeysAddUp Invariant = "C1"

// doctorCollectors reads every operation of collectors once. Collectors being deleted do not count.
const doctorCollectors = `
WITH counted AS (
    SELECT collector, key_version, key,
        count(*) FILTER (WHERE parked_at IS NULL AND not_before IS NULL) AS untried,
        count(*) FILTER (WHERE parked_at IS NULL AND not_before IS NOT NULL) AS retrying,
        count(*) FILTER (WHERE parked_at IS NOT NULL) AS parked
    FROM collector_op GROUP BY collector, key_version, key
)
SELECT coalesce(c.name, 'number ' || collector), x.what, count(*)
FROM collector_key k
FULL JOIN counted o USING (collector, key_version, key)
LEFT JOIN collector c ON c.id = collector
CROSS JOIN LATERAL (VALUES
    ('keys with operations, of no collector', c.id IS NULL),
    ('keys that count what does not exist, or do not count what does', (k.untried, k.retrying, k.parked)
        IS DISTINCT FROM (coalesce(o.untried, 0), coalesce(o.retrying, 0), coalesce(o.parked, 0))),
    ('keys without an operation', k.flush IS NULL AND k.untried + k.retrying + k.parked = 0),
    ('keys with operations that wait for no time, or with a time that nothing waits for',
        k.flush IS NULL AND (k.due_at IS NULL) <> (k.untried + k.retrying = 0)),
    ('keys that wait under a key_version that counts as done, or does not exist yet',
        k.untried + k.retrying > 0 AND k.key_version NOT BETWEEN c.drained_key_version AND c.key_version)
) AS x (what, wrong)
WHERE x.wrong AND c.state IS DISTINCT FROM 'deleting'
GROUP BY 1, 2 ORDER BY 1, 2`

func (d *doctor) collectors(ctx context.Context) error {
	var (
		name, what string
		n          int64
	)
	return pg.Each(pg.Rows(ctx, d.tx, doctorCollectors), []any{&name, &what, &n}, func() {
		d.found(KeysAddUp, place{}, n, "collector "+name+": "+what)
	})
}

// doctorTrackers reads every group of trackers opened by other users, and their failures. A deleted tracker, while
// being removed, does not count. Events may have been deleted: there is at most one.
const doctorTrackers = `
WITH failed AS (
    SELECT batch_id, grp, bit_or(mask) AS mask, sum(bit_count(mask)) - bit_count(bit_or(mask)) AS twice
    FROM tracker_failed GROUP BY batch_id, grp
), counted AS (
    SELECT g.batch_id, count(*) AS groups, count(*) FILTER (WHERE g.pending <> B'0'::bit(8192)) AS open_groups,
        sum(g.size) AS items, sum(f.twice) AS twice, sum(bit_count(f.mask & g.pending)) AS pending,
        sum(bit_count(f.mask << g.size)) AS past
    FROM tracker_group g
    JOIN tracker_service s ON s.batch_id = g.batch_id
    LEFT JOIN failed f ON f.batch_id = g.batch_id AND f.grp = g.grp
    GROUP BY g.batch_id
)
SELECT s.batch_id, x.invariant, x.what, x.n::bigint
FROM tracker_service s
JOIN tracker_batch b ON b.id = s.batch_id
LEFT JOIN counted c ON c.batch_id = s.batch_id
CROSS JOIN LATERAL (VALUES
    ('I1', 'groups that the batch does not count, or that do not exist', abs(b.groups - coalesce(c.groups, 0))),
    ('I1', 'groups with pending items that the batch does not count, or without that it does',
        abs(b.open_groups - coalesce(c.open_groups, 0))),
    ('I1', 'items that the batch does not count, or that are in no group', abs(b.items - coalesce(c.items, 0))),
    ('I1', 'items that failed more than once', coalesce(c.twice, 0)),
    ('I1', 'items that failed and are pending', coalesce(c.pending, 0)),
    ('I1', 'failed items past the end of their group', coalesce(c.past, 0)),
    ('I10', 'it is sealed, and nothing is pending', (b.state = 'sealed' AND b.open_groups = 0)::integer),
    ('I10', 'it ended without an event, or has one and did not end',
        ((b.state IN ('completed', 'cancelled')) <> (s.event_id IS NOT NULL))::integer),
    ('I10', 'events too many', greatest(0,
        (SELECT count(*) - 1 FROM run_event e WHERE e.run_id = s.batch_id AND e.kind LIKE 'tracker.%')))
) AS x(invariant, what, n)
WHERE x.n <> 0 AND s.deleted_at IS NULL
ORDER BY s.batch_id`

func (d *doctor) trackers(ctx context.Context) error {
	var (
		batch           uuid.UUID
		invariant, what string
		n               int64
	)
	return pg.Each(pg.Rows(ctx, d.tx, doctorTrackers), []any{&batch, &invariant, &what, &n}, func() {
		d.found(Invariant(invariant), place{}, n, "tracker "+batch.String()+": "+what)
	})
}
