package tracker

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// Statements are all the statements of the package, by name.
var Statements = map[string]string{
	"open": openSQL, "seal": sealSQL, "cancel": cancelSQL, "get": getSQL,
	"addGroups": addGroupsSQL, "missing": missingSQL, "ack": ackSQL, "rearm": rearmSQL,
	"ackNew": ackNewSQL, "ackWhole": ackWholeSQL,
}

// ByKey goes before acks.
const ByKey = byKeySQL

// AckMasks is QueueAck by itself.
func AckMasks(ctx context.Context, tx pgx.Tx, id uuid.UUID, acks []Ack) (acked Acked, err error) {
	b := &pgx.Batch{}
	if err := QueueAck(b, id, acks, &acked); err != nil || b.Len() == 0 {
		return Acked{}, err
	}
	err = tx.SendBatch(ctx, b).Close()
	return acked, err
}

// AckWith is AckMasks with another statement: for mutants, which must be caught.
func AckWith(ctx context.Context, tx pgx.Tx, sql string, id uuid.UUID, acks []Ack) (acked Acked, err error) {
	m, err := mergeMasks(id, acks)
	if err != nil {
		return Acked{}, err
	}
	rows, err := tx.Query(ctx, sql, m.args()...)
	if err != nil {
		return Acked{}, err
	}
	err = scanAcks(rows, func(_ uuid.UUID, did Acked) error {
		acked = did
		return nil
	})
	return acked, err
}

// AckWholeWith is an ack of whole groups with another statement.
func AckWholeWith(ctx context.Context, tx pgx.Tx, sql string, id uuid.UUID, spans ...Span) (acked Acked, err error) {
	b := &pgx.Batch{}
	if err := queueWhole(b, sql, id, spans, &acked); err != nil {
		return Acked{}, err
	}
	return acked, tx.SendBatch(ctx, b).Close()
}

// AckNew is QueueAckNew by itself.
func AckNew(ctx context.Context, tx pgx.Tx, id uuid.UUID, acks []Ack) (acked AckedNew, err error) {
	b := &pgx.Batch{}
	if err := QueueAckNew(b, id, acks, &acked); err != nil {
		return AckedNew{}, err
	}
	return acked, tx.SendBatch(ctx, b).Close()
}
