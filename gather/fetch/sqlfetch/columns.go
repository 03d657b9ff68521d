package sqlfetch

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
)

// columns are what the query returns, and the statement of ours around it.
type columns struct {
	bytes bool // the value is bytea
	sql   string
}

// types are those of the parameters: the first has the one that the query gives it.
func types() []uint32 { return []uint32{0, pgtype.JSONBOID, pgtype.JSONBOID} }

// describe asks the database once what the query returns.
func (s *step) describe(ctx context.Context, c *pgx.Conn) (*columns, error) {
	s.mu.Lock()
	known := s.columns
	s.mu.Unlock()
	if known != nil {
		return known, nil
	}
	said, err := c.PgConn().Prepare(ctx, "", s.bare(), types())
	if err != nil {
		return nil, err
	}
	found := map[string]uint32{}
	var names []string
	for _, f := range said.Fields {
		if _, twice := found[f.Name]; twice {
			return nil, badQuery("the query returns two columns called %.63q; name them apart with AS", f.Name)
		}
		found[f.Name] = f.DataTypeOID
		names = append(names, f.Name)
	}
	key := s.Key
	if key == "" && len(names) > 0 {
		key = names[0]
	}
	for _, name := range []string{key, s.Value} {
		if _, there := found[name]; !there && (name != "" || name == key) {
			return nil, badQuery("the query returns no column called %.63q; it returns %.300s", name, strings.Join(names, ", "))
		}
	}
	known, err = s.around(key, names, found)
	if err == nil {
		s.mu.Lock()
		s.columns = known
		s.mu.Unlock()
	}
	return known, err
}

func badQuery(format string, args ...any) error {
	return &queryError{CodeBadQuery, true, fmt.Sprintf(format, args...)}
}

// bare is the query without what may follow it.
func (s *step) bare() string { return strings.TrimRight(s.Query, "; \t\r\n") }

// statement runs the query as a table, in which it can only read, and returns for each row its key, how many bytes its
// value has, and the value unless it is too large. The line breaks end a comment of the query's last line.
const statement = "SELECT (tranche_row.%[1]s)::text, octet_length(tranche_value.v), " +
	"CASE WHEN octet_length(tranche_value.v) <= %[2]d THEN tranche_value.v END FROM (\n%[3]s\n) AS tranche_row " +
	"CROSS JOIN LATERAL (SELECT %[4]s AS v OFFSET 0) AS tranche_value"

// around builds that statement. What is json rather than jsonb stays as it is, so that a name that stands twice in it
// is found: jsonb would keep the last of the values.
func (s *step) around(key string, names []string, found map[string]uint32) (*columns, error) {
	quoted := pgx.Identifier{key}.Sanitize()
	made := &columns{bytes: s.Value != "" && found[s.Value] == pgtype.ByteaOID}
	value := "(to_jsonb(tranche_row.*) - " + literal(key) + ")::text"
	if slices.ContainsFunc(names, func(name string) bool {
		return name != key && (found[name] == pgtype.JSONOID || found[name] == pgtype.JSONArrayOID)
	}) {
		value = withoutKey(key, names)
	}
	switch {
	case made.bytes && s.Rows == "many":
		return nil, badQuery("several rows of an item are a list in JSON, in which bytea has no place")
	case made.bytes:
		value = "tranche_row." + pgx.Identifier{s.Value}.Sanitize()
	case s.ContentType != "":
		return nil, badQuery("content_type is about bytes, and column %.63q is not bytea", s.Value)
	case s.Value != "":
		value = "coalesce(to_json(tranche_row." + pgx.Identifier{s.Value}.Sanitize() + "), 'null')::text"
	}
	made.sql = fmt.Sprintf(statement, quoted, s.MaxBytes, s.bare(), value)
	return made, nil
}

// asWritten makes an object of columns without reading the JSON in them.
const asWritten = "(SELECT row_to_json(fields)::text FROM (SELECT %s) AS fields)"

// withoutKey makes it of all columns but the key.
func withoutKey(key string, names []string) string {
	var columns []string
	for _, name := range names {
		if name != key {
			columns = append(columns, "tranche_row."+pgx.Identifier{name}.Sanitize())
		}
	}
	return fmt.Sprintf(asWritten, strings.Join(columns, ", "))
}

// literal quotes a text for SQL; standard_conforming_strings is on.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }
