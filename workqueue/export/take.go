package export

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// MaxOpen bounds the bytes of a slice's incomplete or unrecorded large results, by their described sizes: what a
// service can accumulate with each request that it holds.
const MaxOpen = 512 << 20

// Claim is a service's description of a result.
type Claim struct {
	Slice       workqueue.SliceID
	Endpoint    string // its origin
	Ordinal     workqueue.Ordinal
	Pieces      int
	Bytes       int64
	SHA256      [sha256.Size]byte
	ContentType string
}

// id is the same for all pieces of a result, even if the request is redelivered and the service recomputes the same.
// A different result or division has another ID, so pieces of two never mix.
func (c *Claim) id() uuid.UUID {
	b := binary.BigEndian.AppendUint64(nil, uint64(c.Ordinal))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Pieces))
	b = binary.BigEndian.AppendUint64(b, uint64(c.Bytes))
	b = append(b, c.SHA256[:]...)
	return uuid.NewSHA1(uuid.UUID(c.Slice), append(b, c.ContentType...))
}

// Piece is a piece of a result.
type Piece struct {
	Claim
	Number int // from 1
	Data   []byte
}

// Standing is the outcome of a piece.
type Standing int

// The outcomes of a piece.
const (
	Kept          Standing = iota // others are missing
	Complete                      // all pieces are present
	Stale                         // the slice ended, or the item has an outcome: not stored
	Foreign                       // the item was not requested: not stored
	WrongEndpoint                 // the slice was sent to another endpoint: not stored
	TooMuch                       // the slice has too many unrecorded bytes: not stored
	WrongSize                     // the pieces' total size differs from the described one
)

// Taken is the outcome of a piece, and its result.
type Taken struct {
	ID       uuid.UUID
	Standing Standing
	Endpoint string // endpoint of the slice
	run      workqueue.RunID
}

const (
	// Slices are found by key, their unrecorded results by large_result_open. Nothing is locked: if a slice ends
	// meanwhile, the sweep deletes its pieces, and recording is fenced again.
	fencePieces = `
SELECT u.n, s.run_id, s.state IN ('claimed', 'sent'), coalesce(s.endpoint, st.endpoint),
    s.block = u.ordinal >> 13 AND get_bit(s.mask, u.ordinal & 8191) = 1,
    coalesce(get_bit(s.remaining, u.ordinal & 8191) = 1, false),
    (SELECT coalesce(sum(o.bytes), 0) FROM large_result o
     WHERE o.slice_id = s.id AND o.recorded_at IS NULL AND o.id <> u.id)::bigint
FROM unnest($1::int[], $2::uuid[], $3::uuid[], $4::int[]) AS u (n, id, slice, ordinal)
JOIN work_slice s ON s.id = u.slice JOIN run_step st USING (run_id, step)`

	// Adding a piece locks the result's row, in ID order: of two with the last two pieces, the later sees both.
	openLarge = `
INSERT INTO large_result (id, run_id, step, ordinal, slice_id, pieces, bytes, sha256, content_type)
SELECT u.id, s.run_id, s.step, u.ordinal, s.id, u.pieces, u.bytes, u.sha256, u.content_type
FROM unnest($1::uuid[], $2::uuid[], $3::int[], $4::int[], $5::bigint[], $6::bytea[], $7::text[])
     AS u (id, slice, ordinal, pieces, bytes, sha256, content_type)
JOIN work_slice s ON s.id = u.slice
ORDER BY u.id
ON CONFLICT (id) DO UPDATE SET pieces = excluded.pieces`

	// One statement each: an array would be assembled in memory twice more.
	addPiece = `
INSERT INTO work_piece (large_id, piece, bytes) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`

	// Ranges of work_piece's primary key. TOAST gives lengths without reading the data.
	countPieces = `
SELECT large_id, count(*), sum(octet_length(bytes))::bigint FROM work_piece WHERE large_id = ANY ($1) GROUP BY large_id`
)

// Take stores pieces in one transaction and returns their outcomes. The last piece of a result is complete, or of the
// wrong size; for the hash see [Store.Verify]. Pieces may come in any order and repeatedly.
func (s Store) Take(ctx context.Context, pieces []Piece) ([]Taken, error) {
	var taken []Taken
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		if taken, err = fence(ctx, tx, pieces); err != nil {
			return err
		}
		kept := keep(pieces, taken)
		if len(kept) == 0 {
			return nil
		}
		return kept.write(ctx, tx, s.db, pieces, taken)
	})
	if err != nil {
		return nil, fmt.Errorf("keep %d pieces of results: %w", len(pieces), err)
	}
	return taken, nil
}

