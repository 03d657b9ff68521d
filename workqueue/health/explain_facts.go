package health

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// facts is all that an explanation reads, as of one moment. Items are counted in planes and masks, never row by row.
type facts struct {
	of     []workqueue.RunID
	blocks []workqueue.Block // nil: all
	masks  any               // the items of blocks; nil: all

	at        time.Time
	runs      map[workqueue.RunID]*runFacts
	steps     map[stepKey]*stepFacts
	slices    []sliceFacts
	endpoints map[string]*endpointFacts
	sessions  map[workqueue.SessionID]*Node
	alive     []*Node // empty while the database is readOnly: nodes cannot work then
	led       bool    // some node has the lease
	readOnly  bool
	// awaitsStandby: commits wait for a missing standby, and nodes cannot work.
	awaitsStandby bool
	faults        []session.StreamFault
	slow          []pace.SlowEndpoint
}

type stepKey struct {
	run  workqueue.RunID
	step workqueue.Step
}

// readFacts reads the facts about runs; masks, if given, restrict it to some items of each block.
func readFacts(
	ctx context.Context, tx pgx.Tx, runs []workqueue.RunID, masks map[workqueue.Block]bitfield.Set,
) (*facts, error) {
	f := &facts{of: runs, runs: map[workqueue.RunID]*runFacts{}, steps: map[stepKey]*stepFacts{},
		endpoints: map[string]*endpointFacts{},
		sessions:  map[workqueue.SessionID]*Node{}}
	var only []bitfield.Set
	for block, mask := range masks {
		f.blocks, only = append(f.blocks, block), append(only, mask)
	}
	if masks != nil {
		f.masks = pgbits.Slice(only)
	}
	if err := tx.QueryRow(ctx, explainNow, ledger.LeaseName).Scan(&f.at, &f.led); err != nil {
		return nil, fmt.Errorf("read the clock: %w", err)
	}
	for _, read := range []func(context.Context, pgx.Tx) error{f.readRuns, f.readSteps, f.readSlices, f.readWaits,
		f.readBadParts, f.readSessions, f.readEndpoints, f.readRivals, f.readStreamFaults} {
		if err := read(ctx, tx); err != nil {
			return nil, err
		}
	}
	return f, nil
}

const explainNow = `
SELECT tranche_now(), EXISTS (SELECT 1 FROM leader WHERE name = $1 AND expires_at > tranche_now())`

// explainPlanes is the missing items of each block by step, and which of them no earlier step misses: those count for
// the run. Blocks that have ended at every step with nothing skipped, most of a large run, are left out. It scans a
// range of work_block's primary key for each run, twice; IS TRUE keeps the second from being a search for each block.
const explainPlanes = `
WITH planes AS (
    SELECT b.run_id, b.step, b.block, b.ready, b.held,
        coalesce(b.failed & u.mask, b.failed) AS failed, coalesce(b.skipped & u.mask, b.skipped) AS skipped,
        m.missing, coalesce(m.missing & b.before, m.missing) AS counted
    FROM (SELECT *, bit_and(` + plane.SettledBits + `) OVER (PARTITION BY b.run_id, b.block
            ORDER BY b.step ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
        FROM work_block b WHERE b.run_id = ANY ($1) AND ($2::int[] IS NULL OR b.block = ANY ($2))
            AND ((b.run_id, b.block) IN (SELECT b.run_id, b.block FROM work_block b WHERE b.run_id = ANY ($1)
                AND (` + plane.SettledCount + ` < b.size OR b.skipped IS NOT NULL))) IS TRUE) b
    LEFT JOIN unnest($2::int[], $3::bit(8192)[]) AS u (block, mask) ON u.block = b.block
    CROSS JOIN LATERAL (SELECT ~(` + plane.SettledBits + `) & coalesce(u.mask, ~` + plane.NoBits + `)
        & (~` + plane.NoBits + ` << (8192 - b.size)) AS missing OFFSET 0) m)`

type stepFacts struct {
	run          workqueue.RunID
	step         workqueue.Step
	name         string
	endpoint     string // that gets its requests
	inFlight     int
	inFlightCap  int // of a gentle run; 0: none
	inFlightAuto bool
	shares       int
	rate         *float64
	tokens       float64
	tokensAt     *time.Time
	maxAttempts  int
	live         int // slices in flight
	kind         workqueue.Kind
	needs        []workqueue.Step
	timeout      time.Duration
	optional     bool
	barred       bool       // it waits at its barrier
	gate         string     // who must approve: anyone or other; empty: no gate
	gateSince    *time.Time // since when it waits for approval
	left         int64      // items without an outcome, also beyond the masks; set only in runs with a barrier

	missing, ready, held  share
	done, failed, skipped int64
	waits                 map[stepSet]share
	leftOut               map[workqueue.Step]int64
}

// share is items of a step, and how many of them count for the run: those that no earlier step misses.
type share struct{ items, counted int64 }

func (s share) minus(o share) share { return share{s.items - o.items, s.counted - o.counted} }

func (s share) plus(o share) share { return share{s.items + o.items, s.counted + o.counted} }

