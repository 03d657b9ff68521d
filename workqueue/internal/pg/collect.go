// Package pg has helpers for PostgreSQL that know nothing of runs: pipelined transactions, COPY, reading rows, and
// valid text.
package pg

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/workqueue"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Rows returns the rows of a query, for pgx functions that read rows and close them, and return the query's error.
func Rows(ctx context.Context, from Querier, sql string, args ...any) pgx.Rows {
	rows, _ := from.Query(ctx, sql, args...)
	return rows
}

// Collect reads all rows of a query; the list is not nil unless there is an error. Use it for single statements with
// a pgx or named row function, not for batches and function literals.
func Collect[T any](
	ctx context.Context, from Querier, read pgx.RowToFunc[T], sql string, args ...any,
) ([]T, error) {
	return pgx.CollectRows(Rows(ctx, from, sql, args...), read)
}

// One reads the row of a query. The error is pgx.ErrNoRows without one, or ErrTooManyRows.
func One[T any](ctx context.Context, from Querier, read pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	return pgx.CollectExactlyOneRow(Rows(ctx, from, sql, args...), read)
}

// Now returns the database's time, the only one that saved times are compared with.
func Now(ctx context.Context, from Querier) (time.Time, error) {
	now, err := One(ctx, from, pgx.RowTo[time.Time], databaseTime)
	if err != nil {
		return now, fmt.Errorf("read the time: %w", err)
	}
	return now, nil
}

const databaseTime = `SELECT tranche_now()`

// Each scans each row into the same variables, calls f, and closes the rows.
func Each(rows pgx.Rows, into []any, f func()) error {
	_, err := pgx.ForEachRow(rows, into, func() error { f(); return nil })
	return err
}

// Limit returns the number of rows of a page: asked, at most most, or usual for 0.
func Limit(asked, usual, most int) int {
	if asked <= 0 {
		return usual
	}
	return min(asked, most)
}

// Cut returns the first rows of a page, never nil, and where the next one begins, if limit+1 rows were there.
func Cut[T, N any](rows []T, limit int, at func(*T) N) (page []T, next N) {
	if page = append([]T{}, rows[:min(len(rows), limit)]...); len(rows) > limit {
		next = at(&page[limit-1])
	}
	return page, next
}

// Arena keeps copies of bytes in a few reused pieces of memory. Most bounds a piece, unless one copy is larger.
type Arena struct {
	piece []byte
	Most  int
}

// Keep copies bytes. A full piece is replaced; copies in the old one stay valid.
func (a *Arena) Keep(data []byte) []byte {
	if len(a.piece)+len(data) > cap(a.piece) {
		a.piece = make([]byte, 0, max(len(data), min(2*cap(a.piece), a.Most), a.Most/64))
	}
	at := len(a.piece)
	a.piece = append(a.piece, data...)
	return a.piece[at:len(a.piece):len(a.piece)]
}

// Empty discards all copies: the next ones reuse the memory.
func (a *Arena) Empty() { a.piece = a.piece[:0] }

