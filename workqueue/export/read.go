package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

const (
	runOfLarge = `SELECT run_id FROM large_result WHERE id = $1`

	// Ranges of work_piece's primary key.
	allPieces = `SELECT piece, bytes FROM work_piece WHERE large_id = $1 ORDER BY piece`

	pieceSizes = `SELECT octet_length(bytes)::bigint FROM work_piece WHERE large_id = $1 ORDER BY piece`

	onePiece = `SELECT bytes FROM work_piece WHERE large_id = $1 AND piece = $2`
)

// Verify reads the pieces of a result, one at a time, and reports whether their hash matches. They are written to
// also.
func (s Store) Verify(ctx context.Context, id uuid.UUID, want [sha256.Size]byte, also io.Writer) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	seal, err := s.sealOf(ctx, id)
	if err != nil {
		return false, fmt.Errorf("verify a result: %w", err)
	}
	rows := pg.Rows(ctx, s.db.Pool, allPieces, id)
	sum := sha256.New()
	var piece int
	var data pgtype.DriverBytes
	_, err = pgx.ForEachRow(rows, []any{&piece, &data}, func() error {
		opened, err := seal.OpenBytes(database.PieceOf(id, piece), data)
		if err == nil {
			_, err = io.MultiWriter(sum, also).Write(opened)
		}
		return err
	})
	if errors.Is(err, database.ErrDamaged) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("verify a result: %w", err)
	}
	return [sha256.Size]byte(sum.Sum(nil)) == want, nil
}

// Reader reads a large result, one piece at a time in separate statements. It is for one goroutine.
type Reader struct {
	ctx    context.Context //nolint:containedctx // io.Reader has none
	store  Store
	seal   *database.Seal
	id     uuid.UUID
	starts []int64 // offset of each piece, and the end of the last
	at     int64
	here   int    // number of the loaded piece; 0: none
	data   []byte // the loaded piece
}

var _ io.ReadSeeker = (*Reader)(nil)

// OpenResult returns a reader of a result, valid as long as ctx. The error wraps ErrNotFound without a result.
func (s Store) OpenResult(ctx context.Context, id uuid.UUID) (*Reader, error) {
	r := &Reader{ctx: ctx, store: s, id: id, starts: []int64{0}}
	timed, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	seal, err := s.sealOf(timed, id)
	if err == nil {
		var size int64
		r.seal = seal
		err = pg.Each(pg.Rows(timed, s.db.Pool, pieceSizes, id), []any{&size}, func() {
			r.starts = append(r.starts, r.Size()+size-int64(seal.Overhead()))
		})
	}
	if err == nil && r.Size() == 0 {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("open a result: %w", err)
	}
	return r, nil
}

// sealOf returns nil if the result is gone.
func (s Store) sealOf(ctx context.Context, id uuid.UUID) (*database.Seal, error) {
	run, err := pg.One(ctx, s.db.Pool, pgx.RowTo[workqueue.RunID], runOfLarge, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return s.db.Seal(ctx, s.db.Pool, run)
}

// Size returns the bytes of the result.
func (r *Reader) Size() int64 { return r.starts[len(r.starts)-1] }

// Seek implements io.Seeker.
func (r *Reader) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += r.at
	case io.SeekEnd:
		offset += r.Size()
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning of a result")
	}
	r.at = offset
	return offset, nil
}

// Read implements io.Reader.
func (r *Reader) Read(p []byte) (int, error) {
	if r.at >= r.Size() {
		return 0, io.EOF
	}
	number := 1
	for r.starts[number] <= r.at {
		number++
	}
	if err := r.fetch(number); err != nil {
		return 0, err
	}
	n := copy(p, r.data[r.at-r.starts[number-1]:])
	r.at += int64(n)
	return n, nil
}

func (r *Reader) fetch(number int) error {
	if r.here == number {
		return nil
	}
	ctx, cancel := context.WithTimeout(r.ctx, database.TxTimeout)
	defer cancel()
	r.here = 0
	err := r.store.db.Pool.QueryRow(ctx, onePiece, r.id, number).Scan(&r.data)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("it was deleted meanwhile: %w", workqueue.ErrNotFound)
	}
	if err == nil {
		r.data, err = r.seal.OpenBytes(database.PieceOf(r.id, number), r.data)
	}
	if err == nil && int64(len(r.data)) != r.starts[number]-r.starts[number-1] {
		err = errors.New("it has changed meanwhile")
	}
	if err != nil {
		return fmt.Errorf("read piece %d of a result: %w", number, err)
	}
	r.here = number
	return nil
}

// Reference is stored in place of a large result; it is the same for the same result.
func Reference(bytes int64, sum [sha256.Size]byte) []byte {
	return fmt.Appendf(nil, `{"bytes":%d,"sha256":"%s"}`, bytes, hex.EncodeToString(sum[:]))
}

