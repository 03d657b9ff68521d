package tracker

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Statements are those that mutants are made of, by name.
var Statements = map[string]string{
	"ack": ackSQL, "ackNew": ackNewSQL, "ackWhole": ackWholeSQL, "seal": sealSQL, "lockTracker": lockTrackerSQL,
	"end": endSQL, "reapVerdict": reapVerdictSQL,
}

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

// The others are operations with another statement in the place of one of theirs: for mutants, which must be caught.

func AckWith(ctx context.Context, tx pgx.Tx, sql string, id uuid.UUID, acks []Ack) (acked Acked, err error) {
	m, err := mergeMasks(id, acks)
	if err != nil {
		return Acked{}, err
	}
	rows, err := tx.Query(ctx, sql, m.args()...)
	if err != nil {
		return Acked{}, err
	}
	return acked, scanAcks(rows, func(_ uuid.UUID, did Acked) error { acked = did; return nil })
}

func AckWholeWith(ctx context.Context, tx pgx.Tx, sql string, id uuid.UUID, spans ...Span) (acked Acked, err error) {
	b := &pgx.Batch{}
	if err := queueAckWhole(b, sql, id, spans, "", &acked); err != nil {
		return Acked{}, err
	}
	return acked, tx.SendBatch(ctx, b).Close()
}

func AddWith(ctx context.Context, tx pgx.Tx, lock string, batch uuid.UUID, n int64, key string) (Added, error) {
	return addBehind(ctx, tx, lock, batch, n, key)
}

func ReapWith(ctx context.Context, tx pgx.Tx, judge string, limit int) (Reaped, error) {
	return reapBy(ctx, tx, judge, limit, reapGroups)
}

// ReapFew is Reap with another bound of groups.
func ReapFew(ctx context.Context, tx pgx.Tx, limit, groups int) (Reaped, error) {
	return reapBy(ctx, tx, reapVerdictSQL, limit, groups)
}

func EndWith(ctx context.Context, tx pgx.Tx, sql string, batch uuid.UUID) error {
	_, err := tx.Exec(ctx, sql, batch, string(EventCompleted))
	return err
}