// work_slice_live counts the slices in flight.
const explainSteps = explainPlanes + `
SELECT st.run_id, st.step, st.name, ` + servedBy + `, least(st.in_flight, st.in_flight_cap),
    coalesce(st.in_flight_cap, 0), st.in_flight_auto, st.share, st.rate, st.tokens, st.tokens_at,
    st.max_attempts,
    (SELECT count(*) FROM work_slice s
     WHERE s.run_id = st.run_id AND s.step = st.step AND s.state IN ('claimed', 'sent')),
    st.kind, st.needs, st.request_timeout, st.optional, st.barrier AND NOT st.barrier_passed,
    coalesce(st.approval, ''), st.gate_since,
    CASE WHEN EXISTS (SELECT 1 FROM run_step n WHERE n.run_id = st.run_id AND n.barrier AND NOT n.barrier_passed) THEN
        (SELECT coalesce(sum(b.size - ` + plane.SettledCount + `), 0) FROM work_block b
         WHERE b.run_id = st.run_id AND b.step = st.step) ELSE 0 END::bigint,
    coalesce(p.missing, 0), coalesce(p.missing_counted, 0), coalesce(p.ready, 0), coalesce(p.ready_counted, 0),
    coalesce(p.held, 0), coalesce(p.held_counted, 0), coalesce(c.done, 0), coalesce(c.failed, 0), coalesce(c.skipped, 0)
FROM run_step st
LEFT JOIN (
    SELECT run_id, step, sum(bit_count(missing))::bigint AS missing, sum(bit_count(counted))::bigint AS missing_counted,
        sum(bit_count(ready & missing))::bigint AS ready, sum(bit_count(ready & counted))::bigint AS ready_counted,
        sum(bit_count(held & missing))::bigint AS held, sum(bit_count(held & counted))::bigint AS held_counted
    FROM planes GROUP BY run_id, step
) p USING (run_id, step)
CROSS JOIN LATERAL (
    SELECT sum(bit_count(coalesce(done & mask, done)))::bigint AS done,
        sum(bit_count(coalesce(failed & mask, failed)))::bigint AS failed,
        sum(bit_count(coalesce(skipped & mask, skipped)))::bigint AS skipped
    FROM work_block b LEFT JOIN unnest($2::int[], $3::bit(8192)[]) AS u (block, mask) USING (block)
    WHERE b.run_id = st.run_id AND b.step = st.step AND ($2::int[] IS NULL OR block = ANY ($2))
) c
WHERE st.run_id = ANY ($1)
ORDER BY st.run_id, st.step`

func (f *facts) readSteps(ctx context.Context, tx pgx.Tx) error {
	rows := pg.Rows(ctx, tx, explainSteps, f.of, f.blocks, f.masks)
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*stepFacts, error) {
		s := &stepFacts{}
		return s, row.Scan(&s.run, &s.step, &s.name, &s.endpoint, &s.inFlight, &s.inFlightCap,
			&s.inFlightAuto, &s.shares, &s.rate, &s.tokens,
			&s.tokensAt, &s.maxAttempts, &s.live, &s.kind, &s.needs, &s.timeout, &s.optional, &s.barred, &s.gate,
			&s.gateSince, &s.left,
			&s.missing.items, &s.missing.counted, &s.ready.items, &s.ready.counted, &s.held.items, &s.held.counted, &s.done,
			&s.failed, &s.skipped)
	})
	if err != nil {
		return fmt.Errorf("read the planes: %w", err)
	}
	for _, s := range steps {
		f.steps[stepKey{s.run, s.step}] = s
		f.endpointOf(s.endpoint)
		if r := f.runs[s.run]; r != nil {
			r.steps = append(r.steps, s)
		}
	}
	return nil
}

type sliceFacts struct {
	run      workqueue.RunID
	step     workqueue.Step
	endpoint string
	state    string
	cause    workqueue.Cause
	session  workqueue.SessionID
	due      bool   // scheduled and due
	unsent   string // scheduled, and why it was not published
	handed   bool
	lost     bool   // sent through a stream that no longer exists
	late     bool   // past its deadline
	partly   bool   // some of its items were answered
	refused  string // why a message of its reply was rejected
	final    bool   // the last message of its reply arrived

	slices, answered            int64
	held                        share
	firstAt, lastAt             time.Time // made
	firstDue, lastDue           time.Time
	firstDeadline, lastDeadline *time.Time
	firstSent, lastSent         *time.Time
	firstHanded, lastHanded     *time.Time
	refusedAt                   *time.Time
	maxFailures                 int
	newest                      workqueue.SliceID

	before *LastEvent // how the parent of the newest slice ended
}

