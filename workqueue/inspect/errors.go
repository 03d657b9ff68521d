package inspect

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Bounds of what Errors returns. Services choose codes and messages, so nothing else limits them.
const (
	MaxErrorGroups = 1000
	maxExamples    = 3    // of a group
	maxServices    = 10   // of a group
	maxExampleText = 1000 // characters of an example's message
)

// Errors is the currently failed items of a run, in groups. An item counts once, at the first step that failed it.
// Failures of optional steps have separate groups and do not count as failed items.
type Errors struct {
	At         time.Time    `json:"at" doc:"when they were grouped; a while ago where that takes long, and more fail"`
	Items      int64        `json:"items" doc:"failed items, those of groups left out included"`
	Optional   int64        `json:"optional_items,omitempty" doc:"failures in optional steps, which are not among items"`
	Groups     []ErrorGroup `json:"groups" doc:"the greatest first, those of optional steps last, 1000 at most"`
	MoreGroups int64        `json:"more_groups,omitempty" doc:"groups that were left out, the smallest"`
	MoreItems  int64        `json:"more_items,omitempty" doc:"items of groups that were left out"`
	ByStep     []StepErrors `json:"by_step" nullable:"false" doc:"steps at which items are failed now, in their order"`
}

// StepErrors is the number of items failed at a step.
type StepErrors struct {
	Step     string `json:"step"`
	Optional bool   `json:"optional,omitempty" doc:"the step is optional: its items continued without it"`
	Count    int64  `json:"count" doc:"an item that failed at several steps counts at each"`
}

// ServiceErrors is the number of items of a group that a service failed.
type ServiceErrors struct {
	Service string `json:"service"`
	Count   int64  `json:"count"`
}

// ErrorGroup is the failed items of one step with one code and messages of one shape.
type ErrorGroup struct {
	ID       string     `json:"id" doc:"names the group in a rerun; the same in every run"`
	Step     string     `json:"step"`
	Optional bool       `json:"optional,omitempty" doc:"the step is optional: its items continued without it"`
	Code     string     `json:"code"`
	Shape    string     `json:"shape" doc:"the messages, with {key} for the item's key, # for numbers, ids, quotes"`
	Count    int64      `json:"count"`
	Also     int64      `json:"also,omitempty" doc:"more such items, counted with a step before that failed them too"`
	Accepted int64      `json:"accepted,omitempty" doc:"how many of count and also are accepted"`
	First    *time.Time `json:"first,omitempty" doc:"when the first of these items got this error"`
	Last     *time.Time `json:"last,omitempty"`
	Services []string   `json:"services" doc:"who answered so, ten at most"`

	ByService []ServiceErrors `json:"by_service" nullable:"false" doc:"the same with counts, the greatest first"`

	Resets []string `json:"resets,omitempty" doc:"steps whose bad parts they fail for; a rerun gives the same: reset one"`

	Examples []ErrorExample `json:"examples" doc:"three at most, by ordinal"`

	step   workqueue.Step
	slices []workqueue.SliceID // the first slices with such items,
	firsts []workqueue.Ordinal // and of each slice the first
	lasts  []workqueue.Ordinal // and the last such item
}

// ErrorExample is one failed item.
type ErrorExample struct {
	Key     string `json:"key"`
	Message string `json:"message" doc:"its first 1000 characters"`
}

