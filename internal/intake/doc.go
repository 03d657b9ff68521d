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
//     maps are arrays of {"key":…,"value":…}, and null is null. The file is kept while it is read, see package spool.
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
// # Its rooms
//
// Here are the formats that are read from front to back, and what is done with rows of any: shape, check, give back.
// Below are parquet, which reads from the end; sorting, which orders rows, also in a file; and spool, where files are
// kept. All stand on row, what a row is and what is said of one that is none, and that on jsonvalue, values as payloads
// have them.
//
// # Concurrency
//
// A Reader belongs to one goroutine. It starts none.
package intake
