package workqueue

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// copyRows is a stream of rows in PostgreSQL's binary COPY format. Encoding by hand costs a tenth of what the generic
// encoder of the driver does, and these rows are what a run mostly consists of.
type copyRows struct {
	buf  []byte
	rows int64
}

// copyHeader is the signature, no flags and no header extension.
const copyHeader = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"

func (c *copyRows) reset() {
	c.buf = append(c.buf[:0], copyHeader...)
	c.rows = 0
}

func (c *copyRows) row(columns int) {
	c.buf = binary.BigEndian.AppendUint16(c.buf, uint16(columns))
	c.rows++
}

func (c *copyRows) uuid(id [16]byte) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, 16)
	c.buf = append(c.buf, id[:]...)
}

func (c *copyRows) int4(v int32) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, 4)
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(v))
}

func (c *copyRows) int8(v int64) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, 8)
	c.buf = binary.BigEndian.AppendUint64(c.buf, uint64(v))
}

func (c *copyRows) int2(v int16) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, 2)
	c.buf = binary.BigEndian.AppendUint16(c.buf, uint16(v))
}

func (c *copyRows) text(v string) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(len(v)))
	c.buf = append(c.buf, v...)
}

func (c *copyRows) bytes(v []byte) {
	c.buf = binary.BigEndian.AppendUint32(c.buf, uint32(len(v)))
	c.buf = append(c.buf, v...)
}

func (c *copyRows) null() { c.buf = append(c.buf, 0xff, 0xff, 0xff, 0xff) }

// columns are the rows as arrays, a column each, for a statement that takes them apart with unnest. They are made of
// the rows' memory.
func (c *copyRows) columns(n int) (columns [][][]byte) {
	columns = make([][][]byte, n)
	for rest := c.buf[len(copyHeader):]; len(rest) > 0; {
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

// send runs the COPY in the transaction. statement must be a COPY … FROM STDIN (FORMAT binary).
func (c *copyRows) send(ctx context.Context, tx pgx.Tx, statement string) error {
	c.buf = append(c.buf, 0xff, 0xff)
	if err := flush(ctx, tx); err != nil {
		return err
	}
	tag, err := tx.Conn().PgConn().CopyFrom(ctx, bytes.NewReader(c.buf), statement)
	if err != nil {
		c.buf = nil // the driver may be reading it still, on its way out of a broken connection: it is not to be used again
		return err
	}
	if tag.RowsAffected() != c.rows {
		return fmt.Errorf("COPY took %d rows of %d", tag.RowsAffected(), c.rows)
	}
	return nil
}