// A part counts if the item's bit is still in the failed plane and no later generation wrote another.
// work_result_error finds the parts. Their blocks, the shapes of messages and the starts of groups are joined as a
// FULL JOIN whose extra rows are dropped: it is always hashed or merged, while a nested loop, which the planner
// takes when it expects few parts, is quadratic. For the same reason the newest generation is looked up one at a
// time, only in runs that have more than one. Only later steps check whether an earlier step failed the item. Shapes
// are most of the cost, so each distinct message has its shape computed once.
const errorGroups = `
WITH by_message AS MATERIALIZED (
    SELECT c.step, c.error_code, c.keyed, c.slice_id, count(*) FILTER (WHERE NOT c.again) AS items,
        count(*) FILTER (WHERE c.again) AS also, count(*) FILTER (WHERE c.accepted) AS accepted,
        min(c.ordinal) AS first_ordinal, max(c.ordinal) AS last_ordinal
    FROM (
        SELECT p.step, p.error_code, p.slice_id, p.ordinal, get_bit(p.accepted, p.ordinal % 8192) = 1 AS accepted,
            ` + plane.MessageAlike + ` AS keyed,
            CASE WHEN p.step = 0 OR p.step = ANY ($6::smallint[]) THEN false
                ELSE EXISTS (SELECT 1 FROM unnest($5::smallint[]) AS n (step)
                    JOIN work_block e ON e.run_id = p.run_id AND e.step = n.step AND e.block = p.ordinal / 8192
                    WHERE n.step < p.step AND get_bit(e.failed, p.ordinal % 8192) = 1)
            END AS again
        FROM (
            SELECT p.*, b.failed, b.accepted
            FROM (SELECT run_id, step, ordinal, generation, slice_id, error_code, error_message, error_keyed
                FROM work_result WHERE run_id = $1 AND error_code IS NOT NULL) p
            FULL JOIN (SELECT step, block, failed, accepted FROM work_block
                WHERE run_id = $1 AND failed <> B'0'::bit(8192)) b ON b.step = p.step AND b.block = p.ordinal / 8192
            OFFSET 0
        ) p
        WHERE get_bit(p.failed, p.ordinal % 8192) = 1
            AND ((SELECT generation FROM batchrun WHERE id = $1) = 1
                OR p.generation = (SELECT max(n.generation) FROM work_result n
                    WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal))
    ) c
    GROUP BY c.step, c.error_code, c.keyed, c.slice_id
), shapes AS MATERIALIZED (
    SELECT p.keyed, (` + plane.KeyedShape + `) COLLATE "C" AS shape FROM (SELECT DISTINCT keyed FROM by_message) p
), by_slice AS MATERIALIZED (
    SELECT m.step, m.error_code, h.shape, m.slice_id, sum(m.items) AS items, sum(m.also) AS also,
        sum(m.accepted) AS accepted,
        min(m.first_ordinal) AS first_ordinal, max(m.last_ordinal) AS last_ordinal
    FROM by_message m FULL JOIN shapes h USING (keyed)
    GROUP BY m.step, m.error_code, h.shape, m.slice_id
), by_service AS (
    SELECT g.step, g.error_code, g.shape, coalesce(w.service, '') AS service, sum(g.items) AS items,
        sum(g.also) AS also, sum(g.accepted) AS accepted,
        min(coalesce(w.ended_at, w.sent_at)) AS first, max(coalesce(w.ended_at, w.sent_at)) AS last
    FROM by_slice g LEFT JOIN work_slice w ON w.id = g.slice_id
    GROUP BY g.step, g.error_code, g.shape, coalesce(w.service, '')
), beginnings AS (
    SELECT g.step, g.error_code, g.shape,
        (array_agg(g.slice_id ORDER BY g.first_ordinal))[1:$4] AS slices,
        (array_agg(g.first_ordinal ORDER BY g.first_ordinal))[1:$4] AS firsts,
        (array_agg(g.last_ordinal ORDER BY g.first_ordinal))[1:$4] AS lasts
    FROM by_slice g GROUP BY g.step, g.error_code, g.shape
), grouped AS (
    SELECT g.step, g.step = ANY ($6::smallint[]) AS optional, g.error_code, g.shape,
        sum(g.items)::bigint AS items, sum(g.also)::bigint AS also, sum(g.accepted)::bigint AS accepted,
        min(g.first) AS first, max(g.last) AS last,
        (array_agg(g.service ORDER BY g.items DESC, g.service) FILTER (WHERE g.service <> ''))[1:$3] AS services,
        (array_agg(g.items::bigint ORDER BY g.items DESC, g.service) FILTER (WHERE g.service <> ''))[1:$3] AS counts,
        count(*) OVER () AS all_groups,
        coalesce(sum(sum(g.items)) FILTER (WHERE NOT g.step = ANY ($6::smallint[])) OVER (), 0)::bigint AS all_items,
        coalesce(sum(sum(g.items)) FILTER (WHERE g.step = ANY ($6::smallint[])) OVER (), 0)::bigint AS all_optional
    FROM by_service g
    GROUP BY g.step, g.error_code, g.shape
    ORDER BY optional, items DESC, g.step, g.error_code, g.shape
    LIMIT $2
)
SELECT left(md5(g.step || ':' || g.error_code || ':' || g.shape), 8), g.step, s.name, g.optional, g.error_code, g.shape,
    g.items, g.also, g.accepted, g.first, g.last, coalesce(g.services, '{}'), coalesce(g.counts, '{}'),
    g.slices, g.firsts, g.lasts, g.all_groups, g.all_items, g.all_optional
FROM (SELECT g.*, t.slices, t.firsts, t.lasts FROM grouped g FULL JOIN beginnings t USING (step, error_code, shape)
    OFFSET 0) g
JOIN run_step s ON s.run_id = $1 AND s.step = g.step
WHERE g.items IS NOT NULL
ORDER BY g.optional, g.items DESC, g.step, g.error_code, g.shape`

