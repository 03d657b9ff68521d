package main

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// copyHeader and copyTrailer frame PostgreSQL's binary COPY format.
var (
	copyHeader  = []byte("PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	copyTrailer = []byte{0xff, 0xff}
)

// copyRows sends rows lo to hi-1 by one COPY statement. appendRow appends a row in the binary format.
func copyRows(ctx context.Context, conn *pgx.Conn, sql string, lo, hi int, appendRow func([]byte, int) []byte) error {
	next := lo
	rows := &stream{head: copyHeader, fill: func(b []byte) ([]byte, bool) {
		for ; next < hi && len(b) < streamBuffer; next++ {
			b = appendRow(b, next)
		}
		if next < hi {
			return b, true
		}
		return append(b, copyTrailer...), false
	}}
	tag, err := conn.PgConn().CopyFrom(ctx, rows, sql)
	if err != nil {
		return fmt.Errorf("copy rows %d to %d: %w", lo, hi-1, err)
	}
	if got := tag.RowsAffected(); got != int64(hi-lo) {
		return fmt.Errorf("copy rows %d to %d: the server took %d", lo, hi-1, got)
	}
	return nil
}

func appendFields(b []byte, n int) []byte { return binary.BigEndian.AppendUint16(b, uint16(n)) }

func appendUUID(b []byte, id uuid.UUID) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(id)))
	return append(b, id[:]...)
}

func appendInt4(b []byte, v int) []byte {
	b = binary.BigEndian.AppendUint32(b, 4)
	return binary.BigEndian.AppendUint32(b, uint32(v))
}

func appendBytes(b, v []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(v)))
	return append(b, v...)
}
