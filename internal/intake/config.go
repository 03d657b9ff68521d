package intake

import (
	"cmp"
	"fmt"
)

// Format is the way rows are written.
type Format string

// The formats that can be read.
const (
	Recognise Format = ""       // decide by the first character: { is NDJSON, anything else is CSV
	CSV       Format = "csv"    // RFC 4180 with a header line
	NDJSON    Format = "ndjson" // one JSON object a line
	Parquet   Format = "parquet"

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
	// Key names the column or field that holds an item's key. Empty: "key" if there is one, else "id", else, in CSV, the
	// first column. In NDJSON the first row decides for all.
	Key string
	// Delimiter between CSV fields: comma, semicolon, tab or bar. Zero: comma if the header line has one, else the one
	// of the others that stands there most often.
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
	// Spool keeps Parquet files while they are read, for they have to be read from their end. Nil: Parquet is refused.
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