// preferSort is off for errorGroups: the planner expects few parts, and would sort all of a million to group them.
const preferSort = `SELECT set_config('enable_sort', $1, true)`

// The required steps, whose failures fail items, and the optional steps.
const errorSteps = `
SELECT coalesce(array_agg(step) FILTER (WHERE NOT optional), '{}'),
    coalesce(array_agg(step) FILTER (WHERE optional), '{}')
FROM run_step WHERE run_id = $1`

// The examples of each group, from the first slices that have some. The shape of each part is recomputed once, so
// the cost is linear however many groups share a slice. The parts are ranges of work_result's primary key.
const errorExamples = `
WITH wanted AS (
    SELECT * FROM unnest($2::int[], $3::smallint[], $4::text[], $5::uuid[], $6::int[], $7::int[])
        AS w (nth, step, id, slice_id, first_ordinal, last_ordinal)
), slices AS (
    SELECT step, slice_id, min(first_ordinal) AS first, max(last_ordinal) AS last FROM wanted GROUP BY step, slice_id
), ranked AS (
    SELECT f.*, row_number() OVER (PARTITION BY f.slice_id, f.id ORDER BY f.ordinal) AS place
    FROM slices s CROSS JOIN LATERAL (
        SELECT p.slice_id, p.ordinal, q.item_key, p.error_message, ` + plane.MessageGroup + ` AS id
        FROM work_result p JOIN work_queue q ON q.run_id = p.run_id AND q.ordinal = p.ordinal
        WHERE p.run_id = $1 AND p.step = s.step AND p.ordinal BETWEEN s.first AND s.last
            AND p.slice_id = s.slice_id AND p.error_code IS NOT NULL
        OFFSET 0
    ) f
)
SELECT w.nth, r.item_key, left(coalesce(r.error_message, ''), $8)
FROM wanted w
JOIN ranked r ON r.slice_id = w.slice_id AND r.id = w.id AND r.place <= $9
ORDER BY w.nth, r.ordinal`

// Errors groups the failed items of a run by step, error code and the shape of their messages.
func (s Store) Errors(ctx context.Context, id workqueue.RunID) (Errors, error) {
	entry := database.Kept[errorsCache](s.db).of(id)
	if err := entry.turn.take(ctx); err != nil { // one computation at a time for a run
		return Errors{}, fmt.Errorf("group the errors of run %s: %w", id, err)
	}
	defer func() { <-entry.turn }()
	var out Errors
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		extent, err := ReadExtent(ctx, tx, id)
		if err != nil || entry.serves(&extent) {
			out = entry.errors
			return err
		}
		began := time.Now()
		if out, err = ReadErrors(ctx, tx, id); err == nil {
			out.ByStep, out.At = extent.ByStep(), extent.at
			entry.errors, entry.extent, entry.took, entry.known = out, extent, time.Since(began), true
		}
		return err
	})
	return out, pg.Wrap(err, "group the errors of run %s", id)
}

// ReadErrors groups the errors of a run.
func ReadErrors(ctx context.Context, tx pgx.Tx, id workqueue.RunID) (Errors, error) {
	out := Errors{Groups: []ErrorGroup{}, ByStep: []StepErrors{}}
	var required, optional []workqueue.Step
	if err := tx.QueryRow(ctx, errorSteps, id).Scan(&required, &optional); err != nil {
		return out, err
	}
	var g ErrorGroup
	var groups, listed int64
	var counts []int64
	to := []any{&g.ID, &g.step, &g.Step, &g.Optional, &g.Code, &g.Shape, &g.Count, &g.Also, &g.Accepted, &g.First,
		&g.Last, &g.Services, &counts, &g.slices,
		&g.firsts, &g.lasts, &groups, &out.Items, &out.Optional}
	if _, err := tx.Exec(ctx, preferSort, "off"); err != nil {
		return out, err
	}
	err := pg.Each(pg.Rows(ctx, tx, errorGroups, id, MaxErrorGroups, maxServices, maxExamples, required, optional),
		to, func() {
			g.ByService = []ServiceErrors{}
			for i, service := range g.Services {
				g.ByService = append(g.ByService, ServiceErrors{service, counts[i]})
			}
			out.Groups = append(out.Groups, g)
			if !g.Optional {
				listed += g.Count
			}
			g, counts = ErrorGroup{}, nil // its lists are shared with the appended group
		})
	if err == nil {
		_, err = tx.Exec(ctx, preferSort, "on")
	}
	if err != nil {
		return out, err
	}
	out.MoreGroups, out.MoreItems = groups-int64(len(out.Groups)), out.Items-listed
	if err := addExamples(ctx, tx, id, out.Groups); err != nil {
		return out, err
	}
	return out, addResets(ctx, tx, id, out.Groups)
}

