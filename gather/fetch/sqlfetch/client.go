// Package sqlfetch implements steps of kind sql: it queries other databases for a chunk's keys and maps the rows to
// items by a key column.
//
//   - A query only reads. It runs as a table expression inside one of our statements, in a READ ONLY transaction that
//     is always rolled back, by a role that is not superuser unless the operator allows it.
//   - It ends, by statement_timeout and the chunk's context. The operator's file bounds a source's time, rows, bytes
//     and connections, regardless of the plan. Rows that are too large are not transferred.
//   - Errors contain no addresses or passwords of a database.
//   - Errors that smaller chunks may avoid, such as a key that the query rejects, fail the chunk, which is halved.
//     Errors of the query itself fail all items immediately. Temporary ones are retried.
//
// The node does retries, by error codes. A Client serves a whole node and is safe for concurrent use.
package sqlfetch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/connections"
)

// maxSteps bounds the cache of parsed steps.
const maxSteps = 256

// Client queries an operator's sources, with a connection pool for each source in use.
type Client struct {
	conns *connections.Connections

	mu     sync.Mutex
	steps  map[string]*step // by settings
	pools  map[string]*pgxpool.Pool
	closed bool
}

var errClosed = errors.New("the node is stopping")

// New returns a client with an operator's connections, or none if nil.
func New(conns *connections.Connections) *Client {
	conns = cmp.Or(conns, &connections.Connections{})
	return &Client{conns: conns, steps: map[string]*step{}, pools: map[string]*pgxpool.Pool{}}
}

// Close closes the pools and waits for running queries: cancel their contexts first.
func (c *Client) Close() {
	c.mu.Lock()
	pools := c.pools
	c.pools, c.closed = nil, true
	c.mu.Unlock()
	for _, pool := range pools {
		pool.Close()
	}
}

// Fetcher returns the fetcher of a step with these settings, the JSON of gather.SQL. The error is a *wire.SlotError
// for all items: settings unknown to this version, or a source that this node lacks.
func (c *Client) Fetcher(config []byte) (fetch.Fetcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.steps[string(config)]; s != nil {
		return s, nil
	}
	s := &step{client: c}
	if err := json.Unmarshal(config, &s.SQL); err != nil {
		return nil, wire.Fail(CodeBadStep, "the step's settings cannot be read: %v", err)
	}
	var err error
	if s.source, err = c.conns.Source(s.Source); err != nil {
		return nil, wire.Fail(CodeNoSource, "%v", err)
	}
	if len(c.steps) >= maxSteps {
		clear(c.steps) // steps in use are parsed again
	}
	c.steps[string(config)] = s
	return s, nil
}

func (c *Client) pool(source *connections.Source) (*pgxpool.Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if pool := c.pools[source.Name]; pool != nil {
		return pool, nil
	}
	// The pool outlives the first chunk's context.
	pool, err := source.Open(context.Background())
	if err == nil {
		c.pools[source.Name] = pool
	}
	return pool, err
}

type columns struct {
	bytes bool // the value is bytea
	sql   string
}

// types returns the parameter types; the query determines the first.
func types() []uint32 { return []uint32{0, pgtype.JSONBOID, pgtype.JSONBOID} }

// describe asks the database for the query's columns. For each chunk: those of a view may change, though not while
// the chunk's transaction is open.
func (s *step) describe(ctx context.Context, c *pgx.Conn) (*columns, error) {
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
	return s.around(key, names, found)
}

func badQuery(format string, args ...any) error {
	return &queryError{CodeBadQuery, true, fmt.Sprintf(format, args...)}
}

// bare returns the query without trailing semicolons and space.
func (s *step) bare() string { return strings.TrimRight(s.Query, "; \t\r\n") }

// statement wraps the query as a table, where it can only read. For each row it returns the key, the value's bytes,
// and the value unless it is too large. The line breaks end a comment in the query's last line.
const statement = "SELECT (tranche_row.%[1]s)::text, octet_length(tranche_value.v), " +
	"CASE WHEN octet_length(tranche_value.v) <= %[2]d THEN tranche_value.v END FROM (\n%[3]s\n) AS tranche_row " +
	"CROSS JOIN LATERAL (SELECT %[4]s AS v OFFSET 0) AS tranche_value"

// around builds the statement. json values, unlike jsonb, are kept as written at any depth, so that repeated names
// are detected: jsonb would keep the last value.
func (s *step) around(key string, names []string, found map[string]uint32) (*columns, error) {
	quoted := pgx.Identifier{key}.Sanitize()
	made := &columns{bytes: s.Value != "" && found[s.Value] == pgtype.ByteaOID}
	value := withoutKey(key, names)
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
	made.sql = fmt.Sprintf(statement, quoted, int(s.MaxBytes), s.bare(), value)
	return made, nil
}

// asWritten makes an object of columns without parsing JSON in them.
const asWritten = "(SELECT row_to_json(fields)::text FROM (SELECT %s) AS fields)"

// withoutKey makes an object of all columns except the key.
func withoutKey(key string, names []string) string {
	var columns []string
	for _, name := range names {
		if name != key {
			columns = append(columns, "tranche_row."+pgx.Identifier{name}.Sanitize())
		}
	}
	return fmt.Sprintf(asWritten, strings.Join(columns, ", "))
}
