// Package report says what a run did, and compares runs. It only reads.
package report

import (
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Store reads reports. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// RunReport is the account of a run: the outcomes of its items, where its time went and what did the work. Items is
// the sum of Done, Failed and all of Unprocessed. Failed is the sum of the groups of Errors and those left out.
type RunReport struct {
	inspect.RunSummary
	Complete       bool               `json:"complete" doc:"every item has an outcome"`
	Unprocessed    []Unprocessed      `json:"unprocessed" doc:"where the items without an outcome are"`
	Errors         inspect.Errors     `json:"errors" doc:"the failed items in groups"`
	Steps          []StepReport       `json:"steps"`
	LoadingSeconds float64            `json:"loading_seconds" doc:"from the first item to the last; 0 of an opened run"`
	Seconds        float64            `json:"seconds" doc:"over all generations, without the time between them"`
	PausedSeconds  float64            `json:"paused_seconds" doc:"of those"`
	Rate           float64            `json:"rate" doc:"items a second with a final outcome, pauses left out"`
	BestRate       float64            `json:"best_rate" doc:"items answered a second, in the best ten seconds"`
	Generations    []GenerationReport `json:"generations"`
	Requests       RequestReport      `json:"requests"`
	Together       *Together          `json:"together,omitempty" doc:"with the runs that it continues, as one"`
	Corrected      *CorrectedReport   `json:"corrected,omitempty" doc:"what was made of corrected payloads"`
	Bisections     pace.Bisections    `json:"bisections" doc:"of chunks that failed entirely"`
	Services       []WorkerReport     `json:"services" doc:"the slowest ten by time for an item"`
	Endpoints      []WorkerReport     `json:"endpoints" doc:"the slowest ten by time for an item"`
	At             time.Time          `json:"at" doc:"the database's clock when it looked"`
}

const reportedRoots = 20

// Unprocessed is the number of items without an outcome in one state. Held ones are behind a canary or in a lane,
// scheduled ones wait for their next try, and waiting ones for another step.
type Unprocessed struct {
	State string `json:"state" enum:"ready,held,in_flight,scheduled,waiting,cancelled"`
	Items int64  `json:"items"`
}

// An opened run works from the beginning.
const reportClock = `
SELECT tranche_now(), greatest(extract(epoch FROM coalesce(began, tranche_now()) - created_at), 0)::float8,
    began, hold IS NOT NULL
FROM batchrun CROSS JOIN LATERAL (SELECT CASE WHEN opened THEN created_at ELSE sealed_at END AS began) b WHERE id = $1`

// Report accounts for a run, as of one moment. It reads every failed part and every slice: some 6 s for 1M failed
// items, well under 1 s for 1M done ones. The error wraps ErrNotFound if the run does not exist.
func (s Store) Report(ctx context.Context, id workqueue.RunID) (RunReport, error) {
	var r RunReport
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		r = RunReport{}
		if r.RunSummary, err = inspect.ReadSummary(ctx, tx, id); err != nil {
			return err
		}
		r.Complete = r.State == "completed"
		if r.Errors, err = inspect.ReadErrors(ctx, tx, id); err != nil {
			return err
		}
		if r.Unprocessed, err = readUnprocessed(ctx, tx, &r.RunSummary); err != nil {
			return err
		}
		if err := r.readWork(ctx, tx); err != nil {
			return err
		}
		extent, err := inspect.ReadExtent(ctx, tx, id)
		r.Errors.At, r.Errors.ByStep = r.At, extent.ByStep()
		return err
	})
	return r, pg.Wrap(err, "report on run %s", id)
}

func (r *RunReport) readWork(ctx context.Context, tx pgx.Tx) error {
	life := lifetime{}
	err := tx.QueryRow(ctx, reportClock, r.ID).Scan(&r.At, &r.LoadingSeconds, &life.began, &life.held)
	if err != nil {
		return err
	}
	for _, read := range []func(context.Context, pgx.Tx) error{
		r.readSteps, r.readRequests, r.readTimes, r.readTriedAgain, r.readWorkers,
	} {
		if err := read(ctx, tx); err != nil {
			return err
		}
	}
	if r.Bisections, err = pace.ReadBisections(ctx, tx, r.ID, reportedRoots); err != nil {
		return err
	}
	if r.Corrected, err = readCorrected(ctx, tx, r.ID); err != nil {
		return err
	}
	if r.Together, err = readTogether(ctx, tx, &r.RunSummary); err != nil {
		return err
	}
	if r.Generations, err = readGenerations(ctx, tx, r, life); err != nil {
		return err
	}
	return r.readRates(ctx, tx)
}