func addExamples(ctx context.Context, tx pgx.Tx, run workqueue.RunID, groups []ErrorGroup) error {
	var nth []int
	var steps []workqueue.Step
	var ids []string
	var from []workqueue.SliceID
	var firsts, lasts []workqueue.Ordinal
	for i := range groups {
		g := &groups[i]
		g.Examples = []ErrorExample{}
		for j, slice := range g.slices {
			nth, steps, ids, from = append(nth, i), append(steps, g.step), append(ids, g.ID), append(from, slice)
			firsts, lasts = append(firsts, g.firsts[j]), append(lasts, g.lasts[j])
		}
	}
	if len(nth) == 0 {
		return nil
	}
	var at int
	var e ErrorExample
	return pg.Each(pg.Rows(ctx, tx, errorExamples, run, nth, steps, ids, from, firsts, lasts, maxExampleText,
		maxExamples), []any{&at, &e.Key, &e.Message}, func() {
		if len(groups[at].Examples) < maxExamples {
			groups[at].Examples = append(groups[at].Examples, e)
		}
	})
}

// errorsCache keeps the error groups of recent runs while no block changes: recorded errors stay.
type errorsCache struct {
	mu      sync.Mutex
	entries map[workqueue.RunID]*cachedErrors
	looks   int64
}

// maxCachedErrors bounds the runs; each has at most about a megabyte.
const maxCachedErrors = 16

// While a run keeps failing items, groups that were slow to compute are served stale for a while.
const (
	slowErrors = time.Second // the least time that counts as slow
	staleRatio = 5           // they are served for this multiple of that time
)

type cachedErrors struct {
	turn   turns
	looked int64
	errors Errors
	extent ErrorsExtent
	took   time.Duration
	known  bool
}

// ErrorsExtent identifies a state of a run's errors.
type ErrorsExtent struct {
	generation workqueue.Generation
	steps      []stepErrors
	at         time.Time
}

type stepErrors struct {
	name     string
	optional bool
	failed   int64
	accepted int64
	stamp    int64 // increases with every change of a block
}

func (c *errorsCache) of(run workqueue.RunID) *cachedErrors {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[workqueue.RunID]*cachedErrors{}
	}
	e := c.entries[run]
	if e == nil {
		if len(c.entries) >= maxCachedErrors {
			oldest := run
			for id, other := range c.entries {
				if c.entries[oldest] == nil || other.looked < c.entries[oldest].looked {
					oldest = id
				}
			}
			maps.DeleteFunc(c.entries, func(id workqueue.RunID, _ *cachedErrors) bool { return id == oldest })
		}
		e = &cachedErrors{turn: make(turns, 1)}
		c.entries[run] = e
	}
	c.looks++
	e.looked = c.looks
	return e
}

// serves reports whether the groups are of that state, or slow to compute and not much older.
func (e *cachedErrors) serves(now *ErrorsExtent) bool {
	if !e.known || e.extent.generation != now.generation {
		return false
	}
	same := len(e.extent.steps) == len(now.steps)
	for i := range now.steps {
		if same && e.extent.steps[i].accepted != now.steps[i].accepted { // who accepts some expects to see it
			return false
		}
		same = same && e.extent.steps[i] == now.steps[i]
	}
	return same || e.took >= slowErrors && now.at.Sub(e.extent.at) < staleRatio*e.took
}

// A range of work_block's primary key. xmin is the transaction that last wrote a row: the sum grows with each write.
const errorsOfSteps = `
SELECT r.generation, tranche_now(), s.name, s.optional, coalesce(sum(bit_count(b.failed)), 0)::bigint,
    coalesce(sum(bit_count(b.accepted)), 0)::bigint,
    coalesce(sum(b.xmin::text::bigint), 0)::bigint
FROM batchrun r JOIN run_step s ON s.run_id = r.id
LEFT JOIN work_block b ON b.run_id = s.run_id AND b.step = s.step
WHERE r.id = $1
GROUP BY r.generation, s.step, s.name, s.optional
ORDER BY s.step`

