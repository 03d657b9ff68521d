package health

import (
	"fmt"
	"strings"
	"time"
)

// parked counts the operations of a collector that wait for someone.
type parked struct {
	Collector string
	Ops       int64 // MaxCounted at most
	Since     time.Time
}

// Collectors are few; collector_op_parked.
const healthParked = `
SELECT c.name, p.ops, p.since
FROM collector c CROSS JOIN LATERAL (
    SELECT count(*) AS ops, min(parked_at) AS since FROM (
        SELECT parked_at FROM collector_op o WHERE o.collector = c.id AND parked_at IS NOT NULL
        ORDER BY seq LIMIT $1) AS few) p
WHERE c.state <> 'deleting' AND p.ops > 0
ORDER BY p.ops DESC, c.name LIMIT $2`

// parkedOps tells of operations that are not retried.
func parkedOps() query {
	return each(healthParked, []any{MaxCounted, listed}, func(f *Facts, c *parked) Condition {
		return Condition{
			Subject: c.Collector, Since: c.Since, Count: c.Ops,
			Title: fmt.Sprintf("%s parked: collector %s", ThereAre(int(c.Ops), "operation"), c.Collector),
			Detail: fmt.Sprintf("They failed too often, or permanently, the first %s ago, and are not retried by themselves.",
				Ago(f.At.Sub(c.Since))),
			Remedy: fmt.Sprintf("See why: `tranche collector ops %s --state parked`; then try them again: `tranche collector "+
				"requeue %[1]s --all`, or give them up: `tranche collector drop %[1]s --all`", c.Collector),
		}
	})
}

// lateCollector is a collector with a key that should have been flushed long ago.
type lateCollector struct {
	Collector string
	Endpoint  string
	State     string
	PausedBy  string
	Since     time.Time // when the key should have been flushed
	lastFlush
}

// lastFlush is how the last flush of a collector came to nothing, when no other has come after it.
type lastFlush struct {
	Code    string
	Message string
}

func (l *lastFlush) String() string {
	if l.Code == "" {
		return ""
	}
	return fmt.Sprintf(" The last flush failed with %s: %.200s.", l.Code, l.Message)
}

// collector_key_due, once for each key version and priority that there may be. A key that is full is due since its
// oldest operation was added, up to max_age before it was.
const healthLateFlushes = `
SELECT c.name, c.endpoint, c.state, c.paused_by, d.due_at + c.max_age,
    CASE WHEN c.failures > 0 THEN c.failure_code ELSE '' END,
    CASE WHEN c.failures > 0 THEN c.failure_message ELSE '' END
FROM collector c CROSS JOIN LATERAL (
    SELECT min(first.due_at) AS due_at
    FROM generate_series(c.drained_key_version, c.key_version) AS n CROSS JOIN generate_series(0, c.levels) AS p
    CROSS JOIN LATERAL (
        SELECT due_at FROM collector_key k
        WHERE k.collector = c.id AND k.key_version = n AND k.priority = p AND flush IS NULL AND due_at IS NOT NULL
        ORDER BY due_at LIMIT 1) first) d
WHERE c.state <> 'deleting' AND d.due_at < tranche_now() - c.max_age - $1::interval
ORDER BY 5, 1 LIMIT $2`

// lateFlushes tells of operations that wait for too long.
func lateFlushes() query {
	return each(healthLateFlushes, []any{waiting, listed}, func(f *Facts, c *lateCollector) Condition {
		out := Condition{
			Severity: f.waits(c.Since), Subject: c.Collector, Since: c.Since,
			Title: fmt.Sprintf("Operations wait %s longer than they should: collector %s", Ago(f.At.Sub(c.Since)), c.Collector),
			Detail: fmt.Sprintf("They are for endpoint %s, and have not been flushed within max_age.%s", c.Endpoint,
				&c.lastFlush),
			Remedy: fmt.Sprintf("See what keeps them waiting: `tranche collector show %s`", c.Collector),
		}
		if c.State == "paused" {
			out.Severity, out.Detail = Info, fmt.Sprintf("%s paused it, and it goes on taking operations.", c.PausedBy)
			out.Remedy = fmt.Sprintf("Go on with: `tranche collector resume %s`", c.Collector)
		}
		return out
	})
}

