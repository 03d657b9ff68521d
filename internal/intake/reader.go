package intake

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/internal/intake/parquet"
	"github.com/tranchehq/tranche/internal/intake/row"
)

// Reader yields the rows of one input in order.
type Reader struct {
	rows   rows
	shape  *shaper      // nil: rows are unchanged
	check  *schemaCheck // nil: no schema
	sorter *sorter      // nil: input order
	notes  []string
	format Format
	unit   string // what Item.Line counts; empty: lines
	source string // the name of the input in errors
	close  func() error
	count  int
	err    error // what ended the stream
}

type rows interface {
	// Next fills the item or returns io.EOF.
	Next(item *row.Item) error
	// KeyName is the column or field of the keys; empty while undecided.
	KeyName() string
}

// bufferBytes is the size of the line buffer; longer lines are collected separately.
const bufferBytes = 64 << 10

// Open detects gzip or zstd and then the format at the start of r, and reads a CSV header. It blocks until r has
// given that much. It returns the errors of Next and errors of an invalid Config.
func Open(r io.Reader, cfg Config) (*Reader, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	plain, err := decompress(r, cfg)
	if err != nil {
		return nil, err
	}
	var rows *Reader
	start, _ := plain.Peek(len(xlsxMagic)) // it may be shorter
	switch {
	case cfg.isParquet(plain):
		rows, err = keepParquet(plain, cfg)
	case cfg.Export != nil && cfg.Spool != nil && string(start) == xlsxMagic:
		rows, err = keepXLSX(plain, cfg)
	case cfg.Export != nil:
		rows, err = openTextExport(plain, cfg)
	default:
		rows, err = openText(plain, cfg.raw())
	}
	if err != nil {
		return nil, row.NameSource(err, cfg.Source)
	}
	if rows.rows.KeyName() == ExportKey && cfg.Export != nil {
		cfg = cfg.asExport()
		if len(cfg.Rename) > 0 || cfg.Columns != nil && !cfg.NoHeader {
			return nil, errors.Join(&row.InputError{Reason: "columns and rename do not apply to a flat export of a run, whose " +
				"other fields stay unchanged; remove or rename columns in the file"}, rows.Close())
		}
		rows.restore(cfg.Export)
	}
	return rows.with(cfg), nil
}

func (r *Reader) with(cfg Config) *Reader {
	if r.format != Run { // those items were shaped before
		r.source, r.shape = cfg.Source, newShaper(cfg)
	}
	if cfg.Sort != "" {
		r.sorter = &sorter{field: cfg.Sort, desc: cfg.Desc, spool: *cfg.Spool, memory: sortMemory, found: cfg.Partial}
	}
	if cfg.Schema != nil {
		r.check = &schemaCheck{schema: cfg.Schema, lenient: cfg.TakeInvalid, source: cfg.Source}
	}
	return r
}

func openText(plain *bufio.Reader, cfg Config) (*Reader, error) {
	plain, note, err := decode(plain, cfg.Encoding)
	if err != nil {
		return nil, err
	}
	format, err := recognize(plain, cfg.Format)
	if err != nil {
		return nil, err
	}
	var notes []string
	if note != "" {
		notes = append(notes, note)
	}
	lines := &lineReader{src: plain, limit: cfg.MaxRowBytes}
	if format == NDJSON {
		return &Reader{rows: newNDJSON(lines, cfg), format: format, notes: notes}, nil
	}
	rows, err := newCSV(lines, cfg)
	if err != nil {
		return nil, err
	}
	return &Reader{rows: rows, format: format, notes: append(notes, rows.notes...)}, nil
}

func (c Config) isParquet(plain *bufio.Reader) bool {
	start, _ := plain.Peek(len(parquet.Magic)) // it may be shorter
	return c.Spool != nil && (c.Format == Parquet || c.Format == Recognize && string(start) == parquet.Magic)
}

func keepParquet(plain *bufio.Reader, cfg Config) (rows *Reader, err error) {
	if start, _ := plain.Peek(len(parquet.Magic)); string(start) != parquet.Magic {
		return nil, &row.InputError{Reason: "the input is not a Parquet file: it does not start like one"}
	}
	kept, err := cfg.Spool.Keep(plain)
	if err != nil {
		return nil, err
	}
	open := func(cfg Config, _ bool) (*Reader, error) {
		rows, err := parquet.Open(kept, kept.Size, parquet.Config{Key: cfg.Key, Rename: cfg.Rename,
			MaxFieldBytes: cfg.MaxFieldBytes, MaxRowBytes: cfg.MaxRowBytes, MaxDepth: cfg.MaxDepth, MaxRatio: cfg.MaxRatio})
		return &Reader{rows: rows, format: Parquet, unit: "row", close: kept.Close}, err
	}
	if cfg.Export != nil {
		rows, err = openExport(open, cfg)
	} else {
		rows, err = open(cfg.raw(), true)
	}
	if err != nil {
		return nil, errors.Join(err, kept.Close())
	}
	return rows, nil
}

