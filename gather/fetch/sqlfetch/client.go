// Package sqlfetch queries other databases for the parts of a chunk: one query with the chunk's keys, whose rows are
// mapped back by a key column. It is what steps of kind sql do.
//
// Guarantees:
//
//   - A query only reads. It runs alone in a READ ONLY transaction that is always rolled back, as a table expression
//     within a statement of ours, by a role that is no superuser unless the operator says so.
//   - It ends: by a statement_timeout in the database, and by the chunk's time. The operator's file bounds time, rows,
//     bytes and connections of a source, whatever a plan says. A row that is too large does not reach this node.
//   - Neither addresses nor passwords of a database stand in an error.
//   - Errors that a smaller chunk may avoid, as of a key that the query cannot take, are the chunk's, which is halved;
//     errors of the query itself are those of all items, at once; those that pass are retried.
//
// Not its job: tries, which the node makes by the codes of the errors; uploads of items from a query.
//
// Concurrency: a Client is for a whole node, and safe for concurrent use.
package sqlfetch

import (
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

// maxSteps is how many steps are kept parsed.
const maxSteps = 256

// Client queries an operator's sources, with a pool of connections for each that is in use.
type Client struct {
	conns *connections.Connections

	mu     sync.Mutex
	steps  map[string]*step // by their settings
	pools  map[string]*pgxpool.Pool
	closed bool
}

var errClosed = errors.New("the node is stopping")

// New returns a client with an operator's connections; nil: none.
func New(conns *connections.Connections) *Client {
	if conns == nil {
		conns = &connections.Connections{}
	}
	return &Client{conns: conns, steps: map[string]*step{}, pools: map[string]*pgxpool.Pool{}}
}

// Close closes the pools, and waits until the queries that are in progress have ended: end their contexts first.
func (c *Client) Close() {
	c.mu.Lock()
	pools := c.pools
	c.pools, c.closed = nil, true
	c.mu.Unlock()
	for _, pool := range pools {
		pool.Close()
	}
}

// Fetcher returns what does a step of these settings, the JSON of gather.SQL. The error is an *wire.SlotError that
// speaks for all items: settings that this version does not know, or a source that this node does not have.
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
		clear(c.steps) // those in use come back
	}
	c.steps[string(config)] = s
	return s, nil
}

// pool returns the pool of a source, and makes it at first.
func (c *Client) pool(source *connections.Source) (*pgxpool.Pool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if pool := c.pools[source.Name]; pool != nil {
		return pool, nil
	}
	// The pool outlives the chunk that wants it first.
	pool, err := source.Open(context.Background())
	if err == nil {
		c.pools[source.Name] = pool
	}
	return pool, err
}

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

// around builds that statement. What is json rather than jsonb stays as it is, wherever in a row it stands, so that a
// name that stands twice in it is found: jsonb would keep the last of the values.
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
