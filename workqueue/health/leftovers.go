package health

import (
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue/session"
)

// MaxCounted is how far letters and messages are counted.
const MaxCounted = 10_000

// letters counts the dead letters of an endpoint that wait for someone.
type letters struct {
	Endpoint string
	Letters  int64 // MaxCounted together at most
	Since    time.Time
}

// dead_letter_state, backwards.
const healthLetters = `
SELECT endpoint, count(*), min(at) FROM (
    SELECT endpoint, at FROM dead_letter WHERE state = 'waiting' ORDER BY id DESC LIMIT $1) d
GROUP BY endpoint ORDER BY 2 DESC, 1 LIMIT $2`

// deadLetters tells of dead letters that wait for someone.
func deadLetters() query {
	return each(healthLetters, []any{MaxCounted, listed}, func(f *Facts, l *letters) Condition {
		return Condition{
			Subject: l.Endpoint, Since: l.Since, Count: l.Letters,
			Link:   "/dead-letters?endpoint=" + url.QueryEscape(l.Endpoint),
			Title:  fmt.Sprintf("%s of %s", Count(l.Letters, "dead letter"), l.Endpoint),
			Detail: fmt.Sprintf("No service could deal with them. The oldest came %s ago.", Ago(f.At.Sub(l.Since))),
			Remedy: fmt.Sprintf("See them: `tranche dlq list --endpoint %[1]s`; then send them again: "+
				"`tranche dlq requeue --endpoint %[1]s`, or give them up: `tranche dlq drop --endpoint %[1]s`", l.Endpoint),
		}
	})
}

// strayMessages counts messages that could not be taken, by the reason.
type strayMessages struct {
	Reason   string
	Messages int64 // MaxCounted together at most
	First    time.Time
	Last     time.Time
}

// Not waits: how far back quarantined messages are told of.
const straysWindow = 24 * time.Hour

// The primary key, backwards.
const healthStrays = `
SELECT reason, count(*), min(at), max(at) FROM (SELECT reason, at FROM quarantine ORDER BY id DESC LIMIT $1) q
WHERE at > tranche_now() - $2::interval
GROUP BY reason ORDER BY 2 DESC, 1 LIMIT $3`

// strays tells of messages that could not be taken.
func strays() query {
	return each(healthStrays, []any{MaxCounted, straysWindow, listed}, func(f *Facts, q *strayMessages) Condition {
		return Condition{
			Subject: q.Reason, Since: q.First, Count: q.Messages,
			Title: fmt.Sprintf("%s could not be taken: %s", Count(q.Messages, "message"), q.Reason),
			Detail: fmt.Sprintf("Within the last day, the last one %s ago. Their items are retried.",
				Ago(f.At.Sub(q.Last))),
			Remedy: "See what services sent: `tranche quarantine list`. This is over a day after the last one",
		}
	})
}

// unpublished counts events of runs that could not be published: NATS is unavailable, or does not take them from the
// nodes' user.
type unpublished struct {
	Events int64
	Since  *time.Time
	Kinds  []string // which those are
}

// eventTimeout is how long an event may take to be published.
const eventTimeout = time.Minute

// run_event_unpublished.
const healthEvents = `
SELECT count(*), min(at), coalesce(array_agg(DISTINCT kind ORDER BY kind), '{}')
FROM run_event WHERE published_at IS NULL AND at < tranche_now() - $1::interval`

// waitingEvents tells of events that could not be published.
func waitingEvents() query {
	return all(healthEvents, []any{eventTimeout}, func(f *Facts, rows []unpublished) []Condition {
		if len(rows) == 0 || rows[0].Since == nil {
			return nil
		}
		e := &rows[0]
		return []Condition{{
			Subject: "events", Since: *e.Since, Title: Count(e.Events, "event") + " could not be published",
			Detail: fmt.Sprintf("The oldest is %s old; they say %s. Who waits for them does not know yet.",
				Ago(f.At.Sub(*e.Since)), strings.Join(e.Kinds, ", ")),
			Remedy: "See to NATS, and to what the nodes log: their user may lack a permission for these kinds, or they are " +
				"larger than max_payload. They are published as soon as NATS takes them",
		}}
	})
}

// endingToken is an API token that is about to expire.
type endingToken struct {
	Name      string
	Role      string
	ExpiresAt time.Time
}

const (
	// Not waits: so long before its end a token is told of, and is a warning.
	tokenWindow = 7 * 24 * time.Hour
	tokenUrgent = 24 * time.Hour
)

// Tokens are few.
const healthTokens = `
SELECT name, role, expires_at FROM api_token
WHERE revoked_at IS NULL AND expires_at > tranche_now() AND expires_at < tranche_now() + $1::interval
ORDER BY expires_at, id LIMIT $2`

