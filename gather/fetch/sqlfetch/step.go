package sqlfetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/connections"
)

// step fetches the chunks of steps with the same settings.
type step struct {
	gather.SQL

	client *Client
	source *connections.Source
}

// Fetch implements fetch.Fetcher.
func (s *step) Fetch(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
	if len(req.Items) == 0 {
		return nil, nil
	}
	slots, err := s.query(ctx, req)
	switch {
	case err == nil:
		return slots, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	if slot, ok := errors.AsType[*queryError](err); ok {
		return s.refused(req, verdict{slot.code, false, slot.whole}, slot.message)
	}
	return s.refused(req, judge(err), s.source.Explain(err))
}

func (s *step) query(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
	params, err := s.params(req)
	if err != nil {
		return nil, err
	}
	pool, err := s.client.pool(s.source)
	if err != nil {
		return nil, err
	}
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	limit := s.limit()
	ctx, cancel := context.WithTimeout(ctx, limit+graceTime) // after the database's own timeout
	defer cancel()
	c := conn.Conn()
	if err := connections.Begin(ctx, c, limit); err != nil {
		return nil, err
	}
	began := time.Now()
	slots, err := s.read(ctx, c, req, params)
	req.Worked(time.Since(began))
	if ended := s.end(ctx, c); ended != nil { // do not reuse the connection
		_ = c.Close(ctx)
	}
	return slots, err
}

const (
	// graceTime is added to the database's timeout.
	graceTime = 2 * time.Second
	// endTime bounds the end of a transaction.
	endTime = 5 * time.Second
)

// end removes all that a query leaves behind, even beyond its transaction.
const end = `ROLLBACK; SELECT pg_advisory_unlock_all()`

func (s *step) end(ctx context.Context, c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
	defer cancel()
	_, err := c.PgConn().Exec(ctx, end).ReadAll()
	return err
}

func (s *step) limit() time.Duration {
	limit := time.Duration(s.Timeout)
	if s.source.MaxTime > 0 {
		limit = min(limit, time.Duration(s.source.MaxTime))
	}
	return limit
}

func (s *step) params(req *fetch.Request) ([][]byte, error) {
	params := make([][]byte, 3)
	params[0] = keyArray(req.Items)
	if s.uses("$2") {
		items := make([]itemJSON, len(req.Items))
		for i := range req.Items {
			items[i] = asJSON(&req.Items[i])
		}
		var err error
		if params[1], err = json.Marshal(items); err != nil {
			return nil, &queryError{CodeBadKey, false, "an item or part of the chunk is not JSON that can be sent as $2"}
		}
	}
	if s.uses("$3") {
		run := req.Params
		if run == nil {
			run = map[string]string{}
		}
		params[2], _ = json.Marshal(run) // strings only
	}
	return params, nil
}

func (s *step) uses(parameter string) bool { return bytes.Contains([]byte(s.Query), []byte(parameter)) }

type itemJSON struct {
	Key   string                     `json:"key"`
	Item  json.RawMessage            `json:"item,omitempty"`
	Parts map[string]json.RawMessage `json:"parts,omitempty"`
}

func asJSON(item *fetch.Item) itemJSON {
	out := itemJSON{Key: item.Key, Item: item.Payload}
	for name, part := range item.Parts {
		if part.ContentType != "" {
			continue // binary parts are not passed to queries
		}
		if out.Parts == nil {
			out.Parts = map[string]json.RawMessage{}
		}
		out.Parts[name] = part.Data
	}
	return out
}

// keyArray encodes the keys as a PostgreSQL array of any type.
func keyArray(items []fetch.Item) []byte {
	b := []byte{'{'}
	for i := range items {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, '"')
		for _, c := range []byte(items[i].Key) {
			if c == '"' || c == '\\' {
				b = append(b, '\\')
			}
			b = append(b, c)
		}
		b = append(b, '"')
	}
	return append(b, '}')
}
