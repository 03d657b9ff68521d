package intake

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tranchehq/tranche/gather/itemschema"
	"github.com/tranchehq/tranche/internal/intake/spool"
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
	// Spool keeps Parquet files while they are read, for they have to be read from their end. Nil: Parquet is refused.
	Spool *spool.Spool
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
