// Package intake reads the items of a run from CSV, NDJSON, Parquet, a query or a stream, one row after the other.
//
// # What comes out
//
// Each row becomes an Item: a key and a payload. The payload is always one JSON object, valid UTF-8, without spaces
// between its tokens, on one line.
//
//   - CSV (RFC 4180, with a header line): the fields become strings under the header's names, in the header's order:
//     {"id":"7","name":"Ann"}. No types are guessed; a number stays a string, so that 007 and 1e3 arrive as they were
//     written. Blank lines are skipped, a byte order mark at the start too, and a line break inside quotes becomes \n.
//   - NDJSON: each line is an object and is taken as it is, numbers and escapes untouched. Blank lines are skipped. A
//     name that stands twice in an object is refused, for readers disagree about which one counts. So is what is nested
//     deeper than services read.
//   - Parquet: each row, with its types: whole numbers, floats and booleans are numbers and booleans; decimals are
//     strings with all their digits; dates and times are as in RFC 3339, with a Z when they are in UTC; UUIDs, enums
//     and texts are strings, JSON is taken as it is, and binary data is base64. Lists are arrays, groups are objects,
//     maps are arrays of {"key":…,"value":…}, and null is null. The file is kept while it is read, see Spool.
//   - A query: as Parquet, see OpenSQL; numerics are decimals, and types that JSON has no form for are strings as
//     PostgreSQL writes them.
//   - A stream: each message is an object as a line of NDJSON is, see OpenStream.
//
// Then fields are left out, renamed and converted, and the payload is held against a schema, as far as Config says so.
//
// # What it guarantees
//
// Memory does not grow with the input: it is bounded by Config.MaxRowBytes and, for compressed input, by a window of 32
// MiB, and where rows are sorted by 32 MiB of them. That also holds for a quote that is never closed. A decompression
// bomb is given up at Config.MaxRatio. Whatever comes out can be stored in PostgreSQL: text and keys hold no NUL, not
// even as an escape.
//
// The first error ends the stream. A *row.LineError names the line (a *row.RecordError the row or message), the field
// and the remedy; a *row.InputError speaks of the input as a whole; anything else is an error of the reader below.
//
// # Not its job
//
// It does not look for keys that stand twice (the store does, it sees all rows), does not open files, and does not
// close the reader it is given.
//
// # Why a scanner of its own
//
// encoding/csv collects a whole record before it hands anything over, and does not tell where an unclosed quote opened.
// Here the fields of a row are written as JSON while they are read, under a limit. The fuzz tests hold both readers
// against each other.
//
// # Its packages
//
// Parquet, which is read from its end, is read by package parquet. Both stand on package row: what a row is, what is
// said of one that is none, and values as payloads have them.
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

// Format is the way rows are written.
type Format string

// The formats that can be read.
const (
	Recognise Format = ""       // decide by the first character: { is NDJSON, anything else is CSV
	CSV       Format = "csv"    // RFC 4180 with a header line
	NDJSON    Format = "ndjson" // one JSON object a line
	Parquet   Format = "parquet"

	XLSX   Format = "xlsx"   // a workbook, of an export that is given back only
	SQL    Format = "sql"    // of a query, see OpenSQL
	Stream Format = "stream" // of a JetStream stream, see OpenStream
	Run    Format = "run"    // of an earlier run, see Carry
)

// Limits that hold where Config leaves a zero.
const (
	DefaultMaxFieldBytes = 1 << 20
	DefaultMaxRowBytes   = 8 << 20
	DefaultMaxDepth      = 128
	DefaultMaxRatio      = 200
)

// ratioFrom is how many bytes compressed input may unpack to before anybody asks how few it came in.
const ratioFrom = 8 << 20

// MaxKeyBytes is the length of the longest key.
const MaxKeyBytes = 512