// endingTokens tells of tokens that are about to expire.
func endingTokens() query {
	return each(healthTokens, []any{tokenWindow, listed}, func(f *Facts, t *endingToken) Condition {
		left := t.ExpiresAt.Sub(f.At)
		c := Condition{
			Severity: Info, Subject: t.Name, Since: t.ExpiresAt.Add(-tokenWindow),
			Title:  fmt.Sprintf("The token %s expires in %s", t.Name, Ago(left)),
			Detail: fmt.Sprintf("It is one of role %s. Who uses it is refused from then on.", t.Role),
			Remedy: fmt.Sprintf("Make another and hand it over: `tranche token create --role %s`; then revoke this one", t.Role),
		}
		if left < tokenUrgent {
			c.Severity = Warning
		}
		return c
	})
}

// failingAlert is a rule whose receiver could not be told anything for long.
type failingAlert struct {
	Alert    string
	Since    time.Time
	Failures int
	Reason   string
	Waiting  int64 // messages
}

// alertTimeout is how long a receiver may fail before anybody is told.
const alertTimeout = 10 * time.Minute

// Rules are few.
const healthAlerts = `
SELECT a.name, a.failing_since, a.failures, split_part(a.error, E'\n', 1),
    (SELECT count(*) FROM alert_message m WHERE m.alert = a.name AND m.state = 'waiting')
FROM alert a
WHERE a.deleted_at IS NULL AND a.state = 'active' AND a.failing_since < tranche_now() - $1::interval
ORDER BY a.failing_since, a.name LIMIT $2`

// failingAlerts tells of receivers that could not be told anything for long.
func failingAlerts() query {
	return each(healthAlerts, []any{alertTimeout, listed}, func(f *Facts, a *failingAlert) Condition {
		return Condition{
			Subject: a.Alert, Since: a.Since, Link: "/alerts?name=" + url.QueryEscape(a.Alert),
			Title: "No one hears of alert " + a.Alert,
			Detail: fmt.Sprintf("Its receiver could not be told anything for %s, at %s; %s waiting. The last: %s.",
				Ago(f.At.Sub(a.Since)), Count(a.Failures, "attempt"), ThereAre(int(a.Waiting), "message"), a.Reason),
			Remedy: fmt.Sprintf("Fix that, then try it: `tranche alert test %s`", a.Alert),
		}
	})
}

// streamTrouble tells what the leader could not bring to JetStream.
func streamTrouble() query {
	return each(session.HealthStreams, nil, func(_ *Facts, t *session.StreamTrouble) Condition {
		return Condition{
			Subject: "streams", Since: t.Since, Title: "The streams are not as they are set",
			Detail: fmt.Sprintf("%s (tried %s, and retried). They go on as they are.", OneLine(t.Trouble, maxTrouble),
				Count(t.Tries, "time")),
			Remedy: "See `tranche streams`; fix what it says, or set what there can be with `tranche streams set`",
		}
	})
}

// maxTrouble bounds what is quoted of a server.
const maxTrouble = 300

// GapTold is for how long the health tells of a gap in which something was lost; of a server that took over without a
// loss that is known, it does for an hour.
const (
	GapTold  = 24 * time.Hour
	moveTold = time.Hour
)

// healthGaps goes through a table of few rows.
const healthGaps = `
SELECT noticed_at, from_at, to_at, lost, runs FROM database_rewind
WHERE noticed_at > tranche_now() - CASE WHEN lost THEN $2::interval ELSE $3::interval END
ORDER BY id DESC LIMIT $1`

// notedGap is a gap as the health tells of it.
type notedGap struct {
	NoticedAt, From, To time.Time
	Lost                bool
	Runs                int
}

// databaseGaps tells what was confirmed and is lost.
func databaseGaps() query {
	return each(healthGaps, []any{listed, GapTold, moveTold}, func(_ *Facts, g *notedGap) Condition {
		const day = "2006-01-02 15:04:05.0 MST"
		from, to := g.From.UTC().Format(day), g.To.UTC().Format(day)
		c := Condition{
			Severity: Critical, Subject: g.NoticedAt.UTC().Format("2006-01-02T15:04:05Z"), Since: g.NoticedAt,
			Title: "The database lost recent commits",
			Detail: fmt.Sprintf("What was confirmed between %s and %s, or in the second after, is lost: runs that were "+
				"started, items that were added, operations, acknowledgements, changes. What was out was reissued (%s "+
				"in progress).", from, to, Count(g.Runs, "run")),
			Remedy: "Have what was sent to Tranche in that time sent again: with the same idempotency keys nothing is done " +
				"twice. Replicate synchronously where a failover is to lose nothing",
		}
		if !g.Lost {
			c.Severity, c.Title = Warning, "Another server took the database over"
			c.Detail = fmt.Sprintf("Nothing is known to be lost. If it was replicated asynchronously, what was confirmed "+
				"in the second after %s may be. What was out was reissued.", from)
		}
		return c
	})
}
