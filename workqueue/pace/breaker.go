package pace

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// BreakerChange is the outcome of a check of a breaker.
type BreakerChange struct {
	Endpoint string
	Open     bool
	Changed  bool   // it just opened or closed
	Probed   bool   // a probe just failed: the next waits longer
	Reason   string // of a change, human-readable
}

const (
	// LockBreaker reads and locks the breaker of an endpoint.
	LockBreaker = readBreaker + ` FOR NO KEY UPDATE`

	// MakePace inserts the row of an endpoint.
	MakePace = `INSERT INTO endpoint_pace (endpoint) VALUES ($1) ON CONFLICT DO NOTHING`

	openBreaker = `
UPDATE endpoint_pace
SET breaker = 'open', breaker_reason = $2, breaker_since = tranche_now(), probes = 0, probe_slice = NULL,
    probe_at = tranche_now() + $3::interval, breaker_suppressed_until = NULL, changed_at = tranche_now()
WHERE endpoint = $1 AND breaker = 'closed'`

	// CloseBreaker closes the breaker of an endpoint.
	CloseBreaker = `
UPDATE endpoint_pace
SET breaker = 'closed', breaker_reason = '', breaker_since = tranche_now(), probes = 0, probe_slice = NULL,
    probe_at = NULL, breaker_suppressed_until = tranche_now() + $2::interval, changed_at = tranche_now()
WHERE endpoint = $1 AND breaker = 'open'`

	// A probe that failed for Tranche's own reasons, such as a dead node, does not change the time of the next.
	nextProbe = `
UPDATE endpoint_pace
SET probe_slice = NULL, probes = $2,
    probe_at = CASE WHEN $2 > probes THEN tranche_now() + $3::interval ELSE probe_at END
WHERE endpoint = $1 AND breaker = 'open'`

	// The outcome of a probe. Its slot counts if the slice has no error: a result or a permanent error. An
	// overloaded service has answered. A missing slice means that its run was deleted.
	probeOutcome = `
SELECT CASE WHEN s.state IN ('scheduled', 'claimed', 'sent') THEN 'in progress'
            WHEN s.state <> 'recorded' AND s.error_code IS DISTINCT FROM 'deadline' THEN 'lost'
            WHEN s.error_code IS NULL OR NOT coalesce(s.error_retry, false) OR s.error_code = ANY ($2) THEN 'answered'
            ELSE 'failed' END,
       coalesce(s.error_code, ''), s.ended_at - coalesce(s.sent_at, s.created_at)
FROM work_slice s WHERE s.id = $1`
)

// CheckBreaker checks an endpoint's breaker: it opens one whose requests mostly fail, closes one whose probe was
// answered, and schedules the next probe after a failed one. Any node may call it at any time. While a breaker is
// open, only probes are claimed for the endpoint. After a change the caller should search for work.
func (s Store) CheckBreaker(ctx context.Context, endpoint string) (BreakerChange, error) {
	out := BreakerChange{Endpoint: endpoint}
	due, err := s.breakerDue(ctx, endpoint, &out)
	if err != nil || !due {
		return out, err
	}
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		out = BreakerChange{Endpoint: endpoint}
		if _, err := tx.Exec(ctx, MakePace, endpoint); err != nil {
			return err
		}
		var b BreakerState
		if err := b.Read(ctx, tx, LockBreaker, endpoint); err != nil {
			return err
		}
		if out.Open = b.Open; b.Open {
			return b.judgeProbe(ctx, tx, &out)
		}
		return b.judgeWindow(ctx, tx, &out)
	})
	return out, pg.Wrap(err, "check the breaker of endpoint %s", endpoint)
}

// breakerDue checks without a lock whether a change is possible. Most checks end here and delay no claim.
func (s Store) breakerDue(ctx context.Context, endpoint string, out *BreakerChange) (bool, error) {
	var b BreakerState
	if err := b.Read(ctx, s.db.Pool, readBreaker, endpoint); err != nil {
		return false, err
	}
	if out.Open = b.Open; b.Open {
		return b.probe != nil, nil
	}
	o, _, err := b.consider(ctx, s.db.Pool, endpoint, nil)
	return o.down, err
}

func (b *BreakerState) judgeWindow(ctx context.Context, tx pgx.Tx, out *BreakerChange) error {
	o, _, err := b.consider(ctx, tx, out.Endpoint, nil)
	if err != nil || !o.down {
		return err
	}
	out.Open, out.Changed, out.Reason = true, true, o.reason()
	if _, err := tx.Exec(ctx, openBreaker, out.Endpoint, pg.Plain(out.Reason), FirstProbe); err != nil {
		return err
	}
	return NoteChange(ctx, tx, out.Endpoint, Change{"breaker", "closed", "open", out.Reason})
}

