// Package pace keeps what an endpoint can take: its limits, what was learned of it, and its circuit breaker.
package pace

import (
	"github.com/tranchehq/tranche/workqueue/database"
)

// Store is the database for endpoints and what they can take. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// endpoint_pace holds what nodes know and decide about the pace of an endpoint, over all runs. Its row is there from
// the seal of the first run that uses the endpoint; a claim makes the one of a step that was loaded before there were
// any.

// MakePaces runs before the run shows, so that claims find the rows.
const MakePaces = `
INSERT INTO endpoint_pace (endpoint) SELECT DISTINCT endpoint FROM run_step WHERE run_id = $1 ORDER BY endpoint
ON CONFLICT DO NOTHING`

// MakeStepPace is for a step that was loaded before paces were kept.
const MakeStepPace = `
INSERT INTO endpoint_pace (endpoint) SELECT endpoint FROM run_step WHERE run_id = $1 AND step = $2
ON CONFLICT DO NOTHING`

// PacesOfEndpoint reads what operators and nodes have found out about the endpoint; both rows may be missing.
const PacesOfEndpoint = `
SELECT coalesce(p.chunk, 0), CASE WHEN p.chunk_cap_until > tranche_now() THEN p.chunk_cap ELSE 0 END,
    coalesce(p.rate, 0), coalesce(e.rate, 0)
FROM endpoint_pace p FULL JOIN endpoint_setting e USING (endpoint) WHERE endpoint = $1`