// hungFlush is a collector with a flush that is in progress for too long.
type hungFlush struct {
	Collector string
	Endpoint  string
	Key       string
	Since     time.Time     // when it was begun
	Timeout   time.Duration // what it may take
	lastFlush
}

// hungAfter is how much longer than its time-out a flush may be in progress before it is told of: its key is free
// [dispatch.DefaultClaimTTL] after that, unless its request was sent again.
const hungAfter = time.Minute

// collector_key_flushing. A flush may take as long as its time-out says; but where one has come to nothing already,
// the next need not last for an hour before someone is told.
const healthHungFlushes = `
SELECT c.name, c.endpoint, k.key, k.flushed_at, c.timeout,
    CASE WHEN c.failures > 0 THEN c.failure_code ELSE '' END,
    CASE WHEN c.failures > 0 THEN c.failure_message ELSE '' END
FROM collector c CROSS JOIN LATERAL (
    SELECT key, flushed_at FROM collector_key f
    WHERE f.collector = c.id AND f.flush IS NOT NULL ORDER BY flushed_at LIMIT 1) k
WHERE c.state <> 'deleting' AND (k.flushed_at < tranche_now() - c.timeout - $1::interval
    OR c.failures > 0 AND k.flushed_at < tranche_now() - $2::interval)
ORDER BY 4, 1 LIMIT $3`

// hungFlushes tells of flushes that are in progress for too long.
func hungFlushes() query {
	return each(healthHungFlushes, []any{hungAfter, waiting, listed}, func(f *Facts, h *hungFlush) Condition {
		return Condition{
			Severity: f.waits(h.Since), Subject: h.Collector, Since: h.Since,
			Title: fmt.Sprintf("A flush is in progress for %s: collector %s", Ago(f.At.Sub(h.Since)), h.Collector),
			Detail: fmt.Sprintf("It is of key %.100s, for endpoint %s, and may take %s. What waits for its key goes after it.%s",
				h.Key, h.Endpoint, Ago(h.Timeout), &h.lastFlush),
			Remedy: fmt.Sprintf("See whether the service still works on it: `tranche endpoints show %s`; restart it if not, "+
				"and give the collector a shorter timeout: `tranche collector show %s`", h.Endpoint, h.Collector),
		}
	})
}

// refusing is a collector that takes no operations, as what it stores with them cannot be had.
type refusing struct {
	Collector string
	Since     time.Time
	Last      time.Time // when it was last noted
	Problem   string
}

// Not waits: refusals that were noted within it are told of.
const refusedWindow = 24 * time.Hour

const healthRefusals = `
SELECT name, refused_since, refused_at, refused_for FROM collector
WHERE state <> 'deleting' AND refused_since IS NOT NULL AND refused_at > tranche_now() - $1::interval
ORDER BY 2, 1 LIMIT $2`

// refusals tells of collectors that take no operations.
func refusals() query {
	return each(healthRefusals, []any{refusedWindow, listed}, func(f *Facts, c *refusing) Condition {
		return Condition{
			Severity: f.waits(c.Since), Subject: c.Collector, Since: c.Since,
			Title: fmt.Sprintf("Adds are refused for %s: collector %s", Ago(f.At.Sub(c.Since)), c.Collector),
			Detail: fmt.Sprintf("What enrich asks for cannot be had, last %s ago: %.300s. Nothing of such an add is stored, "+
				"and producers are told to add again later.", Ago(f.At.Sub(c.Last)), strings.TrimSuffix(c.Problem, ".")),
			Remedy: fmt.Sprintf("Fix the source, or the query (`tranche collector show %s --source`, then `tranche collector "+
				"apply FILE`); it is over with the first add that is taken: `tranche collector add %[1]s FILE`", c.Collector),
		}
	})
}