func (b *BreakerState) judgeProbe(ctx context.Context, tx pgx.Tx, out *BreakerChange) error {
	if b.probe == nil {
		return nil
	}
	outcome, code := "lost", ""
	var took *time.Duration
	rows := pg.Rows(ctx, tx, probeOutcome, *b.probe, workqueue.ThrottledCodes())
	_, err := pgx.ForEachRow(rows, []any{&outcome, &code, &took}, func() error { return nil })
	if err != nil {
		return fmt.Errorf("read probe %s: %w", *b.probe, err)
	}
	switch outcome {
	case "in progress":
		return nil
	case "answered":
		out.Open, out.Changed = false, true
		out.Reason = answeredProbe(b.Probes+1, took)
		if _, err := tx.Exec(ctx, CloseBreaker, out.Endpoint, BreakerTrust); err != nil {
			return err
		}
		return NoteChange(ctx, tx, out.Endpoint, Change{"breaker", "open", "closed", out.Reason})
	case "failed":
		out.Probed, out.Reason = true, fmt.Sprintf("probe %d failed with %s", b.Probes+1, code)
		pause, err := b.pauseAfter(ctx, tx, code)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, nextProbe, out.Endpoint, b.Probes+1, pause)
		return err
	default:
		_, err := tx.Exec(ctx, nextProbe, out.Endpoint, b.Probes, time.Duration(0))
		return err
	}
}

// pauseAfter is the wait after a failed probe: short if the service answered about an item that failed before.
func (b *BreakerState) pauseAfter(ctx context.Context, tx pgx.Tx, code string) (time.Duration, error) {
	known, err := Blames(ctx, tx, []workqueue.SliceID{*b.probe})
	if known[*b.probe].rerun && answered(code) {
		return FirstProbe, err
	}
	return ProbePause(b.Probes + 1), err
}

func answeredProbe(number int, took *time.Duration) string {
	if took == nil {
		return fmt.Sprintf("probe %d was answered", number)
	}
	return fmt.Sprintf("probe %d was answered in %s", number, took.Round(time.Millisecond))
}

// NoteChange records a change of an endpoint's state in its transaction.
func NoteChange(ctx context.Context, tx pgx.Tx, endpoint string, c Change) error {
	_, err := tx.Exec(ctx, insertChanges, endpoint, []string{c.What}, []string{c.Before}, []string{c.After},
		[]string{pg.Plain(c.Reason)})
	return pg.Wrap(err, "note a change of endpoint %s", endpoint)
}

const (
	// breakerWindow bounds the age of the evidence.
	breakerWindow = time.Minute
	// breakerNewest is how many ended slices are judged, and breakerRead how many are read to find them.
	breakerNewest = 10
	breakerRead   = 30
	// breakerPlaces is how many different chunks, or disjoint pieces, must have failed: fewer may be bad items.
	breakerPlaces = 5
	// breakerShare is the least share of failures, in tenths.
	breakerShare = 8
)

type endedHow int

// How a slice can end.
const (
	endedWell    endedHow = iota // the service handled the items, with any outcome
	EndedFailed                  // the chunk failed entirely, with an error that may pass
	EndedRefused                 // the service answered every item with a request to retry
)

// endedSlice is an ended slice, or a collector's flush, as evidence for the breaker.
type endedSlice struct {
	id, parent workqueue.SliceID
	items      int
	how        endedHow
	itemsOwn   bool // its items are to blame, or failed before: no evidence about the endpoint
	code       string
}

type outage struct {
	down   bool
	failed int
	of     int
	code   string // of the last that failed
}

// reason has no message: every namespace sees it, and an erasure does not.
func (o outage) reason() string {
	return fmt.Sprintf("%d of the last %d requests failed, the last one with %s", o.failed, o.of, o.code)
}

// judge distinguishes an endpoint that is down from bad items. The newest slice comes first. An endpoint is down
// when, of the last breakerNewest slices that are evidence, or of all if fewer, breakerShare tenths failed in
// breakerPlaces different places.
//
// A success of any size is evidence against an outage. No evidence are items known to be bad; items that failed
// before and that the service again answers with an error; and, while the endpoint is trusted after an answered
// probe, chunks of several items, since large chunks failing while small ones work is not an outage. Of a chunk and its
// pieces only the smallest failures count, and a retry counts with what it retries. So one bad item is one place,
// however often it is cut out and retried.
func judge(newest []endedSlice, trusted bool) (o outage) {
	var failures []endedSlice
	tried := map[workqueue.SliceID]bool{} // failed, as did its pieces or its retry
	for _, s := range newest {
		if s.how != endedWell && (s.itemsOwn || trusted && s.how == EndedFailed && s.items > 1) {
			continue
		}
		if o.of == breakerNewest {
			break
		}
		o.of++
		if s.how == endedWell {
			continue
		}
		if o.failed == 0 {
			o.code = s.code
		}
		o.failed++
		failures = append(failures, s)
		tried[s.parent] = true
	}
	places := 0
	for _, s := range failures {
		if !tried[s.id] {
			places++
		}
	}
	o.down = places >= breakerPlaces && o.failed*10 >= o.of*breakerShare
	return o
}