// Format returns the format that was read.
func (r *Reader) Format() Format { return r.format }

// Unit is what Item.Line counts: row or message; empty for lines.
func (r *Reader) Unit() string { return r.unit }

// Close releases what the reader opened itself, such as a spool file or a connection, but not its input. It may be
// called twice.
func (r *Reader) Close() error {
	free := r.close
	r.close = nil
	var err error
	if r.sorter != nil {
		err = r.sorter.Close()
	}
	if free != nil {
		err = errors.Join(free(), err)
	}
	return err
}

// Key names the column or field of the keys. In NDJSON without Config.Key it is empty before the first row.
func (r *Reader) Key() string {
	name := r.rows.KeyName()
	if r.shape != nil {
		name = r.shape.called(name)
	}
	return name
}

// Next reads the next row into item. It returns io.EOF after the last one, or an *row.InputError that wraps
// row.ErrNoRows if there was none. After an error it keeps returning that error.
func (r *Reader) Next(item *row.Item) error {
	if r.err != nil {
		return r.err
	}
	next := r.checked
	if r.sorter != nil {
		next = func(item *row.Item) error { return r.sorter.Next(r.checked, item) }
	}
	if err := next(item); err != nil {
		r.err = row.NameSource(err, r.source)
		return r.err
	}
	return nil
}

func (r *Reader) checked(item *row.Item) error {
	err := r.row(item)
	if err == nil && r.check != nil {
		err = r.check.take(r, item)
	}
	return err
}

// Notes returns human-readable findings about the input. It grows until the first row is read.
func (r *Reader) Notes() []string { return r.notes }

func (r *Reader) row(item *row.Item) error {
	err := r.rows.Next(item)
	if err == nil {
		err = r.checkKey(item)
	}
	if r.shape != nil && (err == nil || errors.Is(err, io.EOF) && r.count > 0) {
		err = cmp.Or(r.shape.take(r, item, err != nil), err)
	}
	if errors.Is(err, io.EOF) && r.count == 0 {
		err = noRows(r.format)
	}
	if err == nil {
		r.count++
	}
	return err
}

func (r *Reader) checkKey(item *row.Item) error {
	var reason string
	switch n := len(item.Key); {
	case n == 0:
		reason = "the key is empty; every row needs one"
	case n > MaxKeyBytes:
		reason = fmt.Sprintf("the key has %d bytes, more than %d; choose a shorter field as the key", n, MaxKeyBytes)
	case r.unit != "" && !storable(item.Key):
		reason = "the key is not text that PostgreSQL can store: it is not UTF-8, or holds a NUL"
	default:
		return nil
	}
	return r.wrong(item, r.Key(), reason)
}

func (r *Reader) wrong(item *row.Item, field, reason string) error {
	if r.unit != "" {
		return &row.RecordError{Unit: r.unit, Number: item.Line, Field: field, Reason: reason}
	}
	return &row.LineError{Line: item.Line, Column: field, Reason: reason}
}

func storable(s string) bool { return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 }

func noRows(format Format) error {
	reason := "the input is empty; give at least one row"
	switch format {
	case Parquet:
		reason = "the Parquet file has no rows; give at least one"
	case SQL:
		reason = "the query found no rows; a run needs at least one"
	case Stream:
		reason = "the stream has no messages to read; a run needs at least one"
	case CSV, XLSX:
		reason = "the input has a header line but no rows; add at least one"
	}
	return &row.InputError{Reason: reason, Err: row.ErrNoRows}
}

const byteOrderMark = "\uFEFF"

// recognize skips a byte order mark and picks the format by the first character that is not white space.
func recognize(src *bufio.Reader, format Format) (Format, error) {
	start, err := src.Peek(foreignBytes)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", readError(0, err)
	}
	if err := refuseForeign(start); err != nil {
		return "", err
	}
	if bytes.HasPrefix(start, []byte(byteOrderMark)) {
		if _, err := src.Discard(len(byteOrderMark)); err != nil {
			return "", fmt.Errorf("skip the byte order mark: %w", err)
		}
	}
	first, err := firstByte(src)
	switch {
	case err != nil:
		return "", err
	case first == '[' && format != CSV:
		return "", &row.InputError{Reason: "the input is one JSON array; " +
			"write its elements as one object a line (jq -c '.[]' does that)"}
	case format != Recognize:
		return format, nil
	case first == '{':
		return NDJSON, nil
	default:
		return CSV, nil
	}
}