// ReadExtent reads the number of a run's errors by step.
func ReadExtent(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (ErrorsExtent, error) {
	var out ErrorsExtent
	var step stepErrors
	to := []any{&out.generation, &out.at, &step.name, &step.optional, &step.failed, &step.accepted, &step.stamp}
	err := pg.Each(pg.Rows(ctx, tx, errorsOfSteps, run), to, func() {
		out.steps = append(out.steps, step)
	})
	if err == nil && len(out.steps) == 0 {
		return out, workqueue.ErrNotFound
	}
	return out, pg.Wrap(err, "count what is failed")
}

// ByStep returns the steps with errors.
func (x *ErrorsExtent) ByStep() []StepErrors {
	all := []StepErrors{}
	for _, s := range x.steps {
		if s.failed > 0 {
			all = append(all, StepErrors{s.name, s.optional, s.failed})
		}
	}
	return all
}

// BadPart is a part that makes items fail at a later step. A rerun cannot help: the step that made it must be reset.
type BadPart struct {
	Run  workqueue.RunID
	Step string // fails
	Of   string // made the part
	Code string
}

// Why describes the bad part.
func (b *BadPart) Why() string {
	return fmt.Sprintf("step %s fails for the part of step %s (%s), which a rerun of what failed would give it again: "+
		"when the source of that part is fixed, have step %s make it again", b.Step, b.Of, b.Code, b.Of)
}

// Command returns the command that recomputes the part.
func (b *BadPart) Command() string {
	return fmt.Sprintf("tranche run reset %s --step %s --code %s --failed-at %s", b.Run, b.Of, b.Code,
		b.Step)
}

// codeMissingValue is the code of a template for a bad part; services and functions use [workqueue.CodeBadPart].
const codeMissingValue = "missing_value"

const maxBadParts = 1000

// Ranges of the partial index on error codes. Repaired items have no failed bit, or a newer part.
const badParts = `
SELECT DISTINCT s.run_id, s.step, s.name, p.error_code, left(p.error_message, 200),
    ARRAY(SELECT n.name FROM run_step n WHERE n.run_id = s.run_id AND n.step = ANY (s.needs))
FROM run_step s CROSS JOIN LATERAL (
    SELECT run_id, step, ordinal, generation, error_code, error_message FROM work_result
    WHERE run_id = s.run_id AND step = s.step AND error_code = ANY ($2) LIMIT $3) p
JOIN work_block b ON b.run_id = p.run_id AND b.step = p.step AND b.block = p.ordinal / 8192
WHERE s.run_id = ANY ($1) AND s.needs <> '{}' AND get_bit(b.failed, p.ordinal % 8192) = 1 AND p.generation = (
    SELECT max(n.generation) FROM work_result n
    WHERE n.run_id = p.run_id AND n.step = p.step AND n.ordinal = p.ordinal)
ORDER BY s.run_id, s.step`

// ReadBadParts finds the parts of runs that later steps report as bad. It decides between a rerun and a reset.
func ReadBadParts(ctx context.Context, db pg.Querier, runs []workqueue.RunID) (all []BadPart, err error) {
	var b BadPart
	var step workqueue.Step
	var message string
	var needs []string
	err = pg.Each(pg.Rows(ctx, db, badParts, runs, []string{workqueue.CodeBadPart, codeMissingValue}, maxBadParts),
		[]any{&b.Run, &step, &b.Step, &b.Code, &message, &needs}, func() {
			b.Of = partNamed(message)
			if slices.Contains(needs, b.Of) && !slices.Contains(all, b) {
				all = append(all, b)
			}
		})
	return all, pg.Wrap(err, "read the parts that are bad")
}

// partOf matches the name of a part in a message, quoted or not.
var partOf = regexp.MustCompile(`\bpart (?:of )?"?([A-Za-z0-9_.-]+)`)

func partNamed(message string) string {
	if named := partOf.FindStringSubmatch(message); named != nil {
		return named[1]
	}
	return ""
}

func addResets(ctx context.Context, tx pgx.Tx, run workqueue.RunID, groups []ErrorGroup) error {
	bad, err := ReadBadParts(ctx, tx, []workqueue.RunID{run})
	for i := range groups {
		g := &groups[i]
		for _, e := range g.Examples {
			of := BadPart{Run: run, Step: g.Step, Of: partNamed(e.Message), Code: g.Code}
			if slices.Contains(bad, of) && !slices.Contains(g.Resets, of.Of) {
				g.Resets = append(g.Resets, of.Of)
			}
		}
	}
	return err
}