func fence(ctx context.Context, tx pgx.Tx, pieces []Piece) ([]Taken, error) {
	n := len(pieces)
	taken := make([]Taken, n)
	numbers, ids, of := make([]int32, n), make([]uuid.UUID, n), make([]workqueue.SliceID, n)
	ordinals := make([]workqueue.Ordinal, n)
	for i := range pieces {
		p := &pieces[i]
		taken[i] = Taken{ID: p.id(), Standing: Stale}
		numbers[i], ids[i], of[i], ordinals[i] = int32(i), taken[i].ID, p.Slice, p.Ordinal
	}
	var i int32
	var run workqueue.RunID
	var live, asked, waits bool
	var endpoint string
	var open int64
	more := map[uuid.UUID]int64{} // opened by this transaction, by slice
	begun := map[uuid.UUID]bool{}
	err := pg.Each(pg.Rows(ctx, tx, fencePieces, numbers, ids, of, ordinals),
		[]any{&i, &run, &live, &endpoint, &asked, &waits, &open}, func() {
			p, t := &pieces[i], &taken[i]
			t.Endpoint, t.run = endpoint, run
			slice := uuid.UUID(p.Slice)
			switch {
			case !live:
			case endpoint != p.Endpoint:
				t.Standing = WrongEndpoint
			case !asked:
				t.Standing = Foreign
			case !waits:
			case !begun[t.ID] && open+more[slice]+p.Bytes > MaxOpen:
				t.Standing = TooMuch
			default:
				t.Standing = Kept
				if !begun[t.ID] {
					begun[t.ID], more[slice] = true, more[slice]+p.Bytes
				}
			}
		})
	return taken, err
}

type kept []int

func keep(pieces []Piece, taken []Taken) (k kept) {
	for i := range pieces {
		if taken[i].Standing == Kept {
			k = append(k, i)
		}
	}
	return k
}

func (k kept) write(ctx context.Context, tx pgx.Tx, db *database.DB, pieces []Piece, taken []Taken) error {
	last := map[uuid.UUID]int{}   // the last piece of each result
	over := map[uuid.UUID]int64{} // bytes that sealing adds to a piece
	ids := make([]uuid.UUID, len(k))
	batch := &pgx.Batch{}
	for n, i := range k {
		last[taken[i].ID] = i
		ids[n] = taken[i].ID
		seal, err := db.Seal(ctx, tx, taken[i].run)
		if err != nil {
			return err
		}
		over[ids[n]] = int64(seal.Overhead())
		batch.Queue(addPiece, ids[n], pieces[i].Number,
			seal.Bytes(database.PieceOf(ids[n], pieces[i].Number), pieces[i].Data))
	}
	slices.SortFunc(ids, func(a, b uuid.UUID) int { return strings.Compare(string(a[:]), string(b[:])) })
	ids = slices.Compact(ids)
	if _, err := tx.Exec(ctx, openLarge, claims(ids, last, pieces)...); err != nil {
		return err
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return err
	}
	var id uuid.UUID
	var count, size int64
	return pg.Each(pg.Rows(ctx, tx, countPieces, ids), []any{&id, &count, &size}, func() {
		i := last[id]
		size -= count * over[id]
		switch p := &pieces[i]; {
		case size > p.Bytes, count == int64(p.Pieces) && size != p.Bytes:
			taken[i].Standing = WrongSize
		case count == int64(p.Pieces):
			taken[i].Standing = Complete
		}
	})
}

func claims(ids []uuid.UUID, last map[uuid.UUID]int, pieces []Piece) []any {
	n := len(ids)
	of, ordinals := make([]workqueue.SliceID, n), make([]workqueue.Ordinal, n)
	counts, sizes := make([]int32, n), make([]int64, n)
	sums, types := make([][]byte, n), make([]string, n)
	for i, id := range ids {
		p := &pieces[last[id]]
		of[i], ordinals[i], counts[i], sizes[i] = p.Slice, p.Ordinal, int32(p.Pieces), p.Bytes
		sums[i], types[i] = p.SHA256[:], p.ContentType
	}
	return []any{ids, of, ordinals, counts, sizes, sums, types}
}

// sweepAtOnce bounds the results that one transaction deletes: each may be 64 MiB.
const sweepAtOnce = 4

// By large_result_open, and slices by key. An ended slice never revives, and recording marks a result in the
// transaction that may end its slice. So an unrecorded result of an ended slice is garbage.
const deleteAbandoned = `
DELETE FROM large_result WHERE recorded_at IS NULL AND id = ANY (ARRAY(
    SELECT l.id FROM large_result l
    WHERE l.recorded_at IS NULL AND NOT EXISTS (
        SELECT FROM work_slice s WHERE s.id = l.slice_id AND s.state IN ('scheduled', 'claimed', 'sent'))
    LIMIT $1))`

// Sweep deletes results never to be recorded: a service died, a piece was lost, or the item is settled. Leader work.
func (s Store) Sweep(ctx context.Context, lease workqueue.Lease) (swept int, err error) {
	for {
		deleted, err := session.New(s.db).ExecAsLeader(ctx, lease, deleteAbandoned, sweepAtOnce)
		if err != nil {
			return swept, fmt.Errorf("delete what has come of results that no one will record: %w", err)
		}
		if swept += int(deleted); deleted < sweepAtOnce {
			return swept, nil
		}
	}
}