// Plain makes foreign text valid for a text column: UTF-8 without NUL.
func Plain(s string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Sanitized applies Plain to headers, which are stored as jsonb.
func Sanitized(h map[string][]string) map[string][]string {
	clean := make(map[string][]string, len(h))
	for name, values := range h {
		for _, v := range values {
			clean[Plain(name)] = append(clean[Plain(name)], Plain(v))
		}
	}
	return clean
}

// MaxMatches bounds the IDs in an AmbiguousError.
const MaxMatches = 10

// PrefixRange returns the least and greatest ID that start with the digits of ref.
func PrefixRange(ref string) (low, high uuid.UUID, ok bool) {
	digits := strings.ReplaceAll(ref, "-", "")
	if len(digits) < workqueue.MinPrefix || len(digits) > 32 {
		return low, high, false
	}
	low, errLow := uuid.Parse(digits + strings.Repeat("0", 32-len(digits)))
	high, errHigh := uuid.Parse(digits + strings.Repeat("f", 32-len(digits)))
	return low, high, errors.Join(errLow, errHigh) == nil
}

// Piece returns the digits of ref if it can be part of an ID.
func Piece(ref string) (digits string, ok bool) {
	digits = strings.ToLower(strings.ReplaceAll(ref, "-", ""))
	_, _, ok = PrefixRange(digits)
	return digits, ok
}

// ValidText reports whether PostgreSQL can store s. No name can be anything else.
func ValidText(s string) bool {
	return !strings.Contains(s, "\x00") && strings.ToValidUTF8(s, "") == s
}

// TooFewForCopy reports whether the round trips of a COPY would dominate the cost of so few rows.
func TooFewForCopy(rows, bytes int) bool { return rows <= 256 && bytes <= 256<<10 }

// IsLockTimeout reports whether a statement waited too long for a lock.
func IsLockTimeout(err error) bool {
	pg, ok := errors.AsType[*pgconn.PgError](err)
	return ok && pg.Code == "55P03"
}

// Storable reports whether s can be stored in jsonb.
func Storable(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// EscapedNUL are the arguments of regexp_replace, after the text, that replace the one escape of valid JSON which text
// and jsonb cannot hold: \u0000, unless its backslash is escaped itself.
const EscapedNUL = `'(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g'`

// partition is the additional part in the name of a partition's constraint.
var partition = regexp.MustCompile(`_\d\d_`)

// IsUniqueViolation reports whether an error is that of a unique constraint, also in one of its partitions.
func IsUniqueViolation(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.Code == "23505" && partition.ReplaceAllString(pg.ConstraintName, "_") == constraint
}

// CopyRows is rows in PostgreSQL's binary COPY format, encoded by hand for a tenth of the cost of the driver's.
type CopyRows struct {
	Buf  []byte
	Rows int64
}

// copyHeader is the signature, no flags and no header extension.
const copyHeader = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// Reset starts again in the same memory.
func (c *CopyRows) Reset() {
	c.Buf = append(c.Buf[:0], copyHeader...)
	c.Rows = 0
}

// Row starts a row with that many columns.
func (c *CopyRows) Row(columns int) {
	c.Buf = binary.BigEndian.AppendUint16(c.Buf, uint16(columns))
	c.Rows++
}

// UUID adds a column to the row, as do the following methods.
func (c *CopyRows) UUID(id [16]byte) {
	c.Buf = binary.BigEndian.AppendUint32(c.Buf, 16)
	c.Buf = append(c.Buf, id[:]...)
}

// Int4 adds a column.
func (c *CopyRows) Int4(v int32) {
	c.Buf = binary.BigEndian.AppendUint32(c.Buf, 4)
	c.Buf = binary.BigEndian.AppendUint32(c.Buf, uint32(v))
}

// Int8 adds a column.
func (c *CopyRows) Int8(v int64) {
	c.Buf = binary.BigEndian.AppendUint32(c.Buf, 8)
	c.Buf = binary.BigEndian.AppendUint64(c.Buf, uint64(v))
}

// Int2 adds a column.
func (c *CopyRows) Int2(v int16) {
	c.Buf = binary.BigEndian.AppendUint32(c.Buf, 2)
	c.Buf = binary.BigEndian.AppendUint16(c.Buf, uint16(v))
}

// Text adds a column.
func (c *CopyRows) Text(v string) {
	c.Buf = binary.BigEndian.AppendUint32(c.Buf, uint32(len(v)))
	c.Buf = append(c.Buf, v...)
}

// Bytes adds a column.
func (c *CopyRows) Bytes(v []byte) {
	c.Buf = binary.BigEndian.AppendUint32(c.Buf, uint32(len(v)))
	c.Buf = append(c.Buf, v...)
}

// Null adds a NULL column.
func (c *CopyRows) Null() { c.Buf = append(c.Buf, 0xff, 0xff, 0xff, 0xff) }

// Columns returns the rows as arrays, one per column, for unnest. They share the rows' memory.
func (c *CopyRows) Columns(n int) (columns [][][]byte) {
	columns = make([][][]byte, n)
	for rest := c.Buf[len(copyHeader):]; len(rest) > 0; {
		rest = rest[2:] // number of fields
		for i := range columns {
			size := int32(binary.BigEndian.Uint32(rest))
			rest = rest[4:]
			var field []byte // nil: NULL
			if size >= 0 {
				field, rest = rest[:size:size], rest[size:]
			}
			columns[i] = append(columns[i], field)
		}
	}
	return columns
}

// Send runs the COPY in the transaction. statement must be a COPY … FROM STDIN (FORMAT binary).
func (c *CopyRows) Send(ctx context.Context, tx pgx.Tx, statement string) error {
	c.Buf = append(c.Buf, 0xff, 0xff)
	if err := flush(ctx, tx); err != nil {
		return err
	}
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(c.Buf), statement)
	if err != nil {
		c.Buf = nil // the driver may still be reading it after a broken connection, so it must not be reused
		return err
	}
	if tag.RowsAffected() != c.Rows {
		return fmt.Errorf("COPY took %d rows of %d", tag.RowsAffected(), c.Rows)
	}
	return nil
}

// Wrap prefixes an error with what failed; nil stays nil.
func Wrap(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
}

// CheckRows returns a function that turns the result of an Exec into an error: ErrFence unless it touched want rows.
func CheckRows(want int) func(pgconn.CommandTag, error) error {
	return func(tag pgconn.CommandTag, err error) error {
		if err == nil && tag.RowsAffected() != int64(want) {
			err = fmt.Errorf("%d rows of %d: %w", tag.RowsAffected(), want, workqueue.ErrFence)
		}
		return err
	}
}

// CheckBatchRows is [CheckRows] for a statement of a batch.
func CheckBatchRows(want int, what string) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error { return Wrap(CheckRows(want)(tag, nil), "%s", what) }
}

// QueueRows queues a statement without RETURNING that fails unless it touches want rows. PostgreSQL checks that, so it
// may travel with the COMMIT. [Fenced] tells the failure.
func QueueRows(batch *pgx.Batch, want int, sql string, args ...any) {
	batch.Queue(`WITH touched AS (`+sql+` RETURNING 1) SELECT 1 / (count(*) = $`+strconv.Itoa(len(args)+1)+`)::int
		FROM touched`, append(args, want)...)
}

// Fenced turns the failure of a statement of [QueueRows] into an ErrFence.
func Fenced(err error) error {
	if failed, ok := errors.AsType[*pgconn.PgError](err); ok && failed.Code == "22012" {
		return workqueue.ErrFence
	}
	return err
}

// UnlessZero is NULL for the zero value, and for the zero time in any location.
func UnlessZero[T comparable](value T) *T {
	if at, ok := any(value).(interface{ IsZero() bool }); value == *new(T) || ok && at.IsZero() {
		return nil
	}
	return &value
}

// NoRow returns by in place of the error of a query that found no row.
func NoRow(err, by error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return by
	}
	return err
}
