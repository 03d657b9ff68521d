// Package intake reads the items of a run, one row at a time, from CSV, NDJSON, Parquet, a query or a stream.
//
// # Output
//
// Each row becomes an Item: a key and a payload. The payload is one JSON object in valid UTF-8, on one line,
// without spaces between its tokens.
//
//   - CSV (RFC 4180, with a header line): fields become strings under the header's names, in the header's order:
//     {"id":"7","name":"Ann"}. No types are guessed, so 007 and 1e3 arrive as written. Blank lines and a leading byte
//     order mark are skipped. A line break inside quotes is kept.
//   - NDJSON: each line is an object, taken unchanged, with its numbers and escapes. Blank lines are skipped. An object
//     with a duplicate name is refused, because readers disagree about which one counts. So is nesting deeper than
//     services read.
//   - Parquet: whole numbers, floats and booleans keep their JSON type. Decimals are strings with all their digits.
//     Dates and times are as in RFC 3339, date-times in UTC with a Z. UUIDs, enums and texts are strings, JSON is
//     unchanged, binary data is base64. Lists are arrays, groups are objects, maps are arrays of {"key":…,"value":…}.
//     The file is kept while it is read, see Spool.
//   - A query: as Parquet, see OpenSQL. Numerics are decimals. Types without a JSON form are strings as PostgreSQL
//     writes them.
//   - A stream: each message is an object like a line of NDJSON, see OpenStream.
//
// Then fields are dropped, renamed and converted, and the payload is checked against a schema, as Config asks.
//
// # Guarantees
//
// Memory does not grow with the input, even for a quote that is never closed. The bounds are Config.MaxRowBytes, a
// window of 32 MiB for compressed input, and 32 MiB of rows for sorting. A decompression bomb is rejected at
// Config.MaxRatio. PostgreSQL can store all output: text and keys hold no NUL, not even as an escape.
//
// The first error ends the stream. A *row.LineError names the line (a *row.RecordError the row or message), the
// field and the remedy. A *row.InputError is about the whole input. Any other error comes from the reader below.
//
// # Not its job
//
// It does not detect duplicate keys (the store does, it sees all rows), open files, or close the reader it is
// given.
//
// # Why a dedicated scanner
//
// encoding/csv collects a whole record before it returns anything, and does not report where an unclosed quote
// opened. Here fields are written as JSON while they are read, under a limit. The fuzz tests compare both readers.
//
// # Packages
//
// Package parquet reads Parquet, which is read from its end. Both use package row: the item, its errors, and values
// as payloads hold them.
//
// # Concurrency
//
// A Reader belongs to one goroutine. It starts none.
package intake

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake/row"
)

// Format is the format of rows.
type Format string

// The supported formats.
const (
	Recognize Format = ""       // decide by the first character: { is NDJSON, anything else is CSV
	CSV       Format = "csv"    // RFC 4180 with a header line
	NDJSON    Format = "ndjson" // one JSON object a line
	Parquet   Format = "parquet"

	XLSX   Format = "xlsx"   // a workbook, only for an edited export
	SQL    Format = "sql"    // a query, see OpenSQL
	Stream Format = "stream" // a JetStream stream, see OpenStream
	Run    Format = "run"    // an earlier run, see Carry
)

// Limits used where Config has a zero.
const (
	DefaultMaxFieldBytes = 1 << 20
	DefaultMaxRowBytes   = 8 << 20
	DefaultMaxDepth      = 128
	DefaultMaxRatio      = 200
)

// ratioFrom is how many bytes compressed input may unpack to before its ratio is checked.
const ratioFrom = 8 << 20

// MaxKeyBytes is the maximum length of a key.
const MaxKeyBytes = 512