// unprocessed classifies items neither done nor failed by the first state that holds at one of their steps: in flight,
// scheduled, ready, or held; the rest wait. It reads planes, and work_slice_live.
const unprocessed = `
WITH planes AS (
    SELECT o.block, o.settled | o.failed AS final, p.ready, p.held
    FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomePlanes + `) o
    CROSS JOIN LATERAL (
        SELECT bit_or(ready) AS ready, bit_or(coalesce(held, ` + plane.NoBits + `)) AS held FROM run_step s
        JOIN work_block b USING (run_id, step) WHERE b.run_id = r.id AND b.block = o.block
    ) p
    WHERE r.id = $1
), live AS (
    SELECT block, coalesce(bit_or(remaining) FILTER (WHERE state <> 'scheduled'), B'0'::bit(8192)) AS flying,
        coalesce(bit_or(remaining) FILTER (WHERE state = 'scheduled'), B'0'::bit(8192)) AS scheduled
    FROM work_slice WHERE run_id = $1 AND state IN ('scheduled', 'claimed', 'sent') GROUP BY block
), apart AS (
    SELECT ~p.final & coalesce(l.flying, B'0'::bit(8192)) AS flying,
        ~p.final & ~coalesce(l.flying, B'0'::bit(8192)) & coalesce(l.scheduled, B'0'::bit(8192)) AS scheduled,
        ~p.final & ~coalesce(l.flying | l.scheduled, B'0'::bit(8192)) AS rest, p.ready, p.held
    FROM planes p LEFT JOIN live l USING (block)
)
SELECT coalesce(sum(bit_count(flying)), 0)::bigint,
    coalesce(sum(bit_count(scheduled)), 0)::bigint, coalesce(sum(bit_count(rest & ready)), 0)::bigint,
    coalesce(sum(bit_count(rest & ~ready & held)), 0)::bigint
