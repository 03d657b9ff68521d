package gather

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// Defaults of sql steps.
const (
	DefaultSQLTimeout  = 30 * time.Second
	DefaultSQLMaxRows  = 100_000
	DefaultSQLMaxBytes = 4 << 20
)

// Limits of sql steps.
const (
	MaxSQLTimeout  = time.Hour
	MaxSQLMaxRows  = 10_000_000
	MaxSQLMaxBytes = 256 << 20

	maxQueryBytes = 32 << 10
	maxColumn     = 63 // PostgreSQL's limit for names
)

// Values of SQL.Rows.
const (
	RowsOne  = "one"
	RowsMany = "many"
)

// SQL is a read-only query of another database for a whole chunk:
//
//	SELECT id, opened, branch FROM account WHERE id = ANY($1)
//
// $1 is an array of the chunk's keys, of the type used in the query. $2, jsonb, lists the items with key, item and
// parts. $3, jsonb, holds the run's parameters. An item's part is the row whose key column equals its key, as a JSON
// object without that column.
type SQL struct {
	Source string `json:"source"`        // name of the database in the operator's file
	Query  string `json:"query"`         // one statement: SELECT, WITH, VALUES or TABLE
	Key    string `json:"key,omitempty"` // column with the item's key; "": the first
	// column with the part; "": an object of all except Key
	Value string `json:"value,omitempty"`
	// of a bytea Value; "": application/octet-stream
	ContentType string             `json:"content_type,omitempty"`
	Rows        string             `json:"rows" enum:"one,many"` // one row per item; or many: a list, possibly empty
	Timeout     workqueue.Duration `json:"timeout"`              // of a query; 1ms to 1h; the operator may limit it
	MaxRows     int                `json:"max_rows"`             // of a query
	MaxBytes    workqueue.Bytes    `json:"max_bytes"`            // of one part; 1 to 256 MiB
}

func (q *SQL) source() string { return q.Source }

func (q *SQL) clone() *SQL {
	if q == nil {
		return nil
	}
	return new(*q)
}

func defaultSQL() *SQL {
	return &SQL{Rows: RowsOne, Timeout: workqueue.Duration(DefaultSQLTimeout), MaxRows: DefaultSQLMaxRows,
		MaxBytes: DefaultSQLMaxBytes}
}

func (q *SQL) withDefaults() {
	if q == nil {
		return
	}
	d := defaultSQL()
	q.Rows = cmp.Or(q.Rows, d.Rows)
	q.Timeout = cmp.Or(q.Timeout, d.Timeout)
	q.MaxRows = cmp.Or(q.MaxRows, d.MaxRows)
	q.MaxBytes = cmp.Or(q.MaxBytes, d.MaxBytes)
}

// Patterns for checking queries. The database enforces that they only read.
var (
	queryParameter = regexp.MustCompile(`\$[0-9]+`)
	queryComment   = regexp.MustCompile(`(?s)--[^\n]*(\n|$)|/\*.*?\*/`)
	queryBegin     = regexp.MustCompile(`(?i)^[\s(]*(select|with|values|table)\b`)
	sourceName     = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	mediaType      = regexp.MustCompile(`^[a-z0-9][a-z0-9.+-]{0,62}/[a-z0-9][a-z0-9.+-]{0,126}$`)
)

// ValidateAlone validates a query outside plans: there are keys and parameters but no items, and the result must be
// JSON. The error is a *FieldError whose field starts with prefix.
func (q *SQL) ValidateAlone(prefix string) error {
	switch {
	case slices.Contains(queryParameter.FindAllString(queryComment.ReplaceAllString(q.Query, " "), -1), "$2"):
		return fieldError(prefix+"query", "there is no $2 here; $1 has the keys, $3 the parameters")
	case q.ContentType != "":
		return fieldError(prefix+"content_type", "bytes have no place in JSON; leave it out")
	}
	return q.validate(&Step{}, prefix)
}

func (q *SQL) validate(s *Step, prefix string) error {
	if !sourceName.MatchString(q.Source) {
		return fieldError(prefix+"source", "%.40q: want the name of a source of the operator's: A-Z a-z 0-9 _ -", q.Source)
	}
	if err := q.validateQuery(s, prefix+"query"); err != nil {
		return err
	}
	if q.Rows != RowsOne && q.Rows != RowsMany {
		return fieldError(prefix+"rows", "%.20q is not one of %s, %s", q.Rows, RowsOne, RowsMany)
	}
	for _, c := range []struct{ name, column string }{{"key", q.Key}, {"value", q.Value}} {
		if len(c.column) > maxColumn || strings.Contains(c.column, "\x00") {
			return fieldError(prefix+c.name, "%.20q… is longer than the name of a column, %d bytes", c.column, maxColumn)
		}
	}
	switch {
	case q.ContentType != "" && !mediaType.MatchString(q.ContentType):
		return fieldError(prefix+"content_type", "%.60q: want a content type like application/pdf", q.ContentType)
	case q.ContentType != "" && q.Value == "":
		return fieldError(prefix+"content_type", "it is about the bytes of a column; name that as value")
	case q.ContentType != "" && q.Rows == RowsMany:
		return fieldError(prefix+"content_type", "several rows of an item are a list in JSON; leave it out, or use rows: one")
	}
	return q.validateLimits(prefix)
}

func (q *SQL) validateLimits(prefix string) error {
	if d := time.Duration(q.Timeout); d < minTimeout || d > MaxSQLTimeout {
		return fieldError(prefix+"timeout", "%v is not within %v to %v", d, minTimeout, MaxSQLTimeout)
	}
	if q.MaxRows < 1 || q.MaxRows > MaxSQLMaxRows {
		return fieldError(prefix+"max_rows", "%d is not within 1 to %d", q.MaxRows, MaxSQLMaxRows)
	}
	if q.MaxBytes < 1 || q.MaxBytes > MaxSQLMaxBytes {
		return fieldError(prefix+"max_bytes", "%d is not within 1 to %d", int(q.MaxBytes), MaxSQLMaxBytes)
	}
	return nil
}

func (q *SQL) validateQuery(s *Step, field string) error {
	bare := queryComment.ReplaceAllString(q.Query, " ")
	parameters := queryParameter.FindAllString(bare, -1)
	switch {
	case strings.TrimSpace(q.Query) == "":
		return fieldError(field, "a query is needed, like SELECT id, name FROM account WHERE id = ANY($1)")
	case len(q.Query) > maxQueryBytes:
		return fieldError(field, "it has %d bytes; at most %d are allowed", len(q.Query), maxQueryBytes)
	case strings.Contains(q.Query, "\x00"):
		return fieldError(field, "a NUL is not part of SQL")
	case !queryBegin.MatchString(bare):
		return fieldError(field, "it only reads, so it begins with SELECT, WITH, VALUES or TABLE")
	case !slices.Contains(parameters, "$1"):
		return fieldError(field, "$1 is missing; it has the keys of the requested items, as in WHERE id = ANY($1)")
	}
	for _, p := range parameters {
		if !slices.Contains([]string{"$1", "$2", "$3"}, p) {
			return fieldError(field, "there is no %s; $1 has the keys, $2 the items, $3 the run's parameters", p)
		}
	}
	if slices.Contains(parameters, "$2") && !s.SeesItem() && len(s.InputParts()) == 0 {
		return fieldError(field, "$2 has the items, and the step has no inputs; name some")
	}
	return nil
}