// ResultRequest names one result of a run.
type ResultRequest struct {
	Run     workqueue.RunID
	Step    string             // empty: the only step that no other needs
	Key     string             // of the item
	Ordinal *workqueue.Ordinal // of the item, if several have the key
}

// Result is a step's result for an item.
type Result struct {
	Ordinal     workqueue.Ordinal
	Step        string
	Generation  workqueue.Generation
	Body        []byte
	ContentType string        // from the service; empty: JSON
	Large       uuid.NullUUID // set for a large result: OpenResult reads it, and Body only refers to it
	SHA256      [sha256.Size]byte
}

// AmbiguousKeyError is returned if one item must be named and several have the key.
type AmbiguousKeyError struct {
	Key      string
	Ordinals []workqueue.Ordinal // some of them
}

func (e *AmbiguousKeyError) Error() string {
	all := make([]string, len(e.Ordinals))
	for i, o := range e.Ordinals {
		all[i] = fmt.Sprint(o)
	}
	return fmt.Sprintf("several items have the key %.80q; name one by its ordinal: %s", e.Key, strings.Join(all, ", "))
}

const maxTwinsTold = 10

var errNoKey = fmt.Errorf("no item has this key: %w", workqueue.ErrNotFound)

// work_queue_key finds the items.
const ordinalsByKey = `
SELECT ordinal FROM work_queue WHERE run_id = $1 AND item_key = $2 AND ($3::int IS NULL OR ordinal = $3)
ORDER BY ordinal LIMIT $4`

// The newest part counts if the item's bit is set. Points of primary keys.
const oneResult = `
SELECT p.generation, p.result, coalesce(p.content_type, ''), p.large_id,
    CASE WHEN p.large_id IS NULL THEN sha256(p.result)
        ELSE (SELECT l.sha256 FROM large_result l WHERE l.id = p.large_id) END
FROM work_result p
JOIN work_block b ON b.run_id = p.run_id AND b.step = p.step AND b.block = $4
WHERE p.run_id = $1 AND p.step = $2 AND p.ordinal = $3 AND p.result IS NOT NULL AND get_bit(b.done, $5) = 1
ORDER BY p.generation DESC LIMIT 1`

// Result returns the current result of one item at one step. The error wraps ErrNotFound without a result, is a
// *StepChoiceError if the step is unknown or must be named, and an *AmbiguousKeyError if several items have the key.
func (s Store) Result(ctx context.Context, req ResultRequest) (Result, error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, s.db.Pool, req.Run)
	if err != nil {
		return Result{}, fmt.Errorf("read a result of run %s: %w", req.Run, err)
	}
	step, err := g.Leaf(req.Step)
	if err != nil {
		return Result{}, err
	}
	out := Result{Step: g.Steps[step].Name}
	if out.Ordinal, err = s.ordinalOf(ctx, &req); err != nil {
		return Result{}, err
	}
	seal, err := s.db.Seal(ctx, s.db.Pool, req.Run)
	if err != nil {
		return Result{}, fmt.Errorf("read a result of run %s: %w", req.Run, err)
	}
	block, bit := out.Ordinal.Block()
	var sum []byte
	err = s.db.Pool.QueryRow(ctx, oneResult, req.Run, step, out.Ordinal, block, bit).
		Scan(&out.Generation, &out.Body, &out.ContentType, &out.Large, &sum)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("step %s has no result for item %q: %w", out.Step, req.Key, workqueue.ErrNotFound)
	}
	if err != nil {
		return Result{}, fmt.Errorf("read a result of run %s: %w", req.Run, err)
	}
	copy(out.SHA256[:], sum)
	if seal != nil && !out.Large.Valid {
		if out.Body, err = seal.OpenBytes(database.ResultOf(step, out.Ordinal), out.Body); err != nil {
			return Result{}, err
		}
		out.SHA256 = sha256.Sum256(out.Body)
	}
	return out, nil
}

func (s Store) ordinalOf(ctx context.Context, req *ResultRequest) (workqueue.Ordinal, error) {
	if !pg.ValidText(req.Key) {
		return 0, errNoKey
	}
	found, err := pg.Collect(ctx, s.db.Pool, pgx.RowTo[workqueue.Ordinal], ordinalsByKey, req.Run, req.Key, req.Ordinal,
		maxTwinsTold)
	switch {
	case err != nil:
		return 0, fmt.Errorf("find item %q of run %s: %w", req.Key, req.Run, err)
	case len(found) == 0:
		return 0, fmt.Errorf("find item %q of run %s: %w", req.Key, req.Run, errNoKey)
	case len(found) > 1:
		return 0, &AmbiguousKeyError{req.Key, found}
	}
	return found[0], nil
}
