package settle

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	// markSent is fenced by state: a slice whose reply came first stays recorded. It waits for nobody: who holds a slice
	// is recording its reply, which for small chunks comes before the mark more often than not.
	markSent = `
WITH free AS MATERIALIZED (
    SELECT id FROM work_slice WHERE id = ANY($1) AND state = 'claimed' ORDER BY id FOR NO KEY UPDATE SKIP LOCKED)
UPDATE work_slice s
SET state = 'sent', sent_at = tranche_now(), stream_seq = u.seq, stream_epoch = u.epoch,
    deadline = tranche_now() + st.slice_timeout
FROM free, unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS u (id, seq, epoch), run_step st
WHERE s.id = free.id AND s.id = u.id AND s.state = 'claimed' AND st.run_id = s.run_id AND st.step = s.step`

	notMarked = `SELECT id FROM work_slice WHERE id = ANY($1) AND state = 'claimed'`
)

// MarkSent notes that requests are in the stream. It need not be durable at once: a mark that is lost in a crash of the
// database leaves a claimed slice, which is issued again. What somebody else holds at the moment is left over: it is to
// be marked a while later, unless its reply has ended it by then.
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
