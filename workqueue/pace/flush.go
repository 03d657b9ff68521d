package pace

// MinCallRate and MaxCallRate bound a rate of calls.
const MinCallRate = 0.0001 // calls a second: about one in three hours

// MaxCallRate is in calls a second.
const MaxCallRate = 100_000

// DrainPaceCalls takes calls from the pace of an endpoint.
const DrainPaceCalls = `UPDATE endpoint_pace SET call_tokens = $2, call_tokens_at = $3 WHERE endpoint = $1`