FROM apart`

// readUnprocessed counts the items without an outcome. In a cancelled run they have no other state.
func readUnprocessed(ctx context.Context, tx pgx.Tx, run *inspect.RunSummary) ([]Unprocessed, error) {
	var flying, scheduled, ready, held int64
	missing := run.Missing()
	err := tx.QueryRow(ctx, unprocessed, run.ID).Scan(&flying, &scheduled, &ready, &held)
	if err != nil {
		return nil, err
	}
	states := []Unprocessed{
		{"ready", ready}, {"held", held}, {"in_flight", flying}, {"scheduled", scheduled},
		{"waiting", missing - ready - held - flying - scheduled},
	}
	if run.State == "cancelled" {
		states = []Unprocessed{{"cancelled", missing}}
	}
	found := []Unprocessed{}
	for _, s := range states {
		if s.Items > 0 {
			found = append(found, s)
		}
	}
	return found, nil
}

// readOutcomeSteps reads the steps of a run; with a name only those that this step needs, directly or not.
func (s Store) readOutcomeSteps(ctx context.Context, run workqueue.RunID, before string) (plane.OutcomeSteps, error) {
	var out plane.OutcomeSteps
	var step workqueue.Step
	var name string
	var needs []workqueue.Step
	var optional bool
	var all [][]workqueue.Step
	err := pg.Each(pg.Rows(ctx, s.db.Pool, plane.ReadStepsOfRun, run), []any{&step, &name, &needs, &optional}, func() {
		out.All, out.Names, out.Optional = append(out.All, step), append(out.Names, name), append(out.Optional, optional)
		all = append(all, slices.Clone(needs))
	})
	if err == nil && before != "" {
		all, err = upTo(&out, all, before)
	}
	out.Results = plane.ResultSteps(out.All, all)
	return out, err
}

func upTo(out *plane.OutcomeSteps, needs [][]workqueue.Step, before string) ([][]workqueue.Step, error) {
	at := slices.Index(out.Names, before)
	if at < 0 || len(needs[at]) == 0 {
		return nil, &workqueue.StepChoiceError{Step: before, Steps: out.Names}
	}
	wanted := slices.Clone(needs[at])
	var kept plane.OutcomeSteps
	var of [][]workqueue.Step
	for i := at - 1; i >= 0; i-- { // a step needs only earlier ones
		if !slices.Contains(wanted, out.All[i]) {
			continue
		}
		wanted = append(wanted, needs[i]...)
		kept.All, kept.Names = append(kept.All, out.All[i]), append(kept.Names, out.Names[i])
		kept.Optional, of = append(kept.Optional, out.Optional[i]), append(of, needs[i])
	}
	slices.Reverse(kept.All)
	slices.Reverse(kept.Names)
	slices.Reverse(kept.Optional)
	slices.Reverse(of)
	*out = kept
	return of, nil
}

// Keys are looked up one by one in work_queue_key, regardless of statistics.
const payloadsOf = `
SELECT g.key, q.payload FROM unnest($2::text[]) AS g (key)
CROSS JOIN LATERAL (SELECT payload FROM work_queue WHERE run_id = $1 AND item_key = g.key LIMIT 1) q`

// Payloads returns the current payloads of items by key, without unknown keys.
func (s Store) Payloads(ctx context.Context, run workqueue.RunID, keys []string) (map[string]string, error) {
	all := make(map[string]string, len(keys))
	seal, err := s.db.Seal(ctx, s.db.Pool, run)
	if err == nil {
		var key string
		var payload []byte
		_, err = pgx.ForEachRow(pg.Rows(ctx, s.db.Pool, payloadsOf, run, keys), []any{&key, &payload}, func() error {
			opened, err := seal.OpenText(database.PayloadOf(key), payload)
			all[key] = string(opened)
			return err
		})
	}
	return all, pg.Wrap(err, "read payloads of run %s", run)
}

// CorrectedReport is the outcomes of corrected items. Items is the sum of Made, Kept, Failed and Unfinished.
type CorrectedReport struct {
	Items      int64        `json:"items" doc:"that have another payload than they came with"`
	Made       int64        `json:"made" doc:"results that were made since, of corrected data"`
	Kept       int64        `json:"kept" doc:"results of before: no part changed that the step sees"`
	Failed     int64        `json:"failed"`
	Unfinished int64        `json:"unfinished"`
	Times      []Correction `json:"times" doc:"oldest first"`
}

// Correction is one correction of items' payloads.
type Correction struct {
	Generation workqueue.Generation `json:"generation" doc:"that it opened"`
	At         time.Time            `json:"at"`
	Actor      string               `json:"actor"`
	Reason     string               `json:"reason,omitempty"`
	Cascade    bool                 `json:"cascade" doc:"later steps were redone in any case"`
	Items      int64                `json:"items"`
}

const (
	// By run_correction's primary key.
	readCorrections = `
SELECT generation, at, actor, reason, cascade, items FROM run_correction WHERE run_id = $1 ORDER BY generation`

	// The corrected items, with their newest parts of final steps.
	correctedItems = `
WITH fixed AS (
    SELECT ordinal, max(generation) AS since FROM work_correction WHERE run_id = $1 GROUP BY ordinal
), planes AS (
    SELECT o.block, o.settled & ~o.failed AS done, o.failed
    FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomePlanes + `) o WHERE r.id = $1
)
SELECT count(*), count(*) FILTER (WHERE i.done AND i.made),
    count(*) FILTER (WHERE i.done AND NOT i.made), count(*) FILTER (WHERE i.failed)
FROM fixed f JOIN planes p ON p.block = f.ordinal >> 13
CROSS JOIN LATERAL (SELECT get_bit(p.done, f.ordinal & 8191) = 1 AS done,
    get_bit(p.failed, f.ordinal & 8191) = 1 AS failed,
    EXISTS (SELECT FROM work_result w WHERE w.run_id = $1 AND w.ordinal = f.ordinal AND w.generation >= f.since
        AND w.step IN (SELECT s.step FROM run_step s WHERE s.run_id = $1 AND NOT EXISTS (
            SELECT FROM run_step t WHERE t.run_id = $1 AND s.step = ANY (t.needs)))) AS made) i`
)

