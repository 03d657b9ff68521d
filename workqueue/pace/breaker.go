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

// BreakerChange is what a look at a breaker came to.
type BreakerChange struct {
	Endpoint string
	Open     bool
	Changed  bool   // it opened or closed just now
	Probed   bool   // a probe failed just now: the next waits longer
	Reason   string // of a change, in plain words
}

const (
	// LockBreaker reads the breaker of an endpoint, and locks it.
	LockBreaker = readBreaker + ` FOR NO KEY UPDATE`

	// MakePace makes the row of an endpoint.
	MakePace = `INSERT INTO endpoint_pace (endpoint) VALUES ($1) ON CONFLICT DO NOTHING`

	openBreaker = `
UPDATE endpoint_pace
SET breaker = 'open', breaker_reason = $2, breaker_since = tranche_now(), probes = 0, probe_slice = NULL,
    probe_at = tranche_now() + $3::interval, breaker_suppressed_until = NULL, changed_at = tranche_now()
WHERE endpoint = $1 AND breaker = 'closed'`

	// CloseBreaker lets work go to an endpoint again.
	CloseBreaker = `
UPDATE endpoint_pace
SET breaker = 'closed', breaker_reason = '', breaker_since = tranche_now(), probes = 0, probe_slice = NULL,
    probe_at = NULL, breaker_suppressed_until = tranche_now() + $2::interval, changed_at = tranche_now()
WHERE endpoint = $1 AND breaker = 'open'`

	// A probe that came to nothing by our own fault, say because its node died, leaves the time of the next as it is.
	nextProbe = `
UPDATE endpoint_pace
SET probe_slice = NULL, probes = $2,
    probe_at = CASE WHEN $2 > probes THEN tranche_now() + $3::interval ELSE probe_at END
WHERE endpoint = $1 AND breaker = 'open'`

	// What became of a probe. Its slot tells when the slice has no error: a result, or an error permanently. A service
	// that says it has too much to do has answered. That a slice is missing means that its run is gone.
	probeOutcome = `
SELECT CASE WHEN s.state IN ('scheduled', 'claimed', 'sent') THEN 'in progress'
            WHEN s.state <> 'recorded' AND s.error_code IS DISTINCT FROM 'deadline' THEN 'lost'
            WHEN s.error_code IS NULL OR NOT coalesce(s.error_retry, false) OR s.error_code = ANY ($2) THEN 'answered'
            ELSE 'failed' END,
       coalesce(s.error_code, ''), coalesce(s.error_message, ''), s.ended_at - coalesce(s.sent_at, s.created_at)
FROM work_slice s WHERE s.id = $1`
)

// CheckBreaker looks at an endpoint's breaker: it opens one whose requests fail by and large, closes one whose probe
// was answered, and sets the time of the next probe when one failed. Any node may call it at any time. While a breaker
// is open nothing is claimed for the endpoint but probes. Whoever learns of a change should look for work.
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
	if err != nil {
		return BreakerChange{Endpoint: endpoint}, fmt.Errorf("check the breaker of endpoint %s: %w", endpoint, err)
	}
	return out, nil
}

// breakerDue looks without a lock whether there may be something to change: most looks end here and are in the way of
// no claim.
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
	outcome, code, message := "lost", "", ""
	var took *time.Duration
	rows := pg.Rows(ctx, tx, probeOutcome, *b.probe, workqueue.ThrottledCodes())
	_, err := pgx.ForEachRow(rows, []any{&outcome, &code, &message, &took}, func() error { return nil })
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
		out.Probed, out.Reason = true, fmt.Sprintf("probe %d failed with %s: %.200s", b.Probes+1, code, message)
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

// pauseAfter is how long to wait after a probe that failed. That an item fails again which failed in an earlier
// generation says little of a service that answers: the next follows soon.
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

// NoteChange keeps a change of an endpoint's state, in the transaction that makes it.
func NoteChange(ctx context.Context, tx pgx.Tx, endpoint string, c Change) error {
	_, err := tx.Exec(ctx, insertChanges, endpoint, []string{c.What}, []string{c.Before}, []string{c.After},
		[]string{pg.Plain(c.Reason)})
	if err != nil {
		return fmt.Errorf("note a change of endpoint %s: %w", endpoint, err)
	}
	return nil
}

const (
	// breakerWindow bounds how far back the breaker looks.
	breakerWindow = time.Minute
	// breakerNewest is by how many of the slices that ended last the breaker goes, and breakerRead how many are read to
	// find them: some do not count.
	breakerNewest = 10
	breakerRead   = 30
	// breakerPlaces is how many different chunks, or disjoint pieces of chunks, must have failed: fewer may be the work of
	// as many bad items.
	breakerPlaces = 5
	// breakerShare is the least share of failures, in tenths.
	breakerShare = 8
)

// endedHow is what the end of a slice says about its endpoint.
type endedHow int

// How a slice can have ended.
const (
	endedWell    endedHow = iota // the service handled the items, whatever it said of each
	EndedFailed                  // the chunk failed as a whole, in a way that may pass
	EndedRefused                 // the service answered every item, and asked for every item to be retried
)

