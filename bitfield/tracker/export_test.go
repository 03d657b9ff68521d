package tracker

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Statements acknowledge masks.
var Statements = map[string]string{"ack": ackSQL, "ackNew": ackNewSQL}

// ByKey goes before acks.
const ByKey = byKeySQL

// AckMasks is QueueAck by itself.
func AckMasks(ctx context.Context, tx pgx.Tx, id uuid.UUID, acks []Ack) (acked Acked, err error) {
	b := &pgx.Batch{}
	if err := QueueAck(b, id, acks, &acked); err != nil || b.Len() == 0 {
		return Acked{}, err
	}
	return acked, tx.SendBatch(ctx, b).Close()
}

// ReapFew is Reap with another bound of groups.
func ReapFew(ctx context.Context, tx pgx.Tx, limit, groups int) (Reaped, error) {
	return reapOf(ctx, tx, limit, groups)
}

// NoteEnd notes that a batch is completed.
func NoteEnd(ctx context.Context, tx pgx.Tx, batch uuid.UUID) error {
	_, err := tx.Exec(ctx, endSQL, batch, string(EventCompleted))
	return err
}
