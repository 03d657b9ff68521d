package collector

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/pace"
)

const (
	// worsenCollector counts flushes that came to nothing, those that were under way together once. The row is locked
	// after the keys, as everywhere but in claims, which wait for no key.
	worsenCollector = `
UPDATE collector
SET failures = failures + 1, failed_at = tranche_now(), failure_code = $3, failure_message = $4,
    rest_until = CASE WHEN $5 OR failures + 1 >= $6 THEN tranche_now()
        + least($8::interval, $7::interval * power(2, least(failures + 1 - CASE WHEN $5 THEN 1 ELSE $6 END, 20))) END
WHERE id = $1 AND (failed_at IS NULL OR failed_at <= $2)`

	// noteGood keeps that the service deals with flushes, and forgets those that came to nothing when one came through
	// that was begun after them, at $2. Mostly it finds that this is known.
	noteGood = `
UPDATE collector
SET good_at = tranche_now(), failures = CASE WHEN $2::timestamptz > failed_at THEN 0 ELSE failures END,
    rest_until = CASE WHEN $2 > failed_at THEN NULL ELSE rest_until END
WHERE id = $1
  AND (failures > 0 AND $2 > failed_at OR good_at IS NULL OR good_at <= tranche_now() - $3::interval)`

	// failProbe counts a flush that was a probe and failed. It leaves alone what runs probe with at the same time, which
	// is still to be judged.
	failProbe = `
UPDATE endpoint_pace SET probes = $2, probe_at = tranche_now() + $3::interval
WHERE endpoint = $1 AND breaker = 'open'`
)

// noteHealth keeps how flushes of the collector fare.
func (r *flushRecording) noteHealth(batch *pgx.Batch) {
	worst, dealt := -1, false
	var through *time.Time // when the last flush that came through was begun
	for i := range r.keys {
		v, begun := &r.verdicts[i], r.ends[i].Flush.Claimed
		dealt = dealt || v.dealt
		switch v.health {
		case healthGood:
			if through == nil || begun.After(*through) {
				through = &begun
			}
		case healthBad, healthAway:
			if worst < 0 || r.worse(i, worst) {
				worst = i
			}
		case healthUnknown:
		}
	}
	if dealt {
		batch.Queue(noteGood, r.collector, through, pace.GoodFlushNote)
	}
	if worst >= 0 && through == nil {
		v := &r.verdicts[worst]
		batch.Queue(worsenCollector, r.collector, r.ends[worst].Flush.Claimed, pg.Plain(v.why.Code), pg.Plain(v.why.Message),
			v.health == healthAway, restAfter, firstRest, longestRest)
	}
}

// worse reports whether a flush says worse of the endpoint than another, or the same of a later time.
func (r *flushRecording) worse(i, than int) bool {
	if a, b := r.verdicts[i].health, r.verdicts[than].health; a != b {
		return a > b
	}
	return r.ends[i].Flush.Claimed.After(r.ends[than].Flush.Claimed)
}

// noteProbes closes the breaker of an endpoint that answered a flush which was its probe, or counts the probe. One that
// asked nobody says nothing: the time of the next is set.
//
// Nor does one whose handler failed. The service is there, so that the pause need not grow; but it may be able to do
// nothing, for which runs may have opened the breaker. The collector itself rests longer and longer, and leaves the
// next probes to others.
func (r *flushRecording) noteProbes(ctx context.Context, tx pgx.Tx) error {
	for i := range r.keys {
		v := &r.verdicts[i]
		failed := v.failedProbe()
		if !r.ends[i].Claim.Probe || !failed && (!r.ends[i].Replied || v.complains()) {
			continue
		}
		if err := r.noteProbe(ctx, tx, i, failed); err != nil {
			return err
		}
	}
	return nil
}

// failedProbe says of a probe that it failed: the service was not there, or asked for it to be tried again. One that
// has too much to do is up.
func (v *flushVerdict) failedProbe() bool {
	switch v.health {
	case healthBad:
		return !v.told
	case healthAway:
		return !v.busy
	case healthUnknown, healthGood:
	}
	return v.again && !v.dealt
}

// complains says that the service is there, and has failed all of the flush in a way that may pass.
func (v *flushVerdict) complains() bool { return v.told && v.health == healthBad }

func (r *flushRecording) noteProbe(ctx context.Context, tx pgx.Tx, i int, failed bool) error {
	c := r.ends[i].Claim
	endpoint := c.Spec.Endpoint
	var b pace.BreakerState
	if _, err := tx.Exec(ctx, pace.MakePace, endpoint); err != nil {
		return err
	}
	if err := b.Read(ctx, tx, pace.LockBreaker, endpoint); err != nil || !b.Open {
		return err
	}
	if failed {
		_, err := tx.Exec(ctx, failProbe, endpoint, b.Probes+1, pace.ProbePause(b.Probes+1))
		return err
	}
	if _, err := tx.Exec(ctx, pace.CloseBreaker, endpoint, pace.BreakerTrust); err != nil {
		return err
	}
	r.out[i].Closed = true
	return pace.NoteChange(ctx, tx, endpoint, pace.Change{What: "breaker", Before: "open", After: "closed",
		Reason: "a flush of collector " + c.Name + " was answered"})
}
