package intake

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Limits of a query whose source sets none.
const (
	DefaultSQLRows  = 10_000_000
	DefaultSQLBytes = 8 << 30
	// DefaultSQLTime limits reading a query to its end. Beyond it there is an error and no run.
	DefaultSQLTime = 30 * time.Minute
)

const (
	fetchRows = 1000
	// sqlClose limits closing the connection.
	sqlClose = 5 * time.Second
	// messageRoom is what a row may take on the wire in addition to its values.
	messageRoom = 1 << 20
)

// SQLSource is a database to query.
type SQLSource struct {
	Name     string
	MaxRows  int           // 0: DefaultSQLRows
	MaxBytes int64         // of payloads; 0: DefaultSQLBytes
	MaxTime  time.Duration // 0: DefaultSQLTime

	// Connect opens a connection with settings adjusted by prepare, and begins a transaction with that time limit, in
	// which texts are UTF-8 and the same for all roles. The reader closes the connection.
	Connect func(ctx context.Context, limit time.Duration, prepare func(*pgx.ConnConfig)) (*pgx.Conn, error)
	// Explain describes a database error without secrets.
	Explain func(error) string
}

// QueryError is returned for a query that fails or exceeds its limits.
type QueryError struct {
	Source       string
	Line, Column int // in the query, from 1; 0: no position
	Reason       string
}

func (e *QueryError) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("the query to source %s, line %d, column %d: %s", e.Source, e.Line, e.Column, e.Reason)
	}
	return fmt.Sprintf("the query to source %s: %s", e.Source, e.Reason)
}

type sqlReader struct {
	ctx      context.Context //nolint:containedctx // it is the query's, and ends with it
	cancel   context.CancelFunc
	source   SQLSource
	query    string
	cfg      Config
	conn     *pgx.Conn
	result   *pgconn.ResultReader // of the FETCH in progress; nil between two
	fetched  int                  // its rows so far
	names    []string
	prefixes [][]byte
	convert  []converter
	key      int
	row      int
	bytes    int64
}

// declareCursor precedes the text of the query. A cursor takes only queries: its syntax refuses anything that
// writes.
const declareCursor = "DECLARE tranche_items NO SCROLL CURSOR FOR "

// planWhole makes PostgreSQL plan for the whole result, not for its first rows.
const planWhole = "SET LOCAL cursor_tuple_fraction = 1"

// OpenSQL runs a query in a read-only transaction and reads its rows as items. Column names become fields. Memory
// is bounded by one row. It returns the errors of Next, *QueryError and connection errors.
func OpenSQL(ctx context.Context, source SQLSource, query string, cfg Config) (*Reader, error) {
	given := cfg
	cfg = cfg.withDefaults().raw()
	source.MaxRows = cmp.Or(source.MaxRows, DefaultSQLRows)
	source.MaxBytes = cmp.Or(source.MaxBytes, DefaultSQLBytes)
	source.MaxTime = cmp.Or(source.MaxTime, DefaultSQLTime)
	q := &sqlReader{source: source, query: query, cfg: cfg}
	if strings.TrimSpace(query) == "" || !storable(query) {
		return nil, q.fail("it is empty, or no text; give a SELECT")
	}
	q.ctx, q.cancel = context.WithTimeout(ctx, source.MaxTime)
	if err := q.open(); err != nil {
		return nil, errors.Join(q.explain(err), q.close())
	}
	return (&Reader{rows: q, format: SQL, unit: "row", close: q.close}).with(given), nil
}

func (q *sqlReader) KeyName() string { return q.names[q.key] }

func (q *sqlReader) fail(format string, args ...any) error {
	return &QueryError{Source: q.source.Name, Reason: fmt.Sprintf(format, args...)}
}

func (q *sqlReader) open() (err error) {
	q.conn, err = q.source.Connect(q.ctx, q.source.MaxTime, func(c *pgx.ConnConfig) {
		c.BuildFrontend = func(r io.Reader, w io.Writer) *pgproto3.Frontend {
			front := pgproto3.NewFrontend(r, w)
			front.SetMaxBodyLen(2*q.cfg.MaxRowBytes + messageRoom) // binary data has twice as many hex digits
			return front
		}
	})
	if err != nil {
		return err
	}
	if err := q.do(planWhole); err != nil {
		return err
	}
	if err := q.do(declareCursor + q.query); err != nil {
		return err
	}
	q.fetch()
	return q.header()
}

// do runs one statement by the extended protocol, which refuses more than one.
func (q *sqlReader) do(statement string) error {
	return q.conn.PgConn().ExecParams(q.ctx, statement, nil, nil, nil, nil).Read().Err
}

func (q *sqlReader) fetch() {
	statement := fmt.Sprintf("FETCH FORWARD %d FROM tranche_items", fetchRows)
	q.result, q.fetched = q.conn.PgConn().ExecParams(q.ctx, statement, nil, nil, nil, nil), 0
}