// readCorrected accounts for corrections; nil without any.
func readCorrected(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (*CorrectedReport, error) {
	times, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[Correction], readCorrections, run)
	if err != nil || len(times) == 0 {
		return nil, err
	}
	r := &CorrectedReport{Times: times}
	err = tx.QueryRow(ctx, correctedItems, run).Scan(&r.Items, &r.Made, &r.Kept, &r.Failed)
	r.Unfinished = r.Items - r.Made - r.Kept - r.Failed
	return r, err
}

// StepReport is the account of one step. Items is the sum of Done, Failed, Skipped and Missing.
type StepReport struct {
	Name        string         `json:"name"`
	Kind        workqueue.Kind `json:"kind" enum:"endpoint,direct,http,sql,local"`
	Endpoint    string         `json:"endpoint" doc:"or what else was called, like http:HOST, sql:SOURCE or local:FUNCTION"`
	Needs       []string       `json:"needs,omitempty"`
	Optional    bool           `json:"optional,omitempty" doc:"what it failed is not a failure of the item"`
	Result      bool           `json:"result" doc:"no other step needs it: its parts are the results of the run"`
	Items       int64          `json:"items"`
	Done        int64          `json:"done"`
	Failed      int64          `json:"failed"`
	Skipped     int64          `json:"skipped" doc:"left out: a step that it needs failed for them"`
	Missing     int64          `json:"missing"`
	Requests    int64          `json:"requests" doc:"in all generations"`
	Asked       int64          `json:"asked" doc:"items in these requests; one counts as often as it was requested"`
	Retried     int64          `json:"retried,omitempty" doc:"of those: requested again after a failure, not by a rerun"`
	P50Seconds  float64        `json:"p50_seconds" doc:"half of the requests took no longer"`
	P99Seconds  float64        `json:"p99_seconds"`
	ResultBytes int64          `json:"result_bytes" doc:"of all results that were recorded, about"`
	FirstAt     *time.Time     `json:"first_at,omitempty" doc:"when the first request was sent"`
	LastAt      *time.Time     `json:"last_at,omitempty" doc:"when the last answer was recorded"`
}

// A range of work_block's primary key and one of work_slice_block for each step.
const stepReports = `
SELECT s.name, s.kind, s.endpoint, ` + inspect.NeedNames + `, s.optional,
    NOT EXISTS (SELECT 1 FROM run_step n WHERE n.run_id = s.run_id AND s.step = ANY (n.needs)),
    r.items, b.done, b.failed, b.skipped, greatest(r.items - b.done - b.failed - b.skipped, 0),
    w.requests, w.asked, w.retried, w.p50, w.p99, b.result_bytes, w.first_at, w.last_at
FROM run_step s JOIN batchrun r ON r.id = s.run_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(bit_count(done)), 0)::bigint AS done, coalesce(sum(bit_count(failed)), 0)::bigint AS failed,
        coalesce(sum(bit_count(skipped)), 0)::bigint AS skipped, coalesce(sum(result_bytes), 0)::bigint AS result_bytes
    FROM work_block WHERE run_id = s.run_id AND step = s.step
) b
CROSS JOIN LATERAL (
    SELECT count(` + plane.AskedAt + `) AS requests,
        coalesce(sum(bit_count(mask)) FILTER (WHERE ` + plane.AskedAt + ` IS NOT NULL), 0)::bigint AS asked,
        coalesce(sum(bit_count(mask)) FILTER (WHERE cause <> 'ready' AND ` + plane.AskedAt + ` IS NOT NULL),
            0)::bigint AS retried,
        coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY greatest(` + tookSeconds + `, 0))
            FILTER (WHERE state = 'recorded'), 0) AS p50,
        coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY greatest(` + tookSeconds + `, 0))
            FILTER (WHERE state = 'recorded'), 0) AS p99,
        min(` + plane.AskedAt + `) AS first_at, max(ended_at) FILTER (WHERE state = 'recorded') AS last_at
    FROM work_slice WHERE run_id = s.run_id AND step = s.step
) w
WHERE s.run_id = $1
ORDER BY s.step`

func (r *RunReport) readSteps(ctx context.Context, tx pgx.Tx) (err error) {
	r.Steps, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[StepReport], stepReports, r.ID)
	return err
}

const maxHistory = 500

