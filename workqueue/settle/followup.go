package settle

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// FollowUp is what to check after a transaction. It only saves time: the leader checks everything each second.
type FollowUp struct {
	Endpoints []string          // where slices failed entirely, or a probe ended: for pace.Store.CheckBreaker
	Halved    []string          // where pieces of failed chunks ended: for pace.Store.CheckTooBig
	Runs      []workqueue.RunID // with permanently failed items: for control.Store.CheckThreshold
	Barriers  []workqueue.RunID // where a barrier may have been reached: for dispatch.Store.CheckBarriers
	Unlocked  bool              // items became ready at other steps; other nodes may have capacity for them
}

// Empty reports whether there is nothing to check.
func (l *FollowUp) Empty() bool {
	return len(l.Endpoints)+len(l.Halved)+len(l.Runs)+len(l.Barriers) == 0 && !l.Unlocked
}

func (s *settlement) followUp() (l FollowUp) {
	l.Barriers, l.Unlocked = s.barriers, s.unlocked
	for _, e := range s.ended {
		h := e.slice
		if (e.why != nil || h.Cause == workqueue.CauseProbe) && !slices.Contains(l.Endpoints, h.Endpoint) {
			l.Endpoints = append(l.Endpoints, h.Endpoint)
		}
		piece := h.Cause == workqueue.CauseBisect || h.Cause == workqueue.CauseExhausted
		if piece && !slices.Contains(l.Halved, h.Endpoint) {
			l.Halved = append(l.Halved, h.Endpoint)
		}
	}
	for id, o := range s.outcomes {
		if !o.Failed.Empty() && !slices.Contains(l.Runs, id.Run) {
			l.Runs = append(l.Runs, id.Run)
		}
	}
	return l
}

// watchedEndpoints reads the newest entries of the index on endpoint and end, for each endpoint. Here and elsewhere
// a separate SELECT reads the clock: otherwise it would be read for every row, and the index not used.
const watchedEndpoints = `
SELECT p.endpoint FROM endpoint_pace p
WHERE p.breaker = 'open' OR EXISTS (
    SELECT FROM (SELECT s.error_code FROM work_slice s
                 WHERE s.endpoint = p.endpoint AND s.ended_at > (SELECT tranche_now() - interval '10 s')
                 ORDER BY s.ended_at DESC LIMIT 200) newest
    WHERE newest.error_code IS NOT NULL)
  OR EXISTS (
    SELECT FROM collector c JOIN collector_key k ON k.collector = c.id
    WHERE c.endpoint = p.endpoint AND k.failed_at > (SELECT tranche_now() - interval '10 s'))
ORDER BY p.endpoint`

// WatchedEndpoints returns the endpoints with open breakers or recently failed requests: those where
// pace.Store.CheckBreaker and pace.Store.CheckTooBig may have work.
func (s Store) WatchedEndpoints(ctx context.Context) ([]string, error) {
	names, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[string], watchedEndpoints)
	return names, pg.Wrap(err, "find endpoints whose requests fail")
}

// newParts compares the newest part of items with the previous one, by two lookups in work_result's primary key
// each. Two errors are equal to later steps that continue without the part. If the step was skipped in between
// because a needed step ($5) failed, the part was missing to them, so the next one is new.
const newParts = `
SELECT n.ordinal
FROM unnest($3::int[]) AS o (ordinal)
CROSS JOIN LATERAL (SELECT p.ordinal, p.generation, p.result, p.content_type, p.error_code FROM work_result p
    WHERE p.run_id = $1 AND p.step = $2 AND p.ordinal = o.ordinal ORDER BY p.generation DESC LIMIT 1) n
LEFT JOIN LATERAL (SELECT p.generation, p.result, p.content_type, p.error_code FROM work_result p
    WHERE p.run_id = $1 AND p.step = $2 AND p.ordinal = o.ordinal AND p.generation < n.generation
    ORDER BY p.generation DESC LIMIT 1) f ON true
WHERE f.generation IS NULL OR (f.error_code IS NULL) <> (n.error_code IS NULL)
   OR f.result IS DISTINCT FROM n.result OR f.content_type IS DISTINCT FROM n.content_type
   OR $4 AND n.error_code IS NULL AND EXISTS (SELECT FROM work_result e
       WHERE e.run_id = $1 AND e.step = ANY($5::smallint[]) AND e.ordinal = o.ordinal
         AND e.generation > f.generation AND e.error_code IS NOT NULL)`

func changedParts(
	ctx context.Context, tx pgx.Tx, g *plane.Graph, id plane.BlockID, bits bitfield.Set,
) (bitfield.Set, error) {
	ordinals := make([]workqueue.Ordinal, 0, bits.Count())
	for bit := range bits.All() {
		ordinals = append(ordinals, id.Block.Ordinal(bit))
	}
	var changed bitfield.Set
	var ordinal workqueue.Ordinal
	err := pg.Each(pg.Rows(ctx, tx, newParts, id.Run, id.Step, ordinals, g.Steps[id.Step].Optional, g.Before[id.Step]),
		[]any{&ordinal}, func() {
			_, bit := ordinal.Block()
			changed.Add(bit)
		})
	return changed, pg.Wrap(err, "compare %d parts of step %d", len(ordinals), id.Step)
}

const (
	// markSent is fenced by state: a slice whose reply came first stays recorded. It skips locked slices: their
	// replies are being recorded, which for small chunks is often earlier than the mark.
	markSent = `
WITH free AS MATERIALIZED (
    SELECT id FROM work_slice WHERE id = ANY($1) AND state = 'claimed' ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
UPDATE work_slice s
SET state = 'sent', sent_at = tranche_now(), stream_seq = u.seq, stream_epoch = u.epoch,
    deadline = tranche_now() + st.request_timeout
FROM free, unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS u (id, seq, epoch), run_step st
WHERE s.id = free.id AND s.id = u.id AND s.state = 'claimed' AND st.run_id = s.run_id AND st.step = s.step`

	notMarked = `SELECT id FROM work_slice WHERE id = ANY($1) AND state = 'claimed'`
)

// MarkSent records that requests are in the stream. It need not be durable: if a crash of the database loses a mark,
// the claimed slice is reissued. It returns the locked slices, to be marked later unless they have ended.
func (s Store) MarkSent(ctx context.Context, sent []workqueue.Sent) (left []workqueue.Sent, err error) {
	ids, seqs, epochs := make([]workqueue.SliceID, len(sent)), make([]int64, len(sent)), make([]int64, len(sent))
	for i, t := range sent {
		ids[i], seqs[i], epochs[i] = t.ID, t.StreamSeq, t.StreamsEpoch
	}
	var claimed []workqueue.SliceID
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SET LOCAL synchronous_commit = off`)
		batch.Queue(markSent, ids, seqs, epochs)
		batch.Queue(notMarked, ids).Query(func(rows pgx.Rows) (err error) {
			claimed, err = pgx.CollectRows(rows, pgx.RowTo[workqueue.SliceID])
			return err
		})
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return sent, fmt.Errorf("mark %d slices as sent: %w", len(sent), err)
	}
	for _, t := range sent {
		if slices.Contains(claimed, t.ID) {
			left = append(left, t)
		}
	}
	return left, nil
}