func (q *sqlReader) header() error {
	columns := q.result.FieldDescriptions()
	if len(columns) == 0 { // an error, or a query without columns
		if _, err := q.result.Close(); err != nil {
			return err
		}
		q.result = nil
		return q.fail("it has no columns; select the key and the fields of the items")
	}
	seen := map[string]bool{}
	for _, c := range columns {
		if seen[c.Name] {
			return q.fail("it has two columns called %s; rename one, with AS", row.Quote(c.Name))
		}
		seen[c.Name] = true
		q.names = append(q.names, c.Name)
		q.convert = append(q.convert, converterOf(c.DataTypeOID))
	}
	q.prefixes = row.Prefixes(q.names)
	var err error
	q.key, err = row.KeyColumn(q.names, q.cfg.Key, q.cfg.Rename, 0)
	if wrong, ok := errors.AsType[*row.LineError](err); ok {
		return q.fail("%s", wrong.Reason)
	}
	return err
}

func (q *sqlReader) Next(item *row.Item) error {
	for {
		if q.result == nil {
			q.fetch()
		}
		if q.result.NextRow() {
			q.fetched++
			return q.take(item)
		}
		_, err := q.result.Close()
		q.result = nil
		if err != nil {
			return q.explain(err)
		}
		if q.fetched < fetchRows {
			return io.EOF
		}
	}
}

func (q *sqlReader) take(item *row.Item) error {
	if q.row++; q.row > q.source.MaxRows {
		return q.fail("it has more than %d rows, as many as this source may give; select fewer, or have max_rows raised",
			q.source.MaxRows)
	}
	item.Line = q.row
	payload := item.Payload[:0]
	for i, value := range q.result.Values() {
		payload = append(payload, q.prefixes[i]...)
		if value == nil {
			payload = append(payload, "null"...)
		} else if payload = q.convert[i](payload, value, q.cfg.MaxDepth); payload == nil {
			return q.rowError(q.names[i], "it is not text in UTF-8 without NUL, or JSON that is nested deeper than services "+
				"read or has a name twice in one object; convert it in the query (::jsonb keeps the last of such values)")
		}
		if len(value) > q.cfg.MaxFieldBytes {
			return q.rowError(q.names[i], "larger than "+row.Size(q.cfg.MaxFieldBytes)+"; shorten it in the query")
		}
		if i != q.key {
			continue
		}
		if value == nil {
			return q.rowError(q.names[i], "the key is NULL; every row needs one")
		}
		item.Key = string(value)
	}
	payload = append(payload, '}')
	item.Payload = payload
	if len(item.Payload) > q.cfg.MaxRowBytes {
		return q.rowError("", "larger than "+row.Size(q.cfg.MaxRowBytes)+"; select fewer columns")
	}
	if q.bytes += int64(len(item.Payload)); q.bytes > q.source.MaxBytes {
		return q.fail("its rows are more than %d bytes, as much as this source may give; select less, or have max_bytes "+
			"raised", q.source.MaxBytes)
	}
	return nil
}

func (q *sqlReader) rowError(field, reason string) error {
	return &row.RecordError{Unit: "row", Number: q.row, Field: field, Reason: reason}
}

func (q *sqlReader) explain(err error) error {
	if _, known := errors.AsType[*QueryError](err); known {
		return err
	}
	said, answered := errors.AsType[*pgconn.PgError](err)
	long, tooLong := errors.AsType[*pgproto3.ExceededMaxBodyLenErr](err)
	switch {
	case tooLong:
		return &row.RecordError{Unit: "row", Number: q.row + 1, Reason: fmt.Sprintf(
			"it takes %d bytes, and %d are read at most; select less", long.ActualBodyLen, long.MaxExpectedBodyLen)}
	case errors.Is(context.Cause(q.ctx), context.DeadlineExceeded), answered && said.Code == "57014":
		return q.fail("it took longer than %s, as long as this source may take; make it faster, or have max_time raised",
			q.source.MaxTime)
	case q.ctx.Err() != nil:
		return fmt.Errorf("query source %s: %w", q.source.Name, context.Cause(q.ctx))
	case !answered:
		return q.fail("%s", q.said(err))
	}
	out := &QueryError{Source: q.source.Name, Reason: q.said(err)}
	if at := int(said.Position) - utf8.RuneCountInString(declareCursor); at > 0 && q.conn != nil {
		out.Line, out.Column = placeIn(q.query, at)
	}
	if said.Code == "42601" && out.Line == 0 {
		out.Reason += "; it must be one SELECT"
	}
	return out
}

// said returns the source's description of an error without its name, which the caller adds.
func (q *sqlReader) said(err error) string {
	return strings.TrimPrefix(q.source.Explain(err), "source "+q.source.Name+": ")
}

