package health

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// EndpointExplanation says why an endpoint makes no progress: the items of running runs that wait for it, in groups.
type EndpointExplanation struct {
	Endpoint   string         `json:"endpoint"`
	Summary    string         `json:"summary" doc:"the whole in a sentence or two"`
	Runs       int64          `json:"runs" doc:"running runs with items for it"`
	Missing    int64          `json:"missing" doc:"items of them that it has not answered"`
	Groups     []MissingGroup `json:"groups" doc:"those that need an operator first; their items add up to missing"`
	Listens    string         `json:"listens" doc:"who listens, in words"`
	Notes      []string       `json:"notes,omitempty"`
	Nodes      int            `json:"nodes" doc:"that are alive"`
	At         time.Time      `json:"at"`
	ServicesAt *time.Time     `json:"services_at,omitempty" doc:"when services and consumers were queried, which is later"`
}

const maxExplainedRuns = 2000

// batchrun_active.
const explainedRuns = `
SELECT r.id FROM batchrun r
WHERE r.state = 'running' AND (
    EXISTS (SELECT 1 FROM run_step st WHERE st.run_id = r.id AND ` + servedBy + ` = $1)
    OR EXISTS (SELECT 1 FROM work_slice s WHERE s.run_id = r.id AND s.state IN ('scheduled', 'claimed', 'sent')
                 AND s.endpoint = $1))
ORDER BY r.priority DESC, r.id LIMIT $2`

// ExplainEndpoint says what running runs wait for at an endpoint. It reads one snapshot; the caller adds what services
// and consumers do. An unknown endpoint has no groups.
func (s Store) ExplainEndpoint(ctx context.Context, name string) (*EndpointExplanation, error) {
	e := &EndpointExplanation{Endpoint: name, Groups: []MissingGroup{}}
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) error {
		ids, err := pg.Collect(ctx, tx, pgx.RowTo[workqueue.RunID], explainedRuns, name, maxExplainedRuns+1)
		if err != nil {
			return err
		}
		if len(ids) > maxExplainedRuns {
			ids = ids[:maxExplainedRuns]
			e.Notes = append(e.Notes, fmt.Sprintf("only the %s most urgent runs that use it are counted",
				control.Grouped(maxExplainedRuns)))
		}
		f, err := readFacts(ctx, tx, ids, nil)
		if err != nil {
			return err
		}
		e.At, e.Nodes = f.at, len(f.alive)
		e.Notes = append(e.Notes, f.nodeNotes()...)
		e.Notes = append(e.Notes, f.slowNotes()...)
		var all []MissingGroup
		for _, id := range ids {
			of := slices.DeleteFunc(f.groups(id), func(g MissingGroup) bool { return g.Endpoint != name })
			e.Runs += int64(min(len(of), 1))
			all = append(all, of...)
		}
		for i := range all {
			all[i].Runs = 1
			e.Missing += all[i].Items
		}
		e.Groups = mergedBy(all, func(g *MissingGroup) groupKey { return groupKey{g.State, g.Reason, g.Owner, g.Who} },
			func(g, h *MissingGroup) bool {
				if g.run != h.run {
					g.Runs, g.run = g.Runs+1, h.run
				}
				return g.join(h)
			})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("explain endpoint %s: %w", name, err)
	}
	e.Sum()
	return e, nil
}

// Sum recomputes the summary; call it again after adding groups.
func (e *EndpointExplanation) Sum() {
	sortGroups(e.Groups)
	tellAmiss(e.Groups)
	if e.Missing == 0 {
		e.Summary = fmt.Sprintf("nothing waits for endpoint %s: no running run has unanswered items for it",
			e.Endpoint)
		return
	}
	told := (&Explanation{Groups: e.Groups}).told()
	e.Summary = fmt.Sprintf("%s of %s %s for endpoint %s: %s", Count(e.Missing, "item"), Count(e.Runs, "run"),
		either(e.Missing == 1, "waits", "wait"), e.Endpoint, strings.TrimSpace(told))
}

type endpointFacts struct {
	name          string
	live          int     // slices in flight, of all runs
	liveAuto      int     // those of automatic steps
	busy          int     // what counts against maxInFlight
	maxInFlight   int     // budget; 0: none
	rate          float64 // budget; 0: none
	requestRate   float64 // budget, in requests
	callTokens    float64
	callTokensAt  *time.Time
	paced         bool // endpoint_pace has a row
	inFlight      int
	learnedRate   *float64
	tokens        float64
	tokensAt      *time.Time
	open          bool // the breaker is open
	breakerReason string
	breakerSince  *time.Time
	probes        int
	probeAt       *time.Time
	probeState    string // of the last probe; empty: ended, or no probe
	change        string // why the request limit has its value
	rivals        []rival
}

type rival struct {
	namespace string
	priority  int
	runs      []workqueue.RunID // some of them
	count     int64
	shares    int64 // of all of them
}

func (f *facts) endpointOf(name string) *endpointFacts {
	e := f.endpoints[name]
	if e == nil {
		e = &endpointFacts{name: name}
		f.endpoints[name] = e
	}
	return e
}

func (f *facts) endpointNames() []string {
	names := make([]string, 0, len(f.endpoints))
	for name := range f.endpoints {
		names = append(names, name)
	}
	return names
}