// HistoryEntry is one event of a run, or of its environment.
type HistoryEntry struct {
	At   time.Time `json:"at"`
	Kind string    `json:"kind" enum:"action,note,event,breaker,service,alert,node,outage" doc:"service: a version's first answer; node: one started; outage: no node was running"`
	What string    `json:"what" doc:"the action, event, open or closed (breaker, outage), service with its version, or alert"`
	Who  string    `json:"who" doc:"who did it, or the endpoint that it is about"`
	Text string    `json:"text,omitempty" doc:"the note, the reason, or the title of the alert"`
}

// By the indexes on runs, endpoint_change_endpoint, and the run's slices. Alert messages and sessions are few. Of the
// oldest session that is kept, none that overlapped its end was deleted: gaps after its start are real.
const runHistory = `
WITH run AS MATERIALIZED (
    SELECT created_at, coalesce(finished_at, tranche_now()) AS until FROM batchrun WHERE id = $1)
SELECT * FROM (
    SELECT a.at, CASE a.action WHEN 'note' THEN 'note' ELSE 'action' END AS kind, a.action AS what, a.actor AS who,
        coalesce(a.detail ->> 'reason', '') AS text
    FROM audit_log a WHERE a.run_id = $1
    UNION ALL
    SELECT e.at, 'event', e.kind, $3, CASE WHEN e.kind <> 'deadline_at_risk' THEN 'generation ' || e.generation
        WHEN e.payload->>'at_risk' = 'false' THEN 'withdrawn'
        ELSE concat_ws('; ', 'it would end at ' || (e.payload->>'ends'), e.payload->>'bound_by') END
    FROM run_event e
    WHERE e.run_id = $1 AND e.kind IN ('completed', 'overdue', 'rewound', 'deadline_at_risk')
    UNION ALL
    SELECT c.at, 'breaker', c.after, c.endpoint, c.reason
    FROM run, (SELECT DISTINCT endpoint FROM run_step WHERE run_id = $1) s JOIN endpoint_change c USING (endpoint)
    WHERE c.what = 'breaker' AND c.at BETWEEN run.created_at AND run.until
    UNION ALL
    SELECT min(coalesce(w.ended_at, w.sent_at)), 'service', split_part(w.service, ' ', 1),
        coalesce(w.endpoint, st.endpoint), ''
    FROM work_slice w JOIN run_step st USING (run_id, step)
    WHERE w.run_id = $1 AND w.service LIKE '%@%' GROUP BY 3, 4
    UNION ALL
    SELECT m.made_at, 'alert', m.alert, m.state, coalesce(m.body ->> 'title', '')
    FROM run, alert_message m
    WHERE $4 AND m.made_at >= run.created_at AND position($1::text IN m.body::text) > 0
    UNION ALL
    SELECT n.started_at, 'node', 'started', CASE WHEN $4 THEN n.host ELSE '' END, n.version
    FROM run, node_session n WHERE n.started_at BETWEEN run.created_at AND run.until
    UNION ALL
    SELECT e.at, 'outage', e.what, $3, ''
    FROM run, (SELECT min(started_at) AS first,
            range_agg(tstzrange(started_at, greatest(started_at, coalesce(ended_at, expires_at)))) AS alive
        FROM node_session) s,
        unnest(tstzmultirange(tstzrange(least(greatest(run.created_at, s.first), run.until), run.until)) - s.alive) gap,
        LATERAL (VALUES (lower(gap), 'open'), (nullif(upper(gap), run.until), 'closed')) e (at, what)
) h
WHERE at IS NOT NULL
ORDER BY at DESC, kind, what, who
LIMIT $2`

// History returns the events of a run, newest first; without messages of alerts and names of hosts, which are about all
// namespaces, if the context is limited to some. The error wraps ErrNotFound if the run does not exist.
func (s Store) History(ctx context.Context, run workqueue.RunID) (all []HistoryEntry, err error) {
	err = s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		if _, err := inspect.ReadSummary(ctx, tx, run); err != nil {
			return err
		}
		all, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[HistoryEntry], runHistory, run, maxHistory, workqueue.Engine,
			workqueue.Namespaces(ctx) == nil)
		return err
	})
	return all, pg.Wrap(err, "read the history of run %s", run)
}
