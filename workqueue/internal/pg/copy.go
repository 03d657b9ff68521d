package pg

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// CopyRows is a stream of rows in PostgreSQL's binary COPY format. Encoding by hand costs a tenth of what the generic
// encoder of the driver does, and these rows are what a run mostly consists of.
type CopyRows struct {
	Buf  []byte
	Rows int64
}

// copyHeader is the signature, no flags and no header extension.
const copyHeader = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

// Reset begins anew in the same memory.
func (c *CopyRows) Reset() {
	c.Buf = append(c.Buf[:0], copyHeader...)
	c.Rows = 0
}

// Row begins a row of so many columns.
func (c *CopyRows) Row(columns int) {
	c.Buf = binary.BigEndian.AppendUint16(c.Buf, uint16(columns))
	c.Rows++
}

// UUID adds a column to the row, as the methods that follow do.
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

// Null adds a column without a value.
func (c *CopyRows) Null() { c.Buf = append(c.Buf, 0xff, 0xff, 0xff, 0xff) }

// Columns are the rows as arrays, a column each, for a statement that takes them apart with unnest. They are made of
// the rows' memory.
func (c *CopyRows) Columns(n int) (columns [][][]byte) {
	columns = make([][][]byte, n)
	for rest := c.Buf[len(copyHeader):]; len(rest) > 0; {
		rest = rest[2:] // how many fields follow
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
		c.Buf = nil // the driver may be reading it still, on its way out of a broken connection: it is not to be used again
		return err
	}
	if tag.RowsAffected() != c.Rows {
		return fmt.Errorf("COPY took %d rows of %d", tag.RowsAffected(), c.Rows)
	}
	return nil
}