// work_slice_live: few slices are in flight. endpoint_change_endpoint, backwards, for the last change.
const explainEndpoints = `
WITH live AS MATERIALIZED (
    SELECT coalesce(s.endpoint, st.endpoint) AS endpoint, count(*) AS slices,
        count(*) FILTER (WHERE st.in_flight_auto) AS auto
    FROM work_slice s JOIN run_step st USING (run_id, step) WHERE s.state IN ('claimed', 'sent') GROUP BY 1)
SELECT at.endpoint, coalesce(live.slices, 0), coalesce(live.auto, 0),
    CASE WHEN t.max_in_flight > 0 THEN ` + plane.BusyAt + ` ELSE 0 END,
    coalesce(t.max_in_flight, 0), coalesce(t.rate, 0), p.endpoint IS NOT NULL, coalesce(p.in_flight, 0), p.rate,
    coalesce(p.tokens, 0), p.tokens_at, coalesce(p.breaker = 'open', false), coalesce(p.breaker_reason, ''),
    p.breaker_since, coalesce(p.probes, 0), p.probe_at, coalesce(probe.state, ''),
    coalesce((SELECT c.reason FROM endpoint_change c WHERE c.endpoint = at.endpoint AND c.what = 'in_flight'
              ORDER BY c.id DESC LIMIT 1), ''),
    coalesce(t.request_rate, 0), coalesce(p.call_tokens, 0) - 1, p.call_tokens_at
FROM unnest($1::text[]) AS at (endpoint)
LEFT JOIN live ON live.endpoint = at.endpoint
LEFT JOIN endpoint_setting t ON t.endpoint = at.endpoint
LEFT JOIN endpoint_pace p ON p.endpoint = at.endpoint
LEFT JOIN work_slice probe ON probe.id = p.probe_slice AND probe.state IN ('scheduled', 'claimed', 'sent')`

func (f *facts) readEndpoints(ctx context.Context, tx pgx.Tx) error {
	rows := pg.Rows(ctx, tx, explainEndpoints, f.endpointNames())
	found, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*endpointFacts, error) {
		e := &endpointFacts{}
		return e, row.Scan(&e.name, &e.live, &e.liveAuto, &e.busy, &e.maxInFlight, &e.rate, &e.paced,
			&e.inFlight, &e.learnedRate, &e.tokens, &e.tokensAt, &e.open, &e.breakerReason, &e.breakerSince, &e.probes,
			&e.probeAt, &e.probeState, &e.change, &e.requestRate, &e.callTokens, &e.callTokensAt)
	})
	if err != nil {
		return fmt.Errorf("read the endpoints: %w", err)
	}
	for _, e := range found {
		f.endpoints[e.name] = e
	}
	f.slow, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[pace.SlowEndpoint], pace.SlowEndpoints, f.endpointNames(),
		len(f.endpoints))
	return pg.Wrap(err, "find endpoints that became slow")
}

// The runs, by endpoint, priority and namespace, that a node's search for work would find below their limit.
const explainRivals = `
SELECT ` + servedBy + `, r.priority, r.namespace, count(*), sum(st.share), (array_agg(r.id ORDER BY r.id))[1:3]
FROM batchrun r JOIN run_step st ON st.run_id = r.id
WHERE r.state = 'running' AND r.hold IS NULL AND ` + servedBy + ` = ANY ($1)
    AND (NOT st.barrier OR st.barrier_passed)
    AND (SELECT count(*) FROM work_slice s
         WHERE s.run_id = r.id AND s.step = st.step AND s.state IN ('claimed', 'sent'))
            < least(st.in_flight, st.in_flight_cap)
    AND (
    EXISTS (SELECT 1 FROM work_block b WHERE b.run_id = r.id AND b.step = st.step AND b.has_ready)
    OR EXISTS (SELECT 1 FROM work_slice s WHERE s.run_id = r.id AND s.step = st.step AND s.state = 'scheduled'
                 AND s.not_before <= $2))
GROUP BY 1, 2, 3 ORDER BY 1, 2 DESC, 3`

func (f *facts) readRivals(ctx context.Context, tx pgx.Tx) error {
	rows := pg.Rows(ctx, tx, explainRivals, f.endpointNames(), f.at)
	var name string
	var r rival
	err := pg.Each(rows, []any{&name, &r.priority, &r.namespace, &r.count, &r.shares, &r.runs}, func() {
		e := f.endpointOf(name)
		e.rivals = append(e.rivals, r)
		r.runs = nil
	})
	return pg.Wrap(err, "read what else there is to do")
}

// ahead counts the runs of higher priority in a run's namespace.
func (e *endpointFacts) ahead(run *runFacts) (runs int64, one workqueue.RunID, highest int) {
	for i := range e.rivals {
		if r := &e.rivals[i]; r.priority > run.priority && r.namespace == run.namespace {
			if runs == 0 {
				one, highest = r.runs[0], r.priority
			}
			runs += r.count
		}
	}
	return runs, one, highest
}

// others counts the other runs that compete with a run of this share, and what they count for. The run itself is among
// the rivals.
func (e *endpointFacts) others(run *runFacts, share int) (runs, shares int) {
	runs, shares = -1, -share
	elsewhere := map[string]bool{}
	for i := range e.rivals {
		r := &e.rivals[i]
		switch {
		case r.namespace != run.namespace:
			elsewhere[r.namespace] = true
			runs += int(r.count)
		case r.priority >= run.priority:
			runs, shares = runs+int(r.count), shares+int(r.shares)
		}
	}
	return max(runs, 0), dispatch.Rivals(share, max(shares, 0), len(elsewhere))
}

// level is the tokens in a bucket now: it fills at the rate, up to one second's worth.
func level(tokens float64, at *time.Time, rate float64, now time.Time) float64 {
	if at == nil {
		return rate
	}
	return math.Min(tokens+rate*max(now.Sub(*at).Seconds(), 0), max(rate, 1))
}