// firstByte peeks at the first byte that is not white space, within the buffer.
func firstByte(src *bufio.Reader) (byte, error) {
	for n := 1; n <= src.Size(); n = max(n+1, src.Buffered()) {
		seen, err := src.Peek(n)
		if rest := bytes.TrimLeft(seen, " \t\r\n"); len(rest) > 0 {
			return rest[0], nil
		}
		if errors.Is(err, io.EOF) {
			return 0, &row.InputError{Reason: "the input is empty; give a header line and rows (CSV), or one JSON object a line",
				Err: row.ErrNoRows}
		}
		if err != nil {
			return 0, readError(0, err)
		}
	}
	return 0, &row.InputError{Reason: "the input starts with " + row.Size(src.Size()) + " of white space; remove it"}
}

var errLineTooLong = errors.New("the line is too long")

// lineReader splits its source into lines and counts them. A line never uses more memory than the limit and a
// buffer.
type lineReader struct {
	src    *bufio.Reader
	limit  int
	number int    // of the line last returned by next, from 1
	long   []byte // a line larger than the buffer of src
	ended  []byte // the line end of the line last returned by next, if whole; valid as long as the line
	late   error  // seen by peek; src returns it only once
}

// peek returns the next bytes without consuming them; whole: there are no more.
func (l *lineReader) peek(n int) (sample []byte, whole bool) {
	sample, err := l.src.Peek(n)
	if err != nil && !errors.Is(err, io.EOF) {
		l.late = err
	}
	return sample, errors.Is(err, io.EOF)
}

// next returns a line without its "\n" or "\r\n", or io.EOF. The bytes are valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	if l.late != nil { // what came before it is still buffered
		if rest, _ := l.src.Peek(l.src.Buffered()); bytes.IndexByte(rest, '\n') < 0 {
			return nil, readError(l.number, l.late)
		}
	}
	line, err := l.src.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		line, err = l.collect(line)
	}
	switch {
	case errors.Is(err, io.EOF) && len(line) == 0:
		return nil, io.EOF
	case err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, errLineTooLong):
		return nil, readError(l.number, err)
	}
	l.number++
	if errors.Is(err, errLineTooLong) || len(line) > l.limit {
		return line[:min(len(line), l.limit)], errLineTooLong
	}
	trimmed := trimEnd(line)
	l.ended = line[len(trimmed):]
	return trimmed, nil
}

func (l *lineReader) collect(piece []byte) ([]byte, error) {
	l.long = append(l.long[:0], piece...)
	for {
		piece, err := l.src.ReadSlice('\n')
		l.long = append(l.long, piece...)
		switch {
		case len(l.long) > l.limit:
			return l.long, errLineTooLong
		case !errors.Is(err, bufio.ErrBufferFull):
			return l.long, err
		}
	}
}

// trimEnd removes the line break. A "\r" is part of it, also at the end of the input.
func trimEnd(line []byte) []byte {
	line = bytes.TrimSuffix(line, []byte("\n"))
	return bytes.TrimSuffix(line, []byte("\r"))
}

// readError adds the line where reading stopped. An InputError gets the line; other errors are wrapped.
func readError(line int, err error) error {
	if input, ok := errors.AsType[*row.InputError](err); ok {
		return &row.InputError{Line: line, Reason: input.Reason, Err: input.Err}
	}
	return fmt.Errorf("read the input after line %d: %w", line, err)
}

// Object validates a single payload like a row of NDJSON without a key and returns it as one compact JSON object.
// The limits of a row and the schema apply.
func Object(text []byte, cfg Config) ([]byte, error) {
	cfg.MaxFieldBytes = cmp.Or(cfg.MaxFieldBytes, DefaultMaxFieldBytes)
	n := newNDJSON(&lineReader{number: 1}, cfg)
	n.keyless = true
	line := jsontext.Value(text)
	if err := line.Compact(); err != nil {
		return nil, n.explain(err)
	}
	if err := n.checkBytes(line); err != nil {
		return nil, err
	}
	if _, err := n.check(line); err != nil {
		return nil, err
	}
	if cfg.Schema != nil {
		faults, err := cfg.Schema.Check(line)
		if err != nil {
			return nil, &row.InputError{Reason: err.Error()}
		}
		if faults != nil {
			return nil, &row.InputError{Reason: describe(faults)}
		}
	}
	return line, nil
}
