package health

import (
	"time"

	"github.com/jackc/pgx/v5"
)

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
