package sqlfetch

import (
	"context"
	"encoding/json"
	"errors"
	"sync"

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

// Close closes the pools, and waits until the queries that are under way have ended: end their contexts first.
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