// Config says how to read an input. The zero value recognises what it can and uses the default limits.
type Config struct {
	// Format of the rows, after decompression.
	Format Format
	// Key names the column or field that holds an item's key, as it is called in the payload. Empty: "key" if there is
	// one, else "id", else the first column or field. Of objects the first row decides for all.
	Key string
	// Delimiter between CSV fields: comma, semicolon, tab or bar. Zero: the one that a first line like sep=; says, or with
	// which most of the first rows have as many fields as the header.
	Delimiter rune
	// MaxFieldBytes limits one CSV field, or one top-level value in NDJSON. Zero: DefaultMaxFieldBytes.
	MaxFieldBytes int
	// MaxRowBytes limits a row as it stands in the input. Zero: DefaultMaxRowBytes.
	MaxRowBytes int
	// MaxDecompressed limits what compressed input may unpack to, in bytes. Zero: no limit; memory is bounded anyhow.
	MaxDecompressed int64
	// MaxRatio limits how many times its size compressed input may unpack to, once it is more than 8 MiB. Rows that say
	// something stay far below it; a bomb does not. Zero: DefaultMaxRatio.
	MaxRatio int
	// MaxDepth limits how deep a row of NDJSON is nested, its own object included. Zero: DefaultMaxDepth, which is also
	// what services take.
	MaxDepth int
	// Encoding of a text, one of Encodings. Empty: UTF-8, or UTF-16 with a byte order mark.
	Encoding string
	// NoHeader says that CSV begins with its first row. Its columns are called as in Columns, or column1, column2 and
	// so on.
	NoHeader bool
	// Columns are the columns or fields that are kept, as the input calls them; nil: all. With NoHeader they are the names
	// of all columns.
	Columns []string
	// Rename has other names for columns or fields, by the names that the input has.
	Rename map[string]string
	// Types says what the values of fields become, by the names in the payload: number, text, bool or json. Of what is not
	// text already a number or a truth stays one, and an empty text that becomes anything but a text is null.
	Types map[string]string
	// Sort is the field by whose value the items are ordered, whatever their order in the input; Desc has the greatest
	// first. Numbers, also in texts, come before other texts, and what is missing or empty comes last. It needs a Spool.
	Sort string
	Desc bool
	// Source is what errors about many items call the input; empty: nothing.
	Source string
	// Schema is what items must look like; nil: anything. What does not fit ends the stream, with an *InvalidError that
	// has the first MaxPlaces places of all that comes, or, with TakeInvalid, is an Item with Invalid set.
	Schema      *itemschema.Schema
	TakeInvalid bool
	// Export is how a flat export of a run is read that is given back, also as a workbook (XLSX); nil: as anything else,
	// and workbooks are refused.
	Export *Export
	// Spool keeps Parquet files while they are read, for they must be read from their end. Nil: Parquet is refused.
	Spool *Spool
}

func (c Config) withDefaults() Config {
	if c.MaxFieldBytes == 0 {
		c.MaxFieldBytes = DefaultMaxFieldBytes
	}
	if c.MaxRowBytes == 0 {
		c.MaxRowBytes = max(DefaultMaxRowBytes, c.MaxFieldBytes)
	}
	c.MaxRatio = cmp.Or(c.MaxRatio, DefaultMaxRatio)
	c.MaxDepth = cmp.Or(c.MaxDepth, DefaultMaxDepth)
	return c
}

func (c Config) validate() error {
	switch c.Format {
	case Recognise, CSV, NDJSON, Parquet:
	default:
		return fmt.Errorf("intake: Format %q is not known; use csv, ndjson or parquet", c.Format)
	}
	switch c.Delimiter {
	case 0, ',', ';', '\t', '|':
	default:
		return fmt.Errorf("intake: Delimiter %q cannot be used; use a comma, semicolon, tab or bar", c.Delimiter)
	}
	if err := c.validateShape(); err != nil {
		return err
	}
	switch {
	case c.MaxFieldBytes < 1:
		return fmt.Errorf("intake: MaxFieldBytes is %d; it must be 1 or more", c.MaxFieldBytes)
	case c.MaxRowBytes < c.MaxFieldBytes:
		return fmt.Errorf("intake: MaxRowBytes is %d, less than MaxFieldBytes, %d", c.MaxRowBytes, c.MaxFieldBytes)
	case c.MaxDecompressed < 0:
		return fmt.Errorf("intake: MaxDecompressed is %d; it must not be negative", c.MaxDecompressed)
	case c.MaxRatio < 1:
		return fmt.Errorf("intake: MaxRatio is %d; it must be 1 or more", c.MaxRatio)
	case c.MaxDepth < 1:
		return fmt.Errorf("intake: MaxDepth is %d; it must be 1 or more", c.MaxDepth)
	}
	return nil
}

func (c Config) validateShape() error {
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

// plainNumber is what spreadsheets read as a number, and never as a formula.
var plainNumber = regexp.MustCompile(`^[+-]?[0-9]+([.,][0-9]+)?([eE][+-]?[0-9]+)?$`)

// Defuse puts an apostrophe before what a spreadsheet would run as a formula, or what would cut a cell short; and
// before what looks as if that had been done. So [Armed] can take it back.
func Defuse(cell string) string {
	if isFormula(cell) || strings.HasPrefix(cell, "'") && isFormula(strings.TrimLeft(cell, "'")) {
		return "'" + cell
	}
	return cell
}

// Armed takes back what Defuse did.
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

// carriedRows are items that come whole from elsewhere.
type carriedRows struct {
	key string
	get func(*row.Item) error
}

func (c *carriedRows) Next(item *row.Item) error { return c.get(item) }
func (c *carriedRows) KeyName() string           { return c.key }

// Carry reads items that were taken in before, and are whole: get fills one, or returns io.EOF. key names where keys
// come from, if that is known. Of cfg the schema and the order hold.
func Carry(key string, cfg Config, get func(*row.Item) error) *Reader {
	r := &Reader{rows: &carriedRows{key, get}, format: Run, unit: "item"}
	if cfg.Sort != "" {
		r.sorter = newSorter(cfg.Sort, cfg.Desc, *cfg.Spool)
	}
	if cfg.Schema != nil {
		r.check = &schemaCheck{schema: cfg.Schema, lenient: cfg.TakeInvalid, source: cfg.Source}
	}
	return r
}
