package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
)

// A run is given up after runBase and runPerItem for each item, which is a twentieth of the rate to expect.
const (
	runBase    = time.Minute
	runPerItem = 200 * time.Microsecond
)

// started is the API's answer to a start.
type started struct {
	Run   string `json:"run"`
	Items int64  `json:"items"`
}

// start streams the items to the API as CSV and returns when the run is under way.
func (b *bed) start(ctx context.Context, endpoint string, input items) (run started, err error) {
	query := url.Values{"endpoint": {endpoint}, "key": {"id"}, "format": {"csv"}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.api+"/api/v1/runs?"+query.Encode(), input.csv())
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	req.Header.Set("Content-Type", "text/csv")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	if resp.StatusCode != http.StatusCreated {
		return run, fmt.Errorf("start a run: the API answers %s: %s", resp.Status, body)
	}
	if err := json.Unmarshal(body, &run); err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	if run.Items != int64(input.n) {
		return run, fmt.Errorf("start a run: the API took %d items of %d", run.Items, input.n)
	}
	return run, nil
}

// complete runs the items to their end and returns the run and when the completion event came.
func (b *bed) complete(ctx context.Context, endpoint string, input items) (done finish, err error) {
	ctx, cancel := context.WithTimeout(ctx, runBase+time.Duration(input.n)*runPerItem)
	defer cancel()
	run, err := b.start(ctx, endpoint, input)
	if err != nil {
		return done, err
	}
	loaded := time.Now()
	for {
		select {
		case done := <-b.finished:
			if done.run == run.Run {
				done.loaded = loaded
				return done, nil
			}
		case <-b.node.exited:
			return done, b.node.ended()
		case <-b.service.exited:
			return done, b.service.ended()
		case <-ctx.Done():
			return done, fmt.Errorf("wait for run %s of %d items: %w; the node said:\n%s",
				run.Run, input.n, ctx.Err(), b.node.said.String())
		}
	}
}

// runProof counts the items whose stored payload is what was sent, as far as SQL can tell, and whose result equals it.
const runProof = `SELECT count(*) FROM batchrun r
JOIN work_queue q ON q.run_id = r.id
JOIN work_part p ON p.run_id = q.run_id AND p.ordinal = q.ordinal AND p.step = 0 AND p.generation = r.generation
WHERE r.id = $1 AND r.state = 'completed' AND r.done = r.items AND r.failed = 0
  AND convert_from(p.result, 'UTF8') = q.payload AND q.payload::jsonb ->> 'id' = q.item_key`

// check asks the database, not the node, whether the run is right.
func (b *bed) check(ctx context.Context, run string, n int) (err error) {
	conn, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return fmt.Errorf("check run %s: %w", run, err)
	}
	defer func() {
		if closeErr := conn.Close(ctx); err == nil {
			err = closeErr
		}
	}()
	var good int
	if err := conn.QueryRow(ctx, runProof, run).Scan(&good); err != nil {
		return fmt.Errorf("check run %s: %w", run, err)
	}
	if good != n {
		return fmt.Errorf("check run %s: %d of %d results are right", run, good, n)
	}
	return nil
}
