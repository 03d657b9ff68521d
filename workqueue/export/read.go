package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// Ranges of work_piece's primary key.
	allPieces = `SELECT bytes FROM work_piece WHERE large_id = $1 ORDER BY piece`

	pieceSizes = `SELECT octet_length(bytes)::bigint FROM work_piece WHERE large_id = $1 ORDER BY piece`

	onePiece = `SELECT bytes FROM work_piece WHERE large_id = $1 AND piece = $2`
)

// Verify reads the pieces of a result, one after the other, and reports whether they have a hash.
func (s Store) Verify(ctx context.Context, id uuid.UUID, want [sha256.Size]byte) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	rows := pg.Rows(ctx, s.db.Pool, allPieces, id)
	sum := sha256.New()
	var data pgtype.DriverBytes
	_, err := pgx.ForEachRow(rows, []any{&data}, func() error {
		_, err := sum.Write(data)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("verify a result: %w", err)
	}
	return [sha256.Size]byte(sum.Sum(nil)) == want, nil
}

// Reader reads a large result, a piece at a time, each by a statement of its own. It is for one goroutine.
type Reader struct {
	ctx    context.Context //nolint:containedctx // io.Reader has none
	store  Store
	id     uuid.UUID
	starts []int64 // of the pieces, and the end of the last
	at     int64
	here   int    // which piece is at hand; 0: none
	data   []byte // of it
}

var _ io.ReadSeeker = (*Reader)(nil)

// OpenResult returns a reader of a result, for as long as ctx lasts. The error wraps ErrNotFound when there is none.
func (s Store) OpenResult(ctx context.Context, id uuid.UUID) (*Reader, error) {
	r := &Reader{ctx: ctx, store: s, id: id, starts: []int64{0}}
	timed, cancel := context.WithTimeout(ctx, database.TxTimeout)
	defer cancel()
	rows := pg.Rows(timed, s.db.Pool, pieceSizes, id)
	var size int64
	_, err := pgx.ForEachRow(rows, []any{&size}, func() error {
		r.starts = append(r.starts, r.Size()+size)
		return nil
	})
	if err == nil && r.Size() == 0 {
		err = workqueue.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("open a result: %w", err)
	}
	return r, nil
}

// Size is how many bytes the result has.
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

// fetch has a piece at hand.
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
	if err == nil && int64(len(r.data)) != r.starts[number]-r.starts[number-1] {
		err = errors.New("it has changed meanwhile")
	}
	if err != nil {
		return fmt.Errorf("read piece %d of a result: %w", number, err)
	}
	r.here = number
	return nil
}

// Reference is what stands in the place of a result that is kept apart: the same for the same result.
func Reference(bytes int64, sum [sha256.Size]byte) []byte {
	return fmt.Appendf(nil, `{"bytes":%d,"sha256":"%s"}`, bytes, hex.EncodeToString(sum[:]))
}
