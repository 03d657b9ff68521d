package workqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// markSent is fenced by state: a slice whose reply came first stays recorded.
const markSent = `
UPDATE work_slice s
SET state = 'sent', sent_at = clock_timestamp(), stream_seq = u.seq, pipe_epoch = u.epoch,
    deadline = clock_timestamp() + st.slice_timeout
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS u (id, seq, epoch), run_step st
WHERE s.id = u.id AND s.state = 'claimed' AND st.run_id = s.run_id AND st.step = s.step`

// Sent is a slice whose request JetStream has acknowledged.
type Sent struct {
	ID        SliceID
	StreamSeq int64
	PipeEpoch int64
}

// MarkSent notes that requests are in the stream. It need not be durable at once: a mark that is lost in a crash of the
// database leaves a claimed slice, which is issued again.
func (s *Store) MarkSent(ctx context.Context, sent []Sent) error {
	ids, seqs, epochs := make([]SliceID, len(sent)), make([]int64, len(sent)), make([]int64, len(sent))
	for i, t := range sent {
		ids[i], seqs[i], epochs[i] = t.ID, t.StreamSeq, t.PipeEpoch
	}
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`SET LOCAL synchronous_commit = off`)
		batch.Queue(lockSliceIDs, ids)
		batch.Queue(markSent, ids, seqs, epochs)
		return tx.SendBatch(ctx, batch).Close()
	})
	if err != nil {
		return fmt.Errorf("mark %d slices as sent: %w", len(sent), err)
	}
	return nil
}