func placeIn(text string, at int) (line, column int) {
	line, column = 1, 1
	for _, r := range text {
		if at--; at <= 0 {
			break
		}
		if column++; r == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

func (q *sqlReader) close() error {
	defer q.cancel()
	if q.conn == nil {
		return nil
	}
	q.cancel() // ends a query in progress
	ctx, cancel := context.WithTimeout(context.WithoutCancel(q.ctx), sqlClose)
	defer cancel()
	if q.result != nil {
		_, _ = q.result.Close() // it was interrupted
		q.result = nil
	}
	_ = q.conn.Close(ctx) // read-only, so nothing is lost
	return nil
}

// converter appends a value in PostgreSQL's text format as JSON, or returns nil if a payload cannot hold it.
type converter func(dst, value []byte, depth int) []byte

// converterOf returns the conversion of a type. Whole numbers, floats and booleans keep their JSON type, JSON is
// unchanged, binary data is base64. Times are as in RFC 3339, in UTC if they have a zone. Everything else is a
// string as PostgreSQL writes it, also numerics, which JSON readers would round. Arrays of these are arrays.
func converterOf(oid uint32) converter {
	switch oid {
	case pgtype.BoolOID:
		return appendBool
	case pgtype.Int2OID, pgtype.Int4OID, pgtype.Int8OID, pgtype.OIDOID, pgtype.Float4OID, pgtype.Float8OID:
		return appendNumber
	case pgtype.JSONOID, pgtype.JSONBOID:
		return row.AppendJSON
	case pgtype.ByteaOID:
		return appendBytea
	case pgtype.TimestampOID, pgtype.TimestamptzOID:
		return appendTimestamp
	case pgtype.JSONArrayOID, pgtype.JSONBArrayOID, pgtype.ByteaArrayOID, pgtype.BoolArrayOID, pgtype.Int2ArrayOID,
		pgtype.Int4ArrayOID, pgtype.Int8ArrayOID, pgtype.Float4ArrayOID, pgtype.Float8ArrayOID, pgtype.NumericArrayOID,
		pgtype.TextArrayOID, pgtype.VarcharArrayOID, pgtype.TimestampArrayOID, pgtype.TimestamptzArrayOID,
		pgtype.DateArrayOID, pgtype.UUIDArrayOID:
		return arrayOf(converterOf(elementOf(oid)))
	default:
		return row.AppendText
	}
}

func elementOf(oid uint32) uint32 {
	array, _ := pgtype.NewMap().TypeForOID(oid)
	return array.Codec.(*pgtype.ArrayCodec).ElementType.OID //nolint:forcetypeassert // called for arrays only
}

func appendBool(dst, value []byte, _ int) []byte {
	if string(value) == "t" {
		return append(dst, "true"...)
	}
	return append(dst, "false"...)
}

// appendNumber writes NaN and the infinities as strings: JSON lacks them.
func appendNumber(dst, value []byte, depth int) []byte {
	if bytes.ContainsAny(value, "NI") {
		return row.AppendText(dst, value, depth)
	}
	return append(dst, value...)
}

func appendBytea(dst, value []byte, _ int) []byte {
	raw := make([]byte, hex.DecodedLen(len(value)))
	n, err := hex.Decode(raw, bytes.TrimPrefix(value, []byte(`\x`)))
	if err != nil {
		return nil
	}
	return append(base64.StdEncoding.AppendEncode(append(dst, '"'), raw[:n]), '"')
}

// appendTimestamp writes infinities and BC times as PostgreSQL does.
func appendTimestamp(dst, value []byte, depth int) []byte {
	text := string(value)
	if len(text) > len("2006-01-02") && text[10] == ' ' && !strings.HasSuffix(text, "BC") {
		text = text[:10] + "T" + text[11:]
		if rest, utc := strings.CutSuffix(text, "+00"); utc {
			text = rest + "Z"
		}
	}
	return row.AppendText(dst, []byte(text), depth)
}

// arrayOf converts an array literal of PostgreSQL, like {1,NULL,"a,b"} or {{1},{2}}.
func arrayOf(element converter) converter {
	return func(dst, value []byte, depth int) []byte {
		if at := bytes.IndexByte(value, '{'); at > 0 { // [0:1]={…}: bounds that do not start at 1
			value = value[at:]
		}
		var item []byte
		for i := 0; i < len(value) && dst != nil; {
			switch c := value[i]; c {
			case '{':
				dst, i = append(dst, '['), i+1
			case '}':
				dst, i = append(dst, ']'), i+1
			case ',':
				dst, i = append(dst, ','), i+1
			default:
				quoted := c == '"'
				item, i = arrayItem(item[:0], value, i)
				if !quoted && string(item) == "NULL" {
					dst = append(dst, "null"...)
				} else {
					dst = element(dst, item, depth-1)
				}
			}
		}
		return dst
	}
}

func arrayItem(item, value []byte, i int) ([]byte, int) {
	quoted := value[i] == '"'
	if quoted {
		i++
	}
	for ; i < len(value); i++ {
		switch c := value[i]; {
		case c == '\\' && i+1 < len(value):
			i++
			item = append(item, value[i])
		case quoted && c == '"':
			return item, i + 1
		case !quoted && (c == ',' || c == '}'):
			return item, i
		default:
			item = append(item, c)
		}
	}
	return item, i
}