// endedSlice is a slice that has ended, or a flush of a collector, as the breaker sees it.
type endedSlice struct {
	id, parent workqueue.SliceID
	items      int
	how        endedHow
	itemsOwn   bool // it failed because of its items, or as they did before: that says nothing of its endpoint
	code       string
	message    string
}

// outage is what the slices of an endpoint that ended last say together.
type outage struct {
	down   bool
	failed int
	of     int
	last   endedSlice // that failed
}

// reason says in plain words why a breaker opens.
func (o outage) reason() string {
	return fmt.Sprintf("%d of the last %d requests failed, the last one with %s: %.200s", o.failed, o.of, o.last.code,
		o.last.message)
}

// judge tells an endpoint that is down from one that meets bad items. The newest slice comes first. The rule:
// an endpoint is down when, of the last breakerNewest slices that say something of it, or of all when they are fewer,
// breakerShare tenths failed, in breakerPlaces different places.
//
// What goes against an outage: a success, of whatever size. What says nothing: items that are known to fail by
// themselves; items that failed before and that the service answers with an error again; and, while the endpoint is
// trusted since it answered a probe, a chunk of several items: large chunks that fail while small ones work are no
// outage. Of a chunk and its pieces only the smallest failures count, and a retry counts with what it retries, so that
// one bad item, however often it is cut out and tried, is one place.
func judge(newest []endedSlice, trusted bool) (o outage) {
	var failures []endedSlice
	tried := map[workqueue.SliceID]bool{} // failed, and its pieces or its retry did as well
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
			o.last = s
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
	// FirstProbe is how long after its opening a breaker lets the first probe pass; the pause doubles with each that
	// fails, up to longestProbe.
	FirstProbe   = time.Second
	longestProbe = 30 * time.Second
	// BreakerTrust is for how long an endpoint that answered a probe is believed to be up.
	BreakerTrust = time.Minute
	// PatientProbes is how many probes must have failed before one more is held against an item that has failed alone
	// before. Shorter outages than that, about 30 s, cost no one an attempt.
	PatientProbes = 5
)

// unansweredCodes are those of failures that may come of a service that is not there: they are no answer of its own.
func unansweredCodes() []string {
	return []string{"deadline", "timeout", "unavailable", "unanswered", workqueue.CodeDeliveries, "unreachable",
		"no_listeners"}
}

// answered reports whether a failure is an answer of the service's own.
func answered(code string) bool { return !slices.Contains(unansweredCodes(), code) }

// ProbePause is how long to wait for the next probe after so many have failed.
func ProbePause(failed int) time.Duration {
	d := FirstProbe
	for ; failed > 1 && d < longestProbe; failed-- {
		d *= 2
	}
	return min(d, longestProbe)
}

// Blame is what is known of items that fail while their endpoint is down or seems to be.
type Blame struct {
	proven bool // they failed while the endpoint worked for others
	Lone   int  // how often a single item has failed alone before
	again  bool // it is a single item, which failed alone before as an attempt that counted
	rerun  bool // they are few, and all of them failed in an earlier generation
	others bool // of a probe: there is other work to probe with
}

// spared reports whether the failure of a slice is put down to an outage, rather than to its items. failedProbes counts
// since the breaker opened.
//
// Items that are known to be to blame are not spared: otherwise items that always fail would keep a breaker open for
// which no one else could send a probe. For the same reason a probe counts in the end when there is nothing left to
// probe with but items that have failed alone.
func (b Blame) spared(origin workqueue.Cause, failedProbes int) bool {
	last := origin == workqueue.CauseProbe && b.Lone > 0 && !b.others
	return !b.proven && (!last || failedProbes < PatientProbes)
}

// operatorTrust is for how long nothing opens a breaker that an operator has closed: it would open again at once, since
// what it was closed for goes on.
const operatorTrust = 10 * time.Minute

// overrideBreaker takes the row of the pace after that of the setting, as everywhere. The reason of a closed breaker
// says who closed it, which is how an operator's trust is told from that after a probe.
const overrideBreaker = `
WITH was AS MATERIALIZED (
    SELECT endpoint, breaker FROM endpoint_pace WHERE endpoint = $1 FOR NO KEY UPDATE)
UPDATE endpoint_pace p
SET breaker = 'closed', breaker_reason = $2, probes = 0, probe_slice = NULL, probe_at = NULL,
    breaker_since = CASE WHEN was.breaker = 'open' THEN tranche_now() ELSE p.breaker_since END,
    breaker_suppressed_until = tranche_now() + $3::interval, changed_at = tranche_now()
FROM was WHERE p.endpoint = was.endpoint
RETURNING was.breaker, p.breaker_suppressed_until`

// closeByHand closes the breaker of an endpoint because an operator says that there is no outage, and keeps it closed
// for a while, also when it is closed already. It returns what the breaker was, and until when it stays closed.
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

// Unreached reports whether an error says that no server was there: no connection, or no one who listens.
func Unreached(code string) bool { return code == "unreachable" || code == "no_listeners" }

// ClosedByHand reports whether an operator said of an endpoint, a short while ago, that there is no outage.
func ClosedByHand(ctx context.Context, tx pgx.Tx, endpoint string) (bool, error) {
	var b BreakerState
	err := b.Read(ctx, tx, readBreaker, endpoint)
	return b.vouched, err
}
