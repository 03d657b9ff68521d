package explain

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// EndpointExplanation says why an endpoint does not move: the missing items of running runs that it is to answer, in
// groups.
type EndpointExplanation struct {
	Endpoint   string         `json:"endpoint"`
	Summary    string         `json:"summary" doc:"the whole in a sentence or two"`
	Runs       int64          `json:"runs" doc:"running runs with items for it"`
	Missing    int64          `json:"missing" doc:"items of them that it has not answered"`
	Groups     []MissingGroup `json:"groups" doc:"the ones that need somebody first; their items add up to missing"`
	Listens    string         `json:"listens" doc:"who listens, in words"`
	Notes      []string       `json:"notes,omitempty"`
	Nodes      int            `json:"nodes" doc:"that are alive"`
	At         time.Time      `json:"at"`
	ServicesAt *time.Time     `json:"services_at,omitempty" doc:"when services and consumers were asked, which is later"`
}

// maxExplainedRuns bounds the runs of which an endpoint is explained. The most urgent ones come first.
const maxExplainedRuns = 2000

// batchrun_active finds the runs.
const explainedRuns = `
SELECT r.id FROM batchrun r
WHERE r.state = 'running' AND (
    EXISTS (SELECT 1 FROM run_step st WHERE st.run_id = r.id AND st.endpoint = $1)
    OR EXISTS (SELECT 1 FROM work_slice s WHERE s.run_id = r.id AND s.state IN ('scheduled', 'claimed', 'sent')
                 AND s.endpoint = $1))
ORDER BY r.priority DESC, r.id LIMIT $2`

// ExplainEndpoint says what the running runs wait for at an endpoint. It reads one snapshot; what services and
// consumers do is for the caller to add. An endpoint that nobody knows has no groups.
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
		for _, id := range ids {
			e.add(f.groups(id))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("explain endpoint %s: %w", name, err)
	}
	e.Sum()
	return e, nil
}

// add takes in what one run waits for at the endpoint.
func (e *EndpointExplanation) add(groups []MissingGroup) {
	counted := false
	for i := range groups {
		g := groups[i]
		if g.Endpoint != e.Endpoint {
			continue
		}
		counted = true
		e.Missing += g.Items
		e.merge(g)
	}
	if counted {
		e.Runs++
	}
}

// merge adds a group to the one of its kind.
func (e *EndpointExplanation) merge(g MissingGroup) {
	g.Runs = 1
	i := slices.IndexFunc(e.Groups, func(h MissingGroup) bool {
		return h.State == g.State && h.Reason == g.Reason && h.Owner == g.Owner && h.Who == g.Who
	})
	if i < 0 {
		e.Groups = append(e.Groups, g)
		return
	}
	h := &e.Groups[i]
	if h.run != g.run {
		h.Runs++
		h.run = g.run
	}
	h.join(&g)
}

// Sum makes the summary from the groups, which whoever has added to them calls again.
func (e *EndpointExplanation) Sum() {
	sortGroups(e.Groups)
	tellAmiss(e.Groups)
	if e.Missing == 0 {
		e.Summary = fmt.Sprintf("nothing waits for endpoint %s: no running run has items for it that are not answered",
			e.Endpoint)
		return
	}
	run := "1 run"
	if e.Runs != 1 {
		run = control.Grouped(e.Runs) + " runs"
	}
	told := (&Explanation{Groups: e.Groups}).told()
	e.Summary = fmt.Sprintf("%s of %s %s for endpoint %s: %s", manyItems(e.Missing), run, waitsWait(e.Missing),
		e.Endpoint, strings.TrimSpace(told))
}

func waitsWait(n int64) string {
	if n == 1 {
		return "waits"
	}
	return "wait"
}