// Config says how to read an input. The zero value detects the format and uses the default limits.
type Config struct {
	// Format of the rows, after decompression.
	Format Format
	// Key is the column or field of the key, by its name in the payload. Empty: "key" if there is one, else "id", else
	// the first column or field. For objects the first row decides for all.
	Key string
	// Delimiter between CSV fields: comma, semicolon, tab or bar. Zero: the one given by a first line like sep=;, else
	// the one with which most sampled rows have as many fields as the header.
	Delimiter rune
	// MaxFieldBytes limits one CSV field, or one top-level value in NDJSON. Zero: DefaultMaxFieldBytes.
	MaxFieldBytes int
	// MaxRowBytes limits a row of the input. Zero: DefaultMaxRowBytes.
	MaxRowBytes int
	// MaxDecompressed limits the unpacked bytes of compressed input. Zero: no limit; memory is bounded anyway.
	MaxDecompressed int64
	// MaxRatio limits the ratio of unpacked to compressed bytes, after 8 MiB are unpacked. Real rows stay far
	// below it, bombs do not. Zero: DefaultMaxRatio.
	MaxRatio int
	// MaxDepth limits the nesting of an NDJSON row, including its own object. Zero: DefaultMaxDepth, the limit of
	// services.
	MaxDepth int
	// Encoding of text, one of Encodings. Empty: UTF-8, or UTF-16 with a byte order mark.
	Encoding string
	// NoHeader means the first CSV line is a row. Columns are named by Columns, else column1, column2 and so on.
	NoHeader bool
	// Columns are the columns or fields to keep, by their names in the input; nil: all. With NoHeader they name all
	// columns.
	Columns []string
	// Rename maps names in the input to names in the payload.
	Rename map[string]string
	// Types converts fields, by their names in the payload: number, text, bool or json. Numbers and booleans that are
	// not text stay so. Empty text becomes null unless the type is text.
	Types map[string]string
	// Sort is the field to sort the items by; Desc puts the greatest first. Numbers, also in texts, come before other
	// texts; missing or empty values come last. It needs a Spool.
	Sort string
	Desc bool
	// Partial means that the input is one of several, like an add: objects in it need not have the fields that Columns,
	// Rename and Types name, nor any row that of Sort.
	Partial bool
	// Source is the name of the input in errors about many items; may be empty.
	Source string
	// Schema is the schema of items; nil: none. Invalid items end the stream with an *InvalidError that has the first
	// MaxPlaces faults of all remaining rows. With TakeInvalid they are Items with Invalid set instead.
	Schema      *itemschema.Schema
	TakeInvalid bool
	// Export says how to read an edited flat export of a run, also as a workbook (XLSX). Nil: exports are not
	// recognized and workbooks are refused.
	Export *Export
	// Spool keeps Parquet files while they are read from their end. Nil: Parquet is refused.
	Spool *Spool
}

func (c Config) withDefaults() Config {
	c.MaxFieldBytes = cmp.Or(c.MaxFieldBytes, DefaultMaxFieldBytes)
	c.MaxRowBytes = cmp.Or(c.MaxRowBytes, max(DefaultMaxRowBytes, c.MaxFieldBytes))
	c.MaxRatio = cmp.Or(c.MaxRatio, DefaultMaxRatio)
	c.MaxDepth = cmp.Or(c.MaxDepth, DefaultMaxDepth)
	return c
}

func (c Config) validate() error {
	switch c.Format {
	case Recognize, CSV, NDJSON, Parquet:
	default:
		return fmt.Errorf("intake: Format %q is not known; use csv, ndjson or parquet", c.Format)
	}
	switch c.Delimiter {
	case 0, ',', ';', '\t', '|':
	default:
		return fmt.Errorf("intake: Delimiter %q cannot be used; use a comma, semicolon, tab or bar", c.Delimiter)
	}
	if c.Encoding != "" && !slices.Contains(Encodings(), c.Encoding) {
		return fmt.Errorf("intake: Encoding %q is not known; use one of %s", c.Encoding, strings.Join(Encodings(), ", "))
	}
	if c.Sort != "" && c.Spool == nil {
		return errors.New("intake: Sort needs a Spool")
	}
	for name, kind := range c.Types {
		if !slices.Contains(Types(), kind) {
			return fmt.Errorf("intake: Types has %q for %q; use one of %s", kind, name, strings.Join(Types(), ", "))
		}
	}
	return nil
}

// plainNumber matches what spreadsheets read as a number and never as a formula.
var plainNumber = regexp.MustCompile(`^[+-]?[0-9]+([.,][0-9]+)?([eE][+-]?[0-9]+)?$`)

// Defuse prefixes an apostrophe to a cell that a spreadsheet would run as a formula or cut short, and to a cell
// that already looks so prefixed. So [Armed] can undo it.
func Defuse(cell string) string {
	if isFormula(cell) || strings.HasPrefix(cell, "'") && isFormula(strings.TrimLeft(cell, "'")) {
		return "'" + cell
	}
	return cell
}

// Armed undoes Defuse.
func Armed(cell string) string {
	if rest, ok := strings.CutPrefix(cell, "'"); ok && isFormula(strings.TrimLeft(rest, "'")) {
		return rest
	}
	return cell
}

func isFormula(cell string) bool {
	first, _ := utf8.DecodeRuneInString(cell)
	return cell != "" && strings.ContainsRune("=+-@\t\r\n＝＋－＠", first) && !plainNumber.MatchString(cell) ||
		strings.IndexByte(cell, 0) >= 0
}

type carriedRows struct {
	key string
	get func(*row.Item) error
}

func (c *carriedRows) Next(item *row.Item) error { return c.get(item) }
func (c *carriedRows) KeyName() string           { return c.key }

// Carry reads complete items that were taken in before. get fills one or returns io.EOF. key names the source of
// the keys if known. Of cfg only the schema and the order apply.
func Carry(key string, cfg Config, get func(*row.Item) error) *Reader {
	return (&Reader{rows: &carriedRows{key, get}, format: Run, unit: "item"}).with(cfg)
}
