package pace

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