// Slices are grouped as far as explanations distinguish them. A scheduled slice goes to its step's current endpoint.
// work_slice_live finds the slices, quarantine_run the rejected messages.
const explainSlices = explainPlanes + `
SELECT s.run_id, s.step,
    CASE s.state WHEN 'scheduled' THEN ` + servedBy + ` ELSE coalesce(s.endpoint, st.endpoint) END,
    s.state, CASE s.state WHEN 'scheduled' THEN s.cause ELSE '' END,
    coalesce(s.session_id, '00000000-0000-0000-0000-000000000000'),
    s.due, s.unsent, s.delivered_at IS NOT NULL, s.lost, s.late, s.remaining <> s.mask, coalesce(q.reason, ''),
    s.answered IS NOT NULL AND s.remaining <> s.mask,
    count(*), sum(bit_count(s.remaining & p.missing))::bigint, sum(bit_count(s.remaining & p.counted))::bigint,
    sum(bit_count(s.mask) - bit_count(s.remaining))::bigint,
    min(s.created_at), max(s.created_at), min(s.not_before), max(s.not_before), min(s.deadline), max(s.deadline),
    min(s.sent_at), max(s.sent_at), min(s.delivered_at), max(s.delivered_at), max(q.at), max(s.failures),
    (array_agg(s.id ORDER BY s.created_at DESC, s.id))[1]
FROM (
    SELECT s.id, s.run_id, s.step, s.block, s.endpoint, s.state, s.cause, s.mask, s.remaining, s.delivered_at,
        s.sent_at, s.answered, s.created_at, s.not_before, s.deadline, s.failures,
        CASE s.state WHEN 'claimed' THEN s.session_id END AS session_id,
        s.state = 'scheduled' AND s.not_before <= $4 AS due,
        CASE WHEN s.state = 'scheduled' AND s.error_code = '` + settle.CodePostponed +
	`' THEN coalesce(s.error_message, '')
            ELSE '' END AS unsent,
        s.state = 'sent' AND s.stream_epoch < (SELECT epoch FROM stream_epoch WHERE name = 'streams') AS lost,
        s.deadline <= $4 AND (s.state = 'claimed' OR s.state = 'sent' AND s.delivered_at IS NOT NULL) AS late
    FROM work_slice s
    WHERE s.run_id = ANY ($1) AND s.state IN ('scheduled', 'claimed', 'sent')
) s
JOIN run_step st USING (run_id, step)
JOIN planes p USING (run_id, step, block)
LEFT JOIN (
    SELECT slice_id, max(at) AS at, (array_agg(reason ORDER BY id DESC))[1] AS reason FROM quarantine
    WHERE run_id = ANY ($1) AND slice_id IS NOT NULL GROUP BY slice_id
) q ON q.slice_id = s.id
WHERE (s.remaining & p.missing) <> B'0'::bit(8192)
GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14
ORDER BY 1, 2, 16 DESC, 4`

func (f *facts) readSlices(ctx context.Context, tx pgx.Tx) (err error) {
	rows := pg.Rows(ctx, tx, explainSlices, f.of, f.blocks, f.masks, f.at)
	f.slices, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (s sliceFacts, err error) {
		var lost, late *bool
		err = row.Scan(&s.run, &s.step, &s.endpoint, &s.state, &s.cause, &s.session, &s.due, &s.unsent, &s.handed,
			&lost, &late, &s.partly, &s.refused, &s.final, &s.slices, &s.held.items, &s.held.counted, &s.answered,
			&s.firstAt, &s.lastAt, &s.firstDue, &s.lastDue, &s.firstDeadline, &s.lastDeadline, &s.firstSent, &s.lastSent,
			&s.firstHanded, &s.lastHanded, &s.refusedAt, &s.maxFailures, &s.newest)
		s.lost, s.late = lost != nil && *lost, late != nil && *late
		return s, err
	})
	if err != nil {
		return fmt.Errorf("read the slices: %w", err)
	}
	for i := range f.slices {
		f.endpointOf(f.slices[i].endpoint)
	}
	return f.readBefore(ctx, tx)
}

// How the parents of slices ended, by primary keys. For a retry, the first item's error counts.
const explainBefore = `
SELECT n.id, p.ended_at, p.state, coalesce(p.service, ''), bit_count(p.mask)::bigint,
    coalesce(e.error_code, p.error_code, ''), coalesce(e.error_message, p.error_message, '')
FROM work_slice n
JOIN work_slice p ON p.id = n.parent AND p.ended_at IS NOT NULL
LEFT JOIN work_error e ON e.run_id = n.run_id AND e.step = n.step AND e.slice_id = p.id
    AND e.ordinal = n.block * 8192 + position(B'1' IN n.mask) - 1
WHERE n.id = ANY ($1)`

func (f *facts) readBefore(ctx context.Context, tx pgx.Tx) error {
	made := map[workqueue.SliceID]*sliceFacts{}
	var ids []workqueue.SliceID
	for i := range f.slices {
		made[f.slices[i].newest] = &f.slices[i]
		ids = append(ids, f.slices[i].newest)
	}
	rows := pg.Rows(ctx, tx, explainBefore, ids)
	var id workqueue.SliceID
	var at time.Time
	var state, service, code, message string
	var items int64
	err := pg.Each(rows, []any{&id, &at, &state, &service, &items, &code, &message}, func() {
		made[id].before = &LastEvent{at, endedText(state, service, items, code, message)}
	})
	return pg.Wrap(err, "read how requests ended")
}