const (
	// FirstProbe is the pause before a breaker's first probe. It doubles with each failed one, up to longestProbe.
	FirstProbe   = time.Second
	longestProbe = 30 * time.Second
	// BreakerTrust is how long an endpoint counts as up after an answered probe.
	BreakerTrust = time.Minute
	// PatientProbes is how many probes must have failed before another counts against an item that has failed alone
	// before. Shorter outages, up to about 30 s, cost no item an attempt.
	PatientProbes = 5
)

// unansweredCodes are the codes of failures that may mean an absent service: not its answers.
func unansweredCodes() []string {
	return []string{"deadline", "timeout", "unavailable", workqueue.CodeDeliveries, "unreachable", "no_listeners"}
}

func answered(code string) bool { return !slices.Contains(unansweredCodes(), code) }

// ProbePause is the wait before the next probe after that many failures.
func ProbePause(failed int) time.Duration {
	d := FirstProbe
	for ; failed > 1 && d < longestProbe; failed-- {
		d *= 2
	}
	return min(d, longestProbe)
}

// Blame is what is known of items that fail while their endpoint is or seems down.
type Blame struct {
	proven  bool // they failed while the endpoint worked for others
	singled bool // a reply that brought others an outcome left them to be retried
	Lone    int  // how often a single item has failed alone before
	again   bool // a single item that failed alone before, in an attempt that counted
	rerun   bool // few items, and all failed in an earlier generation
	others  bool // for a probe: there is other work to probe with
}

func (b Blame) atFault(code string) bool { return b.proven || b.singled && answered(code) }

// spared reports whether a slice's failure is attributed to an outage instead of its items. failedProbes counts
// since the breaker opened.
//
// Items known to be to blame are not spared: otherwise items that always fail would keep the breaker open, since
// nothing else could send a probe. For the same reason a probe eventually counts if only items that failed alone
// remain to probe with.
func (b Blame) spared(origin workqueue.Cause, code string, failedProbes int) bool {
	last := origin == workqueue.CauseProbe && b.Lone > 0 && !b.others
	return !b.atFault(code) && (!last || failedProbes < PatientProbes)
}

// operatorTrust is how long a breaker closed by an operator stays closed, even if failures continue.
const operatorTrust = 10 * time.Minute

// overrideBreaker locks the pace's row after the setting's, as everywhere. The reason of a closed breaker names who
// closed it, which distinguishes an operator's trust from that after a probe.
const overrideBreaker = `
WITH was AS MATERIALIZED (
    SELECT endpoint, breaker FROM endpoint_pace WHERE endpoint = $1 FOR NO KEY UPDATE)
UPDATE endpoint_pace p
SET breaker = 'closed', breaker_reason = $2, probes = 0, probe_slice = NULL, probe_at = NULL,
    breaker_since = CASE WHEN was.breaker = 'open' THEN tranche_now() ELSE p.breaker_since END,
    breaker_suppressed_until = tranche_now() + $3::interval, changed_at = tranche_now()
FROM was WHERE p.endpoint = was.endpoint
RETURNING was.breaker, p.breaker_suppressed_until`

// closeByHand closes an endpoint's breaker because an operator knows that there is no outage, and keeps it closed
// for a while, even if it was closed. It returns the breaker's earlier state, and until when it stays closed.
func closeByHand(ctx context.Context, tx pgx.Tx, endpoint, actor string) (was string, until time.Time, err error) {
	if _, err := tx.Exec(ctx, MakePace, endpoint); err != nil {
		return "", until, err
	}
	reason := "closed by " + actor
	if err := tx.QueryRow(ctx, overrideBreaker, endpoint, reason, operatorTrust).Scan(&was, &until); err != nil {
		return "", until, err
	}
	if was != string(workqueue.BreakerOpen) {
		return was, until, nil
	}
	return was, until, NoteChange(ctx, tx, endpoint, Change{"breaker", was, string(workqueue.BreakerClosed), reason})
}

// Unreached reports whether an error means that no server was reached: no connection, or no listener.
func Unreached(code string) bool { return code == "unreachable" || code == "no_listeners" }

// ClosedByHand reports whether an operator closed the endpoint's breaker within [operatorTrust].
func ClosedByHand(ctx context.Context, tx pgx.Tx, endpoint string) (bool, error) {
	var b BreakerState
	err := b.Read(ctx, tx, readBreaker, endpoint)
	return b.vouched, err
}
