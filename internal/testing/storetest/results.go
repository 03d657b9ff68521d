package storetest

import (
	"context"
	"crypto/sha256"
	"slices"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// InPieces cuts a result for an item of a slice.
func InPieces(s workqueue.Slice, o workqueue.Ordinal, data []byte, size int) (all []export.Piece) {
	claim := export.Claim{Slice: s.ID, Endpoint: s.Endpoint, Ordinal: o, Pieces: (len(data) + size - 1) / size,
		Bytes: int64(len(data)), SHA256: sha256.Sum256(data), ContentType: "application/pdf"}
	for piece := range slices.Chunk(data, size) {
		all = append(all, export.Piece{Claim: claim, Number: len(all) + 1, Data: piece})
	}
	return all
}

// TakePieces takes pieces of results.
func (b *Bench) TakePieces(pieces ...export.Piece) []export.Taken {
	b.Helper()
	taken, err := export.New(b.Store).Take(b.Context(), pieces)
	if err != nil {
		b.Fatal(err)
	}
	return taken
}

// LargeAnswer is the answer that complete pieces are.
func LargeAnswer(s workqueue.Slice, p export.Piece, t export.Taken) settle.Answer {
	return settle.Answer{Slice: s.ID, Endpoint: s.Endpoint, Service: "test", Answered: 1, Slots: []settle.Slot{{
		Ordinal: p.Ordinal, Result: export.Reference(p.Bytes, p.SHA256), ContentType: p.ContentType,
		Large: &settle.Large{ID: t.ID, Bytes: p.Bytes}}}}
}

// Export yields the items of a run with the results of the only step that no other needs.
func Export(ctx context.Context, db *database.DB, run workqueue.RunID, states []workqueue.Outcome,
	yield func(*export.Item) error,
) error {
	e, err := export.New(db).Open(ctx, export.Request{Run: run, States: states})
	if err != nil {
		return err
	}
	return e.Each(ctx, yield)
}
